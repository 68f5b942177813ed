"""Buffers of communication: pipeline transfers, gathered activations, unsharded layers and gradient buckets."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hwmodels.records import dataclass
from planner.elements import SHARDING_KEYS, BlockElements, stage_elements
from planner.frameworks import FrameworkPreset
from planner.layout import RESHARDS
from planner.layout.distinct import distinct_rows
from planner.plan import Workload
from planner.precision import recipe_of
from planner.recompute import Stages
from planner.schedule import get as get_schedule
from planner.state import gathers, gradient_bytes
from planner.workload.lower import Lowered

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Windows:
    """Bytes of each rank, ndarray (n, pp).

    Attributes
    ----------
    buffers : ndarray
        Held all the time.
    forward, backward : ndarray
        Of unsharded layers while one runs forward, and backward with its gradients.
    """

    buffers: FloatArray
    forward: FloatArray
    backward: FloatArray


def windows(
    stages: Stages, workload: Workload, lowered: Lowered, blocks: BlockElements, preset: FrameworkPreset
) -> Windows:
    """Communication buffers of layouts that share (pp, vpp, schedule).

    Pipeline: one boundary tensor in and one out, in each direction. Sequence parallel: one gathered activation, in
    Megatron's global memory buffer, which the scores of its own unfused attention share. Context parallel: what the
    attention of one layer receives (`planner.workload.context_parallel`). The bucket of ZeRO-2 belongs to the model
    states (`planner.memory.states`).
    """
    layouts, pp = stages.layouts, stages.pp
    boundary = np.broadcast_to(lowered.boundary_bytes, (len(layouts),))
    pipeline = boundary * (2.0 * get_schedule(stages.schedule).directions if pp > 1 else 0.0)
    exchanged = np.max([np.broadcast_to(b.exchange_bytes, boundary.shape) for b in lowered.layers], axis=0)
    gathered = np.maximum(np.where(layouts.sp == 1, boundary * layouts.tp, 0.0), lowered.shared_bytes)
    none = np.zeros((len(layouts), len(stages.at)))
    buffers = (pipeline + gathered + exchanged)[:, None] + none
    on = np.flatnonzero(layouts.zero_stage >= 3)
    if not len(on):
        return Windows(buffers, none, none)
    keys = (*SHARDING_KEYS, "stage_layers", "reshard")
    first, same = distinct_rows([getattr(layouts, name)[on] for name in keys], len(on))
    few = on[first]
    held = replace(stages, layouts=layouts.take(few))
    forward, backward = none, none.copy()
    for into, found in zip((forward, backward), _unsharded(held, workload, blocks.take(few), preset), strict=True):
        into[on] = found[same]
    return Windows(buffers, forward, backward)


def _unsharded(
    stages: Stages, workload: Workload, blocks: BlockElements, preset: FrameworkPreset
) -> tuple[FloatArray, FloatArray]:
    """Unsharded parameters forward, and with gradients backward, of ZeRO-3: ndarray (n, pp) each.

    A group is a layer; the next one is gathered while it runs, so two stand there. Embedding, final norm and head are
    the root group, which stays unsharded from its forward to its backward (PyTorch ``fully_shard``: the root does not
    reshard after forward); its gradients wait for the end of the backward. A layer's gradients stand in the compute
    dtype, and once more in the dtype of the reduction (torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py,
    ``foreach_reduce``). Where parameters are not freed between uses every layer of the rank stands there.
    """
    width, grad = recipe_of(workload, preset).width, gradient_bytes(workload, preset)
    layouts, place = stages.layouts, (stages.pp, stages.vpp, stages.schedule)
    elements = stage_elements(stages.model, workload, layouts, preset, *place, blocks).on(stages.at)
    weights, parts = elements.weights, elements.by_rank()
    whole = sum((part.gathered_bytes(weights, whole=True) for part in parts), start=np.zeros(parts[0].all.shape))
    every, frozen, packed = (
        blocks.of_parts(f"{name}dense", f"{name}expert") for name in ("", "frozen_", "packed_")
    )  # of the layers, the embedding and the head
    gathered = every * weights.gathered + packed * (weights.packed_gathered - weights.gathered)
    layer, update = (stages.largest(list(value[:, :-2].T)) for value in (gathered, every - frozen))
    ends, own = (value[:, -2:] @ stages.ends for value in (gathered, every - frozen))
    kept = np.asarray([gathers(preset, stages.pp, word) != "each" for word in RESHARDS])[layouts.reshard][:, None]
    params = np.where(kept, whole, np.minimum((1.0 + preset.prefetch_params) * layer + ends, whole))
    reduced = update * (width + (grad if grad != width else 0.0)) + own * width
    return np.asarray(params), np.asarray(params + reduced)
