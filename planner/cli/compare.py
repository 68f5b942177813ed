"""``compare``: measured against predicted, phase by phase."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hwmodels.errors import Fault, InputError
from planner.cli import inputs


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("compare", help="Measured against predicted, phase by phase.")(compare)


def compare(
    plan: Annotated[Path, typer.Argument(metavar="PLAN.json", help="The plan that ran.")],
    measured: Annotated[Path, typer.Argument(metavar="MEASURED.json", help="What the executor saw.")],
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE.json", help="Write the comparison.")] = None,
    json: inputs.JsonFlag = False,
) -> None:
    """Compare a plan's predicted step with the measured one."""
    from planner import compare as comparing
    from planner.cli.output import jsonable, note, print_json, show_table
    from planner.files import write_json
    from planner.plan_io import load_plan
    from planner.results_io import load_measurement
    from reports.tables import comparison

    loaded, seen = load_plan(plan), load_measurement(measured)
    if loaded.digest() != seen.plan_hash:
        raise InputError(
            Fault(
                f"measures the plan {seen.plan_name!r}, not {loaded.name!r}",
                str(measured),
                "its plan_hash is another one",
                "the plan.json that was run",
            )
        )
    found = comparing.compare(loaded, seen)
    if out is not None:
        write_json(out, jsonable({"schema": 1, "comparison": found}))
        note(f"comparison written to {out}")
    if json:
        print_json({"schema": 1, "comparison": found})
    else:
        show_table(comparison(found))
