"""Bytes of activations, recomputation and logits while a step runs: the largest over the moments of a schedule."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hwmodels.records import dataclass
from planner.frameworks import FrameworkPreset
from planner.memory.moments import ACTIONS, RankMoments, by_table
from planner.recompute import Stages
from planner.schedule import get as get_schedule
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


def peak(stage: StageBytes, stages: Stages, microbatches: IntArray) -> Peak:
    """The largest moment of every rank, for layouts that share (pp, vpp, schedule)."""
    stage = _laid_out(stage, (stage.saved.shape[0], len(stages.at)))
    a, b, c, d, e = (np.zeros(stage.backward.shape) for _ in range(5))
    found = Peak(a, b, c, d, e, np.zeros(a.shape, dtype=np.int64))
    for table, rows in by_table(stages.schedule, stages.pp, microbatches, stages.vpp, stages.ranks):
        _fill(found, stage, table, rows)
    return found


def _laid_out(stage: StageBytes, shape: tuple[int, int]) -> StageBytes:
    """The same with every array as long as there are layouts and ranks: (n, pp)."""
    waiting = np.broadcast_to(stage.waiting, (*shape, stage.waiting.shape[2]))
    logits = (np.broadcast_to(v, shape[:1]) for v in (stage.logits, stage.logits_forward, stage.logits_backward))
    by_rank = (stage.gathered_forward, stage.gathered_backward)
    working, again, *gathered = (np.broadcast_to(v, shape) for v in (stage.backward, stage.rebuilt, *by_rank))
    return StageBytes(stage.saved, waiting, stage.beside, working, again, *logits, *gathered)


def _fill(found: Peak, stage: StageBytes, table: RankMoments, rows: IntArray) -> None:
    """The largest moment of every rank for the layouts at `rows`; arrays within are (pp, rows, moments)."""
    pp, chunks = len(table.actions), stage.waiting.shape[2]
    kept, most, last = (v[rows] for v in (stage.logits, stage.logits_forward, stage.logits_backward))
    losses = np.broadcast_to(kept[:, None, None], (len(rows), pp, 1))
    per = np.concatenate([stage.saved[rows], stage.waiting[rows], losses], axis=2)
    held = table.rows if chunks else table.rows[:, :, [*range(per.shape[2] - 1), -1]]
    working, again = stage.backward[rows], stage.rebuilt[rows]
    gathered = [stage.gathered_forward[rows], stage.gathered_backward[rows]]
    # What runs needs the same at every moment of its kind: (what runs x whether it needs more, rows, pp).
    extra = np.zeros((2 * len(ACTIONS), len(rows), 1))
    extra[3, :, 0], extra[5, :, 0] = np.maximum(most - kept, 0.0), np.maximum(last - kept, 0.0)
    above = extra + np.stack([gathered[i >= len(ACTIONS)] for i in range(2 * len(ACTIONS))])
    above[-1] += working + again  # backward through layers, which rebuilds them
    kind = 2 * table.actions + table.runs
    total = np.moveaxis(per, 1, 0) @ np.moveaxis(held, 2, 1)
    for rank in range(pp):
        total[rank] += above[kind[rank], :, rank].T
    best = total.argmax(axis=2).T
    index, rank_of = np.arange(len(rows))[:, None], np.arange(pp)[None, :]
    moment = held[rank_of, best]
    at, busy = table.actions[rank_of, best], table.runs[rank_of, best]
    rebuilds = (at == len(ACTIONS) - 1) & busy
    found.activations[rows] = (per[:, :, :-1] * moment[:, :, :-1]).sum(axis=2) + stage.beside[rows]
    found.working[rows] = working * rebuilds
    found.recompute[rows] = again * rebuilds
    found.logits[rows] = kept[:, None] * moment[:, :, -1] + extra[kind[rank_of, best], index, 0]
    found.gathered[rows] = np.where(at >= len(ACTIONS) // 2, gathered[1], gathered[0])
    found.action[rows] = at


def waiting_bytes(stages: Stages, lowered: Lowered) -> FloatArray:
    """Bytes of one micro-batch between I and W on each virtual stage: ndarray (n, pp, chunks); (n, 1, 0) unsplit."""
    if not get_schedule(stages.schedule).split_backward:
        return np.zeros((len(stages.layouts), len(stages.at), 0))
    blocks = [b.weight_bytes for b in (*lowered.layers, lowered.embedding, lowered.head)]
    return stages.sum(blocks[:-2], blocks[-2], blocks[-1])


def beside_bytes(stages: Stages, lowered: Lowered, saved: FloatArray, preset: FrameworkPreset) -> FloatArray:
    """Bytes more in flight where a forward runs beside a backward: ndarray (n, pp).

    Interleaved stages warm up with one micro-batch of a virtual stage more (Megatron-Core
    ``get_pp_rank_microbatches``); without a pipeline the layers of one grow as those of the other are freed, but for
    one.
    """
    if not (preset.moe_exchange_overlap and any(layer.is_moe for layer in stages.model.layers)):
        return np.zeros(saved.shape[:2])
    if stages.pp > 1:
        return np.asarray(saved.max(axis=2))
    return stages.largest([b.saved_bytes for b in lowered.layers])
