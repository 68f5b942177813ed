"""Data-parallel traffic: what is gathered and reduced, over which groups, and its seconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import islice
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hwmodels import collectives
from hwmodels.cluster import Cluster
from hwmodels.estimate import Estimate
from hwmodels.topology import GroupShape
from planner.elements import stage_elements
from planner.frameworks import FrameworkPreset
from planner.layout import LayoutBatch
from planner.layout.axes import crossings
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

    @property
    def spread(self) -> FloatArray:
        """Relative spread of all of it, weighted by seconds: ndarray (n,)."""
        parts = [(self.unshard_s, (1, 2)), (self.reduce_s, (1, 2)), (self.gather_s, (1,)), (self.mirror_s, (1,))]
        seconds = sum((p.mid.sum(axis=axes) for p, axes in parts), start=np.zeros(len(self.elements)))
        weighted = sum(((p.mid * p.spread).sum(axis=axes) for p, axes in parts), start=np.zeros(len(self.elements)))
        return np.divide(weighted, seconds, out=np.zeros_like(seconds), where=seconds > 0)


@dataclass(frozen=True, slots=True, eq=False)
class Move:
    """One collective of every stage: `times` operations of `nbytes` (n, d) over groups whose fields are (n, 1).

    The d are kinds of stages, or ranks.
    """

    op: str
    nbytes: FloatArray
    shape: GroupShape
    times: FloatArray | float = 1.0


def price_moves(cluster: Cluster, moves: Sequence[Move]) -> list[Estimate]:
    """Seconds of each, by one call of the law for all moves of an operation: Estimates (n, d)."""
    found: dict[int, Estimate] = {}
    for op in dict.fromkeys(move.op for move in moves):
        mine = [i for i, move in enumerate(moves) if move.op == op]
        sizes = [moves[i].nbytes for i in mine]

        def joined(name: str, mine: list[int] = mine) -> IntArray:
            parts = (np.broadcast_to(getattr(moves[i].shape, name), moves[i].nbytes.shape) for i in mine)
            return np.concatenate([part.reshape(-1) for part in parts])

        shape = GroupShape(*(joined(f.name) for f in fields(GroupShape)))
        every = collectives.seconds(cluster, op, np.concatenate([size.reshape(-1) for size in sizes]), shape)
        cuts = np.cumsum([size.size for size in sizes])[:-1]
        values = (np.split(np.broadcast_to(part, every.mid.shape), cuts) for part in (every.mid, every.spread))
        for i, mid, spread in zip(mine, *values, strict=True):
            like = moves[i].nbytes.shape
            found[i] = Estimate(mid.reshape(like), spread.reshape(like)) * moves[i].times
    return [found[i] for i in range(len(moves))]


@dataclass(frozen=True, slots=True, eq=False)
class DataParallelTraffic:
    """What data parallelism moves, not priced yet.

    Attributes
    ----------
    kinds : StageSums
        Of the virtual stages; `unshard` and `reduce` are by kind, `gather` by rank.
    unshard, reduce, gather : tuple of Move
        One after another.
    shards_s : ndarray (n, pp, chunks)
        Of shards from host memory before each gather.
    mirror_s, elements, other, copy_out_s, copy_in_s
        As in `DataParallelCosts`.
    """

    kinds: StageSums
    unshard: tuple[Move, ...]
    reduce: tuple[Move, ...]
    gather: tuple[Move, ...]
    shards_s: FloatArray
    mirror_s: Estimate
    elements: FloatArray
    other: FloatArray
    copy_out_s: FloatArray
    copy_in_s: FloatArray


def data_parallel_costs(cluster: Cluster, traffic: Sequence[DataParallelTraffic]) -> list[DataParallelCosts]:
    """Price the traffic of any number of groups of layouts together."""
    moves = [move for each in traffic for move in (*each.unshard, *each.reduce, *each.gather)]
    priced = iter(price_moves(cluster, moves))
    found = []
    for each in traffic:
        nothing, none = (Estimate.of(np.zeros_like(like)) for like in (each.shards_s, each.elements))

        def stages(moves: tuple[Move, ...], each: DataParallelTraffic = each, empty: Estimate = nothing) -> Estimate:
            if not moves:
                return empty
            total = sum(islice(priced, len(moves) - 1), start=next(priced))
            spread = np.broadcast_to(total.spread, total.mid.shape)
            return Estimate(each.kinds.whole(total.mid), each.kinds.whole(spread))

        unshard, reduce = stages(each.unshard), stages(each.reduce)
        if each.shards_s.any():
            unshard = unshard + Estimate.of(each.shards_s)
        gather = none
        if each.gather:
            gather = sum(islice(priced, len(each.gather) - 1), start=next(priced))
        rest = (each.mirror_s, each.elements, each.other, each.copy_out_s, each.copy_in_s)
        found.append(DataParallelCosts(unshard, reduce, gather, *rest))
    return found


@dataclass(frozen=True, slots=True, eq=False)
class _Way:
    """How layouts gather parameters and reduce gradients: bytes (n, d) to moves."""

    layouts: LayoutBatch
    cluster: Cluster
    preset: FrameworkPreset
    zero_stage: int
    has_experts: bool

    @property
    def fsdp(self) -> FloatArray:
        """Ranks that share dense state: ndarray (n, 1)."""
        return (self.layouts.fsdp_degree * self.layouts.cp).astype(np.float64)[:, None]

    @property
    def expert_shard(self) -> FloatArray:
        """Ranks that share expert state: ndarray (n, 1)."""
        return self.layouts.expert_shard.astype(np.float64)[:, None]

    @property
    def whole(self) -> bool:
        """Whether ZeRO-1 all-reduces whole gradients."""
        return self.zero_stage == 1 and self.preset.zero1_all_reduce and not self.has_experts

    def _move(self, op: str, nbytes: FloatArray, axis: str, times: FloatArray | float = 1.0) -> Move:
        shape = self.layouts.group(axis, self.cluster)
        parts: list[NDArray[Any]] = [getattr(shape, f.name) for f in fields(GroupShape)]
        wide = (np.broadcast_to(part, shape.nodes.shape)[:, None] for part in parts)
        return Move(op, nbytes, GroupShape(*wide), times)

    def gathered(self, dense: FloatArray, expert: FloatArray) -> tuple[Move, ...]:
        """Of parameters."""
        if self.whole and self.preset.zero1_broadcast:  # every rank in turn
            return (self._move("broadcast", dense / self.fsdp, "fsdp", self.fsdp),)
        every = (self._move("all_gather", dense, "fsdp"),)
        return (*every, self._move("all_gather", expert, "expert_shard")) if self.has_experts else every

    def reduced(self, dense: FloatArray, expert: FloatArray) -> tuple[Move, ...]:
        """Of gradients."""
        if self.zero_stage == 0:
            every: tuple[Move, ...] = (self._move("all_reduce", dense, "dp_cp"),)
            return (*every, self._move("all_reduce", expert, "edp")) if self.has_experts else every
        if self.whole:
            return (self._move("all_reduce", dense, "fsdp"),)
        every = (self._move("reduce_scatter", dense, "fsdp"),
                 self._move("all_reduce", dense / self.fsdp, "replica"))  # fmt: skip
        if self.has_experts:
            every += (self._move("reduce_scatter", expert, "expert_shard"),
                      self._move("all_reduce", expert / self.expert_shard, "expert_replica"))  # fmt: skip
        return every


def data_parallel_traffic(
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
) -> DataParallelTraffic:
    """Gradient and parameter collectives of layouts that share pp, vpp and ZeRO stage.

    ZeRO-0 all-reduces gradients over dp·cp (experts over their own data-parallel group). ZeRO-1
    to 3 reduce-scatter within the shard group and all-reduce the shard over the replicas; ZeRO-1
    and 2 all-gather parameters after the step or behind the next forward, ZeRO-3 before use.
    """
    held = stage_elements(model, workload, layouts, preset, pp, vpp, schedule)
    dense, expert = held.dense.trained, held.expert.trained
    parts = held.dense, held.expert
    sent, sent_expert = (part.gathered_bytes(held.weights, whole=zero_stage >= 3) for part in parts)
    grad = gradient_bytes(workload, preset)
    kinds = StageSums.of(model, pp, vpp, schedule, layouts.stage_layers)
    k = float(plan.buckets)
    has_experts = bool(np.any(held.expert.all > 0))
    way = _Way(layouts, cluster, preset, zero_stage, has_experts)
    fsdp, expert_shard = way.fsdp, way.expert_shard
    of, unshards = kinds.of_whole, plan.unshard != "none"
    shards = np.zeros_like(dense)
    if np.any(layouts.offload_parameters) and unshards:
        own_bytes = (sent / fsdp[:, :, None] + sent_expert / expert_shard[:, :, None]) / k
        shards = shard_seconds(cluster, own_bytes * layouts.offload_parameters[:, None, None])
    own, own_expert = (1.0, 1.0) if zero_stage == 0 else (fsdp, expert_shard)
    elements = np.asarray(dense.sum(axis=2) / own + expert.sum(axis=2) / own_expert)
    mirror = Estimate.of(np.zeros(dense.shape[:2]))
    if get_schedule(schedule).directions > 1:
        mirror = mirror_seconds(layouts, cluster, elements * grad, pp)
    copies = np.zeros_like(dense), np.zeros_like(dense)
    if zero_stage >= 3 and unshards:
        copies = _shard_copies(workload, preset, cluster, (sent + sent_expert) / k, (dense + expert) / k)
    return DataParallelTraffic(
        kinds,
        way.gathered(of(sent) / k, of(sent_expert) / k) if unshards else (),
        way.reduced(of(dense) * grad / k, of(expert) * grad / k) if plan.reduce != "none" else (),
        way.gathered(sent.sum(axis=2), sent_expert.sum(axis=2)) if plan.gather_after_step else (),
        shards,
        mirror,
        elements,
        np.asarray(held.dense.other.sum(axis=2) / own),
        *copies,
    )


def _shard_copies(
    workload: Workload, preset: FrameworkPreset, cluster: Cluster, sent: FloatArray, trained: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Seconds of the copies out of one gathered bucket (bytes `sent`) and into one that is reduced (elements)."""
    width, grad = recipe_of(workload, preset).width, gradient_bytes(workload, preset)
    if not preset.shard_copies:
        joined = copy_in_seconds(cluster.device, trained, width, width) if preset.flat_parameters else 0.0 * trained
        return np.zeros_like(sent), joined
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
    ranks = np.arange(pp)
    apart = crossings(layouts, ranks, ranks[::-1], cluster.gpus_per_node)
    nodes = np.where(apart, 2, 1)
    return collectives.seconds(cluster, "all_reduce", nbytes, GroupShape(2 // nodes, nodes, np.ones_like(nodes)))
