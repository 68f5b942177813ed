"""predict: one layout through the same flow as the search, in full detail."""

from __future__ import annotations

from typing import Any

import numpy as np

from hwmodels.cluster import Cluster
from planner.evaluate import detail
from planner.explain import explain_rows
from planner.layout import Layout, LayoutBatch, RuleContext, validate
from planner.mixed import Arrangement, in_order, is_plain
from planner.mixed import predict as predict_arrangement
from planner.model.spec import ModelSpec
from planner.plan import Prediction, Workload
from planner.priced import PricedModel, price_model
from planner.results import Step
from planner.step.assemble import assemble, dag_groups, group_memory


def predict(
    model: ModelSpec,
    cluster: Cluster,
    workload: Workload,
    layout: Layout,
    *,
    timeline: bool = False,
    explain: bool = False,
    arrangement: Arrangement | None = None,
) -> Step:
    """Predict time and memory of one step.

    Parameters
    ----------
    arrangement : Arrangement or None
        Pools and shares of the batch; unless given, equal shares and ranks that fill the nodes in order.
    timeline : bool
        Fill `Step.timeline` with the simulated step.
    explain : bool
        Fill `Step.explain` with the chain from seconds down to datasheet figures.

    Raises
    ------
    hwmodels.errors.InputError
        With every rule that the layout breaks.
    """
    if arrangement is not None or cluster.mixed:
        found = arrangement or in_order(cluster, layout, workload.gbs)
        if not is_plain(found, cluster):
            return predict_arrangement(model, cluster, workload, found, with_timeline=timeline, explain=explain)
    # A layout that says where its ranks run may leave the rest of the cluster to others.
    context = RuleContext.of(model, workload, layout.world if layout.placement else cluster.n_ranks)
    validate(layout, context, "layout")
    priced = price_model(model, workload, LayoutBatch.of([layout]), cluster)
    return step_of(priced, timeline=timeline, explain=explain)


def step_of(priced: PricedModel, *, timeline: bool = False, explain: bool = False) -> Step:
    """The `Step` of the only layout of `priced`."""
    shape = next(dag_groups(priced, np.arange(1)))
    group = assemble(priced, *shape)
    sized = group_memory(priced, *shape[:4])
    step = detail(priced, group, 0, sized, with_timeline=timeline)
    if explain:
        step.explain.extend(explain_rows(priced, group))
    return step


def prediction(step: Step) -> Prediction:
    """What of a `Step` travels with a plan."""
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


def summary(step: Step) -> dict[str, Any]:
    """The figures of a `Step` for JSON output (no timeline)."""
    from dataclasses import asdict

    content = asdict(step)
    content.pop("timeline")
    return content
