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
    windows = _Windows.of([table(stage) for stage in range(stages)])
    n = windows.loads[0].shape[1]
    slowest = _least_slowest(windows, layers)
    free = _least_sums(windows.within(np.full(n, np.inf)), windows.of_stage, layers)[0][:, 0]
    first = _least_sums(windows.within(slowest), windows.of_stage, layers)[0][:, 0]
    with np.errstate(divide="ignore", invalid="ignore"):
        limit = np.where(first > free * (1.0 + SLACK), slowest + (first - free) / weight, slowest)
    seconds, shares = np.full(n, np.inf), np.zeros((n, stages), dtype=np.int64)
    left = np.flatnonzero(np.isfinite(slowest))
    while len(left):
        some = windows.take(left)
        steps = some.within(limit[left])
        best = _least_sums(steps, some.of_stage, layers)
        splits = _first_split(steps, some.of_stage, best)
        most, total = some.slowest(splits), best[0][:, 0]
        reached = weight[left] * most + total
        better = reached < seconds[left] * (1.0 - SLACK)
        seconds[left] = np.where(better, reached, seconds[left])
        shares[left] = np.where(better[:, None], splits, shares[left])
        limit[left] = most * (1.0 - 2.0 * SLACK)
        left = left[most > slowest[left] * (1.0 + SLACK)]
        limit[left] = np.maximum(limit[left], slowest[left])
    return Splits(seconds, shares)


@dataclass(frozen=True, slots=True, eq=False)
class _Windows:
    """The tables of all stages, each once however many stages have it, windows of one width side by side.

    Attributes
    ----------
    loads, sums : list of ndarray (widths, problems, begins)
    of_stage : tuple of int
        Which of them each stage has.
    """

    loads: list[FloatArray]
    sums: list[FloatArray]
    of_stage: tuple[int, ...]

    @classmethod
    def of(cls, tables: list[tuple[FloatArray, FloatArray]]) -> _Windows:
        """From tables ``[problem, begin, layers]``: stages share one where the arrays are the same objects."""
        numbers: dict[tuple[int, int], int] = {}
        of_stage = tuple(numbers.setdefault((id(load), id(more)), len(numbers)) for load, more in tables)
        few = [tables[of_stage.index(i)] for i in range(len(numbers))]
        loads, sums = ([np.ascontiguousarray(np.moveaxis(pair[i], 2, 0)) for pair in few] for i in range(2))
        return cls(loads, sums, of_stage)

    def take(self, rows: IntArray) -> _Windows:
        """Those of some problems; these where all are asked for."""
        if len(rows) == self.loads[0].shape[1]:
            return self
        return _Windows([v[:, rows] for v in self.loads], [v[:, rows] for v in self.sums], self.of_stage)

    def within(self, limit: FloatArray) -> list[FloatArray]:
        """The sums, infinite where the window is slower than a limit: a list of ndarray (widths, problems, begins)."""
        allowed = (limit * (1.0 + SLACK))[:, None]
        return [np.where(load <= allowed, more, np.inf) for load, more in zip(self.loads, self.sums, strict=True)]

    def slowest(self, shares: IntArray) -> FloatArray:
        """Seconds of the slowest stage of given splits: ndarray (problems,)."""
        rows, begins = np.arange(len(shares)), np.cumsum(shares, axis=1) - shares
        each = [self.loads[i][shares[:, s], rows, begins[:, s]] for s, i in enumerate(self.of_stage)]
        return np.asarray(np.max(each, axis=0))


def _least_slowest(windows: _Windows, layers: int) -> FloatArray:
    """The least slowest stage over all splits: ndarray (problems,)."""
    best = _beyond(windows.loads[0], layers)
    for i in reversed(windows.of_stage):
        best = _joined(np.maximum, windows.loads[i], best)
    return np.asarray(best[:, 0])


def _least_sums(steps: list[FloatArray], of_stage: tuple[int, ...], layers: int) -> list[FloatArray]:
    """The least sum of each stage and those behind it, for layers j and on: a list of ndarray (problems, layers + 1).

    One more than there are stages: behind the last nothing may be left.
    """
    best = [_beyond(steps[0], layers)]
    for i in reversed(of_stage):
        best.append(_joined(np.add, steps[i], best[-1]))
    best.reverse()
    return best


def _first_split(steps: list[FloatArray], of_stage: tuple[int, ...], best: list[FloatArray]) -> IntArray:
    """Of the splits with the least sum the first: ndarray (problems, stages), zero where there is none."""
    total = best[0][:, 0]
    n, last, rows = len(total), best[0].shape[1] - 1, np.arange(len(total))
    shares, begin, before = np.zeros((n, len(of_stage)), dtype=np.int64), np.zeros(n, dtype=np.int64), np.zeros(n)
    most_sum = total * (1.0 + SLACK)
    for stage, i in enumerate(of_stage):
        here = steps[i][:, rows, begin]
        end = begin + np.arange(len(here))[:, None]
        ahead = np.where(end <= last, best[stage + 1][rows, np.minimum(end, last)], np.inf)
        good = before + here + ahead <= most_sum
        most = len(good) - 1 - good[::-1].argmax(axis=0)
        shares[:, stage] = np.where(np.isfinite(total), most, 0)
        before = before + here[shares[:, stage], rows]
        begin = begin + shares[:, stage]
    return shares


def _joined(join: np.ufunc, windows: FloatArray, best: FloatArray) -> FloatArray:
    """The least over widths of a window joined with what `best` says of the layers behind it: (problems, begins).

    Width by width, over rows that lie side by side: a reduction over the few widths would take most of the time.
    """
    found, begins = join(windows[0], best), best.shape[1]
    for width in range(1, min(len(windows), begins)):
        part = join(windows[width, :, : begins - width], best[:, width:])
        np.minimum(found[:, : begins - width], part, out=found[:, : begins - width])
    return np.asarray(found)


def _beyond(like: FloatArray, layers: int) -> FloatArray:
    """Behind the last stage: nothing where no layer is left, else impossible: ndarray (problems, layers + 1)."""
    found = np.full((like.shape[1], layers + 1), np.inf)
    found[:, layers] = 0.0
    return found
