"""Splits of pipelines whose ranks hold several virtual stages: interleaved, V-shaped, bidirectional.

What counts there is the load of a rank, the sum over its chunks, and that the chunks that run at the same time are
even. A rank's chunks lie apart in the model, so that no recursion from one stage to the next decides its load: the
splits below are exact for the slowest virtual stage, and a descent from there for the heaviest rank.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hwmodels.records import dataclass
from planner.layout import split_id, split_layers
from planner.layout.recompute import BLOCK
from planner.memory.moments import moments
from planner.priced import PricedModel
from planner.recompute import Stages
from planner.schedule import get as get_schedule
from planner.search.uneven.joint import Answer
from planner.search.uneven.seconds import BlockSeconds
from planner.search.uneven.slowest import balanced
from planner.step.assemble import group_memory

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

CROWD = 32
"""Power to which the work of ranks is raised, so that the heaviest tell most."""


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """Where the parts of a model lie.

    Attributes
    ----------
    holds : ndarray (pp, parts)
        Times that a rank holds each part: one of a bidirectional pipeline lies on two ranks, or twice on one.
    rounds : bool
        Whether stages lie on the ranks round and round.
    """

    holds: FloatArray
    rounds: bool

    @classmethod
    def of(cls, pp: int, vpp: int, schedule: str) -> Places:
        """For one schedule."""
        plan, parts = get_schedule(schedule), pp * vpp
        holds = np.zeros((pp, parts))
        for stage in range(plan.n_stages(pp, vpp)):
            holds[plan.rank_of(stage, pp), plan.layers_of(stage, pp, vpp)] += 1.0
        loop = all(plan.rank_of(stage, pp) == stage % pp for stage in range(parts))
        return cls(holds, loop and plan.directions == 1 and vpp > 1)

    def work(self, load: FloatArray) -> FloatArray:
        """Seconds of one micro-batch of each copy on each rank: ndarray (n, pp).

        Parameters
        ----------
        load : ndarray (n, parts)
        """
        return np.asarray(load @ self.holds.T)

    def pace(self, load: FloatArray) -> FloatArray:
        """Seconds of a micro-batch if each round went as slow as its slowest stage: ndarray (n,).

        Interleaved schedules that lay stages round and round run the stages of one round at the same time on all ranks
        (arXiv 2104.04473, section 2.2), so that none is faster than the sum of the slowest of each round, but for what
        rounds overlap. Zero for others, whose ranks run their parts in other orders.
        """
        if not self.rounds:
            return np.zeros(len(load))
        return np.asarray(load.reshape(len(load), -1, len(self.holds)).max(axis=2).sum(axis=1))


def by_rank(
    priced: PricedModel, index: IntArray, pp: int, vpp: int, schedule: str, limit_bytes: float, *, fit: bool,
    by_stage: bool = True, moves: bool = True,
) -> Answer:  # fmt: skip
    """Splits of layouts that share (pp, vpp, schedule) in which the heaviest rank is as light as was found.

    Minimised is the load of the heaviest rank, and where stages lie round and round the sum of the slowest stage of
    each round beside it (`Places.pace`).

    1. The split whose slowest virtual stage is fastest, by `planner.search.uneven.slowest.balanced` (exact).
    2. From there, and from the default split, one layer at a time moves from a virtual stage to another one, all
       between them handing a layer on, as long as that falls, or stays and others that are as heavy as the heaviest
       rank, or the slowest virtual stage, get lighter. The better end of the two descents is the answer. It need not
       be the best one.
    3. With `fit`, the fewest recomputed layers with which every rank fits the memory, most of them where most
       activations wait; found by the memory model, halving the range on all ranks at the same time. A rank's memory
       depends on its own parts only, so the number of a rank is the smallest for this order of its parts.

    Parameters
    ----------
    index : ndarray (n,)
    fit, by_stage, moves : bool
        As in `planner.search.uneven.joint.joint`.
    """
    seconds, places = BlockSeconds.of(priced, index, pp, vpp, schedule), Places.of(pp, vpp, schedule)
    again = seconds.again
    again = np.zeros_like(again) if fit else _whole_again(priced, index, pp, vpp, schedule, again)
    default = np.asarray(split_layers(priced.model.n_layers, pp * vpp), dtype=np.int64)
    each = np.concatenate([seconds.load + again, seconds.first[0][:, None], seconds.last[0][:, None]], axis=1)
    unique, where = np.unique(each, axis=0, return_inverse=True)  # states and micro-batches make no other split
    found, least, standard = [], [], []
    starts = balanced(unique[:, :-2], unique[:, -2], unique[:, -1], pp * vpp, empty_ends=True) if moves else []
    for i, (*layers, first, last) in enumerate(unique.tolist()):
        parts = _Parts.of(np.asarray(layers), first, last, places)
        ends = [(default, parts.scores(default[None])[:, 0])]
        standard.append(ends[0][1][0])
        if moves:
            ends = [parts.descend(shares) for shares in (np.asarray(starts[i], dtype=np.int64), default)]
        shares, score = min(ends, key=lambda end: tuple(np.round(end[1] / ends[0][1], 9)))
        found.append(shares)
        least.append(score[0])
    where = where.reshape(-1)
    shares, usual = np.stack(found)[where], np.broadcast_to(default, (len(index), pp * vpp))
    place = priced, index, pp, vpp, schedule
    allowed, recomputed = fitted(*place, shares, limit_bytes, fit=fit, by_stage=by_stage)
    bounds = []
    for load, fits in ((least, allowed), (standard, fitted(*place, usual, limit_bytes, fit=fit, by_stage=by_stage)[0])):
        bounds.append(np.where(fits, np.asarray(load)[where] * seconds.microbatches, np.inf))
    return Answer(bounds[0], bounds[1], shares, recomputed)


def _whole_again(
    priced: PricedModel, index: IntArray, pp: int, vpp: int, schedule: str, again: FloatArray
) -> FloatArray:
    """What recomputation runs again of each layer (n, layers); nothing for a policy that takes some layers of a stage.

    Such a block of n layers adds the same to every virtual stage that holds as many.
    """
    some = Stages(priced.model, priced.layouts.take(index), pp, vpp, schedule).partial
    return np.where(some[:, None], 0.0, again)


@dataclass(frozen=True, slots=True, eq=False)
class _Parts:
    """Seconds of the layers of one layout for one micro-batch, cumulated, and of the ends; the mean load of a rank."""

    until: FloatArray
    first: float
    last: float
    places: Places
    mean: float

    @classmethod
    def of(cls, layers: FloatArray, first: float, last: float, places: Places) -> _Parts:
        until = np.concatenate([[0.0], np.cumsum(layers)])
        whole = np.full(places.holds.shape[1], (until[-1] + first + last) / places.holds.shape[1])
        return cls(until, first, last, places, float(places.work(whole[None]).mean()))

    def stages(self, shares: IntArray) -> FloatArray:
        """Seconds of the virtual stages of k splits (k, parts): ndarray (k, parts)."""
        cuts = np.concatenate([np.zeros((len(shares), 1), dtype=np.int64), np.cumsum(shares, axis=1)], axis=1)
        load = np.diff(self.until[cuts], axis=1)
        load[:, 0] += self.first
        load[:, -1] += self.last
        return np.asarray(load)

    def scores(self, shares: IntArray) -> FloatArray:
        """What a descent lowers, the first entry first, of k splits: ndarray (3, k).

        Load of the heaviest rank and pace of the rounds (`Places.pace`); the sum of large powers of the loads of all
        ranks, so that of several equally heavy ones one after the other is made lighter; seconds of the slowest
        virtual stage.
        """
        load = self.stages(shares)
        work = self.places.work(load)
        bound = work.max(axis=1) + self.places.pace(load)
        return np.stack([bound, ((work / self.mean) ** CROWD).sum(axis=1), load.max(axis=1)])

    def descend(self, shares: IntArray) -> tuple[IntArray, FloatArray]:
        """Move layers one by one while the score falls, always the best move, the first of equal ones."""
        score, unit = self.scores(shares[None])[:, 0], np.eye(len(shares), dtype=np.int64)
        while True:
            load = self.stages(shares[None])
            heavy = self.places.holds[self.places.work(load)[0].argmax()] > 0
            heavy[load[0].argmax()] = True
            moves = (shares[None] - unit[heavy][:, None] + unit[None]).reshape(-1, len(shares))
            moves = moves[(moves >= 0).all(axis=1) & (moves[:, 1:-1] >= 1).all(axis=1)]
            if not len(moves):
                return shares, score
            reached = self.scores(moves)
            best = int(np.lexsort(np.round(reached / score[:, None], 9)[::-1])[0])
            change = reached[:, best] / score - 1.0
            changed = np.flatnonzero(np.abs(change) > 1e-9)
            if not len(changed) or change[changed[0]] > 0.0:
                return shares, score
            shares, score = moves[best], reached[:, best]


def fitted(
    priced: PricedModel, index: IntArray, pp: int, vpp: int, schedule: str, shares: IntArray, limit_bytes: float, *,
    fit: bool, by_stage: bool,
) -> tuple[BoolArray, IntArray | None]:  # fmt: skip
    """Whether layouts with these layers of each virtual stage (n, parts) fit, and what they recompute with `fit`."""
    splits = np.asarray([split_id(tuple(s)) for s in shares.tolist()])
    if not fit:
        return np.asarray((_peaks(priced, index, pp, vpp, schedule, splits, None) <= limit_bytes).all(axis=1)), None
    groups, order = _groups(pp, vpp, schedule, priced, index)
    n, k = len(index), int(groups.max()) + 1
    member = groups[_part_rank(pp, vpp, schedule)][None] == np.arange(k)[:, None]  # (k, parts)
    most = (shares @ member.T) if by_stage else np.broadcast_to(shares.max(axis=1, keepdims=True), (n, 1))
    low, high = np.zeros_like(most), most.copy()

    def numbers(total: IntArray) -> IntArray:
        if not by_stage:
            return np.minimum(total, shares)
        found = np.zeros_like(shares)
        for group in range(k):
            left = total[:, group].copy()
            for part in order[member[group][order]]:
                found[:, part] = np.minimum(left, shares[:, part])
                left = left - found[:, part]
        return found

    def holds(total: IntArray) -> BoolArray:
        ranks = _peaks(priced, index, pp, vpp, schedule, splits, numbers(total)) <= limit_bytes  # (n, pp)
        if not by_stage:
            return np.asarray(ranks.all(axis=1, keepdims=True))
        return np.stack([ranks[:, groups == group].all(axis=1) for group in range(k)], axis=1)

    fits = holds(high)
    while (low < high).any():
        middle = (low + high) // 2
        ok = holds(middle)
        high, low = np.where(ok, middle, high), np.where(ok | (low >= high), low, middle + 1)
    return np.asarray(fits.all(axis=1)), numbers(high)


def _part_rank(pp: int, vpp: int, schedule: str) -> IntArray:
    """A rank that holds each part: ndarray (parts,)."""
    plan = get_schedule(schedule)
    return np.asarray([plan.rank_of(stage, pp) for stage in range(pp * vpp)])


def _groups(pp: int, vpp: int, schedule: str, priced: PricedModel, index: IntArray) -> tuple[IntArray, IntArray]:
    """Group of each rank, equal for ranks that hold the same parts; parts, those first of which most wait."""
    plan = get_schedule(schedule)
    parts = [sorted(np.flatnonzero(row)) for row in Places.of(pp, vpp, schedule).holds]
    distinct: dict[tuple[int, ...], int] = {}
    groups = np.asarray([distinct.setdefault(tuple(map(int, held)), len(distinct)) for held in parts])
    count = int(priced.layouts.take(index[:1]).microbatches(priced.workload.gbs)[0])
    each = moments(schedule, pp, count, vpp)
    chunk = [plan.chunk_of(stage, pp) for stage in range(pp * vpp)]
    waiting = [each[rank].rows[:, chunk[part]].max() for part, rank in enumerate(_part_rank(pp, vpp, schedule))]
    return groups, np.asarray(np.argsort(-np.asarray(waiting), kind="stable"))


def _peaks(
    priced: PricedModel, index: IntArray, pp: int, vpp: int, schedule: str, splits: IntArray, numbers: IntArray | None
) -> FloatArray:
    """Peak bytes of each rank: ndarray (n, pp)."""
    layouts = replace(priced.layouts.take(index), stage_layers=splits)
    if numbers is not None:
        coded = np.asarray([split_id(tuple(row)) for row in numbers.tolist()])
        layouts = replace(layouts, recompute=np.full(len(index), BLOCK), recompute_layers=coded)
    sub = replace(priced, layouts=layouts, inverse=priced.inverse[index], policy=priced.policy[index])
    return group_memory(sub, np.arange(len(index)), pp, vpp, schedule).peak_bytes
