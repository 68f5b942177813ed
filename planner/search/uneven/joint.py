"""Splits of pipelines with one virtual stage a rank, together with what each stage recomputes to fit its memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwmodels.records import dataclass
from planner.layout import RECOMPUTE, split_id, split_layers, split_of
from planner.layout.recompute import BLOCK, WHOLE_LAYERS, layers_at, recomputed_layers
from planner.priced import PricedModel
from planner.search.uneven.chain import Splits, best_splits
from planner.search.uneven.room import Room
from planner.search.uneven.seconds import BlockSeconds
from planner.search.uneven.slowest import EVEN
from planner.step.assemble import group_memory

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

BAND = 1.5
"""Stages are tried up to this times the bound of the default split with every layer recomputed. A split with a stage
above that bound is worse than the default, so nothing is lost where the default fits the memory."""


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """What was found for n layouts.

    Attributes
    ----------
    seconds, default_seconds : ndarray (n,)
        What was minimised: of the answer, and of the default split; infinite where that does not fit the memory.
    shares : ndarray (n, stages) of int
        Layers of each virtual stage.
    recomputed : ndarray (n, stages) of int or None
        Recomputed layers of each; None where they were not asked for.
    """

    seconds: FloatArray
    default_seconds: FloatArray
    shares: IntArray
    recomputed: IntArray | None

    def with_at(self, rows: IntArray, other: Answer) -> Answer:
        """The same with what another answer says of the layouts at `rows`."""

        def put(own: FloatArray | IntArray, theirs: FloatArray | IntArray) -> NDArray[Any]:
            own = own.copy()
            own[rows] = theirs
            return own

        both = None
        if self.recomputed is not None and other.recomputed is not None:
            both = put(self.recomputed, other.recomputed)
        return Answer(
            put(self.seconds, other.seconds), put(self.default_seconds, other.default_seconds),
            put(self.shares, other.shares), both,
        )  # fmt: skip


def joint(
    priced: PricedModel, index: IntArray, pp: int, schedule: str, limit_bytes: float, *, fit: bool,
    by_stage: bool = True, moves: bool = True,
) -> Answer:  # fmt: skip
    """Splits with the least ``(M - 1) * slowest stage + sum of the stages`` that fit `limit_bytes` on every rank.

    To the sum is added `EVEN` times ``sum of squares / mean``.

    Exact for that sum (`planner.search.uneven.chain.best_splits`), stages with their recomputation, embedding, head and
    prediction steps, and sends where they hold up computing: what a rank needs depends on its own layers
    alone, more recomputation only takes longer, so of every window of layers on every rank the fewest recomputed
    layers that fit are best, and one dynamic program over windows decides both. What is best without a thought of
    memory is the answer where it fits. Else windows are sized when a best split
    first uses them (`planner.search.uneven.room.Room`); until then less is assumed of them, so a best split of sized
    windows only is the best of all.

    Parameters
    ----------
    index : ndarray (n,)
        Layouts that share pp, vpp = 1 and schedule, of one copy of the pipeline.
    fit : bool
        Recompute as many of the first layers of a stage as it takes; else the layout's own policy holds.
    by_stage : bool
        Whether `fit` may choose another number for every stage; else one number for all.
    moves : bool
        Whether layers may be dealt otherwise than by the default rule.
    """
    seconds = BlockSeconds.of(priced, index, pp, 1, schedule)
    problem = _Problem.of(priced, index, pp, seconds, fit=fit, by_stage=by_stage)
    room = Room(priced, index, pp, schedule, limit_bytes, problem.widest, fit=fit)
    default = np.asarray(split_layers(priced.model.n_layers, pp), dtype=np.int64)
    usual = np.broadcast_to(default, (len(problem.row), pp))
    free = Splits(problem.of_split(default, room), usual)
    few = problem.narrowed(free.seconds)
    best = best_splits(lambda stage: few.table(stage, room), pp, priced.model.n_layers, few.weight)
    found = problem.answer(best if moves else free, free, room)
    tight = np.flatnonzero(~_held(priced, index, pp, schedule, found, default, limit_bytes, fit=fit))
    if not len(tight):
        return found
    if len(tight) < len(index):
        rest = joint(priced, index[tight], pp, schedule, limit_bytes, fit=fit, by_stage=by_stage, moves=moves)
        return found.with_at(tight, rest)
    room.size(room.number[np.cumsum(default) - default, default])
    free = Splits(problem.of_split(default, room), usual)
    few = problem.narrowed(free.seconds)
    while moves:
        best = best_splits(lambda stage: few.table(stage, room), pp, priced.model.n_layers, few.weight)
        allowed = np.isfinite(best.seconds)
        if not room.size(room.number[best.begins[allowed], best.shares[allowed]]):
            return problem.answer(best, free, room)
    return problem.answer(free, free, room)


def _held(
    priced: PricedModel, index: IntArray, pp: int, schedule: str, found: Answer, default: IntArray, limit_bytes: float,
    *, fit: bool,
) -> NDArray[np.bool_]:  # fmt: skip
    """Layouts whose split that is best without a thought of memory fits it, and the default split too: (n,).

    With `fit` without recomputation.
    """
    n = len(index)
    splits = [split_id(shares) for shares in (*found.shares.tolist(), *[default.tolist()] * n)]
    layouts = replace(priced.layouts.take(np.tile(index, 2)), stage_layers=np.asarray(splits))
    if fit:
        none = np.full(2 * n, split_id((0,)))
        layouts = replace(layouts, recompute=np.full(2 * n, BLOCK), recompute_layers=none)
    rows, policy = np.tile(priced.inverse[index], 2), np.tile(priced.policy[index], 2)
    whole = replace(priced, layouts=layouts, inverse=rows, policy=policy)
    peaks = group_memory(whole, np.arange(2 * n), pp, 1, schedule).peak_bytes
    fits = np.asarray((peaks <= limit_bytes).all(axis=1))
    return np.asarray(fits[:n] & fits[n:])


@dataclass(frozen=True, slots=True, eq=False)
class _Problem:
    """Cumulated seconds of n layouts, each once for every number of recomputed layers that is tried for all stages.

    Attributes
    ----------
    until : tuple of ndarray (n, layers + 1)
        Load and onward of the layers before each, and what recomputing them adds.
    own : ndarray (n, 1 or pp, layers + 1, widest + 1)
        What the layout's own policy runs again of each window; zero with `fit`.
    row, number : ndarray (m,)
        Layout, and recomputed layers of every stage (-1: each stage its own) of each of the m tries.
    """

    pp: int
    seconds: BlockSeconds
    until: tuple[FloatArray, FloatArray, FloatArray]
    own: FloatArray
    widest: int
    fit: bool
    row: IntArray
    number: IntArray

    @classmethod
    def of(
        cls, priced: PricedModel, index: IntArray, pp: int, seconds: BlockSeconds, *, fit: bool, by_stage: bool
    ) -> _Problem:
        n, layers = seconds.load.shape
        until = _until(seconds.load), _until(seconds.onward), _until(seconds.again)
        default = np.asarray(split_layers(layers, pp), dtype=np.int64)
        none, every = np.zeros((n, 1, layers + 1, 1)), np.arange(n)
        plain = cls(pp, seconds, until, none, layers, fit, every, np.full(n, -1))
        most = plain.slow(default)
        widest = max(_widest(until[0], seconds.microbatches, BAND * most), int(default.max()))
        own = none if fit else _own(priced, index, pp, seconds.again, widest)
        tries = [-1] if by_stage or not fit else list(range(widest + 1))
        return cls(pp, seconds, until, own, widest, fit, np.tile(every, len(tries)), np.repeat(tries, n))

    def narrowed(self, reached: FloatArray) -> _Problem:
        """The same without windows that are too long for a split as good as one that has `reached` this (m,).

        A stage counts M - 1 times and once more in the sum, there less where the backward is split.
        """
        n = len(self.seconds.microbatches)
        most = reached.reshape(-1, n).min(axis=0)
        count = self.seconds.microbatches - float((self.until[1] < self.until[0]).any())
        return replace(self, widest=min(_widest(self.until[0], count, most), self.widest))

    def slow(self, shares: IntArray) -> FloatArray:
        """What is minimised, of one split of all layouts with every layer recomputed: ndarray (n,)."""
        cuts = np.concatenate([[0], np.cumsum(shares)])
        rerun = np.diff(self.until[2][:, cuts], axis=1)
        load, onward = (
            np.diff(u[:, cuts], axis=1) + rerun + more for u, more in zip(self.until[:2], self.hops, strict=True)
        )
        for part, which in ((load, 0), (onward, 1)):
            part[:, 0] += self.seconds.first[which]
            part[:, -1] += self.seconds.last[which]
        return np.asarray((self.seconds.microbatches - 1.0) * load.max(axis=1) + onward.sum(axis=1))

    def of_split(self, shares: IntArray, room: Room) -> FloatArray:
        """What is minimised, of one split of all tries; infinite where it does not fit: ndarray (m,)."""
        begins = np.cumsum(shares) - shares
        each = [self.table(s, room, (int(begins[s]), int(shares[s]))) for s in range(self.pp)]
        load, onward = (np.stack([pair[i][:, 0, 0] for pair in each], axis=1) for i in (0, 1))
        fits = np.asarray(np.isfinite(load).all(axis=1))
        load, onward = (np.where(fits[:, None], part, 0.0) for part in (load, onward))
        return np.where(fits, self.weight * load.max(axis=1) + onward.sum(axis=1), np.inf)

    @property
    def mean(self) -> FloatArray:
        """Seconds of a stage on average, nothing recomputed, of each try: ndarray (m,)."""
        whole = self.until[0][:, -1] + self.seconds.first[0] + self.seconds.last[0]
        return np.asarray(whole[self.row] / self.pp)

    @property
    def weight(self) -> FloatArray:
        """Micro-batches that the slowest stage lets through one by one, of each try: ndarray (m,)."""
        return np.asarray(self.seconds.microbatches[self.row] - 1.0)

    @property
    def hops(self) -> tuple[FloatArray, FloatArray]:
        """Sends that hold up a stage's own computing, and those out of it and back into it: ndarray (n, pp) each."""
        ahead, back = (hop[:, :, 0] for hop in self.seconds.hop)
        returned = np.concatenate([back[:, 1:], np.zeros((len(back), 1))], axis=1)
        return np.asarray((ahead + back) * self.seconds.blocking), np.asarray(ahead + returned)

    def table(
        self, stage: int, room: Room, window: tuple[int, int] | None = None
    ) -> tuple[FloatArray, FloatArray]:
        """Seconds of a micro-batch for the slowest stage and for the sum: ``[try, begin, layers]``.

        Of one (begin, layers) alone where `window` is given.
        """
        s, row, layers = self.seconds, self.row, self.until[0].shape[1] - 1
        begin, held = np.arange(layers + 1)[:, None], np.arange(self.widest + 1)[None, :]
        if window is not None:
            begin, held = (np.asarray([[v]]) for v in window)
        end, number = np.minimum(begin + held, layers), room.number[begin, held]
        need = room.need[:, stage][:, np.maximum(number, 0)]
        need = need if len(row) == len(need) else need[row]
        allowed = (number >= 0) & ((held > 0) | (stage in (0, self.pp - 1) and self.pp > 1)) & (need < room.never)
        if self.fit:
            given = np.where(self.number[:, None, None] < 0, need, np.minimum(self.number[:, None, None], held))
            allowed = allowed & (need <= given)
            place = row[:, None, None] * (layers + 1)
            upto = np.take(self.until[2], place + np.minimum(begin + np.minimum(given, held), layers))
            again = upto - np.take(self.until[2], place + begin)
        else:
            again = self.own[:, min(stage, self.own.shape[1] - 1)][:, begin, held]
        load, onward = (u[:, end] - u[:, begin] for u in self.until[:2])
        for here, ends in ((0, s.first), (self.pp - 1, s.last)):
            if stage == here:
                load, onward = (part + v[:, None, None] for part, v in zip((load, onward), ends, strict=True))
        load, onward = (part + v[:, stage, None, None] for part, v in zip((load, onward), self.hops, strict=True))
        if len(row) != len(load):
            load, onward = load[row], onward[row]
        load, onward = load + again, onward + again
        onward = onward + EVEN * load * load / self.mean[:, None, None]
        return np.where(allowed, load, np.inf), np.where(allowed, onward, np.inf)

    def answer(self, found: Splits, default: Splits, room: Room) -> Answer:
        """The best try of each layout, of equally good ones that with the fewest recomputed layers."""
        n = len(self.seconds.microbatches)
        each = found.seconds.reshape(-1, n)
        best = each.argmin(axis=0) * n + np.arange(n)
        shares, begins = found.shares[best], found.begins[best]
        recomputed = None
        if self.fit:
            number = room.number[begins, shares]
            need = room.need[np.arange(n)[:, None], np.arange(self.pp), number]
            given = self.number[best][:, None]
            recomputed = np.where(given < 0, need, np.minimum(given, shares))
        return Answer(found.seconds[best], default.seconds.reshape(-1, n).min(axis=0), shares, recomputed)


def _until(each: FloatArray) -> FloatArray:
    """Sums of what comes before each layer, and of all: ndarray (n, layers + 1)."""
    return np.concatenate([np.zeros((len(each), 1)), np.cumsum(each, axis=1)], axis=1)


def _widest(until: FloatArray, microbatches: FloatArray, most: FloatArray) -> int:
    """Most layers of a stage whose work alone does not exceed `most` for some layout."""
    layers = int(until.shape[1]) - 1
    for width in range(1, layers + 1):
        least = (until[:, width:] - until[:, : layers + 1 - width]).min(axis=1)
        if (microbatches * least > most).all():
            return width - 1
    return layers


def _own(priced: PricedModel, index: IntArray, pp: int, again: FloatArray, widest: int) -> FloatArray:
    """What each layout's own policy runs again of each window: ndarray (n, 1 or pp, layers + 1, widest + 1)."""
    b, (n, layers) = priced.layouts.take(index), again.shape
    keys = np.stack([b.recompute, b.recompute_layers], axis=1)
    unique, inverse = np.unique(keys, axis=0, return_inverse=True)
    by_stage = any(len(split_of(int(numbers))) > 1 for _, numbers in unique)
    found = np.zeros((n, pp if by_stage else 1, layers + 1, widest + 1))
    for i, (kind, numbers) in enumerate(unique):
        rows = np.flatnonzero(inverse.reshape(-1) == i)
        for stage in range(found.shape[1]):
            for width in range(1, widest + 1):
                chosen = _chosen(int(kind), split_of(int(numbers)), stage, width)
                for offset in chosen:
                    found[rows, stage, : layers + 1 - width, width] += again[rows, offset : offset + layers + 1 - width]
    return found


def _chosen(kind: int, numbers: tuple[int, ...], stage: int, width: int) -> list[int]:
    """Layers of a stage of `width` on which a policy works, as `planner.layout.recompute.recomputes_layer` says."""
    name = RECOMPUTE[kind]
    if kind not in WHOLE_LAYERS:
        return [] if name == "none" else list(range(width))
    number = layers_at(numbers, stage)
    if name == "block" and numbers and not number:
        return []
    return sorted(i for chunk in recomputed_layers(name, number, width) for i in chunk)
