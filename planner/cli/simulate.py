"""``simulate``: the timeline of one plan."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from planner.cli import inputs
from planner.cli import inputs_layout as lay


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("simulate", help="Play one plan through event by event, with a trace.")(simulate)


def simulate(
    plan: Annotated[Path, typer.Argument(metavar="PLAN.json", help="The plan (search and predict write them).")],
    cluster: inputs.ClusterName = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="TRACE.json", help="The trace; opens in ui.perfetto.dev.")
    ] = None,
    json: inputs.JsonFlag = False,
) -> None:
    """Print the step and write its timeline as a Chrome trace."""
    from planner.cli.output import note, print_json
    from planner.cli.reporting import write_traces
    from planner.cli.show import show_inputs, show_step
    from planner.predict import predict

    case = lay.case_of_plan(plan, cluster)
    step = predict(case.model, case.cluster, case.workload, case.layout, timeline=True)
    path = out if out is not None else Path("out") / "simulate" / f"{plan.stem}.trace.json"
    write_traces(path, case.layout.label(), step.timeline)
    if json:
        print_json({"schema": 1, "step": step, "trace": str(path)})
    else:
        show_inputs(case)
        show_step(step)
    note(f"trace written to {path}; open it in ui.perfetto.dev")
