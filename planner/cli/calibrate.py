"""``calibrate``: microbenchmarks of this machine, fitted, as a cluster YAML."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from planner.cli import inputs

if TYPE_CHECKING:
    from planner.cli.progress import Progress


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("calibrate", help="Measure this machine and write a cluster YAML.")(calibrate)


def calibrate(
    ranks: Annotated[int, typer.Option("--ranks", min=1, help="Processes to calibrate for.")] = 2,
    quick: Annotated[bool, typer.Option("--quick/--full", help="Fewer sizes and repeats.")] = True,
    out: Annotated[Path | None, typer.Option("--out", metavar="CLUSTER.yaml", help="Where the cluster goes.")] = None,
    json: inputs.JsonFlag = False,
) -> None:
    """Run the microbenchmarks, fit the laws, write the cluster with its residuals."""
    from planner.cli.output import note, print_json
    from planner.cli.progress import Progress

    path = out if out is not None else Path("out") / "calibrated.yaml"
    with Progress() as progress:
        found = measure(path, ranks, quick, progress)
    if json:
        print_json({"schema": 1, "cluster": str(path), "calibration": found})
    note(f"cluster written to {path}")


def measure(path: Path, ranks: int, quick: bool, progress: Progress) -> Any:
    """Calibrate onto `path` and return what was fitted."""
    from planner.cli.run import executor_module

    progress.stage(f"calibrate this machine with {ranks} ranks")
    return executor_module("calibrate").calibrate(path, ranks=ranks, quick=quick, on_progress=progress.log)
