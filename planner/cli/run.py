"""``run``: hand plans to the executor."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated

import typer

from planner.cli import inputs

if TYPE_CHECKING:
    from planner.cli.progress import Progress
    from planner.plan import Plan
    from planner.results import Measurement

Repeats = Annotated[int, typer.Option("--repeats", min=2, help="Timed steps; more follow until the median is stable.")]
Warmup = Annotated[int, typer.Option("--warmup", min=1, help="Steps before the first timed one.")]
Timeout = Annotated[
    str, typer.Option("--timeout", metavar="DURATION", help="Limit of each run, such as 300s or 10min.")
]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("run", help="Run plans for real through PyTorch and measure them.")(run)


def run(
    plans: Annotated[
        list[Path], typer.Argument(metavar="PLAN.json...", help="Plans; several are run one after another.")
    ],
    repeats: Repeats = 10,
    warmup: Warmup = 2,
    timeout: Timeout = "600s",
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Folder for measured.json and logs.")] = None,
    json: inputs.JsonFlag = False,
) -> None:
    """Check each plan against a single process, time its steps, write measured.json."""
    from planner.cli.output import print_json, print_table
    from planner.cli.progress import Progress
    from planner.plan_io import load_plan

    limit_s = inputs.duration(timeout, "--timeout")
    loaded = [load_plan(path) for path in plans]
    folder = inputs.out_folder(out, "run")
    with Progress() as progress:
        measured = execute(loaded, folder, repeats, warmup, limit_s, progress)
    if json:
        print_json({"schema": 1, "measurements": measured})
        return
    rows = [
        (
            m.plan_name,
            f"{1e3 * m.median_step_s:,.2f}",
            f"{100 * m.cv:.1f}",
            str(len(m.step_s)),
            f"{max(m.peak_bytes, default=0) / 2**20:,.0f}",
            "yes" if m.stable else "no",
            "passed" if m.correctness.get("passed") else "FAILED",
        )
        for m in measured
    ]
    print_table("measured", ("plan", "step ms", "cv %", "steps", "peak MiB", "stable", "against one process"), rows)


def execute(
    plans: list[Plan], folder: Path, repeats: int, warmup: int, timeout_s: float, progress: Progress
) -> list[Measurement]:
    """Run plans and report on `progress`; measured.json of each goes under `folder`.

    Raises
    ------
    RunError
        If torch is missing, a rank dies, or a plan disagrees with the single process.
    """
    launch = executor_module("launch")
    progress.stage(f"run {len(plans)} plan{'s' if len(plans) > 1 else ''} for real")
    measured: list[Measurement] = launch.run_plans(
        plans, folder, repeats=repeats, warmup=warmup, timeout_s=timeout_s, on_progress=progress.log
    )
    return measured


def executor_module(name: str) -> ModuleType:
    """A module of the executor; `RunError` saying what to install where torch is missing."""
    import importlib
    import importlib.util

    from hwmodels.errors import RunError

    if importlib.util.find_spec("torch") is None:
        raise RunError(
            "running for real needs PyTorch, which is not installed. Try: pip install 'meshwright[executor]'"
        )
    return importlib.import_module(f"executor.{name}")
