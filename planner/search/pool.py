"""`Pool`: screened candidates of all workloads, taken best bound first."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hwmodels.records import dataclass
from planner.search.examine import Examiner, Timed
from planner.search.objective_base import Candidates, Objective, costs
from planner.search.ranking import Ranking, best_first
from planner.search.variant import Variant

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
Int32Array = NDArray[np.int32]
FIRST, GROWTH = 96, 16
"""Candidates that are examined together at first, and how many times more each time after."""
LARGE, SEEDS = 500_000, 100_000
"""Candidates of a workload above which some are looked at before the others, and how many those are."""


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

    variant: Int32Array
    work: Int32Array
    state: Int32Array
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
            none = np.zeros(0, dtype=np.int32)
            return cls(none, none, none, np.zeros((0, objectives)), np.zeros(0, dtype=np.bool_))
        names = ("variant", "work", "state", "bounds", "sure")
        variant, work, state, bounds, sure = (np.concatenate([getattr(part, n) for part in parts]) for n in names)
        if len(bounds):
            order = best_first(bounds)
            variant, work, state, bounds, sure = (v[order] for v in (variant, work, state, bounds, sure))
        return cls(variant, work, state, bounds, sure)

    def with_part(self, part: Pool) -> Pool:
        """Both, in the order of their bounds; what is left out and how many come next stay as they are."""
        found = Pool.joined([self, part], self.bounds.shape[1])
        found.wave, found.left = self.wave, self.left
        return found

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
        variant, work, state = (np.asarray(v[some], dtype=np.int64) for v in (self.variant, self.work, self.state))
        self.variant, self.work, self.state = self.variant[rest], self.work[rest], self.state[rest]
        self.bounds, self.sure = self.bounds[rest], self.sure[rest]
        return variant, work, state


def first_rows(variant: Variant) -> list[IntArray]:
    """Rows of work in the parts in which they are looked at: of a large space the most promising ones first.

    An answer from these, the `SEEDS` candidates on the rows with the least bounds, keeps most of the others out before
    they are laid out.
    """
    least, each = variant.screen.least_seconds(), variant.found.states
    if each.sum() <= LARGE:
        return [np.arange(len(least))]
    order = np.argsort(least, kind="stable")
    seeds = int(np.searchsorted(np.cumsum(each[order]), SEEDS)) + 1
    return [np.sort(order[:seeds]), np.sort(order[seeds:])]


def pool_of(variant: Variant, examiner: Examiner, dropped: dict[str, int], rows: IntArray) -> Pool:
    """Candidates on rows of work that could belong to the answer, by their bounds; counts those that could not.

    An answer that is there already keeps rows of work out before their candidates are laid out, and candidates before
    their memory is looked at: no objective is better for no bytes.
    """
    objectives, limits, ranking = examiner.objectives, examiner.limits, examiner.ranking
    least = variant.screen.least_seconds()[rows]
    open_ = ranking.open(_bounds(variant, objectives, rows, np.zeros_like(rows), least, np.zeros(len(least))))
    out = variant.found.legal(rows[~open_]) if not open_.all() else 0
    dropped["bound"] = dropped.get("bound", 0) + out
    parts = []
    for work, state in variant.found.chunks(rows[open_]):
        step = variant.screen.seconds(work, state)
        may = ranking.open(_bounds(variant, objectives, work, state, step, np.zeros(len(work))))
        _count(dropped, "bound", may)
        work, state, step = work[may], state[may], step[may]
        peak = variant.screen.peak_bytes(work, state)
        fits = peak <= examiner.capacity
        _count(dropped, "memory", fits)
        work, state, step, peak = work[fits], state[fits], step[fits], peak[fits]
        for limit in limits:
            meets = limit.may(candidates(variant, work, state, step, peak, not limit.from_step))
            _count(dropped, limit.id, meets)
            work, state, step, peak = work[meets], state[meets], step[meets], peak[meets]
        bounds = _bounds(variant, objectives, work, state, step, peak)
        number, sure = np.full(len(work), variant.number, dtype=np.int32), variant.screen.work.sure[work]
        parts.append(Pool(number, work.astype(np.int32), state.astype(np.int32), bounds, sure))
    return Pool.joined(parts, len(objectives))


def _bounds(
    variant: Variant, objectives: Sequence[Objective], work: IntArray, state: IntArray, step: FloatArray,
    peak: FloatArray,
) -> FloatArray:  # fmt: skip
    """Bounds of the costs of candidates: ndarray (n, objectives)."""
    here = candidates(variant, work, state, step, peak, any(not one.from_step for one in objectives))
    return np.stack([costs(one, one.of(here)) for one in objectives], axis=1)


def candidates(
    variant: Variant, work: IntArray, state: IntArray, step: FloatArray, peak: FloatArray, kernels: bool
) -> Candidates:
    """Candidates of a workload as objectives see them; with the seconds of their kernels where one asks for these."""
    return Candidates(
        step, peak, variant.workload, variant.priced.cluster, lambda name: variant.found.field(name, work, state),
        variant.screen.compute_s(work) if kernels else 0.0,
    )  # fmt: skip


def _count(dropped: dict[str, int], name: str, kept: NDArray[np.bool_]) -> None:
    lost = int((~kept).sum())
    if lost:
        dropped[name] = dropped.get(name, 0) + lost
