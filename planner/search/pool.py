"""`Pool`: screened candidates of all workloads, taken best bound first."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hwmodels.records import dataclass
from planner.search.examine import Timed
from planner.search.objective_base import Candidates, Limit, Objective, costs
from planner.search.ranking import Ranking
from planner.search.variant import Variant

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
FIRST, GROWTH = 96, 8
"""Candidates that are examined together at first, and how many times more each time after."""


@dataclass(slots=True, eq=False)
class Pool:
    """Candidates by rows of the two tables of their workload, with lower bounds of their costs.

    Attributes
    ----------
    variant, work, state : ndarray (n,)
    bounds : ndarray (n, objectives)
    sure : ndarray (n,) of bool
        Whether the bound of the memory is close: half of the first that are taken are of these, so that there soon is
        an answer to hold the others against.
    taken : int
        How many have been taken, or found to be above the answer.
    wave : int
        How many are taken next.
    left : int
        How many bounds kept out of the answer.
    """

    variant: IntArray
    work: IntArray
    state: IntArray
    bounds: FloatArray
    sure: BoolArray
    wave: int = FIRST
    left: int = 0

    def __len__(self) -> int:
        return len(self.work)

    @classmethod
    def joined(cls, parts: Sequence[Pool], objectives: int) -> Pool:
        """All of several, in the order of their bounds; one of several objectives each over its least."""
        if not parts:
            none = np.zeros(0, dtype=np.int64)
            return cls(none, none, none, np.zeros((0, objectives)), np.zeros(0, dtype=np.bool_))
        names = ("variant", "work", "state", "bounds", "sure")
        variant, work, state, bounds, sure = (np.concatenate([getattr(part, n) for part in parts]) for n in names)
        if len(bounds):
            spans = np.maximum(np.abs(bounds).min(axis=0), 1e-300)
            order = np.argsort((bounds / spans).sum(axis=1), kind="stable")
            variant, work, state, bounds, sure = (v[order] for v in (variant, work, state, bounds, sure))
        return cls(variant, work, state, bounds, sure)

    def open(self, ranking: Ranking[Timed]) -> tuple[IntArray, IntArray, IntArray]:
        """The next candidates that could belong to the answer; those that could not are counted and forgotten."""
        kept = ranking.open(self.bounds)
        self.left += int((~kept).sum())
        rows = np.flatnonzero(kept)
        chosen = np.zeros(len(rows), dtype=np.bool_)
        chosen[: self.wave] = True
        if self.wave == FIRST:
            chosen[self.wave // 2 :] = False
            chosen[np.flatnonzero(self.sure[rows])[: self.wave // 2]] = True
        some, rest = rows[chosen], rows[~chosen]
        self.wave *= GROWTH
        taken = self.variant[some], self.work[some], self.state[some]
        self.variant, self.work, self.state = self.variant[rest], self.work[rest], self.state[rest]
        self.bounds, self.sure = self.bounds[rest], self.sure[rest]
        return taken


def pool_of(
    variant: Variant, objectives: Sequence[Objective], limits: Sequence[Limit], capacity: float, dropped: dict[str, int]
) -> Pool:
    """The candidates of a workload whose bounds keep to the memory and to the limits; counts those that do not."""
    parts = []
    for work, state in variant.found.chunks():
        step, peak = variant.screened(work, state)
        fits = peak <= capacity
        _count(dropped, "memory", fits)
        work, state, step, peak = work[fits], state[fits], step[fits], peak[fits]
        for limit in limits:
            meets = limit.meets(limit.metric.of(candidates(variant, work, state, step, peak)))
            _count(dropped, limit.id, meets)
            work, state, step, peak = work[meets], state[meets], step[meets], peak[meets]
        here = candidates(variant, work, state, step, peak)
        bounds = np.stack([costs(one, one.of(here)) for one in objectives], axis=1)
        number = np.full(len(work), variant.number)
        parts.append(Pool(number, work, state, bounds, variant.screen.work.sure[work]))
    return Pool.joined(parts, len(objectives))


def candidates(variant: Variant, work: IntArray, state: IntArray, step: FloatArray, peak: FloatArray) -> Candidates:
    """Candidates of a workload as objectives see them."""
    return Candidates(
        step, peak, variant.workload, variant.priced.cluster, lambda name: variant.found.field(name, work, state)
    )


def _count(dropped: dict[str, int], name: str, kept: NDArray[np.bool_]) -> None:
    lost = int((~kept).sum())
    if lost:
        dropped[name] = dropped.get(name, 0) + lost
