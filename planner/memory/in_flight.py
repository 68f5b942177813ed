"""Bytes of activations, recomputation and logits while a step runs: the largest over the moments of a schedule."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from planner.frameworks import FrameworkPreset
from planner.layout import LayoutBatch
from planner.memory.moments import stacked
from planner.model.spec import ModelSpec
from planner.schedule import get as get_schedule
from planner.stages import layer_counts, over_stages
from planner.workload.lower import Lowered

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class StageBytes:
    """What one micro-batch costs on each virtual stage (arrays over n layouts).

    Attributes
    ----------
    saved, waiting : ndarray (n, pp, chunks)
        From the forward to B or I; between I and W.
    beside : ndarray (n, pp)
        More in flight where a forward runs beside a backward.
    backward : ndarray (n, pp)
        Gradients of activations that the backward of the largest layer holds at a time.
    rebuilt : ndarray (n, pp)
        Of the one layer that recomputation rebuilds at a time.
    logits, logits_forward, logits_backward : ndarray (n,)
        Kept between loss and backward; the most while the loss runs, and while its backward runs.
    gathered_forward, gathered_backward : ndarray (n, pp)
        Unsharded parameters (and gradients) of the layers at work (ZeRO-3, FSDP).
    """

    saved: FloatArray
    waiting: FloatArray
    beside: FloatArray
    backward: FloatArray
    rebuilt: FloatArray
    logits: FloatArray
    logits_forward: FloatArray
    logits_backward: FloatArray
    gathered_forward: FloatArray
    gathered_backward: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class Peak:
    """Bytes by category at the moment of a step at which a rank holds most, each ndarray (n, pp).

    Attributes
    ----------
    action : ndarray (n, pp) of int
        Index into `moments.ACTIONS`: what runs then.
    """

    activations: FloatArray
    working: FloatArray
    recompute: FloatArray
    logits: FloatArray
    gathered: FloatArray
    action: IntArray


MOST_NUMBERS = 4_000_000
"""Numbers of a table that are held at a time; more layouts are taken in turn."""


def peak(stage: StageBytes, schedule: str, pp: int, microbatches: IntArray, vpp: int) -> Peak:
    """The largest moment of every rank, for layouts that share (pp, vpp, schedule)."""
    rows, actions, runs, which = stacked(schedule, pp, microbatches, vpp)
    n, each = len(which), max(MOST_NUMBERS // int(np.prod(rows.shape[1:])), 1)
    parts = [
        _largest_moment(stage, rows[at], actions[at], runs[at], slice(begin, begin + each))
        for begin in range(0, n, each)
        for at in [which[begin : begin + each]]
    ]
    if len(parts) == 1:
        return parts[0]
    return Peak(**{f.name: np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(Peak)})


def _largest_moment(stage: StageBytes, rows: FloatArray, actions: IntArray, runs: FloatArray, own: slice) -> Peak:
    """The largest moment of the layouts of a slice; tables as `stacked` has them, one for each layout."""
    n, pp = rows.shape[:2]
    every = (len(stage.saved), 1)
    per = np.concatenate([stage.saved[own], stage.waiting[own]], axis=2)  # (n, pp, columns)
    activations = np.einsum("nrkc,nrc->nrk", rows[..., : per.shape[2]], per) + stage.beside[own][..., None]
    kept, most, last = (
        np.broadcast_to(np.reshape(v, (-1, 1)), every)[own] for v in (stage.logits, stage.logits_forward,
                                                                      stage.logits_backward)
    )  # fmt: skip
    logits = kept[..., None] * rows[..., -1]
    zero = np.zeros((n, pp))
    extra = np.stack([zero, zero + np.maximum(most - kept, 0.0), zero + np.maximum(last - kept, 0.0), zero], axis=2)
    working, again = (np.stack([zero, zero, zero, v[own]], axis=2) for v in (stage.backward, stage.rebuilt))
    gathered = np.stack([stage.gathered_forward[own]] * 2 + [stage.gathered_backward[own]] * 2, axis=2)

    def at_action(values: FloatArray, action: IntArray) -> FloatArray:
        return np.take_along_axis(values, action, axis=2)

    total = activations + logits + at_action(extra + working + again, actions) * runs + at_action(gathered, actions)
    best = total.argmax(axis=2)[..., None]
    action, busy = np.take_along_axis(actions, best, axis=2), np.take_along_axis(runs, best, axis=2)

    def chosen(values: FloatArray) -> FloatArray:
        return at_action(values, action)[..., 0]

    return Peak(
        at_action(activations, best)[..., 0], chosen(working) * busy[..., 0], chosen(again) * busy[..., 0],
        at_action(logits, best)[..., 0] + chosen(extra) * busy[..., 0], chosen(gathered), action[..., 0],
    )  # fmt: skip


def waiting_bytes(
    model: ModelSpec, layouts: LayoutBatch, lowered: Lowered, pp: int, vpp: int, schedule: str
) -> FloatArray:
    """Bytes of one micro-batch between I and W on each virtual stage: ndarray (n, pp, chunks); (n, 1, 0) unsplit."""
    n = len(layouts)
    if not get_schedule(schedule).split_backward:
        return np.zeros((n, pp, 0))
    blocks = [np.broadcast_to(b.weight_bytes, (n,)) for b in (*lowered.layers, lowered.embedding, lowered.head)]
    return over_stages(model, pp, vpp, schedule, layouts.stage_layers, blocks[:-2], blocks[-2], blocks[-1])


def beside_bytes(
    model: ModelSpec, layouts: LayoutBatch, lowered: Lowered, saved: FloatArray, pp: int, vpp: int, schedule: str,
    preset: FrameworkPreset,
) -> FloatArray:  # fmt: skip
    """Bytes more in flight where a forward runs beside a backward: ndarray (n, pp).

    Interleaved stages warm up with one micro-batch of a virtual stage more (Megatron-Core
    ``get_pp_rank_microbatches``); without a pipeline the layers of one grow as those of the other are freed, but for
    one.
    """
    if not (preset.moe_exchange_overlap and any(layer.is_moe for layer in model.layers)):
        return np.zeros(saved.shape[:2])
    if pp > 1:
        return np.asarray(saved.max(axis=2))
    return largest(model, layouts, [b.saved_bytes for b in lowered.layers], pp, vpp, schedule)


def largest(
    model: ModelSpec, layouts: LayoutBatch, values: list[FloatArray], pp: int, vpp: int, schedule: str
) -> FloatArray:
    """The largest of `values`, one for each layer kind, among the kinds that a rank holds: ndarray (n, pp)."""
    n = len(layouts)
    held = layer_counts(model, pp, vpp, schedule, layouts.stage_layers).sum(axis=3) > 0  # (1 or n, kinds, pp)
    each = np.stack([np.broadcast_to(v, (n,)) for v in values])  # (kinds, n)
    return np.asarray(np.where(np.moveaxis(held, 0, 1), each[:, :, None], 0.0).max(axis=0))
