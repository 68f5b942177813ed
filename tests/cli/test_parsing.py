"""Plainly right words are taken as Typer takes them, without its validators; all others go to Typer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import pytest
import typer

from hwmodels.cli.parsing import UNSURE, plain, take_plain_values

SEEN: dict[str, Any] = {}


def command(
    name: Annotated[str, typer.Argument()],
    text: Annotated[str | None, typer.Option()] = None,
    top: Annotated[int | None, typer.Option(min=1, max=9)] = None,
    share: Annotated[float, typer.Option(max=2.0)] = 0.5,
    place: Annotated[int, typer.Option(min=0)] = 0,
    folder: Annotated[Path, typer.Option()] = Path("out"),
    out: Annotated[Path | None, typer.Option()] = None,
    there: Annotated[Path | None, typer.Option(exists=True)] = None,
    save: Annotated[list[int] | None, typer.Option()] = None,
    words: Annotated[str, typer.Option(parser=str.upper)] = "",
    json: Annotated[bool, typer.Option("--json")] = False,
) -> None:
    """A command with every kind of option."""
    SEEN.update(locals())


def built() -> Any:
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command()(command)
    return typer.main.get_command(app)


def run(words: list[str], quick: bool) -> dict[str, Any] | str:
    made = built()
    if quick:
        take_plain_values(made)
    SEEN.clear()
    try:
        with made.make_context("x", list(words)) as context:
            made.invoke(context)
    except typer.TyperException as error:
        return f"{type(error).__name__}: {error.format_message()}"
    return dict(SEEN)


@pytest.mark.parametrize(
    "words",
    [
        ["a"], ["a", "--text", "b", "--top", "3"], ["a", "--top", "0"], ["a", "--top", "10"], ["a", "--top", "x"],
        ["a", "--top", " 7"], ["a", "--top", "1_0"], ["a", "--top", "٣"], ["a", "--share", "0.25"], ["a", "--out", "o"],
        ["a", "--out", ""], ["a", "--there", "/nowhere"], ["a", "--save", "1", "--save", "2"], ["a", "--save", "x"],
        ["a", "--share", "3"], ["a", "--share", "1e0"], ["a", "--share", "nan"], ["a", "--place", "2"],
        ["a", "--folder", "x"],
        ["a", "--words", "ab"], ["a", "--json"], [], ["a", "--nope"], ["a", "--top"], ["a", "b"], ["--text", "", ""],
    ],
)  # fmt: skip
def test_the_quick_way_says_what_typer_says(words: list[str]) -> None:
    assert run(words, quick=True) == run(words, quick=False)


def test_values_in_doubt_are_left() -> None:
    options = {parameter.name: parameter for parameter in built().params}
    assert plain(options["top"], "3") == 3
    assert plain(options["text"], None) is None
    assert plain(options["save"], None) == ()
    assert plain(options["out"], "o") == Path("o") and plain(options["folder"], Path("out")) == Path("out")
    assert (plain(options["share"], "0.25"), plain(options["share"], 0.5), plain(options["place"], 0)) == (0.25, 0.5, 0)
    for name, value in (
        ("top", "0"), ("top", "x"), ("share", "3"), ("share", "nan"), ("there", "o"), ("save", ["1"]), ("words", "a"),
    ):  # fmt: skip
        assert plain(options[name], value) is UNSURE, name
    assert plain(options["name"], None) is UNSURE  # required: Typer says so
