"""Bounds of what a rank's model state takes, over the rows of `Survey.state`: bytes at each moment, and seconds a step.

A rank holds at least what it would in the pipeline (vpp and schedule) of its depth that gives it least, and with an
open split the mean over ranks, which the fullest rank cannot be below.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hwmodels.distinct import distinct
from hwmodels.records import dataclass
from planner.elements import BlockElements, Elements, StageElements
from planner.layout import RESHARDS, LayoutBatch
from planner.layout.distinct import distinct_rows
from planner.memory.outside import communicator_bytes
from planner.memory.states import states
from planner.priced import PricedModel
from planner.search.screen.shapes import RANKS, Shape
from planner.stages import Kinds
from planner.state import gathers, gradient_bytes, reduces_each, weight_bytes
from planner.step.data_parallel import Way
from planner.step.moves import Axes, Move, price_moves
from planner.step.once import beside_host, elementwise_update

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class StateBounds:
    """Of each row of `Survey.state`.

    Attributes
    ----------
    after_s : ndarray (k,)
        Optimizer, and the gather behind it.
    at_end_s, reduce_s : ndarray (k,)
        Reductions that nothing hides; all reductions of a step (of a micro-batch where `each`).
    unshard_s : ndarray (k,)
        Gathering all parameters of a rank once.
    gathers : ndarray (k, 2)
        How often a step gathers them: so many times, and so many times a micro-batch.
    each : ndarray (k,) of bool
        Whether gradients are reduced after every micro-batch.
    load, step, late : ndarray (2, k, ranks)
        Bytes when the model is built, in a step, and at the most of optimizer and checkpoint: with several
        micro-batches, and with one.
    flat : ndarray (2, k, ranks)
        Bytes that the allocator holds beside them.
    outside : ndarray (k,)
        Bytes that no allocator sees.
    """

    after_s: FloatArray
    at_end_s: FloatArray
    reduce_s: FloatArray
    unshard_s: FloatArray
    gathers: FloatArray
    each: BoolArray
    load: FloatArray
    step: FloatArray
    late: FloatArray
    flat: FloatArray
    outside: FloatArray


def state_bounds(priced: PricedModel, table: Mapping[str, IntArray], shapes: Sequence[Shape]) -> StateBounds:
    """Bounds of every row of a table of `CELL` and `STATE` fields.

    Parameters
    ----------
    shapes : sequence of Shape
        Those that the candidates have; of each depth at least one.
    """
    layouts = LayoutBatch.filled(table)
    elements = _elements(priced, layouts, shapes)
    seconds = _seconds(priced, layouts, elements)
    moments = [_moments(priced, layouts, elements, one=one) for one in (False, True)]
    load, step, late, flat = (np.stack([m[i] for m in moments]) for i in range(4))
    outside = communicator_bytes(priced.cluster, layouts, priced.preset) + float(priced.cluster.context_bytes)
    return StateBounds(*seconds, load, step, late, flat, outside)


def _elements(priced: PricedModel, layouts: LayoutBatch, shapes: Sequence[Shape]) -> StageElements:
    """Parameters of the ranks that are looked at: arrays (k, ranks)."""
    blocks = BlockElements.of(priced.model, priced.workload, layouts)
    first, same = distinct_rows([blocks.which, layouts.pp], len(layouts))
    least: dict[int, FloatArray] = {}
    for shape in shapes:
        held = shape.on_ranks(shape.held).sum(axis=1)
        least[shape.pp] = np.minimum(least.get(shape.pp, held), held)
    table = np.stack([least[int(pp)] for pp in layouts.pp[first]])  # (k', ranks, blocks)
    parts = np.einsum("krb,pkb->pkr", table, blocks.values[:, blocks.which[first]])[:, same]
    adapters = priced.workload.lora is not None
    d, e, none = parts[:4], parts[4:], np.zeros_like(parts[0])
    dense, expert = Elements(d[0], d[1], d[2], d[3], adapters), Elements(e[0], e[1], e[2], none, adapters)
    return StageElements(dense, expert, weight_bytes(priced.workload, priced.preset), Kinds.every(RANKS, 1))


def _moments(
    priced: PricedModel, layouts: LayoutBatch, elements: StageElements, *, one: bool
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Bytes (k, ranks) when loading, in a step and at the most after it, and beside; with one micro-batch or more."""
    gbs = priced.workload.gbs
    mbs = np.maximum(gbs // layouts.dp, 1) if one else np.ones_like(layouts.dp)
    found = [np.zeros((len(layouts), RANKS)) for _ in range(4)]
    for pipelined in (False, True):
        rows = np.flatnonzero((layouts.pp > 1) == pipelined)
        if not len(rows):
            continue
        some = replace(layouts.take(rows), mbs=mbs[rows])
        # every rank is looked at as one of a pipeline; without one, all are the same
        mine = _taken(elements, rows) if pipelined else _taken(elements, rows, 1)
        held = states(priced.workload, some, priced.preset, mine, RANKS if pipelined else 1)
        always = held.parameters + held.optimizer
        kept = always + held.gradients
        for into, value in zip(
            found,
            (always + held.loading, kept, kept + np.maximum(held.stepping, held.saving), held.flattened),
            strict=True,
        ):
            into[rows] = value
    return found[0], found[1], found[2], found[3]


def _taken(elements: StageElements, rows: IntArray, ranks: int = RANKS) -> StageElements:
    """The parameters of some rows, on the first of the ranks."""

    def some(part: Elements) -> Elements:
        every, frozen, packed, other = (v[rows, :ranks] for v in (part.all, part.frozen, part.packed, part.other))
        return Elements(every, frozen, packed, other, part.adapters)

    return StageElements(some(elements.dense), some(elements.expert), elements.weights, Kinds.every(ranks, 1))


def _seconds(
    priced: PricedModel, layouts: LayoutBatch, elements: StageElements
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray, FloatArray, BoolArray]:
    """after, at_end, reduce, unshard, gathers and each of `StateBounds`."""
    preset, k = priced.preset, len(layouts)
    grad = gradient_bytes(priced.workload, preset)
    dense, expert = elements.dense, elements.expert
    shards = (layouts.fsdp_degree * layouts.cp, layouts.expert_shard)
    own = [np.where(layouts.zero_stage > 0, shard, 1.0)[:, None] for shard in shards]
    mine = dense.trained / own[0] + expert.trained / own[1]
    others = dense.other / own[0]
    update = beside_host(priced, layouts, elementwise_update(priced, mine, others), mine).mid
    has_experts = bool(np.any(expert.all > 0))
    names = ("dp", "cp", "ep", "etp", "tp", "pp", "order", "zero_stage", "fsdp")
    first, same = distinct_rows([np.asarray(getattr(layouts, name)) for name in names], k)
    few, stage = layouts.take(first), layouts.zero_stage[first]
    order = np.argsort(stage, kind="stable")
    axes, place = Axes(few.take(order), priced.cluster), np.argsort(order)
    moved = {name: np.zeros((len(first), RANKS)) for name in ("reduce", "gather", "unshard")}
    for zero in map(int, distinct(stage)):
        rows = np.flatnonzero(stage == zero)
        here = slice(int(place[rows[0]]), int(place[rows[-1]]) + 1)
        wide = [np.asarray(shard[first[rows]], dtype=np.float64)[:, None] for shard in shards]
        way = Way(axes, here, wide[0], wide[1], preset, zero, has_experts)
        mine_ = [part.trained[first[rows]] for part in (dense, expert)]
        sent = [_sent(part, elements, first[rows], whole=zero >= 3) for part in (dense, expert)]
        asked = {"reduce": way.reduced(mine_[0] * grad, mine_[1] * grad)}
        if zero:
            asked["unshard" if zero >= 3 else "gather"] = way.gathered(sent[0], sent[1])
        moves: list[Move] = [move for some in asked.values() for move in some]
        seconds = iter(price_moves(priced.cluster, moves))
        for name, some in asked.items():
            moved[name][rows] = sum(next(seconds).mid for _ in some)
    after = update + np.where(preset.overlap_param_gather, 0.0, moved["gather"][same])
    reduce = moved["reduce"][same]
    pipelined = layouts.pp > 1
    every = np.asarray([[reduces_each(preset, pp, z) for z in range(4)] for pp in (1, 2)])
    each = every[pipelined.astype(np.int64), layouts.zero_stage]
    ends = ~each & (not preset.overlap_grad_reduce) & (layouts.zero_stage < 3)
    words = np.asarray([[_times(gathers(preset, pp, word)) for word in RESHARDS] for pp in (1, 2)])
    times = words[pipelined.astype(np.int64), layouts.reshard] * (layouts.zero_stage == 3)[:, None]
    at_end = np.where(ends, reduce.min(axis=1), 0.0)
    return after.max(axis=1), at_end, reduce.max(axis=1), moved["unshard"][same].max(axis=1), times, each


def _sent(part: Elements, elements: StageElements, rows: IntArray, *, whole: bool) -> FloatArray:
    """Bytes of a gather of these rows."""
    every, frozen, packed, other = (v[rows] for v in (part.all, part.frozen, part.packed, part.other))
    return Elements(every, frozen, packed, other, part.adapters).gathered_bytes(elements.weights, whole=whole)


def _times(when: str) -> tuple[float, float]:
    """How often parameters are gathered: so many times a step, so many a micro-batch."""
    return {"once": (1.0, 0.0), "forward": (0.0, 1.0), "each": (0.0, 2.0)}[when]
