"""Memory that no tensor of the model holds: workspaces of the libraries, communicators, the context."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hwmodels.cluster import Cluster
from hwmodels.device import Device
from planner.frameworks import FrameworkPreset
from planner.layout import LayoutBatch
from planner.model.spec import DecoderLayer, Weight
from planner.plan import Workload
from planner.precision import recipe_of
from planner.recompute import Stages
from planner.workload.working import empty_gradients

FloatArray = NDArray[np.float64]
MIB = 2.0**20

_LARGE_WORKSPACE = frozenset({"hopper", "blackwell", "blackwell-ultra"})
_AMD_WORKSPACE = {"cdna4": 64.0 * MIB}
_TORCH_DEFAULT = (4096 * 2 + 16 * 8) * 1024.0
_DETERMINISTIC = 4096 * 8 * 1024.0
_USERBUFFER_STREAMS = 3.0
"""Streams whose workspaces Transformer Engine's user buffers ask for (transformer_engine/pytorch/module/base.py,
``initialize_ub``, ``_NUM_MAX_UB_STREAMS``)."""

COMMON_COMMUNICATORS = 3
"""Communicators that the `context` of a cluster covers: those of tp, pp and dp (hwmodels/catalog/clusters)."""


def workspace_bytes(device: Device, preset: FrameworkPreset) -> float:
    """Bytes of the matrix libraries' workspaces, which PyTorch's allocator hands out.

    PyTorch gives each cuBLAS handle and stream a workspace, and the thread that runs the backward has a handle of
    its own: two of ``:4096:2:16:8`` (8.1 MiB; 32 MiB from Hopper on), or ``:4096:8`` (32 MiB) where deterministic
    algorithms are asked for (aten/src/ATen/cuda/CublasHandlePool.cpp, `getChosenWorkspaceSize`; PyTorch
    documentation, `torch.use_deterministic_algorithms`). Transformer Engine has one more, of 4 MiB or, from compute
    capability 9 on, 32 MiB (transformer_engine/pytorch/module/base.py, `get_cublas_workspace_size_bytes`).
    hipBLASLt: 32 MiB, 64 MiB on gfx950 (Primus-Turbo, csrc/kernels/gemm, `get_hipblaslt_workspace_size_in_byte`).
    """
    if device.kind != "gpu":
        return 0.0
    if device.vendor == "AMD":
        return (2.0 + float(preset.transformer_engine)) * _AMD_WORKSPACE.get(device.generation, 32.0 * MIB)
    large = device.generation in _LARGE_WORKSPACE
    torch = _DETERMINISTIC if preset.deterministic or large else _TORCH_DEFAULT
    streams = _USERBUFFER_STREAMS if preset.userbuffers else 1.0
    engine = (32.0 if large else 4.0) * MIB * streams if preset.transformer_engine else 0.0
    return 2.0 * torch + engine


def empty_gradient_bytes(stages: Stages, workload: Workload, preset: FrameworkPreset) -> FloatArray:
    """Bytes of the empty weight gradients that Transformer Engine keeps, one of each shape: ndarray (n, pp).

    Of the linear layers in the decoder layers that a rank holds; weights that run as one GEMM are one
    (`planner.workload.working.empty_gradients`).
    """
    layouts, model = stages.layouts, stages.model
    total = np.zeros((len(layouts), len(stages.at)))
    if not empty_gradients(preset) or workload.lora is not None:
        return total
    kinds = model.layer_kinds()
    shapes: dict[tuple[int, int, str, bool], set[int]] = {}
    for kind, layer in enumerate(kinds):
        for shape in _engine_shapes(layer, model.hidden):
            shapes.setdefault(shape, set()).add(kind)
    held, width = stages.held, recipe_of(workload, preset).width
    for (n_in, n_out, shard, expert), owners in shapes.items():
        degree = np.where(shard == "replicated", 1, layouts.etp if expert else layouts.tp)
        total = total + held[:, sorted(owners)].any(axis=1) * (width * n_in * n_out / degree)[:, None]
    return total


def _engine_shapes(layer: DecoderLayer, hidden: int) -> set[tuple[int, int, str, bool]]:
    """(in, out, split, expert) of each weight gradient of a layer's linear layers; the router is none of them."""
    outs: dict[tuple[str, str, bool, int], int] = {}
    for w in layer.parameters(hidden):
        if isinstance(w, Weight) and w.name != "router":
            key = (w.fused_with or w.name, w.shard, w.expert, w.n_in)
            outs[key] = outs.get(key, 0) + w.n_out
    return {(n_in, n_out, shard, expert) for (_, shard, expert, n_in), n_out in outs.items()}


def communicators(layouts: LayoutBatch, preset: FrameworkPreset) -> FloatArray:
    """Process groups of more than one rank that a rank takes part in, each a communicator: ndarray (n,).

    DeepSpeed's pipelines have groups of their own (runtime/pipe/topology.py ``PipelineParallelGrid``, runtime/pipe/
    p2p.py, module.py ``_index_tied_modules``).
    """
    degrees = (layouts.tp, layouts.cp, layouts.pp, layouts.dp * layouts.cp, layouts.ep, layouts.etp)
    own = sum((d > 1).astype(np.float64) for d in degrees)
    experts = (layouts.ep * layouts.etp > 1) & (layouts.edp > 1)
    replicas = layouts.fsdp_degree < layouts.dp
    pipeline = np.where(layouts.pp > 1, float(preset.pipeline_communicators), 0.0)
    return np.asarray(own + experts + replicas + pipeline, dtype=np.float64)


def communicator_bytes(cluster: Cluster, layouts: LayoutBatch, preset: FrameworkPreset) -> FloatArray:
    """Bytes of communicators beyond those that the cluster's context covers: ndarray (n,).

    NCCL takes 0.35-0.4 GiB a communicator (the source of the clusters' context), half of the catalog's context, of
    which the other half is shared by those of tp, pp and dp.
    """
    if cluster.device.kind != "gpu":
        return np.zeros(len(layouts))
    each = cluster.context_bytes / 2.0
    return np.asarray(np.maximum(communicators(layouts, preset) - COMMON_COMMUNICATORS, 0.0) * each)
