"""The split of pipelines whose layers do not divide, before anything is known of the memory."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from hwmodels.distinct import distinct
from planner.layout import SCHEDULES, is_even, split_id
from planner.priced import PricedModel
from planner.schedule import get as get_schedule
from planner.schedule.base import VSchedule

FloatArray = NDArray[np.float64]


@cache
def _folded() -> list[int]:
    """Codes of the schedules that lay two parts of the model on a rank."""
    known = [get_schedule(name) for name in SCHEDULES]
    return [i for i, one in enumerate(known) if isinstance(one, VSchedule) or one.directions > 1]


def with_balanced_stages(priced: PricedModel) -> PricedModel:
    """The same layouts, those whose layers do not divide with the split whose slowest virtual stage is fastest.

    Before anything is known of the memory: layers count their forward and backward with the layout's recomputation,
    embedding and head likewise. A framework that takes the default split only keeps it, and so do schedules that lay
    two parts of the model on a rank that far apart in it (V-shaped, bidirectional), where the ranks count.
    """
    layouts, n_layers = priced.layouts, priced.model.n_layers
    if not priced.preset.uneven_stages:
        return priced
    stages = np.asarray(layouts.pp * layouts.vpp)
    counts, which = np.unique(stages, return_inverse=True)
    uneven = np.asarray([not is_even(n_layers, int(s)) for s in counts])[which.reshape(-1)]
    uneven &= ~np.isin(layouts.schedule, _folded())
    chosen = np.flatnonzero(uneven & (layouts.stage_layers == 0))
    if not len(chosen):
        return priced
    # Most searches have no such layout, and loading what deals their layers takes as long as a hundred layouts.
    from planner.search.uneven.candidates import AT_ONCE, partly
    from planner.search.uneven.seconds import plain_seconds
    from planner.search.uneven.slowest import balanced

    policy = np.where(partly(layouts), -1, priced.policy)
    keys = np.stack([priced.inverse[chosen], policy[chosen], stages[chosen]], axis=1)
    unique, back = np.unique(keys, axis=0, return_inverse=True)
    found = np.zeros(len(unique), dtype=np.int64)
    for count in distinct(unique[:, 2]):
        rows = np.flatnonzero(unique[:, 2] == count)
        for begin in range(0, len(rows), AT_ONCE):
            some = rows[begin : begin + AT_ONCE]
            costs = plain_seconds(priced, unique[some, 0], unique[some, 1])
            found[some] = [split_id(split) for split in balanced(*costs, int(count))]
    split = layouts.stage_layers.copy()
    split[chosen] = found[back.reshape(-1)]
    return replace(priced, layouts=replace(layouts, stage_layers=split))
