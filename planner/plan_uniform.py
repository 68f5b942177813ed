"""What a plan says beyond its layout: legal to run, and more than a prediction of the layout covers."""

from __future__ import annotations

from hwmodels.errors import Fault
from planner.documents import place
from planner.layout import Layout
from planner.model.spec import ModelSpec
from planner.plan import Plan, build_plan


def beyond_layout(plan: Plan, layout: Layout, model: ModelSpec, gpus_per_node: int, source: str = "") -> list[Fault]:
    """One fault for each thing that a plan states otherwise than its layout does.

    A prediction prices the layout, with the layers that the stages hold: equal shares of the batch, one recompute
    policy, the schedule's own actions, and ranks filled node by node. A plan that was edited to differ runs, and
    would be priced as if it had not been.

    Parameters
    ----------
    layout : Layout
        Of the plan, with the layers of its stages.
    gpus_per_node : int
        Of the cluster that it was made for; 0 where it is priced on another, where its placement says nothing.
    """
    same = build_plan(plan.name, plan.model, model, plan.cluster, plan.workload, layout, max(gpus_per_node, 1))
    found = []
    for i, (stage, priced) in enumerate(zip(plan.stages, same.stages, strict=False)):
        if stage.recompute != priced.recompute:
            fix = f"{priced.recompute!r}, or layout.recompute with recompute_layers for each stage"
            found.append(_fault(f"is {stage.recompute!r}", place(source, f"stages[{i}].recompute"), fix))
    if plan.batch_share != same.batch_share:
        found.append(_fault("are not equal", place(source, "batch_share"), f"{same.batch_share[0]} for each dp rank"))
    if plan.actions != same.actions:
        fix = "the schedule's own list, or another schedule of `list schedules`"
        found.append(_fault("differ from the schedule's", place(source, "actions"), fix))
    if gpus_per_node and plan.placement != same.placement:
        found.append(_fault("moves ranks", place(source, "placement"), "ranks in order, filled node by node"))
    return found


def _fault(what: str, where: str, fix: str) -> Fault:
    return Fault(what, where, "a prediction prices the layout, which says otherwise", fix)
