"""Buffers of communication: pipeline transfers, gathered activations, unsharded layers and gradient buckets."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hwmodels.records import dataclass
from planner.elements import SHARDING_KEYS, StageElements
from planner.frameworks import FrameworkPreset
from planner.layout import RESHARDS
from planner.plan import Workload
from planner.precision import recipe_of
from planner.recompute import Stages
from planner.schedule import get as get_schedule
from planner.state import LocalParameters, block_parameters, gathers, gradient_bytes
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
    stages: Stages, workload: Workload, lowered: Lowered, elements: StageElements, preset: FrameworkPreset
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
    if not np.any(layouts.zero_stage >= 3):
        return Windows(buffers, none, none)
    forward, backward = _unsharded(stages, workload, elements, preset)
    on = layouts.zero_stage[:, None] >= 3
    return Windows(buffers, np.where(on, forward, 0.0), np.where(on, backward, 0.0))


def _unsharded(
    stages: Stages, workload: Workload, elements: StageElements, preset: FrameworkPreset
) -> tuple[FloatArray, FloatArray]:
    """Unsharded parameters forward, and with gradients backward, of ZeRO-3: ndarray (n, pp) each.

    A group is a layer; the next one is gathered while it runs, so two stand there. Embedding, final norm and head are
    the root group, which stays unsharded from its forward to its backward (PyTorch ``fully_shard``: the root does not
    reshard after forward); its gradients wait for the end of the backward. A layer's gradients stand in the compute
    dtype, and once more in the dtype of the reduction (torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py,
    ``foreach_reduce``). Where parameters are not freed between uses every layer of the rank stands there.
    """
    width, grad = recipe_of(workload, preset).width, gradient_bytes(workload, preset)
    layouts = stages.layouts
    few, same = layouts.distinct(SHARDING_KEYS)
    first, kinds, last = block_parameters(stages.model, layouts.take(few), workload)
    weights = elements.weights
    parts = elements.by_rank()
    whole = sum((part.gathered_bytes(weights, whole=True) for part in parts), start=np.zeros(parts[0].all.shape))

    def gathered(block: LocalParameters) -> FloatArray:
        packed = np.asarray(block.packed_dense + block.packed_expert)
        whole = block.all * weights.gathered + packed * (weights.packed_gathered - weights.gathered)
        return np.asarray(np.broadcast_to(whole, few.shape)[same])

    def trained(block: LocalParameters) -> FloatArray:
        return np.asarray(np.broadcast_to(block.all - block.frozen_dense - block.frozen_expert, few.shape)[same])

    layer, update = (stages.largest([size(b) for b in kinds]) for size in (gathered, trained))
    ends, own = (np.stack([size(first), size(last)], axis=1) @ stages.ends for size in (gathered, trained))
    kept = np.asarray([gathers(preset, stages.pp, word) != "each" for word in RESHARDS])[layouts.reshard][:, None]
    params = np.where(kept, whole, np.minimum((1.0 + preset.prefetch_params) * layer + ends, whole))
    reduced = update * (width + (grad if grad != width else 0.0)) + own * width
    return np.asarray(params), np.asarray(params + reduced)
