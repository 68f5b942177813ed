"""Plans from predicted layouts."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from planner.cli.inputs_layout import Case
    from planner.plan import Plan, Prediction
    from planner.results import Step


def prediction(step: Step) -> Prediction:
    """The figures of a predicted step that travel with a plan."""
    from planner.plan import Prediction

    return Prediction(
        step_s=step.step_s.mid,
        step_low_s=step.step_s.low,
        step_high_s=step.step_s.high,
        phases=step.phases,
        peak_bytes=[m.peak_bytes for m in step.memory],
        memory=[m.by_category for m in step.memory],
        mfu=step.mfu,
        tokens_per_s_per_gpu=step.tokens_per_s_per_gpu,
        usd_per_mtoken=step.usd_per_mtoken,
        verdict=step.verdict,
    )


def plan_of(case: Case, step: Step, name: str) -> Plan:
    """The plan of a predicted layout."""
    from planner import __version__
    from planner.plan import build_plan

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
    )
