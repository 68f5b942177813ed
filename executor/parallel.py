"""Builds what one rank of a plan runs: model parts, wrappers, optimizer.

The order is that of torchtitan: split for the pipeline, tensor parallel, recomputation, then
FSDP2 or DDP, then the optimizer. ZeRO stages map so: 0 is DDP; 1 is DDP with
ZeroRedundancyOptimizer; 2 is FSDP2 that keeps parameters gathered from the forward to the end
of the backward (the volume of ZeRO-2: one gather and one reduce-scatter a step); 3 is FSDP2
that frees them after the forward. In a pipeline stage 3 keeps them too: the runtime gathers
once a step, as torchtitan's default does.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from executor.device import Backend
from executor.layers import Layer
from executor.mesh import Groups
from executor.model import Decoder, initialise, notes
from executor.tensor import ParameterNote
from executor.timing import Recorder
from executor.torch_adapter import BucketReduction
from planner.model.spec import ModelSpec
from planner.plan import Plan, StagePlan
from planner.schedule import Action, Kind

LEARNING_RATE = 1e-3


class Part:
    """One virtual stage on this rank: the bare decoder, its wrapped form, and its notes."""

    def __init__(self, stage: StagePlan, decoder: Decoder) -> None:
        self.stage = stage
        self.decoder = decoder
        self.module: nn.Module = decoder
        self.notes: dict[str, ParameterNote] = notes(decoder)
        self.reduction: BucketReduction | None = None
        self.reduced_late = False

    def named_parameters(self) -> dict[str, nn.Parameter]:
        """Parameters by whole-model name (after FSDP: sharded DTensors)."""
        from executor.model import global_name

        return {global_name(name): p for name, p in self.decoder.named_parameters()}


def build_parts(
    plan: Plan, spec: ModelSpec, groups: Groups, backend: Backend, recorder: Recorder, seed: int
) -> list[Part]:
    """The virtual stages that this rank holds, wrapped for data parallelism."""
    parts = []
    for stage in sorted((s for s in plan.stages if s.rank == groups.pp_rank), key=lambda s: s.chunk):
        decoder = Decoder(
            spec, plan.workload.seq_len, stage.layers, embedding=stage.embedding, head=stage.head, tp=groups.tp
        )
        initialise(decoder, seed, groups.tp)
        decoder.to(backend.device)
        for layer in decoder.layers.values():
            if isinstance(layer, Layer):
                layer.set_recompute(stage.recompute)
        part = Part(stage, decoder)
        _data_parallel(part, plan, groups, recorder)
        parts.append(part)
    return parts


def _data_parallel(part: Part, plan: Plan, groups: Groups, recorder: Recorder) -> None:
    lay = plan.layout
    if lay.dp == 1:
        return
    if lay.zero_stage >= 2:
        mesh = groups.mesh["fsdp"] if groups.mesh.shape[1] == 1 else groups.mesh["replica", "fsdp"]
        reshard = lay.zero_stage == 3 and lay.pp == 1
        policy = MixedPrecisionPolicy()
        if plan.workload.precision == "bf16":
            policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for layer in part.decoder.layers.values():
            fully_shard(layer, mesh=mesh, reshard_after_forward=reshard, mp_policy=policy)
        fully_shard(part.decoder, mesh=mesh, reshard_after_forward=reshard, mp_policy=policy)
        return
    if splits_backward(plan):
        part.reduced_late = True
        return
    wrapped = DistributedDataParallel(
        part.decoder, process_group=groups.dp, gradient_as_bucket_view=True, broadcast_buffers=False
    )
    part.reduction = BucketReduction(recorder, groups.dp)
    part.reduction.attach(wrapped)
    part.module = wrapped


def splits_backward(plan: Plan) -> bool:
    """Whether the plan's actions run input and weight gradients apart.

    PyTorch computes the latter with ``torch.autograd.grad``, which fires none of the hooks by which DDP
    sees a gradient: such plans reduce theirs after the last action instead.
    """
    return any(Action.parse(text).kind is Kind.BACKWARD_WEIGHT for rank in plan.actions for text in rank)


def build_optimizer(plan: Plan, parts: list[Part], groups: Groups) -> torch.optim.Optimizer:
    """AdamW (fused: one pass over memory) or SGD over all parts; sharded over dp for ZeRO-1."""
    trained = [p for part in parts for p in part.decoder.parameters() if p.requires_grad]
    kind: Any = torch.optim.AdamW if plan.workload.optimizer == "adamw" else torch.optim.SGD
    if plan.layout.zero_stage == 1:
        return ZeroRedundancyOptimizer(
            trained,
            optimizer_class=kind,
            process_group=groups.dp,
            parameters_as_bucket_view=True,
            lr=LEARNING_RATE,
            fused=True,
        )
    by_mesh: dict[object, list[nn.Parameter]] = defaultdict(list)
    for p in trained:
        by_mesh[p.device_mesh if isinstance(p, DTensor) else None].append(p)
    optimizer: torch.optim.Optimizer = kind([{"params": ps} for ps in by_mesh.values()], lr=LEARNING_RATE, fused=True)
    return optimizer


def local(tensor: Tensor) -> Tensor:
    """The part of a tensor that this rank stores (shares memory)."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def finish_gradients(parts: list[Part], groups: Groups) -> None:
    """Sum what only some ranks saw: vectors under sequence parallelism, and a table shared by two stages.

    Before that the data-parallel average, where no wrapper has taken it.
    """
    for part in parts:
        if part.reduced_late:
            _average([p.grad for p in part.decoder.parameters() if p.grad is not None], groups)
    partial = [
        local(p.grad)
        for part in parts
        for name, p in part.named_parameters().items()
        if part.notes[name].partial and p.grad is not None
    ]
    if partial and groups.tp.mesh is not None:
        flat = torch.cat([g.reshape(-1) for g in partial])
        dist.all_reduce(flat, group=groups.tp.mesh.get_group())
        for g, summed in zip(partial, flat.split([g.numel() for g in partial]), strict=True):
            g.copy_(summed.view_as(g))
    copies = [
        p
        for part in parts
        if part.decoder.holds_tied_copy
        for n, p in part.named_parameters().items()
        if n == "embedding.weight"
    ]
    if not copies:
        return
    grads = [local(p.grad) for p in copies if p.grad is not None]
    if groups.tied is not None:
        dist.all_reduce(grads[0], group=groups.tied)
    elif len(grads) == 2:
        grads[0].add_(grads[1])
        grads[1].copy_(grads[0])


def _average(gradients: list[Tensor], groups: Groups) -> None:
    """Mean over the data-parallel group, in one all-reduce."""
    flat = torch.cat([g.reshape(-1) for g in gradients])
    dist.all_reduce(flat, group=groups.dp)
    flat.div_(dist.get_world_size(groups.dp))
    for g, mean in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
        g.copy_(mean.view_as(g))
