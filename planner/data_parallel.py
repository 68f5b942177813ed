"""Data-parallel traffic: what is gathered and reduced, over which groups, and its seconds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hwmodels import collectives
from hwmodels.cluster import Cluster
from hwmodels.estimate import Estimate
from hwmodels.topology import GroupShape
from planner.layout import LayoutBatch
from planner.model.spec import ModelSpec
from planner.plan import Workload
from planner.presets import FrameworkPreset
from planner.simulate.costs import CommPlan
from planner.stages import over_stages
from planner.state import block_parameters
from planner.workload.op import BYTES

FloatArray = NDArray[np.float64]
MAX_BUCKETS = 40
"""Most pieces a virtual stage is cut into: FSDP groups or gradient buckets beyond this number
change the exposed first and last piece by less than 1/40 of the traffic."""


def comm_plan(model: ModelSpec, preset: FrameworkPreset, pp: int, vpp: int, zero_stage: int, sharing: bool) -> CommPlan:
    """Which communication nodes a step has.

    Parameters
    ----------
    sharing : bool
        Whether dp·cp > 1.
    """
    layers = max(model.n_layers // (pp * vpp), 1)
    tied = model.tied_embeddings and pp > 1
    blocking = not preset.p2p_overlap
    if not sharing:
        return CommPlan(p2p_blocking=blocking, tied_embedding=tied)
    buckets = min(layers, MAX_BUCKETS)
    if zero_stage >= 3:
        keeps = pp > 1 or not preset.reshard_after_forward
        each = preset.reduce_each_microbatch and not keeps
        return CommPlan(
            buckets,
            "once" if keeps else "each",
            1 if preset.overlap_param_gather else 0,
            "each" if each else "bucketed",
            blocking,
            False,
            tied,
        )
    gather = zero_stage >= 1
    if zero_stage == 2 and preset.reduce_each_microbatch and pp == 1:
        return CommPlan(buckets, reduce="each", p2p_blocking=blocking, gather_after_step=gather, tied_embedding=tied)
    if preset.overlap_grad_reduce:
        return CommPlan(
            buckets, reduce="bucketed", p2p_blocking=blocking, gather_after_step=gather, tied_embedding=tied
        )
    return CommPlan(1, reduce="end", p2p_blocking=blocking, gather_after_step=gather, tied_embedding=tied)


@dataclass(frozen=True, slots=True, eq=False)
class DataParallelCosts:
    """Seconds of data-parallel traffic; the whole of a virtual stage is `buckets` pieces.

    Attributes
    ----------
    unshard_s, reduce_s : Estimate (n, pp, vpp)
        One bucket.
    gather_s : Estimate (n, pp)
        Parameters after a sharded optimizer step.
    elements : ndarray (n, pp)
        Parameters of a rank whose optimizer it runs (its shard).
    """

    unshard_s: Estimate
    reduce_s: Estimate
    gather_s: Estimate
    elements: FloatArray


def _wide(shape: GroupShape, ndim: int) -> GroupShape:
    """The same group shapes with `ndim` trailing axes, to broadcast over stages."""
    index = (..., *(None,) * ndim)
    return GroupShape(
        np.asarray(shape.ranks_per_node[index]), np.asarray(shape.nodes[index]), np.asarray(shape.stride[index])
    )


def data_parallel_costs(
    model: ModelSpec,
    workload: Workload,
    layouts: LayoutBatch,
    cluster: Cluster,
    preset: FrameworkPreset,
    plan: CommPlan,
    pp: int,
    vpp: int,
    schedule: str,
    zero_stage: int,
) -> DataParallelCosts:
    """Price the gradient and parameter collectives of layouts that share pp, vpp and ZeRO stage.

    ZeRO-0 all-reduces gradients over dp·cp (experts over their own data-parallel group). ZeRO-1
    to 3 reduce-scatter within the shard group and all-reduce the shard over the replicas; ZeRO-1
    and 2 all-gather parameters after the step, ZeRO-3 before use.
    """
    embedding, layers, head = block_parameters(model, layouts)
    dense = over_stages(model, pp, vpp, schedule, [p.dense for p in layers], embedding.dense, head.dense)
    expert = over_stages(model, pp, vpp, schedule, [p.expert for p in layers], embedding.expert, head.expert)
    grad = BYTES[preset.gradient_dtype(workload.precision)]
    width = BYTES[workload.precision]
    gpn = cluster.gpus_per_node

    def move(op: str, nbytes: FloatArray, axis: str) -> Estimate:
        return collectives.seconds(cluster, op, nbytes, _wide(layouts.group(axis, gpn), nbytes.ndim - 1))

    k = float(plan.buckets)
    fsdp = (layouts.fsdp_degree * layouts.cp).astype(np.float64)[:, None, None]
    has_experts = bool(np.any(expert > 0))
    if zero_stage == 0:
        reduce = move("all_reduce", dense * grad / k, "dp_cp")
        if has_experts:
            reduce = reduce + move("all_reduce", expert * grad / k, "edp")
    else:
        reduce = move("reduce_scatter", dense * grad / k, "fsdp")
        if bool(np.any(layouts.fsdp_degree < layouts.dp)):
            reduce = reduce + move("all_reduce", dense * grad / k / fsdp, "replica")
        if has_experts:
            reduce = reduce + move("reduce_scatter", expert * grad / k, "edp")
    unshard = move("all_gather", dense * width / k, "fsdp") if zero_stage >= 3 else Estimate.of(np.zeros_like(dense))
    gather = (
        move("all_gather", dense.sum(axis=2) * width, "fsdp")
        if zero_stage in (1, 2)
        else Estimate.of(np.zeros(dense.shape[:2]))
    )
    if has_experts and zero_stage >= 3:
        unshard = unshard + move("all_gather", expert * width / k, "edp")
    if has_experts and zero_stage in (1, 2):
        gather = gather + move("all_gather", expert.sum(axis=2) * width, "edp")
    own = 1.0 if zero_stage == 0 else fsdp[:, :, 0]
    own_expert = 1.0 if zero_stage == 0 else np.minimum(layouts.edp.astype(np.float64)[:, None], fsdp[:, :, 0])
    elements = dense.sum(axis=2) / own + expert.sum(axis=2) / own_expert
    return DataParallelCosts(unshard, reduce, gather, np.asarray(elements))
