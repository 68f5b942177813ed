"""Plans from predicted layouts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from planner.cli.inputs_layout import Case
    from planner.cli.problem import Problem
    from planner.plan import Plan
    from planner.results import Step
    from planner.search import Row


def plan_of(case: Case, step: Step, name: str) -> Plan:
    """The plan of a predicted layout, with the figures that were predicted for it."""
    from planner import __version__
    from planner.plan import build_plan
    from planner.predict import prediction

    if case.plan is not None:
        return replace(case.plan, name=name, cluster=case.cluster_name, predicted=prediction(step))
    stated = case.arrangement
    return build_plan(
        name,
        case.config,
        case.model,
        case.cluster_name,
        case.workload,
        case.layout,
        case.cluster.gpus_per_node,
        prediction(step),
        {"meshwright": __version__},
        stated.batch_share(case.layout.mbs) if stated is not None else (),
        stated.seats(case.cluster) if stated is not None else (),
    )


def plan_of_row(problem: Problem, row: Row) -> Plan:
    """The plan of one row of a search."""
    return plan_of(problem.case_of_row(row), row.step, f"{problem.name}-{row.rank}")
