"""The split of pipelines whose layers do not divide, before anything is known of the memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from planner.layout import SCHEDULES, is_even, split_id
from planner.priced import PricedModel
from planner.schedule import get as get_schedule
from planner.schedule.base import VSchedule
from planner.search.uneven.candidates import AT_ONCE, partly
from planner.search.uneven.chain import best_splits
from planner.search.uneven.joint import EVEN
from planner.search.uneven.seconds import plain_seconds

FloatArray = NDArray[np.float64]

_FOLDED = [i for i, name in enumerate(SCHEDULES) if isinstance(get_schedule(name), VSchedule)
           or get_schedule(name).directions > 1]  # fmt: skip


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
    uneven &= ~np.isin(layouts.schedule, _FOLDED)
    chosen = np.flatnonzero(uneven & (layouts.stage_layers == 0))
    if not len(chosen):
        return priced
    policy = np.where(partly(layouts), -1, priced.policy)
    keys = np.stack([priced.inverse[chosen], policy[chosen], stages[chosen]], axis=1)
    unique, back = np.unique(keys, axis=0, return_inverse=True)
    found = np.zeros(len(unique), dtype=np.int64)
    for count in np.unique(unique[:, 2]):
        rows = np.flatnonzero(unique[:, 2] == count)
        for begin in range(0, len(rows), AT_ONCE):
            some = rows[begin : begin + AT_ONCE]
            costs = plain_seconds(priced, unique[some, 0], unique[some, 1])
            found[some] = [split_id(split) for split in balanced(*costs, int(count))]
    split = layouts.stage_layers.copy()
    split[chosen] = found[back.reshape(-1)]
    return replace(priced, layouts=replace(layouts, stage_layers=split))


def balanced(costs: FloatArray, first: FloatArray, last: FloatArray, stages: int) -> list[tuple[int, ...]]:
    """Consecutive layers on `stages` stages, one or more each, so that the slowest stage is as fast as can be.

    Of those with equally slow stages the one with the least sum of squares.

    Parameters
    ----------
    costs : ndarray (n, layers)
        Seconds of every layer, for n problems.
    first, last : ndarray (n,)
        Seconds of the embedding and of the head, on the first and on the last stage.
    stages : int
        At most the number of layers.
    """
    n, layers = costs.shape
    until = np.concatenate([np.zeros((n, 1)), np.cumsum(costs, axis=1)], axis=1)
    cuts = np.linspace(0, layers, stages + 1).astype(np.int64)
    even = np.diff(until[:, cuts], axis=1) + np.where(np.arange(stages) == 0, first[:, None], 0.0)
    most = (even + np.where(np.arange(stages) == stages - 1, last[:, None], 0.0)).max(axis=1)
    widest = max(w for w in range(1, layers + 1) if ((until[:, w:] - until[:, :-w]).min(axis=1) <= most).any())
    begin, width = np.arange(layers + 1)[:, None], np.arange(widest + 1)[None, :]
    end = np.minimum(begin + width, layers)
    spans = np.where((width > 0) & (begin + width <= layers), until[:, end] - until[:, begin], np.inf)

    scale = EVEN * stages / np.maximum(until[:, -1] + first + last, 1e-30)
    squares = spans * spans * scale[:, None, None]

    def table(stage: int) -> tuple[FloatArray, FloatArray]:
        if 0 < stage < stages - 1:
            return spans, squares
        ends = (stage == 0) * first + (stage == stages - 1) * last
        seconds = spans + ends[:, None, None]
        return seconds, seconds * seconds * scale[:, None, None]

    return [tuple(shares) for shares in best_splits(table, stages, layers, np.full(n, 1e3)).shares.tolist()]
