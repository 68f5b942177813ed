"""The exact dynamic program: consecutive layers on the stages of a pipeline, so that its bound is least."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from hwmodels.records import dataclass

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
Table = Callable[[int], tuple[FloatArray, FloatArray]]
"""Stage -> its seconds of one micro-batch that count for the slowest stage, and those that count for the sum: each
``[problem, begin, layers]``, infinite where it may not hold these layers."""

SLACK = 1e-12
"""Relative difference below which two splits are equally good."""


@dataclass(frozen=True, slots=True, eq=False)
class Splits:
    """Best splits of n problems.

    Attributes
    ----------
    seconds : ndarray (n,)
        What was minimised; infinite where no split is allowed.
    shares : ndarray (n, stages) of int
        Layers of each stage; zero throughout where none is allowed.
    """

    seconds: FloatArray
    shares: IntArray

    @property
    def begins(self) -> IntArray:
        """First layer of each stage: ndarray (n, stages)."""
        return np.asarray(np.cumsum(self.shares, axis=1) - self.shares)


def best_splits(table: Table, stages: int, layers: int, weight: FloatArray) -> Splits:
    """Splits with the least ``weight * (slowest stage) + (sum of all stages)``.

    With one micro-batch less than a step has for `weight` this is the step of a pipeline of one virtual stage a rank,
    data parallelism and waiting for sends left out: the first micro-batch goes through all stages and back, and the
    slowest stage lets the others through one by one. With equal stages it is the ``(M + pp - 1) (f + b)`` of GPipe
    and 1F1B (Narayanan et al., arXiv 2104.04473, section 2.2).

    Parameters
    ----------
    table : callable
        ``[problem, begin, n]`` of a stage for ``begin`` 0 .. layers and ``n`` 0 .. the most layers of a stage.
    stages, layers : int
    weight : ndarray (problems,)
        At least 0.

    Notes
    -----
    Exact. ``G[s][j] = min over n of max(load[s][j, n], G[s+1][j + n])`` is the least slowest stage for layers j and on
    over stages s and on; ``H[s][j] = min over n of sum[s][j, n] + H[s+1][j + n]``, over windows no slower than a limit,
    the least sum under it. The sum can only fall as the limit rises, so the best of both lies on the way from the
    limit at which it cannot fall enough any more down to the least slowest stage: each pass takes the least sum under
    the limit, then lowers the limit below the slowest stage of that split. Where nothing is recomputed the sum is the
    same for all splits, and one pass does.

    Of splits that are equally good up to `SLACK` under a limit the one with the most layers on the first stage is
    taken, then on the second, and so on: the further back a slow stage lies, the longer it waits for its first
    micro-batch. Of passes that are equally good the one with the smaller sum is taken. Time grows with passes x stages
    x layers x layers of a stage.
    """
    tables = [table(stage) for stage in range(stages)]
    slowest = _least_slowest(tables, layers)
    free, _ = _least_sum(tables, layers, np.full(len(slowest), np.inf))
    first, _ = _least_sum(tables, layers, slowest)
    with np.errstate(divide="ignore", invalid="ignore"):
        limit = np.where(first > free * (1.0 + SLACK), slowest + (first - free) / weight, slowest)
    seconds, shares = np.full(len(slowest), np.inf), np.zeros((len(slowest), stages), dtype=np.int64)
    left = np.flatnonzero(np.isfinite(slowest))
    while len(left):
        some = [(load[left], more[left]) for load, more in tables]
        total, splits = _least_sum(some, layers, limit[left])
        most = _slowest(some, splits)
        reached = weight[left] * most + total
        better = reached < seconds[left] * (1.0 - SLACK)
        seconds[left] = np.where(better, reached, seconds[left])
        shares[left] = np.where(better[:, None], splits, shares[left])
        limit[left] = most * (1.0 - 2.0 * SLACK)
        left = left[most > slowest[left] * (1.0 + SLACK)]
        limit[left] = np.maximum(limit[left], slowest[left])
    return Splits(seconds, shares)


def _least_slowest(tables: list[tuple[FloatArray, FloatArray]], layers: int) -> FloatArray:
    """The least slowest stage over all splits: ndarray (problems,)."""
    best = _beyond(tables[0][0], layers)
    for load, _ in reversed(tables):
        best = np.maximum(load, _ahead(best, load.shape[2])).min(axis=2)
    return np.asarray(best[:, 0])


def _least_sum(
    tables: list[tuple[FloatArray, FloatArray]], layers: int, limit: FloatArray
) -> tuple[FloatArray, IntArray]:
    """The least sum over splits none of whose stages is slower than `limit`, and the first of its splits."""
    allowed = limit * (1.0 + SLACK)
    steps = [np.where(load <= allowed[:, None, None], more, np.inf) for load, more in tables]
    best = [_beyond(steps[0], layers)]
    for step in reversed(steps):
        best.append((step + _ahead(best[-1], step.shape[2])).min(axis=2))
    best.reverse()
    total = best[0][:, 0]
    n, rows = len(total), np.arange(len(total))
    shares, begin, before = np.zeros((n, len(steps)), dtype=np.int64), np.zeros(n, dtype=np.int64), np.zeros(n)
    for stage, step in enumerate(steps):
        here = step[rows, begin]
        reached = before[:, None] + here + _ahead(best[stage + 1], step.shape[2])[rows, begin]
        good = reached <= total[:, None] * (1.0 + SLACK)
        most = good.shape[1] - 1 - good[:, ::-1].argmax(axis=1)
        shares[:, stage] = np.where(np.isfinite(total), most, 0)
        before = before + here[rows, shares[:, stage]]
        begin = begin + shares[:, stage]
    return np.asarray(total), shares


def _slowest(tables: list[tuple[FloatArray, FloatArray]], shares: IntArray) -> FloatArray:
    """Seconds of the slowest stage of given splits: ndarray (problems,)."""
    rows, begins = np.arange(len(shares)), np.cumsum(shares, axis=1) - shares
    each = [load[rows, begins[:, s], shares[:, s]] for s, (load, _) in enumerate(tables)]
    return np.asarray(np.max(each, axis=0))


def _beyond(like: FloatArray, layers: int) -> FloatArray:
    """Behind the last stage: nothing where no layer is left, else impossible: ndarray (problems, layers + 1)."""
    found = np.full((like.shape[0], layers + 1), np.inf)
    found[:, layers] = 0.0
    return found


def _ahead(best: FloatArray, width: int) -> FloatArray:
    """``[problem, begin, n]``: what `best` says of layer begin + n, infinite beyond the last."""
    padded = np.concatenate([best, np.full((len(best), width - 1), np.inf)], axis=1)
    return np.lib.stride_tricks.sliding_window_view(padded, width, axis=1)
