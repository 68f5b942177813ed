"""Tensor parallelism at the edges of a block: one collective each way, plain local GEMMs inside.

Each block is entered once and left once, so the query, key and value projections (or gate and
up) share one reduction of their input gradient, as in Megatron-LM (Shoeybi et al. 2019,
arXiv 1909.08053, section 3; with sequence parallelism Korthikanti et al. 2022,
arXiv 2205.05198, section 4.2). Parameters stay plain local tensors, which DDP,
ZeroRedundancyOptimizer and FSDP2 all take as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.parallel import loss_parallel


class _SumGradient(torch.autograd.Function):
    """Identity forward, all-reduce of the gradient backward (``f`` of arXiv 1909.08053).

    In place: the gradient is the fresh sum of the input gradients of the projections behind it.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        gradient = gradient.contiguous()
        dist.all_reduce(gradient, group=ctx.group)
        return gradient, None


class _Sum(torch.autograd.Function):
    """All-reduce forward, identity backward (``g`` of arXiv 1909.08053).

    In place: partial sums are the fresh output of a row split, which nothing else reads.
    """

    @staticmethod
    def forward(ctx: Any, partial: Tensor, group: Any) -> Tensor:
        ctx.mark_dirty(partial)
        dist.all_reduce(partial, group=group)
        return partial

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


@dataclass(frozen=True, slots=True)
class TensorParallel:
    """The tensor-parallel group of a rank.

    Attributes
    ----------
    size, rank : int
    sp : bool
        Sequence parallel: the residual stream is split along the sequence over the group.
    mesh : DeviceMesh or None
        One-dimensional mesh of the group; None when `size` is 1.
    """

    size: int = 1
    rank: int = 0
    sp: bool = False
    mesh: DeviceMesh | None = None

    def enter(self, x: Tensor) -> Tensor:
        """Residual stream -> whole activations whose gradient is summed over the group.

        Without `sp` the forward moves nothing and the backward is one all-reduce; with `sp`
        it is an all-gather and a reduce-scatter.
        """
        if self.mesh is None:
            return x
        if not self.sp:
            return _SumGradient.apply(x, self.mesh.get_group())
        whole = DTensor.from_local(x, self.mesh, [Shard(1)], run_check=False).redistribute(placements=[Replicate()])
        return whole.to_local(grad_placements=[Partial()])

    def leave(self, y: Tensor) -> Tensor:
        """Partial sums -> residual stream: an all-reduce, or with `sp` a reduce-scatter along the sequence."""
        if self.mesh is None:
            return y
        if not self.sp:
            return _Sum.apply(y.contiguous(), self.mesh.get_group())
        summed = DTensor.from_local(y.contiguous(), self.mesh, [Partial()], run_check=False).redistribute(
            placements=[Shard(1)]
        )
        return summed.to_local(grad_placements=[Shard(1)])

    def own_rows(self, x: Tensor) -> Tensor:
        """The part of dimension 0 that this rank keeps of a tensor indexed by position."""
        if self.mesh is None or not self.sp:
            return x
        return x.chunk(self.size, dim=0)[self.rank]

    def cross_entropy(self, logits: Tensor, target: Tensor) -> Tensor:
        """Mean token loss; over vocabulary-split logits it is DTensor's loss-parallel kernel."""
        flat, wanted = logits.flatten(0, 1).float(), target.flatten()
        if self.mesh is None:
            return nn.functional.cross_entropy(flat, wanted)
        split = DTensor.from_local(flat, self.mesh, [Shard(1)], run_check=False)
        same = DTensor.from_local(wanted, self.mesh, [Replicate()], run_check=False)
        loss = nn.functional.cross_entropy(split, same)
        return loss.to_local() if isinstance(loss, DTensor) else loss

    @contextmanager
    def losses(self) -> Iterator[None]:
        """Cover a step (forward and backward of the loss) so that the split loss kernel is used."""
        if self.mesh is None:
            yield
            return
        with loss_parallel():
            yield

    def shard(self, whole: Tensor, dim: int | None) -> Tensor:
        """Part of this rank of a whole parameter split along `dim` (None: replicated)."""
        if dim is None or self.size == 1:
            return whole
        return whole.chunk(self.size, dim=dim)[self.rank].contiguous()


SINGLE = TensorParallel()


@dataclass(frozen=True, slots=True)
class ParameterNote:
    """What parallelism did to a parameter.

    Attributes
    ----------
    shard_dim : int or None
        Dimension along which it is split over tp.
    partial : bool
        It is replicated over tp, but each rank sees only part of its gradient.
    shape : torch.Size
        Whole shape.
    """

    shard_dim: int | None
    partial: bool
    shape: torch.Size
