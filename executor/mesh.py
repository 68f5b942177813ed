"""From the degrees of a plan to process groups."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from executor.tensor import TensorParallel
from planner.plan import Plan


@dataclass(frozen=True, slots=True, eq=False)
class Groups:
    """The process groups of a plan on this rank.

    Attributes
    ----------
    mesh : DeviceMesh
        Dimensions pp, replica, fsdp, tp; ranks lie in it as the layout's order says.
    pp_rank, dp_rank : int
    tp : TensorParallel
    pp, dp : ProcessGroup
        Groups of the pipeline and of the whole data-parallel axis.
    tied : ProcessGroup or None
        First and last stage, where they share the embedding; None elsewhere.
    axes : dict
        Group name -> axis, for records.
    """

    mesh: DeviceMesh
    pp_rank: int
    dp_rank: int
    tp: TensorParallel
    pp: dist.ProcessGroup
    dp: dist.ProcessGroup
    tied: dist.ProcessGroup | None = None
    axes: dict[str, str] = field(default_factory=dict)


def build(plan: Plan, device_type: str, tied: bool) -> Groups:
    """Make the groups of `plan`; every rank of the world must call it at the same point.

    Parameters
    ----------
    plan : Plan
    device_type : str
        ``"cpu"`` or ``"cuda"``.
    tied : bool
        Whether the model shares its embedding with its head.
    """
    lay = plan.layout
    shard = (lay.fsdp or lay.dp) if lay.zero_stage >= 2 else lay.dp
    mesh = DeviceMesh(device_type, _ranks(plan, shard), mesh_dim_names=("pp", "replica", "fsdp", "tp"))
    pp_rank, replica, inner, tp_rank = mesh.get_coordinate() or [0, 0, 0, 0]
    axes = {
        mesh.get_group(name).group_name: axis
        for name, axis in (("pp", "pp"), ("replica", "dp"), ("fsdp", "dp"), ("tp", "tp"))
    }
    dp_rank = replica * shard + inner
    dp, tied_group = _dp_groups(plan, mesh, dp_rank), None
    axes[dp.group_name] = "dp"
    if tied and lay.pp > 1:
        tied_group = _tied_groups(plan, mesh)
        if tied_group is not None:
            axes[tied_group.group_name] = "pp"
    tp = TensorParallel()
    if lay.tp > 1:
        tp = TensorParallel(lay.tp, tp_rank, bool(lay.sp), mesh["tp"])
    return Groups(mesh, pp_rank, dp_rank, tp, mesh.get_group("pp"), dp, tied_group, axes)


def _ranks(plan: Plan, shard: int) -> torch.Tensor:
    """World ranks by pp, replica, fsdp and tp: the plan's dense grid, slowest first, with its axes in that place."""
    lay = plan.layout
    axes = [axis for axis, _ in plan.dense_grid if axis != "cp"]  # of one rank (`executor.support`)
    grid = torch.arange(lay.world, dtype=torch.int).reshape([getattr(lay, axis) for axis in axes])
    return grid.permute([axes.index(axis) for axis in ("pp", "dp", "tp")]).reshape(lay.pp, -1, shard, lay.tp)


def _dp_groups(plan: Plan, mesh: DeviceMesh, dp_rank: int) -> dist.ProcessGroup:
    lay = plan.layout
    if mesh.shape[1] == 1:
        return mesh.get_group("fsdp")
    mine: dist.ProcessGroup | None = None
    for p in range(lay.pp):
        for t in range(lay.tp):
            ranks = mesh.mesh[p, :, :, t].flatten().tolist()
            group = dist.new_group(ranks)
            if dist.get_rank() in ranks:
                mine = group
    if mine is None:
        raise RuntimeError("this rank is in no data-parallel group")
    return mine


def _tied_groups(plan: Plan, mesh: DeviceMesh) -> dist.ProcessGroup | None:
    ends = sorted({s.rank for s in plan.stages if s.embedding or s.head})
    if len(ends) == 1:
        return None
    mine: dist.ProcessGroup | None = None
    for pair in mesh.mesh.flatten(1)[ends].T:
        ranks = pair.tolist()
        group = dist.new_group(ranks)
        if dist.get_rank() in ranks:
            mine = group
    return mine
