"""Splits whose slowest stage is as fast as can be, of many problems at once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from planner.search.uneven.chain import best_splits

FloatArray = NDArray[np.float64]

EVEN = 1e-3
"""Weight of the squares of the stages' seconds over their mean, in what is minimised: of splits with equally slow
stages the one with the fewest of them, since each holds up the others now and then. Too small to outweigh a layer."""

WEIGHT = 1e3
"""Of the slowest stage beside those squares."""


def balanced(
    costs: FloatArray, first: FloatArray, last: FloatArray, stages: int, *, empty_ends: bool = False
) -> list[tuple[int, ...]]:
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
    empty_ends : bool
        Whether the first and the last stage may go without a layer.
    """
    n, layers = costs.shape
    until = np.concatenate([np.zeros((n, 1)), np.cumsum(costs, axis=1)], axis=1)
    cuts = np.linspace(0, layers, stages + 1).astype(np.int64)
    even = np.diff(until[:, cuts], axis=1) + np.where(np.arange(stages) == 0, first[:, None], 0.0)
    most = (even + np.where(np.arange(stages) == stages - 1, last[:, None], 0.0)).max(axis=1)
    widest = max(w for w in range(1, layers + 1) if ((until[:, w:] - until[:, :-w]).min(axis=1) <= most).any())
    begin, width = np.arange(layers + 1)[:, None], np.arange(widest + 1)[None, :]
    end = np.minimum(begin + width, layers)
    inside = begin + width <= layers
    every = np.where(inside, until[:, end] - until[:, begin], np.inf)
    spans = np.where(width > 0, every, np.inf)

    scale = EVEN * stages / np.maximum(until[:, -1] + first + last, 1e-30)
    squares = spans * spans * scale[:, None, None]

    def table(stage: int) -> tuple[FloatArray, FloatArray]:
        if 0 < stage < stages - 1:
            return spans, squares
        ends = (stage == 0) * first + (stage == stages - 1) * last
        seconds = (every if empty_ends and stages > 1 else spans) + ends[:, None, None]
        return seconds, seconds * seconds * scale[:, None, None]

    return [tuple(shares) for shares in best_splits(table, stages, layers, np.full(n, WEIGHT)).shares.tolist()]
