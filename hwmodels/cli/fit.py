"""``fit``: every law from measured CSV files, into the catalog; or a check that the catalog is what they give."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hwmodels.errors import Fault, InputError

if TYPE_CHECKING:
    from hwmodels.fit.checking import Difference

BESIDE = Path("..") / "shared" / "data"
"""Where a checkout has measured files beside it, seen from its folder."""


HELP = "Fit the laws on measured files and write the catalog. Needs SciPy: pip install 'meshwright[fit]'."


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("fit", help=HELP)(fit)


def fit(
    data: Annotated[
        Path | None,
        typer.Option("--data", metavar="DIR", help="Folder of the *_measured.csv files; ../shared/data if not given."),
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="KIND", help="Only this law (repeatable): gemm, attention ...")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="CATALOG", help="Catalog folder to write; this package's if not given."),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; exit 1 where the catalog is not what the files give.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> int:
    """Fit each law; the same files give the same catalog."""
    from hwmodels.cli.output import note, print_json, say
    from hwmodels.fit import checking, recording

    folder = data_folder(data)
    catalog = out or recording.catalog_folder()
    kinds = list(dict.fromkeys(only or recording.KINDS))
    if check:
        found = checking.differences(folder, catalog, kinds, progress=note)
        if json:
            print_json({"schema": 1, "checked": kinds, "differences": found})
        else:
            _show(found, kinds)
        return 1 if found else 0
    written = recording.fit(folder, catalog, kinds, progress=note)
    if json:
        print_json({"schema": 1, "written": written})
    else:
        for name, count in written.items():
            say(f"{catalog / name}: {count} coefficients")
    return 0


def data_folder(given: Path | None) -> Path:
    """The folder of measured files: the one given, else the one beside the checkout.

    Raises
    ------
    InputError
        Where there is none.
    """
    folder = given or BESIDE
    if folder.is_dir():
        return folder
    if given is None:
        raise InputError(Fault("no folder of measured files is named", "--data", f"there is no {BESIDE}", "--data DIR"))
    raise InputError(Fault("no such folder", f"--data {given}", fix="a folder with the *_measured.csv files"))


def _show(found: list[Difference], kinds: list[str]) -> None:
    from hwmodels.cli.output import print_table, say

    if not found:
        say(f"the laws of {', '.join(kinds)} are what the measured files give")
        return
    rows = [(d.law, d.section, d.block, d.what, d.kept, d.fitted) for d in found]
    print_table("", ("law", "section", "block", "what", "in the catalog", "fitted"), rows, left=6)
