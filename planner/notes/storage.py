"""Whether reading data, or writing checkpoints, bounds a run rather than its step: said where it does."""

from __future__ import annotations

from planner.goodput.analytic import best_interval
from planner.goodput.checkpoint import checkpoints
from planner.goodput.loading import data_need
from planner.goodput.policy import Policy
from planner.goodput.ranking import LONGEST_S, jobs_of, storage_bounds
from planner.layout import Layout, LayoutBatch
from planner.priced import PricedModel


def storage_notes(priced: PricedModel, layout: Layout, step_s: float) -> list[str]:
    """What of storage bounds a run with synchronous checkpoints at their best interval; nothing where nothing does."""
    model, work, cluster, policy = priced.model, priced.workload, priced.cluster, Policy()
    batch = LayoutBatch.of([layout])
    found = checkpoints(model, work, cluster, batch, priced.preset, policy)
    job = next(jobs_of(cluster, batch, found, policy))[1]
    need = data_need(model, work, cluster, batch, [step_s])
    interval_s = min(max(float(best_interval(job)[0]), step_s), LONGEST_S)
    said = storage_bounds(cluster, found, job, need, step_s, interval_s)
    return [f"{text} (`python -m planner goodput`)" for text in said]
