"""Parameters, gradients and optimizer of each rank: in a step, when loading, at the optimizer step, when saving."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hwmodels.records import dataclass
from planner import optimizers
from planner.elements import Elements, StageElements
from planner.frameworks import FrameworkPreset
from planner.layout import LayoutBatch
from planner.plan import Workload
from planner.state import gradient_bytes, main_bytes, state_bytes

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class States:
    """Bytes of each rank, ndarray (n, pp).

    Attributes
    ----------
    parameters, gradients, optimizer : ndarray
        Held during the whole step.
    loading : ndarray
        Beside parameters and optimizer while the model is built.
    stepping : ndarray
        Beside all three while the optimizer runs.
    flattened : ndarray
        What the parameter gather of the optimizer leaves in the allocator's pool of the communication stream.
    saving : ndarray
        Beside all three while a checkpoint is written.
    bucket : ndarray
        Of gradients that ZeRO-2 has not sharded yet.
    host : ndarray
        In host memory.
    """

    parameters: FloatArray
    gradients: FloatArray
    optimizer: FloatArray
    loading: FloatArray
    stepping: FloatArray
    flattened: FloatArray
    saving: FloatArray
    bucket: FloatArray
    host: FloatArray


def states(
    workload: Workload, layouts: LayoutBatch, preset: FrameworkPreset, elements: StageElements, pp: int
) -> States:
    """Model state of every rank and what comes beside it, for layouts that share (pp, vpp, schedule).

    FSDP of modules that were built on the device has every parameter of the rank there, unsharded and in fp32, until it
    has cut it (`FrameworkPreset.loads_whole`): shards take the place of what is freed, and the optimizer makes its
    states after that. DeepSpeed keeps zero gradients of its fp32 share while the optimizer makes its states
    (runtime/zero/stage_1_and_2.py ``initialize_optimizer_states``).
    """
    shards = (layouts.fsdp_degree * layouts.cp, layouts.expert_shard)
    shape = (len(layouts), len(elements.kinds.counts))
    total = {name: np.zeros(shape) for name in States.__slots__}
    whole, trained = np.zeros(shape), np.zeros(shape)
    for part, shard in zip(elements.by_rank(), shards, strict=True):
        per = state_bytes(workload, layouts, preset, shard.astype(np.float64), pp)
        each = {name: np.asarray(getattr(per, name)).reshape(-1, 1) for name in per.__slots__}
        total["parameters"] += part.trained * each["parameters"] + part.frozen * each["frozen"]
        total["parameters"] += part.packed * each["packed"]
        total["gradients"] += part.trained * each["gradients"]
        total["optimizer"] += part.trained * each["optimizer"] + part.other * each["other_optimizer"]
        owned = part.trained / np.where(layouts.zero_stage >= 1, shard, 1.0)[:, None]
        total["stepping"] += owned * step_bytes(workload, preset)
        if preset.flat_gradients:
            bucket = np.minimum(part.trained * gradient_bytes(workload, preset), float(preset.bucket_bytes))
            total["stepping"] += bucket
            # An all-gather into a list of shards goes through one flat tensor on NCCL's stream, whose pool no other
            # stream uses (torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp ``newLikeFlat``; allgather_bucket_size).
            gathers = (layouts.zero_stage[:, None] >= 1) & (shard[:, None] > 1)
            total["flattened"] += np.where(gathers, bucket, 0.0)
            total["loading"] += owned * 4.0
        if preset.loads_whole:
            whole += np.where(layouts.zero_stage[:, None] >= 3, part.all * 4.0, 0.0)
        total["saving"] += _saving(layouts, preset, part, elements.weights.gathered)
        trained += part.trained
    unsharded = np.minimum(trained * gradient_bytes(workload, preset), float(preset.bucket_bytes))
    total["bucket"] = np.where(layouts.zero_stage[:, None] == 2, unsharded, 0.0)
    total["loading"] = np.maximum(total["loading"], whole - total["parameters"] - total["optimizer"])
    return _with_host(States(**total), layouts)


def _with_host(held: States, layouts: LayoutBatch) -> States:
    """What stays on the device where a share of the optimizer, or ZeRO-3's shards, lie in host memory.

    With them go the gradients that only the host's update reads (ZeRO-2 and 3: ZeRO-Offload, arXiv 2101.06840).
    """
    share = layouts.offload_optimizer[:, None] / 100.0
    there = (layouts.offload_parameters[:, None] > 0) & (layouts.zero_stage[:, None] >= 3)
    if not (share.any() or there.any()):
        return held
    gradients = held.gradients * np.where(layouts.zero_stage[:, None] >= 2, share, 0.0)
    on_host = held.optimizer * share + gradients + np.where(there, held.parameters, 0.0)
    return replace(
        held,
        parameters=np.where(there, 0.0, held.parameters),
        gradients=held.gradients - gradients,
        optimizer=held.optimizer * (1.0 - share),
        stepping=held.stepping * (1.0 - share),
        host=on_host,
    )


def step_bytes(workload: Workload, preset: FrameworkPreset) -> float:
    """Bytes a parameter of a rank's share that the optimizer step holds for its duration.

    Narrow gradients beside fp32 main weights are copied to fp32 first (Megatron-Core
    optimizer/distrib_optimizer.py ``_copy_model_grads_to_main_grads``; DeepSpeed runtime/zero/stage_1_and_2.py,
    ``single_partition_of_fp32_groups[i].grad``), DeepSpeed from a flat copy of what it owns
    (``flatten_dense_tensors_aligned``). Eager multi-tensor Adam makes the square root of its second moment for
    all parameters at once (torch/optim/adam.py ``_multi_tensor_adam``, ``_foreach_sqrt``); fused kernels make nothing.
    """
    copies = 4.0 - gradient_bytes(workload, preset) if main_bytes(workload, preset) else 0.0
    copied = 4.0 if copies > 0.0 and optimizers.MAIN_DTYPES[workload.main_dtype] == 4.0 else 0.0
    flat = gradient_bytes(workload, preset) if preset.flat_gradients and copied else 0.0
    eager = 0.0 if preset.fused_optimizer or not optimizers.get(workload.optimizer).state_bytes else 4.0
    return copied + flat + eager


def _saving(layouts: LayoutBatch, preset: FrameworkPreset, part: Elements, width: float) -> FloatArray:
    """Beside everything while a checkpoint is written: unsharded parameters where the framework gathers them."""
    if not preset.saves_whole:
        return np.zeros(part.all.shape)
    return np.asarray(np.where(layouts.zero_stage[:, None] >= 3, part.all * width, 0.0))
