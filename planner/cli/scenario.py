"""``scenario``: one question from its YAML to its outputs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from planner.cli import inputs

if TYPE_CHECKING:
    from planner.cli.problem import Problem
    from planner.cli.progress import Progress
    from planner.compare import RankingCheck
    from planner.plan import Plan
    from planner.results import Measurement, Step
    from planner.scenario import Scenario
    from planner.search import Row, SearchResult


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("scenario", help="Run a scenario YAML end to end.")(scenario)


@dataclass(frozen=True, slots=True)
class Ran:
    """Plans that ran: what was predicted, what was measured, and how the two agree."""

    plans: list[Plan]
    steps: list[Step]
    measured: list[Measurement]
    check: RankingCheck


def scenario(
    name: Annotated[
        str, typer.Argument(metavar="SCENARIO", help="A scenario YAML, or a shipped one (list scenarios).")
    ],
    calibrate: Annotated[
        bool | None,
        typer.Option("--calibrate/--no-calibrate", help="Measure this machine first; if needed by default."),
    ] = None,
    execute: Annotated[
        bool | None, typer.Option("--run/--no-run", help="Run plans for real; what the scenario says by default.")
    ] = None,
    timeout: Annotated[str, typer.Option("--timeout", metavar="DURATION", help="Limit of the real runs.")] = "900s",
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Folder for everything that is made.")
    ] = None,
    json: inputs.JsonFlag = False,
) -> None:
    """Search; and where plans are to run: calibrate, run, compare. Always report."""
    from planner.cli.output import print_json
    from planner.cli.problem import problem_of_scenario
    from planner.cli.progress import Progress
    from planner.cli.search import find, show, write
    from planner.scenario import load_scenario

    asked = load_scenario(name)
    limit_s = inputs.duration(timeout, "--timeout")
    folder = out if out is not None else Path(asked.outputs)
    runs = asked.run.execute if execute is None else execute
    if runs if calibrate is None else calibrate:
        asked = calibrated(asked, folder, needed=bool(calibrate))
    problem = problem_of_scenario(asked)
    result = find(problem)
    if not json:
        show(result, problem)
    files = write(result, problem, folder, [])
    ran = None
    if runs:
        with Progress() as progress:
            ran = run_for_real(asked, problem, result, folder, limit_s, progress)
        if not json:
            show_ran(ran)
    files += reported(problem, result, ran, folder)
    if json:
        print_json(to_json(result, ran, files))
    else:
        name_files(files)


def calibrated(asked: Scenario, folder: Path, needed: bool) -> Scenario:
    """The scenario on this machine as measured; as it is where that was done before and is not asked for.

    A cluster of CPUs without measured collectives is one that nobody has calibrated.
    """
    from planner.cli.calibrate import measure
    from planner.cli.progress import Progress

    if not needed and (asked.cluster.device.kind != "cpu" or asked.cluster.fabric.tables):
        return asked
    path = folder / "cluster.yaml"
    with Progress() as progress:
        found = measure(asked.cluster, path, quick=True, progress=progress)
    return replace(asked, cluster=found, cluster_name=str(path))


def chosen(asked: Scenario, problem: Problem, result: SearchResult) -> list[Row]:
    """The rows to run: the best, then the best of every other way to split the ranks, then by rank.

    Plans that differ in more than the micro-batch say more about the prediction.
    """
    from hwmodels.errors import InfeasibleError
    from planner.layout import divisors
    from planner.search import search

    world, rows = problem.cluster.n_ranks, list(result.rows)
    known = {(row.layout.tp, row.layout.pp) for row in rows}
    space = problem.space
    for tp in divisors(world):
        for pp in divisors(world // tp):
            if (tp, pp) in known or (space.tp and tp not in space.tp) or (space.pp and pp not in space.pp):
                continue
            try:
                found = search(
                    problem.model, problem.cluster, problem.workload, replace(space, tp=(tp,), pp=(pp,)),
                    objective=problem.objective, top=1, nearest=False, **problem.limits,
                )  # fmt: skip
            except InfeasibleError:
                continue
            rows += found.rows
    rows.sort(key=lambda row: row.step.step_s.mid)
    first: dict[tuple[int, int, int], Row] = {}
    for row in rows:
        first.setdefault((row.layout.tp, row.layout.pp, row.layout.cp), row)
    picked = list(first.values())[: asked.run.plans]
    picked += [row for row in rows if row not in picked][: asked.run.plans - len(picked)]
    return sorted(picked, key=lambda row: row.step.step_s.mid)


def run_for_real(
    asked: Scenario, problem: Problem, result: SearchResult, folder: Path, timeout_s: float, progress: Progress
) -> Ran:
    """Run the chosen plans interleaved, and compare each with its prediction."""
    from planner.cli.plans import plan_of
    from planner.cli.run import execute
    from planner.compare import compare_many
    from planner.predict import predict

    plans, steps = [], []
    for row in chosen(asked, problem, result):
        case = problem.case_of_row(row)
        step = predict(
            case.model, case.cluster, case.workload, case.layout, timeline=True, arrangement=case.arrangement
        )
        steps.append(step)
        plans.append(plan_of(case, step, row.layout.label().replace(" ", "-")))
    measured = execute(plans, folder / "runs", asked.run.repeats, asked.run.warmup, timeout_s, progress)
    return Ran(plans, steps, measured, compare_many(list(zip(plans, measured, strict=True))))


def show_ran(ran: Ran) -> None:
    """Each plan measured against predicted, and whether the order is the measured one."""
    from planner.cli.output import say, show_table
    from reports.tables import comparison

    for found in ran.check.comparisons:
        say()
        show_table(comparison(found))
    say()
    check = ran.check
    if not check.pairs:
        say("too few comparable runs to judge the order; run again on a quieter machine")
        return
    say("predicted order: " + " < ".join(check.predicted_order))
    say("measured order:  " + " < ".join(check.measured_order))
    if check.agrees is None:
        say("no two plans differ by more than the noise")
    else:
        say(
            "the orders agree wherever two plans differ by more than the noise"
            if check.agrees
            else "the orders DISAGREE"
        )


def to_json(result: SearchResult, ran: Ran | None, files: list[Path]) -> dict[str, Any]:
    """The object of ``scenario --json``: that of the search, and the comparisons."""
    found = ran.check.comparisons if ran is not None else ()
    keys = ("plan", "predicted_s", "measured_s", "error_pct", "within_interval", "comparable", "phases", "notes")
    comparisons = [{key: getattr(one, key) for key in keys} for one in found]
    agrees = ran.check.agrees if ran is not None else None
    return {**result.to_dict(), "comparisons": comparisons, "order_agrees": agrees, "files": [str(f) for f in files]}


def reported(problem: Problem, result: SearchResult, ran: Ran | None, folder: Path) -> list[Path]:
    """The HTML page and the trace: of the plans that ran, or of the best layout."""
    from planner.cli.reporting import Page, write_page
    from planner.predict import predict

    best = result.rows[0]
    label = best.layout.label()
    page = Page(
        problem.name, dict(problem.echo()), rows_of(result), dropped=result.dropped, notes=result.notes, chosen=label
    )
    if ran is None:
        case = problem.case_of_row(best)
        step = predict(
            case.model, case.cluster, case.workload, case.layout, timeline=True, arrangement=case.arrangement
        )
        return write_page(folder, replace(page, step=step))
    fastest = ran.measured[0]
    return write_page(
        folder,
        replace(page, step=ran.steps[0], comparisons=ran.check.comparisons, measured=fastest.timeline),
    )


def rows_of(result: SearchResult) -> list[dict[str, Any]]:
    """The ranked rows as the page shows them: a label and the figures."""
    degrees = (
        "rank",
        "tp",
        "sp",
        "cp",
        "pp",
        "vpp",
        "dp",
        "ep",
        "etp",
        "zero_stage",
        "fsdp",
        "mbs",
        "recompute",
        "recompute_modules",
        "recompute_layers",
        "schedule",
    )
    rows = []
    for row, record in zip(result.rows, result.records(), strict=True):
        figures = {key: value for key, value in record.items() if key not in degrees}
        rows.append({"layout": row.layout.label(), **figures})
    return rows


def name_files(files: list[Path]) -> None:
    """Say where everything is; the page and the trace come last."""
    from planner.cli.output import say

    plans = [path for path in files if path.name.startswith("plan-")]
    say()
    say(f"wrote {len(plans)} plans beside {files[0]}")
    for path in files[-2:]:
        say(f"wrote {path}")
