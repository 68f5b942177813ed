"""Bytes of activations, recomputation and logits while a step runs: the largest over the moments of a schedule."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.layout import LayoutBatch
from planner.memory.moments import Moments, by_count, moments
from planner.model.spec import ModelSpec
from planner.presets import FrameworkPreset
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


def peak(stage: StageBytes, schedule: str, pp: int, microbatches: IntArray, vpp: int) -> Peak:
    """The largest moment of every rank, for layouts that share (pp, vpp, schedule)."""
    n = stage.saved.shape[0]
    a, b, c, d, e = (np.zeros((n, pp)) for _ in range(5))
    found = Peak(a, b, c, d, e, np.zeros((n, pp), dtype=np.int64))
    for count, rows in by_count(microbatches):
        for rank, table in enumerate(moments(schedule, pp, count, vpp)):
            _fill(found, stage, table, rows, rank)
    return found


def _fill(found: Peak, stage: StageBytes, table: Moments, rows: IntArray, rank: int) -> None:
    """The largest moment of one rank for the layouts at `rows`."""
    every = stage.saved.shape[:1]
    per = np.concatenate([stage.saved[rows, rank], stage.waiting[rows, rank]], axis=1)
    activations = per @ table.rows[:, : per.shape[1]].T + stage.beside[rows, rank][:, None]
    kept, most, last = (
        np.broadcast_to(v, every)[rows] for v in (stage.logits, stage.logits_forward, stage.logits_backward)
    )
    logits = kept[:, None] * table.rows[:, -1]
    zero = np.zeros(len(rows))
    extra = np.stack([zero, np.maximum(most - kept, 0.0), np.maximum(last - kept, 0.0), zero], axis=1)
    working, again = (np.stack([zero, zero, zero, v[rows, rank]], axis=1) for v in (stage.backward, stage.rebuilt))
    gathered = np.stack([stage.gathered_forward[rows, rank]] * 2 + [stage.gathered_backward[rows, rank]] * 2, axis=1)
    on = table.actions
    total = activations + logits + (extra + working + again)[:, on] * table.runs + gathered[:, on]
    best = total.argmax(axis=1)
    at, index, busy = on[best], np.arange(len(rows)), table.runs[best]
    found.activations[rows, rank] = activations[index, best]
    found.working[rows, rank] = working[index, at] * busy
    found.recompute[rows, rank] = again[index, at] * busy
    found.logits[rows, rank] = logits[index, best] + extra[index, at] * busy
    found.gathered[rows, rank] = gathered[index, at]
    found.action[rows, rank] = at


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
