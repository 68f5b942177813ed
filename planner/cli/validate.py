"""``validate``: published measurements against predictions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from planner.cli import inputs

if TYPE_CHECKING:
    pass


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("validate", help="Score predictions against measurements.")(validate)


def validate(
    data: Annotated[
        Path | None,
        typer.Option(
            "--data", metavar="CSV|DIR", help="Measurements; the published facts kept with the tests if not given."
        ),
    ] = None,
    group: Annotated[list[str] | None, typer.Option("--group", help="Only this group of rows (repeatable).")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE.csv", help="One row a case: prediction and interval.")
    ] = None,
    json: inputs.JsonFlag = False,
) -> int:
    """Predict every row that says enough, and print the error of each group."""
    from planner import compare as comparing
    from planner.cli.output import note, print_json
    from planner.cli.progress import Progress

    with Progress() as progress:
        progress.stage("predict the measured runs")
        result = comparing.validate(data, groups=tuple(group or ()), progress=progress.update)
    if out is not None:
        result.write_csv(out)
        note(f"predictions written to {out}")
    if json:
        print_json(result.to_json())
    else:
        show(result.to_json())
    return 1 if result.regressions else 0
