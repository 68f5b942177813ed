"""Data-parallel traffic: what is gathered and reduced, over which groups, and its seconds."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hwmodels import collectives
from hwmodels.cluster import Cluster
from hwmodels.estimate import Estimate
from hwmodels.topology import GroupShape
from planner.elements import stage_elements
from planner.frameworks import FrameworkPreset
from planner.layout import LayoutBatch
from planner.model.spec import ModelSpec
from planner.offload import shard_seconds
from planner.plan import Workload
from planner.precision import recipe_of
from planner.schedule import get as get_schedule
from planner.shard_copies import copy_in_seconds, copy_out_seconds
from planner.simulate.costs import CommPlan
from planner.stages import StageSums
from planner.state import block_parameters, gathers, gradient_bytes, reduces_each

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
MAX_BUCKETS = 40
"""Most pieces a virtual stage is cut into: FSDP groups or gradient buckets beyond this number
change the exposed first and last piece by less than 1/40 of the traffic."""


def bucket_counts(
    model: ModelSpec, workload: Workload, layouts: LayoutBatch, preset: FrameworkPreset
) -> IntArray:
    """Gradient buckets of a virtual stage for each layout below stage 3: ndarray (n,).

    ``ceil(bytes / bucket)``: the gradients of a stage's layers over the bytes of a bucket (DDP ``bucket_cap_mb``, whose
    first bucket of 1 MiB only starts traffic earlier; Megatron-Core ``bucket_size`` max(40e6, 1e6·dp) elements;
    DeepSpeed ``reduce_bucket_size``), at most one a layer, since a layer's gradients come almost at once. Rounded up to
    a power of two below that, so that few shapes of a step differ.
    """
    first, same = layouts.distinct(("tp", "ep", "etp", "dp", "pp", "vpp"))
    few = layouts.take(first)
    _, kinds, _ = block_parameters(model, few, workload)
    elements = np.zeros(len(few))
    for layer, held in zip(model.layer_kinds(), kinds, strict=True):
        trained = held.all - held.frozen_dense - held.frozen_expert
        elements = elements + np.broadcast_to(trained, (len(few),)) * sum(other == layer for other in model.layers)
    stages = few.pp * few.vpp
    bucket = np.maximum(float(preset.bucket_bytes), float(preset.bucket_bytes_per_dp) * few.dp)
    count = np.ceil(elements * gradient_bytes(workload, preset) / stages / bucket)
    rounded = 2.0 ** np.ceil(np.log2(np.maximum(count, 1.0)))
    most = np.minimum(np.maximum(model.n_layers // stages, 1), MAX_BUCKETS)
    return np.asarray(np.minimum(rounded, most).astype(np.int64)[same])


def comm_plan(
    model: ModelSpec, preset: FrameworkPreset, pp: int, vpp: int, zero_stage: int, sharing: bool,
    schedule: str = "1f1b", mtp_layers: int = 0, reshard: str = "default",
    buckets: int = MAX_BUCKETS,
) -> CommPlan:  # fmt: skip
    """Which communication nodes a step has.

    Parameters
    ----------
    sharing : bool
        Whether any parameter is held by several ranks: dp·cp > 1, or experts with edp > 1.
    mtp_layers : int
        Prediction steps, which share the embedding with the first stage.
    reshard : str
        Of `planner.layout.RESHARDS`.
    buckets : int
        Most gradient buckets of a virtual stage (`bucket_counts`); stage 3 has one a layer.
    """
    layers = max(model.n_layers // (pp * vpp), 1)
    tied = (model.tied_embeddings or mtp_layers > 0) and pp > 1
    blocking = not preset.p2p_overlap
    if not sharing:
        return CommPlan(p2p_blocking=blocking, tied_embedding=tied)
    most = min(layers, MAX_BUCKETS)
    each = reduces_each(preset, pp, zero_stage)
    if zero_stage >= 3:
        return CommPlan(
            most,
            gathers(preset, pp, reshard),
            1 if preset.prefetch_params else 0,
            "each" if each else "bucketed",
            blocking,
            False,
            tied,
        )
    buckets = min(buckets, most)
    reduce: Literal["each", "bucketed", "end"] = "end"
    if each:
        reduce = "each"
    elif preset.overlap_grad_reduce and (preset.overlap_split_reduce or not get_schedule(schedule).split_backward):
        reduce = "bucketed"
    behind_forward = zero_stage >= 1 and preset.overlap_param_gather
    return CommPlan(
        buckets=buckets if reduce != "end" or behind_forward else 1,
        unshard="once" if behind_forward else "none",
        prefetch=1,
        reduce=reduce,
        p2p_blocking=blocking,
        gather_after_step=zero_stage >= 1 and not behind_forward,
        tied_embedding=tied,
    )


@dataclass(frozen=True, slots=True, eq=False)
class DataParallelCosts:
    """Seconds of data-parallel traffic; the whole of a virtual stage is `buckets` pieces.

    Attributes
    ----------
    unshard_s, reduce_s : Estimate (n, pp, chunks)
        One bucket.
    gather_s : Estimate (n, pp)
        Parameters after a sharded optimizer step.
    mirror_s : Estimate (n, pp)
        Gradients between the mirror ranks of a bidirectional pipeline; zero elsewhere.
    elements : ndarray (n, pp)
        Trained parameters of a rank whose optimizer it runs (its shard).
    other : ndarray (n, pp)
        Those of them that are no hidden matrix.
    copy_out_s, copy_in_s : ndarray (n, pp, chunks)
        Computing stream of one bucket: a gathered buffer to its parameters, gradients to the buffer that is reduced
        (`planner.shard_copies`); zero where the framework has one flat parameter.
    """

    unshard_s: Estimate
    reduce_s: Estimate
    gather_s: Estimate
    mirror_s: Estimate
    elements: FloatArray
    other: FloatArray
    copy_out_s: FloatArray
    copy_in_s: FloatArray

    def take(self, index: IntArray) -> DataParallelCosts:
        """The layouts at `index`."""

        def one(estimate: Estimate) -> Estimate:
            return Estimate(*(np.broadcast_to(getattr(estimate, f.name), estimate.mid.shape)[index]
                              for f in fields(Estimate)))  # fmt: skip

        unshard, reduce = one(self.unshard_s), one(self.reduce_s)
        gather, mirror = one(self.gather_s), one(self.mirror_s)
        rest = (self.elements, self.other, self.copy_out_s, self.copy_in_s)
        return DataParallelCosts(unshard, reduce, gather, mirror, *(value[index] for value in rest))

    @property
    def spread(self) -> FloatArray:
        """Relative spread of all of it, weighted by seconds: ndarray (n,)."""
        parts = [(self.unshard_s, (1, 2)), (self.reduce_s, (1, 2)), (self.gather_s, (1,)), (self.mirror_s, (1,))]
        seconds = sum((p.mid.sum(axis=axes) for p, axes in parts), start=np.zeros(len(self.elements)))
        weighted = sum(((p.mid * p.spread).sum(axis=axes) for p, axes in parts), start=np.zeros(len(self.elements)))
        return np.divide(weighted, seconds, out=np.zeros_like(seconds), where=seconds > 0)


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
    and 2 all-gather parameters after the step or behind the next forward, ZeRO-3 before use.
    """
    held = stage_elements(model, workload, layouts, preset, pp, vpp, schedule)
    dense, expert = held.dense.trained, held.expert.trained
    parts = held.dense, held.expert
    sent, sent_expert = (part.gathered_bytes(held.weights, whole=zero_stage >= 3) for part in parts)
    grad = gradient_bytes(workload, preset)
    gpn = cluster.gpus_per_node
    kinds = StageSums.of(model, pp, vpp, schedule, layouts.stage_layers)

    def move(op: str, nbytes: FloatArray, axis: str) -> Estimate:
        shape = layouts.group(axis, gpn)
        if nbytes.ndim == 2:
            return collectives.seconds(cluster, op, nbytes, _wide(shape, 1))
        priced = collectives.seconds(cluster, op, kinds.of_whole(nbytes), _wide(shape, 1))
        return Estimate(kinds.whole(priced.mid), kinds.whole(np.broadcast_to(priced.spread, priced.mid.shape)))

    k = float(plan.buckets)
    fsdp = (layouts.fsdp_degree * layouts.cp).astype(np.float64)[:, None, None]
    expert_shard = layouts.expert_shard.astype(np.float64)[:, None, None]
    has_experts = bool(np.any(held.expert.all > 0))
    whole = zero_stage == 1 and preset.zero1_all_reduce and not has_experts

    def gathered(dense_bytes: FloatArray, expert_bytes: FloatArray) -> Estimate:
        if whole and preset.zero1_broadcast:  # every rank in turn
            shards = fsdp if dense_bytes.ndim == 3 else fsdp[:, :, 0]
            return move("broadcast", dense_bytes / shards, "fsdp") * shards
        seconds = move("all_gather", dense_bytes, "fsdp")
        return seconds + move("all_gather", expert_bytes, "expert_shard") if has_experts else seconds

    def reduced(dense_bytes: FloatArray, expert_bytes: FloatArray) -> Estimate:
        if zero_stage == 0:
            seconds = move("all_reduce", dense_bytes, "dp_cp")
            return seconds + move("all_reduce", expert_bytes, "edp") if has_experts else seconds
        if whole:
            return move("all_reduce", dense_bytes, "fsdp")
        seconds = move("reduce_scatter", dense_bytes, "fsdp") + move("all_reduce", dense_bytes / fsdp, "replica")
        if has_experts:
            seconds = seconds + move("reduce_scatter", expert_bytes, "expert_shard")
            seconds = seconds + move("all_reduce", expert_bytes / expert_shard, "expert_replica")
        return seconds

    nothing = Estimate.of(np.zeros_like(dense))
    unshard = gathered(sent / k, sent_expert / k) if plan.unshard != "none" else nothing
    if np.any(layouts.offload_parameters) and plan.unshard != "none":
        unshard = unshard + _from_host(layouts, cluster, (sent / fsdp + sent_expert / expert_shard) / k)
    gather = Estimate.of(np.zeros(dense.shape[:2]))
    if plan.gather_after_step:
        gather = gathered(sent.sum(axis=2), sent_expert.sum(axis=2))
    reduce = reduced(dense * grad / k, expert * grad / k) if plan.reduce != "none" else nothing
    own, own_expert = (1.0 if zero_stage == 0 else shard[:, :, 0] for shard in (fsdp, expert_shard))
    elements = np.asarray(dense.sum(axis=2) / own + expert.sum(axis=2) / own_expert)
    other = np.asarray(held.dense.other.sum(axis=2) / own)
    mirror = Estimate.of(np.zeros(dense.shape[:2]))
    if get_schedule(schedule).directions > 1:
        mirror = mirror_seconds(layouts, cluster, elements * grad, pp)
    copies = np.zeros_like(dense), np.zeros_like(dense)
    if preset.shard_copies and zero_stage >= 3 and plan.unshard != "none":
        copies = _shard_copies(workload, preset, cluster, (sent + sent_expert) / k, (dense + expert) / k)
    return DataParallelCosts(unshard, reduce, gather, mirror, elements, other, *copies)


def _from_host(layouts: LayoutBatch, cluster: Cluster, nbytes: FloatArray) -> Estimate:
    """Seconds in which the shards of one bucket come from host memory, where they lie there."""
    return Estimate.of(shard_seconds(cluster, nbytes * layouts.offload_parameters[:, None, None]))


def _shard_copies(
    workload: Workload, preset: FrameworkPreset, cluster: Cluster, sent: FloatArray, trained: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Seconds of the copies out of one gathered bucket (bytes `sent`) and into one that is reduced (elements)."""
    width, grad = recipe_of(workload, preset).width, gradient_bytes(workload, preset)
    return copy_out_seconds(cluster.device, sent), copy_in_seconds(cluster.device, trained, width, grad)


def mirror_seconds(layouts: LayoutBatch, cluster: Cluster, nbytes: FloatArray, pp: int) -> Estimate:
    """Seconds in which rank r and rank pp-1-r all-reduce the gradients of the stages that both hold.

    What data parallelism has reduced before is a shard, so only the shard is exchanged.

    Parameters
    ----------
    nbytes : ndarray (n, pp)
        Gradients of a rank after its data-parallel reduction.

    Returns
    -------
    Estimate (n, pp)
    """
    _, stride = layouts.axis("pp")
    here, there = (order[None, :] * stride[:, None] for order in (np.arange(pp), np.arange(pp)[::-1]))
    last = stride[:, None] - 1
    gpn = cluster.gpus_per_node
    apart = (here // gpn != there // gpn) | ((here + last) // gpn != (there + last) // gpn)
    nodes = np.where(apart, 2, 1)
    return collectives.seconds(cluster, "all_reduce", nbytes, GroupShape(2 // nodes, nodes, np.ones_like(nodes)))
