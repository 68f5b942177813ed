"""What a plan says beyond its layout: legal to run, and more than a prediction of the layout covers."""

from __future__ import annotations

from hwmodels.errors import Fault
from planner.documents import place
from planner.layout import Layout
from planner.model.spec import ModelSpec
from planner.plan import Placement, Plan, build_plan


def beyond_layout(
    plan: Plan, layout: Layout, model: ModelSpec, seats: tuple[Placement, ...] = (), source: str = ""
) -> list[Fault]:
    """One fault for each thing that a plan states otherwise than its layout, its shares and its pools do.

    A prediction prices the layout, with the layers that the stages hold, the shares of the batch and the pools that
    ranks lie in: one recompute policy, the schedule's own actions, and ranks that fill the nodes of each pool in order.
    A plan that was edited to differ runs, and would be priced as if it had not been.

    Parameters
    ----------
    layout : Layout
        Of the plan, with the layers of its stages.
    seats : tuple of Placement
        Where its ranks lie in order on the cluster that it was made for; empty where it is priced on another, where
        its placement says nothing.
    """
    same = build_plan(
        plan.name, plan.model, model, plan.cluster, plan.workload, layout, 1, None, None, plan.batch_share, seats
    )
    found = []
    for i, (stage, priced) in enumerate(zip(plan.stages, same.stages, strict=False)):
        if stage.recompute != priced.recompute:
            fix = f"{priced.recompute!r}, or layout.recompute with recompute_layers for each stage"
            found.append(_fault(f"is {stage.recompute!r}", place(source, f"stages[{i}].recompute"), fix))
    even = plan.layout.pp > 1 and plan.workload.gbs % (layout.dp * layout.mbs) == 0
    if plan.actions != same.actions and not (even and plan.actions == _even(plan, layout, model)):
        fix = "the schedule's own list, or another schedule of `list schedules`"
        found.append(_fault("differ from the schedule's", place(source, "actions"), fix))
    if seats and plan.placement != seats:
        fix = "ranks in order, filled node by node in each pool"
        found.append(_fault("moves ranks", place(source, "placement"), fix))
    return found


def _even(plan: Plan, layout: Layout, model: ModelSpec) -> tuple[tuple[str, ...], ...]:
    """The actions of equal shares: shares alone may have been edited."""
    return build_plan(plan.name, plan.model, model, plan.cluster, plan.workload, layout, 1).actions


def _fault(what: str, where: str, fix: str) -> Fault:
    return Fault(what, where, "a prediction prices the layout, which says otherwise", fix)
