"""Candidates of a search with uneven stages: split, recomputation, and that their memory holds, for many layouts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

import numpy as np
from numpy.typing import NDArray

from planner.layout import RECOMPUTE, SCHEDULES, LayoutBatch, split_id, split_layers
from planner.layout.recompute import BLOCK, FULL, NONE, WHOLE_LAYERS, Policy
from planner.memory import HEADROOM
from planner.priced import PricedModel
from planner.schedule import get as get_schedule
from planner.search.uneven.joint import Answer, joint
from planner.search.uneven.ranks import by_rank
from planner.search.uneven.seconds import BlockSeconds
from planner.step.assemble import group_memory

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

AT_ONCE = 64
"""Layouts whose splits are found together: bounds the memory of a dynamic program."""

GAIN = 1e-9
"""Share of what was minimised by which a split must be better to be tried."""


def at(priced: PricedModel, index: IntArray) -> PricedModel:
    """The layouts at `index` of a priced batch, their blocks as they are."""
    return replace(
        priced,
        layouts=priced.layouts.take(index),
        inverse=priced.inverse[index],
        sync_s=priced.sync_s[index],
        policy=priced.policy[index],
    )


def joined(batches: Sequence[PricedModel]) -> PricedModel:
    """Batches over the same priced blocks as one, a layout that stands in several of them once.

    In the order of the batches.
    """
    names = [f.name for f in fields(LayoutBatch)]
    columns = {name: np.concatenate([getattr(p.layouts, name) for p in batches]) for name in names}
    whole = replace(
        batches[0],
        layouts=LayoutBatch(**columns),
        inverse=np.concatenate([p.inverse for p in batches]),
        sync_s=np.concatenate([p.sync_s for p in batches]),
        policy=np.concatenate([p.policy for p in batches]),
    )
    return at(whole, np.sort(whole.layouts.distinct(names)[0]))


def balanced_candidates(
    priced: PricedModel, index: IntArray, *, headroom: float = HEADROOM, limit_s: float = float("inf"),
    fit: bool = False, moves: bool = True,
) -> PricedModel:  # fmt: skip
    """Layouts like those at `index` with other stages that may make them faster, or make them fit at all.

    Each comes with the split, and with `fit` the recomputed layers of its stages, that `joint` (one virtual stage a
    rank) or `by_rank` finds. Left out are those that the framework does not run, that are no better by what was
    minimised than the layout they come from although that one fits, whose memory does not hold when it is asked once
    more for the whole layout, that are the same as another one of them, and that cannot be faster than `limit_s`
    whatever their split (`least_seconds`). They are priced and timed like any other layout, so that they enter an
    answer only where they are faster.

    Parameters
    ----------
    priced : PricedModel
    index : ndarray (n,)
    headroom : float
        Share of the device memory that must stay free.
    limit_s : float
    moves : bool
        Whether layers are dealt otherwise than by the default rule; without, only `fit` changes anything.
    fit : bool
        Recompute as many of the first layers of each stage as the memory asks for, where the framework recomputes
        blocks; of layouts whose `recompute` is ``block`` or ``full`` with the default number of layers. Those of other
        policies are left out.

    Returns
    -------
    PricedModel
        Of the candidates; with `layouts` of length 0 where there are none.
    """
    b = priced.layouts
    chosen = index[_may(priced, index, fit=fit, moves=moves) & (least_seconds(priced, index, fit=fit) < limit_s)]
    limit = priced.cluster.device.memory_bytes * (1.0 - headroom)
    found: list[PricedModel] = []
    first, inverse = b.take(chosen).distinct(("pp", "vpp", "schedule"))
    for i, f in enumerate(first):
        group, where = chosen[inverse == i], int(chosen[f])
        shape = int(b.pp[where]), int(b.vpp[where]), SCHEDULES[int(b.schedule[where])]
        many = AT_ONCE if priced.preset.recompute_by_stage or not fit else AT_ONCE // 8
        for begin in range(0, len(group), many):
            some = group[begin : begin + many]
            answer = _solved(priced, some, *shape, limit, fit=fit, moves=moves)
            found.append(_changed(priced, some, answer, *shape, limit))
    return joined(found) if found else at(priced, chosen[:0])


def least_seconds(priced: PricedModel, index: IntArray, *, fit: bool = False) -> FloatArray:
    """Seconds that a step takes at least, however the layers are dealt: ndarray (n,).

    The mean over ranks of a step's computing, ``M T / pp`` with T all blocks of a micro-batch: the heaviest rank has
    no less. Of one virtual stage a rank whose backward is whole more: rank r waits for the stages before it, forward
    and back (`planner.simulate.bound`), so that a step of B seconds leaves it ``l_r <= (B - l_0 - ... - l_(r-1)) / M``;
    summed up, ``T <= B (1 - (1 - 1/M)^pp)``. Recomputation counts where it works on all layers, and not with `fit`.
    """
    least = np.zeros(len(index))
    b = priced.layouts.take(index)
    first, inverse = b.distinct(("pp", "vpp", "schedule"))
    for i, f in enumerate(first):
        here = np.flatnonzero(inverse == i)
        shape = int(b.pp[f]), int(b.vpp[f]), SCHEDULES[int(b.schedule[f])]
        s = BlockSeconds.of(priced, index[here], *shape)
        whole = s.load.sum(axis=1) + s.first[0] + s.last[0]
        again = ~partly(b.take(here)) if not fit else np.zeros(len(here), dtype=np.bool_)
        whole = whole + np.where(again, s.again.sum(axis=1), 0.0)
        plan = get_schedule(shape[2])
        least[here] = s.microbatches * s.copies * whole / shape[0]
        if shape[1] == 1 and plan.directions == 1 and not plan.split_backward:
            least[here] = whole / (1.0 - (1.0 - 1.0 / s.microbatches) ** shape[0])
    return least


def partly(b: LayoutBatch) -> BoolArray:
    """Whether the policy works on some layers of a stage only."""
    whole = np.isin(b.recompute, WHOLE_LAYERS) & (b.recompute_layers > 0)
    return np.asarray((whole & (b.recompute == BLOCK)) | (b.recompute == RECOMPUTE.index("every")))


def _may(priced: PricedModel, index: IntArray, *, fit: bool, moves: bool) -> BoolArray:
    """Layouts at `index` that have stages, and a policy to choose the layers of."""
    b, preset = priced.layouts.take(index), priced.preset
    if fit:
        whole = (b.recompute_layers == 0) & np.isin(b.recompute, (BLOCK, FULL))
        return np.asarray((b.pp > 1) & whole & ("block" in preset.recomputes))
    return np.asarray((b.pp > 1) & (moves and preset.uneven_stages))


def _solved(
    priced: PricedModel, index: IntArray, pp: int, vpp: int, schedule: str, limit: float, *, fit: bool, moves: bool
) -> Answer:
    """The answer for layouts that share (pp, vpp, schedule), within what the framework runs."""
    preset = priced.preset
    how = {"fit": fit, "by_stage": preset.recompute_by_stage, "moves": moves and preset.uneven_stages}
    if vpp == 1 and get_schedule(schedule).directions == 1:
        return joint(priced, index, pp, schedule, limit, **how)
    return by_rank(priced, index, pp, vpp, schedule, limit, **how)


def _changed(
    priced: PricedModel, index: IntArray, answer: Answer, pp: int, vpp: int, schedule: str, limit: float
) -> PricedModel:
    """The layouts at `index` with what was found, without those that are no gain or do not fit."""
    usual, own = split_layers(priced.model.n_layers, pp * vpp), priced.layouts.take(index)
    splits = np.asarray([0 if tuple(s) == usual else split_id(s) for s in answer.shares.tolist()], dtype=np.int64)
    layouts, policy = replace(own, stage_layers=splits), priced.policy[index]
    if answer.recomputed is None:
        gain = (splits != own.stage_layers) & (answer.seconds < answer.default_seconds * (1.0 - GAIN))
    else:
        numbers = np.asarray([_numbers(*pair) for pair in zip(answer.recomputed, answer.shares, strict=True)])
        none = np.asarray(~answer.recomputed.any(axis=1))
        gain = np.isfinite(answer.seconds)
        if Policy("none") in priced.policies:  # the space has the layout without recomputation, and its price
            policy[none] = priced.policies.index(Policy("none"))
            gain &= ~(none & (splits == 0))
        else:
            none[:] = False
        kinds, counts = np.where(none, NONE, BLOCK), np.where(none, 0, numbers)
        layouts = replace(layouts, recompute=kinds, recompute_layers=counts)
    found = replace(at(priced, index[gain]), layouts=layouts.take(gain), policy=policy[gain])
    if not len(found.layouts):
        return found
    peak = group_memory(found, np.arange(len(found.layouts)), pp, vpp, schedule).peak_bytes.max(axis=1)
    return at(found, np.flatnonzero(peak <= limit))


def _numbers(recomputed: IntArray, shares: IntArray) -> int:
    """Recomputed layers of the stages as a layout has them: one number where one says it all, 0 for all layers."""
    if (recomputed == shares).all():
        return 0
    same = int(recomputed.max())
    if (recomputed == np.minimum(same, shares)).all():
        return split_id((same,))
    return split_id(recomputed.tolist())
