"""memory: peak bytes of every pipeline rank, by category.

Activations in flight are counted by the schedule's own action list (`Schedule.held`; a closed form
where there is one, which a test holds equal to the count over the list). A split backward frees an
activation in two parts: what only the input gradient needs after I, the rest after W.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from hwmodels.cluster import Cluster
from planner.elements import StageElements, stage_elements
from planner.layout import LayoutBatch
from planner.model.spec import ModelSpec
from planner.plan import Workload
from planner.presets import FrameworkPreset
from planner.recompute import Stages
from planner.results import MEMORY_CATEGORIES
from planner.schedule import get as get_schedule
from planner.stages import layer_counts, over_stages
from planner.state import gradient_bytes, state_bytes
from planner.workload.lower import Lowered

FloatArray = NDArray[np.float64]
RISK_MARGIN = 0.06
"""Share of the capacity that allocator rounding and fragmentation may take: between
``capacity * (1 - RISK_MARGIN)`` and the capacity a layout is called at risk."""


@dataclass(frozen=True, slots=True, eq=False)
class MemoryEstimate:
    """Bytes by category: each ndarray (n, pp)."""

    by_category: dict[str, FloatArray]

    @property
    def peak_bytes(self) -> FloatArray:
        """Ndarray (n, pp): sum over the categories."""
        return np.asarray(sum(self.by_category.values()))


@lru_cache(maxsize=65536)
def _at_loss(schedule: str, pp: int, microbatches: int, vpp: int) -> tuple[int, ...]:
    return tuple(get_schedule(schedule).at_loss(pp, microbatches, vpp))


def at_loss(schedule: str, pp: int, microbatches: NDArray[np.int64], vpp: int) -> FloatArray:
    """Most micro-batches of each rank between the forward and the backward of a last stage: ndarray (n, pp)."""
    unique, inverse = np.unique(microbatches, return_inverse=True)
    table = np.asarray([_at_loss(schedule, pp, int(m), vpp) for m in unique], dtype=np.float64)
    return np.asarray(table[inverse.reshape(-1)])


@lru_cache(maxsize=4096)
def _held(schedule: str, pp: int, microbatches: int, vpp: int) -> tuple[FloatArray, ...]:
    return tuple(np.asarray(m, dtype=np.float64) for m in get_schedule(schedule).held(pp, microbatches, vpp))


def held_bytes(
    saved: FloatArray,
    waiting: FloatArray,
    schedule: str,
    pp: int,
    microbatches: NDArray[np.int64],
    vpp: int,
) -> FloatArray:
    """Peak bytes of in-flight activations of each rank.

    Parameters
    ----------
    saved : ndarray (n, pp, chunks)
        Bytes of one micro-batch on each virtual stage, from its forward to its B or I.
    waiting : ndarray (n, pp, chunks)
        Bytes of it between I and W; not read where the schedule does not split the backward.

    Returns
    -------
    ndarray (n, pp)
    """
    found = np.empty(saved.shape[:2])
    for m in np.unique(microbatches):
        chosen = np.flatnonzero(microbatches == m)
        for rank, moments in enumerate(_held(schedule, pp, int(m), vpp)):
            own = saved[chosen, rank]
            if moments.shape[1] > own.shape[1]:
                found[chosen, rank] = (np.concatenate([own, waiting[chosen, rank]], axis=1) @ moments.T).max(axis=1)
            elif np.all(own == own[:, :1]):  # equal chunks: every moment holds the same bytes
                found[chosen, rank] = own[:, 0] * moments[0].sum()
            else:
                found[chosen, rank] = (own @ moments.T).max(axis=1)
    return found


def memory(
    model: ModelSpec,
    workload: Workload,
    layouts: LayoutBatch,
    cluster: Cluster,
    preset: FrameworkPreset,
    lowered: Lowered,
    pp: int,
    vpp: int,
    schedule: str,
) -> MemoryEstimate:
    """Peak bytes of each pipeline rank for layouts that share (pp, vpp, schedule).

    Parameters
    ----------
    layouts : LayoutBatch, shape (n,)
    lowered : Lowered
        Of the same n layouts.

    Notes
    -----
    peak = parameters + gradients + optimizer + in-flight activations (+ the one layer that
    recomputation rebuilds) + logits of the micro-batch at the loss + communication buffers +
    context. The optimizer step's own peak is lower: activations are gone by then.
    """
    n = len(layouts)
    microbatches = layouts.microbatches(workload.gbs)
    elements = stage_elements(model, workload, layouts, preset, pp, vpp, schedule)
    stages = Stages(model, layouts, pp, vpp, schedule)
    whole, kept_of, rebuilt_of = (
        [getattr(block, name) for block in lowered.layers] for name in ("saved_bytes", "kept_bytes", "rebuilt_bytes")
    )
    saved = stages.saved(whole, kept_of, lowered.embedding.kept_bytes, lowered.head.kept_bytes)
    waiting = _waiting(model, layouts, lowered, pp, vpp, schedule)
    held = held_bytes(saved, waiting, schedule, pp, microbatches, vpp)
    if preset.moe_exchange_overlap and any(layer.is_moe for layer in model.layers):
        held = held + _beside_another(model, layouts, lowered, saved, pp, vpp, schedule)
    losses = at_loss(schedule, pp, microbatches, vpp)
    kept, gradient = (
        np.broadcast_to(v, (n,))[:, None] for v in (lowered.head.logits_bytes, lowered.head.logits_grad_bytes)
    )
    logits = np.where(losses > 0, kept * losses + gradient, 0.0)
    found = {
        **_states(workload, layouts, preset, elements, pp),
        "activations": held + stages.rebuilt(whole, rebuilt_of),
        "logits": logits,
        "comm_buffers": _buffers(model, workload, layouts, lowered, elements, pp, schedule, preset),
        "context": np.full((n, pp), float(cluster.context_bytes)),
    }
    return MemoryEstimate({name: found[name] for name in MEMORY_CATEGORIES})


def _states(
    workload: Workload, layouts: LayoutBatch, preset: FrameworkPreset, elements: StageElements, pp: int
) -> dict[str, FloatArray]:
    """Parameters, gradients and optimizer state of each rank: ndarray (n, pp) each."""
    shards = (layouts.fsdp_degree * layouts.cp, layouts.expert_shard)
    total = {name: np.zeros((len(layouts), pp)) for name in ("parameters", "gradients", "optimizer")}
    for part, shard in zip((elements.dense.by_rank(), elements.expert.by_rank()), shards, strict=True):
        per = state_bytes(workload, layouts, preset, shard.astype(np.float64), pp)
        each = {name: np.asarray(getattr(per, name)).reshape(-1, 1) for name in per.__slots__}
        total["parameters"] += part.trained * each["parameters"] + part.frozen * each["frozen"]
        total["parameters"] += part.packed * each["packed"]
        total["gradients"] += part.trained * each["gradients"]
        total["optimizer"] += part.trained * each["optimizer"] + part.other * each["other_optimizer"]
    return total


def _waiting(model: ModelSpec, layouts: LayoutBatch, lowered: Lowered, pp: int, vpp: int, schedule: str) -> FloatArray:
    """Bytes that one micro-batch keeps between I and W on each virtual stage: ndarray (n, pp, chunks)."""
    n = len(layouts)
    if not get_schedule(schedule).split_backward:
        return np.zeros((n, 1, 1))
    blocks = [np.broadcast_to(b.weight_bytes, (n,)) for b in (*lowered.layers, lowered.embedding, lowered.head)]
    return over_stages(model, pp, vpp, schedule, layouts.stage_layers, blocks[:-2], blocks[-2], blocks[-1])


def _beside_another(
    model: ModelSpec, layouts: LayoutBatch, lowered: Lowered, saved: FloatArray, pp: int, vpp: int, schedule: str
) -> FloatArray:
    """Bytes more in flight where a forward runs beside a backward: ndarray (n, pp).

    Interleaved stages warm up with one micro-batch of a virtual stage more (Megatron-Core
    ``get_pp_rank_microbatches``); without a pipeline the layers of one grow as those of the other are freed, but for
    one.
    """
    if pp > 1:
        return np.asarray(saved.max(axis=2))
    return _largest_layer(model, layouts, [b.saved_bytes for b in lowered.layers], pp, vpp, schedule)


def _largest_layer(
    model: ModelSpec, layouts: LayoutBatch, values: list[FloatArray], pp: int, vpp: int, schedule: str
) -> FloatArray:
    """The largest value among the kinds of layers that a rank holds: ndarray (n, pp)."""
    held = layer_counts(model, pp, vpp, schedule, layouts.stage_layers).sum(axis=3) > 0  # (1 or n, kinds, pp)
    each = np.stack([np.broadcast_to(v, (len(layouts),)) for v in values])  # (kinds, n)
    return np.where(np.moveaxis(held, 0, 1), each[:, :, None], 0.0).max(axis=0)


def _buffers(
    model: ModelSpec,
    workload: Workload,
    layouts: LayoutBatch,
    lowered: Lowered,
    elements: StageElements,
    pp: int,
    schedule: str,
    preset: FrameworkPreset,
) -> FloatArray:
    """Communication buffers of each rank: ndarray (n, pp).

    Pipeline: one boundary tensor in and one out, in each direction. Sequence parallel: one gathered activation.
    Context parallel: what the attention of one layer receives (`planner.workload.context_parallel`).
    ZeRO-3: the gathered parameters of two layers (this one and the prefetched next) and the
    unsharded gradients of one, or every layer of the rank where parameters stay gathered
    (reshard_after_forward off, as with pipelines). ZeRO-2: one bucket of unsharded gradients.
    """
    grad, parts = gradient_bytes(workload, preset), (elements.dense.by_rank(), elements.expert.by_rank())
    boundary = np.broadcast_to(lowered.boundary_bytes, (len(layouts),))
    directions = get_schedule(schedule).directions
    pipeline = boundary * (2.0 * directions if pp > 1 else 0.0)
    gathered = np.where(layouts.sp == 1, boundary * layouts.tp, 0.0)
    exchanged = np.max([np.broadcast_to(b.exchange_bytes, boundary.shape) for b in lowered.layers], axis=0)
    layers = max(model.n_layers * directions / pp, 1.0)
    trained = sum((part.trained for part in parts), start=np.zeros(parts[0].all.shape)) * grad
    whole = sum((part.gathered_bytes(elements.weights, whole=True) for part in parts), start=np.zeros(trained.shape))
    kept = whole if pp > 1 or not preset.reshard_after_forward else 2.0 * (whole / layers)
    zero3 = np.where(layouts.zero_stage[:, None] >= 3, kept + trained / layers, 0.0)
    zero2 = np.where(layouts.zero_stage[:, None] == 2, np.minimum(trained, float(preset.bucket_bytes)), 0.0)
    return np.asarray((pipeline + gathered + exchanged)[:, None] + zero3 + zero2)


def verdict(peak_bytes: float, capacity_bytes: float) -> str:
    """fits, at risk (within the margin of the capacity) or out of memory."""
    if peak_bytes > capacity_bytes:
        return "out of memory"
    return "at risk" if peak_bytes > capacity_bytes * (1.0 - RISK_MARGIN) else "fits"
