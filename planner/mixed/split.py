"""Layers dealt to the stages of a pipeline over unlike pools: an exact dynamic program."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


def split_over(costs: FloatArray, first: float, last: float, most: Sequence[int] = ()) -> tuple[int, ...] | None:
    """Consecutive layers for each stage, one or more, with the fastest slowest stage, then the least sum.

    Parameters
    ----------
    costs : ndarray (stages, layers)
        Seconds of every layer on the device of every stage.
    first, last : float
        Seconds of the embedding on the first stage, and of the head on the last.
    most : sequence of int
        Layers that a stage has memory for; any number unless given.

    Returns
    -------
    tuple of int or None
        None where the stages cannot hold all layers.

    Notes
    -----
    ``best[s][i] = min over j < i of max(best[s-1][j], cost of layers j .. i-1 on stage s)``, then the same with sums,
    over stages of at most the optimum: O(stages x layers^2). With equal devices it is `planner.search.balance`.
    """
    stages, layers = costs.shape
    limits = tuple(most) or (layers,) * stages
    until = np.concatenate([np.zeros((stages, 1)), np.cumsum(costs, axis=1)], axis=1)
    spans = until[:, None, :] - until[:, :, None]  # [stage, begin, end]
    begin, end = np.arange(layers + 1)[:, None], np.arange(layers + 1)[None, :]
    count = end - begin
    allowed = (count[None] >= 1) & (count[None] <= np.asarray(limits)[:, None, None])
    spans = np.where(allowed, spans, np.inf)
    spans[0] += first
    spans[-1] += last
    best = spans[0][0]
    for stage in range(1, stages):
        best = np.maximum(best[:, None], spans[stage]).min(axis=0)
    if not np.isfinite(best[layers]):
        return None
    spans = np.where(spans <= best[layers] * (1.0 + 1e-12), spans, np.inf)
    total, choices = spans[0][0], []
    for stage in range(1, stages):
        sums = total[:, None] + spans[stage]
        choices.append(sums.argmin(axis=0))
        total = sums.min(axis=0)
    shares, at = [], layers
    for choice in reversed(choices):
        before = int(choice[at])
        shares.append(at - before)
        at = before
    return (*reversed([*shares, at]),)
