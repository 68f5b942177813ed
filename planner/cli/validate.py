"""``validate``: published measurements against predictions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hwmodels.errors import Fault, InputError
from planner.cli import inputs

if TYPE_CHECKING:
    from planner.compare import ValidationResult

FACTS = Path(__file__).resolve().parents[2] / "tests" / "validation"
PUBLISHED = "published.csv"
TABLE = "training_measurements.csv"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("validate", help="Score predictions against measurements.")(validate)


def validate(
    data: Annotated[
        Path | None,
        typer.Argument(
            metavar="[CSV|DIR]", help="Measurements; a checkout's own facts (tests/validation) if not given."
        ),
    ] = None,
    group: Annotated[list[str] | None, typer.Option("--group", help="Only this group of rows (repeatable).")] = None,
    limits: Annotated[
        Path | None, typer.Option("--limits", metavar="FILE.json", help="Exit 1 where an error is above its limit.")
    ] = None,
    tighten: Annotated[bool, typer.Option("--tighten", help="Lower the limits to the errors found.")] = False,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE.csv", help="One row a case: prediction and interval.")
    ] = None,
    json: inputs.JsonFlag = False,
) -> int:
    """Predict every row that says enough and print the error of each group; 1 on a regression."""
    from planner import compare as comparing
    from planner.cli.output import note, print_json, say_error
    from planner.cli.progress import Progress
    from planner.compare.regression import check
    from planner.compare.regression import tighten as tighten_limits

    if limits is not None and not tighten and not limits.is_file():
        raise InputError(Fault("no such file", f"--limits {limits}", "", "an existing file, or --tighten to make one"))
    if tighten and limits is None:
        raise InputError(Fault("--tighten without --limits", "validate", "it writes that file", "--limits FILE.json"))
    path = table_of(data)
    with Progress() as progress:
        progress.stage(f"predict the runs of {path}")
        result = comparing.validate(path, groups=group or None, progress=progress.update)
    if out is not None:
        result.write_csv(out)
        note(f"predictions written to {out}")
    if json:
        print_json(result.to_json())
    else:
        show(result)
    regressions = check(result, limits) if limits is not None and limits.exists() else []
    if tighten and limits is not None and not regressions:
        note(f"limits written to {tighten_limits(result, limits)}")
    if regressions:
        say_error("\n".join(regressions))
    return 1 if regressions else 0


def table_of(data: Path | None) -> Path:
    """The CSV to read: a file, the table in a folder, or the facts of this checkout.

    Raises
    ------
    InputError
        Where nothing was given and no checkout is around (an installed wheel carries no measurements).
    """
    if data is None:
        if not (FACTS / PUBLISHED).is_file():
            fix = "a CSV file, or a folder with " + TABLE
            raise InputError(Fault("no measurements given", "validate", "this is no checkout with its own facts", fix))
        return FACTS / PUBLISHED
    return data / TABLE if data.is_dir() else data


def show(result: ValidationResult) -> None:
    """One row a group and metric, then what was skipped and how out-of-memory was called."""
    from planner.cli.output import say, show_table
    from reports.tables import validation

    show_table(validation(result.to_json()))
    say()
    predicted = len(result.results) - len(result.skipped)
    say(f"{len(result.results)} rows, {predicted} predicted, {len(result.missed)} missed")
    reasons: dict[str, int] = {}
    for skipped in result.skipped:
        reasons[skipped.reason] = reasons.get(skipped.reason, 0) + 1
    for reason, count in sorted(reasons.items(), key=lambda item: -item[1])[:12]:
        say(f"  skipped {count}: {reason}")
    if result.oom.get("true_oom"):
        say("out of memory: " + ", ".join(f"{name} {count}" for name, count in result.oom.items()))
