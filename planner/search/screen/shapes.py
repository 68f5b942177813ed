"""What a few ranks of a pipeline hold, as numbers that multiply the prices and bytes of blocks: none is summed twice.

A bound needs no rank but those that may be the worst: the first two, and the last two. How many blocks of each kind
they hold, how many lie on the stages before them, and how many micro-batches wait when their first backward begins
says all that a bound multiplies.

A pipeline whose layers do not divide gets its split later, from a program of its own. No split can have all ranks below
a mean over them, whatever its weights: there the ranks stand for four such means, from one that takes all ranks alike
to one that takes each the less the more micro-batches wait there, and a block counts with the least that it can have
in the mean, wherever it lies.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from hwmodels.records import dataclass
from planner.layout import RECOMPUTE, is_even, split_of
from planner.layout.recompute import DEFAULT_EVERY
from planner.memory.moments import equivalent
from planner.model.spec import ModelSpec
from planner.schedule import Action, Kind, Schedule
from planner.schedule import get as get_schedule
from planner.stages import shares_of

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
RANKS = 4
"""Ranks, or means over them, that are looked at."""
_LEANS = (0.0, 1.0, 4.0, np.inf)
"""How much less a mean takes of a rank where more waits: weights ``1 / (1 + lean (pp - r) / pp)``."""


def ranks_of(pp: int) -> tuple[int, ...]:
    """The first two and the last two ranks, again where a pipeline has fewer."""
    return 0, min(1, pp - 1), max(pp - 2, 0), pp - 1


@dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """One (pp, vpp, schedule) of a model, its layers dealt by the default rule.

    Blocks are the kinds of layers, the embedding and the head; parts the positions 0 .. pp*vpp - 1 of the model.

    Attributes
    ----------
    plan : Schedule
    pp, vpp : int
    open : bool
        Whether the split is found later, so that every rank stands for the mean.
    stage, place, length : ndarray (layers,)
        Part of each layer, its place in it, and how many layers that holds.
    kind : ndarray (layers,)
    parts : ndarray (ranks, chunks)
        What each rank holds.
    held : ndarray (parts, blocks)
    below : ndarray (ranks,)
        Stages before a rank's first one; 0 where two copies run against each other, and with an open split.
    hops : ndarray (ranks,)
        Sends between ranks that one micro-batch takes out of a rank, both ways.
    """

    plan: Schedule
    pp: int
    vpp: int
    open: bool
    stage: IntArray
    place: IntArray
    length: IntArray
    kind: IntArray
    parts: IntArray
    held: FloatArray
    below: IntArray
    hops: IntArray

    @property
    def chunks(self) -> int:
        """Virtual stages of a rank."""
        return self.plan.chunks(self.vpp)

    def layers(self, chosen: NDArray[np.bool_]) -> FloatArray:
        """How many of the layers that are chosen each part holds, by kind: ndarray (parts, kinds)."""
        kinds = self.held.shape[1] - 2
        number = self.stage * kinds + self.kind
        found = np.bincount(number, weights=chosen, minlength=len(self.held) * kinds)
        return found.reshape(len(self.held), kinds).astype(np.float64)

    def on_ranks(self, parts: FloatArray) -> FloatArray:
        """Counts of parts (parts, k) on the chunks of each rank: ndarray (ranks, chunks, k).

        With an open split what a mean has of them at least, all in the first chunk.
        """
        if self.open:
            found = np.zeros((*self.parts.shape, parts.shape[1]))
            found[:, 0] = parts.sum(axis=0) * self.plan.directions * means(self.pp).min(axis=1)[:, None]
            return found
        return np.asarray(parts[self.parts])

    def before(self, parts: FloatArray) -> FloatArray:
        """Counts of parts (parts, k) on the stages below each rank's first: ndarray (ranks, k)."""
        sums = np.concatenate([np.zeros((1, parts.shape[1])), np.cumsum(parts, axis=0)])
        return np.asarray(sums[self.below])


@lru_cache(maxsize=4096)
def shape_of(model: ModelSpec, pp: int, vpp: int, schedule: str) -> Shape:
    """The shape of a pipeline of a model; kept."""
    plan, n = get_schedule(schedule), pp * vpp
    shares = np.asarray(shares_of(model.n_layers, pp, vpp, 0))
    kinds = {layer: i for i, layer in enumerate(model.layer_kinds())}
    kind = np.asarray([kinds[layer] for layer in model.layers])
    stage = np.repeat(np.arange(n), shares)
    place = np.arange(model.n_layers) - np.repeat(np.cumsum(shares) - shares, shares)
    held = np.zeros((n, len(kinds) + 2))
    np.add.at(held, (stage, kind), 1.0)
    held[0, -2] += 1.0
    held[-1, -1] += 1.0
    ranks = ranks_of(pp)
    stages = range(plan.n_stages(pp, vpp))
    at = {r: sorted((s for s in stages if plan.rank_of(s, pp) == r), key=lambda s: plan.chunk_of(s, pp)) for r in ranks}
    parts = np.asarray([[plan.layers_of(s, pp, vpp) for s in at[r]] for r in ranks])
    even = pp == 1 or is_even(model.n_layers, n)
    one_way = plan.directions == 1
    below = np.asarray([min(at[r]) if even and one_way else 0 for r in ranks])
    hops = np.asarray([sum(_hops(plan, s, pp, n) for s in at[r]) for r in ranks])
    return Shape(plan, pp, vpp, not even, stage, place, shares[stage], kind, parts, held, below, hops)


@lru_cache(maxsize=256)
def means(pp: int) -> FloatArray:
    """Weights of the means that stand for ranks with an open split: ndarray (ranks, pp), each of sum 1."""
    waits = (pp - np.arange(pp)) / pp
    each = np.asarray([1.0 / waits if np.isinf(lean) else 1.0 / (1.0 + lean * waits) for lean in _LEANS])
    return np.asarray(each / each.sum(axis=1, keepdims=True))


def _hops(plan: Schedule, stage: int, pp: int, length: int) -> int:
    """Sends of one micro-batch out of a stage to another rank, forward and backward."""
    on = stage % length < length - 1 and plan.rank_of(stage + 1, pp) != plan.rank_of(stage, pp)
    back = stage % length > 0 and plan.rank_of(stage - 1, pp) != plan.rank_of(stage, pp)
    return int(on) + int(back)


@dataclass(frozen=True, slots=True, eq=False)
class Cover:
    """Layers that a policy recomputes, and those that keep activations, of a shape.

    Attributes
    ----------
    again : ndarray (parts, kinds)
        Layers that are recomputed.
    kept, whole : ndarray (parts, kinds + 2)
        Blocks that keep what the policy leaves of them, and what they save without a policy.
    partial : bool
        Whether it takes not every layer by itself.
    """

    again: FloatArray
    kept: FloatArray
    whole: FloatArray
    partial: bool


def cover_of(shape: Shape, kind: int, layers: int, offloaded: int) -> Cover:
    """What a policy of whole layers covers, and activations that wait on the host.

    Parameters
    ----------
    kind, layers : int
        `LayoutBatch.recompute` and `recompute_layers` of a policy that does not take every layer by itself; 0, 0 of
        one that does.
    offloaded : int
        Layers of each virtual stage whose activations are elsewhere.
    """
    every = np.ones(len(shape.stage), dtype=np.bool_)
    none = np.zeros((len(shape.held), 2))
    if not kind:
        away = shape.layers(shape.place < offloaded)
        kept = np.concatenate([shape.held[:, :-2] - away, shape.held[:, -2:]], axis=1)
        return Cover(shape.held[:, :-2], kept, np.zeros_like(kept), False)
    word, n = RECOMPUTE[kind], (split_of(layers) or (0,))[0]
    if word == "every":
        again = (shape.place + 1) % (n or DEFAULT_EVERY) == 0
        inputs = again
    elif word == "block":
        again = shape.place < (n or shape.length) if layers else every
        inputs = again
    else:
        again, inputs = every, shape.place % (n or 1) == 0
    rebuilt = shape.layers(again)
    plain = shape.held[:, :-2] - rebuilt
    kept = np.concatenate([shape.layers(inputs), shape.held[:, -2:]], axis=1)
    return Cover(rebuilt, kept, np.concatenate([plain, none], axis=1), True)


def waiting(shape: Shape, microbatches: int) -> FloatArray:
    """Micro-batches of each chunk that wait when a rank's first backward begins: ndarray (ranks, chunks).

    Every run has that moment, so what they keep is a bound of the peak; with an open split what waits in each mean at
    least, over what `Shape.on_ranks` has of it there.
    """
    pp, args = shape.pp, (shape.plan.name, shape.pp, microbatches, shape.vpp)
    if not shape.open:
        return np.asarray([_waiting(*args, rank) for rank in ranks_of(pp)], dtype=np.float64)
    least = np.asarray([min(_waiting(*args, rank)) for rank in range(pp)], dtype=np.float64)
    weights = means(pp)
    found = (weights * least).min(axis=1) / weights.min(axis=1)
    return np.broadcast_to(found[:, None], shape.parts.shape)


@lru_cache(maxsize=16384)
def _waiting(schedule: str, pp: int, microbatches: int, vpp: int, rank: int) -> tuple[int, ...]:
    """Forwards of each chunk of a rank before its first backward; those of known schedules in closed form."""
    from planner.schedule.interleaved_1f1b import round_size

    plan = get_schedule(schedule)
    if schedule in ("1f1b", "gpipe"):
        return (_in_flight(schedule, pp, microbatches)[rank],)
    if schedule == "interleaved-1f1b":
        size = round_size(pp, microbatches)
        if microbatches % size == 0:
            first = min((vpp - 1) * size + 2 * (pp - 1 - rank) + 1, microbatches * vpp)
            rounds, rest = divmod(first, size * vpp)
            return tuple(rounds * size + min(max(rest - c * size, 0), size) for c in range(vpp))
    counts = [0] * plan.chunks(vpp)
    for action in _orders(schedule, pp, equivalent(plan, pp, microbatches, vpp), vpp)[rank]:
        if action.kind is not Kind.FORWARD:
            break
        counts[plan.chunk_of(action.stage, pp)] += 1
    return tuple(counts)


@lru_cache(maxsize=4096)
def _in_flight(schedule: str, pp: int, microbatches: int) -> list[int]:
    """Of all ranks of a pipeline of one virtual stage each, asked for once."""
    return get_schedule(schedule).in_flight(pp, microbatches, 1)


@lru_cache(maxsize=256)
def _orders(schedule: str, pp: int, microbatches: int, vpp: int) -> list[list[Action]]:
    return get_schedule(schedule).actions(pp, microbatches, vpp)
