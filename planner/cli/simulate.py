"""``simulate``: one plan, event by event."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hwmodels.errors import Fault, InputError
from planner.cli import inputs
from planner.cli import inputs_layout as lay


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("simulate", help="Play one plan through event by event, with a trace.")(simulate)


def simulate(
    plan: Annotated[Path, typer.Argument(metavar="PLAN.json", help="The plan (search and predict write them).")],
    cluster: inputs.ClusterName = None,
    contention: Annotated[bool, typer.Option("--contention", help="Transfers on the same link share it.")] = False,
    jitter: Annotated[float, typer.Option("--jitter", help="Relative spread of every duration, such as 0.05.")] = 0.0,
    straggler: Annotated[
        list[str] | None, typer.Option("--straggler", metavar="RANK=FACTOR", help="A slow pipeline rank (repeatable).")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Of the jitter.")] = 0,
    out: Annotated[Path | None, typer.Option("--out", metavar="TRACE.json", help="The trace.")] = None,
    json: inputs.JsonFlag = False,
) -> None:
    """Simulate one step, print it beside the prediction, and write its timeline."""
    from planner.cli.output import note, print_json
    from planner.cli.reporting import write_traces
    from planner.cli.show import show_inputs, show_replay, show_step
    from planner.predict import predict, summary
    from planner.replay import replay

    slow = stragglers(straggler or [])
    case = lay.case_of_plan(plan, cluster)
    step = predict(case.model, case.cluster, case.workload, case.layout, arrangement=case.arrangement)
    played = replay(
        case.model, case.cluster, case.workload, case.layout,
        contention=contention, jitter=jitter, stragglers=slow, seed=seed, arrangement=case.arrangement,
    )  # fmt: skip
    path = out if out is not None else Path("out") / "simulate" / f"{plan.stem}.trace.json"
    write_traces(path, case.layout.label(), played.timeline)
    if json:
        found = {"step_s": played.step_s, "idle_fraction": played.idle_fraction}
        print_json({"schema": 1, "predicted": summary(step), "simulated": found, "trace": str(path)})
    else:
        show_inputs(case)
        show_step(step)
        show_replay(step, played)
    note(f"trace written to {path}; open it in ui.perfetto.dev")


def stragglers(words: list[str]) -> dict[int, float]:
    """``["1=1.5"]`` -> ``{1: 1.5}``; all faults at once."""
    found, faults = {}, []
    for word in words:
        rank, _, factor = word.partition("=")
        try:
            found[int(rank)] = float(factor)
        except ValueError:
            faults.append(Fault(f"{word!r} is no rank and factor", "--straggler", "", "--straggler 1=1.5"))
    if faults:
        raise InputError(faults)
    return found
