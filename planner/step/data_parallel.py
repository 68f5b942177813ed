"""Data-parallel traffic: what is gathered and reduced, over which groups, and its seconds."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hwmodels import collectives
from hwmodels.cluster import Cluster
from hwmodels.estimate import Estimate
from hwmodels.records import dataclass
from hwmodels.topology import GroupShape
from planner.elements import StageElements
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
from planner.stages import Kinds
from planner.state import block_parameters, gathers, gradient_bytes, reduces_each
from planner.step.moves import Axes, Move, price_moves

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
MAX_BUCKETS = 40
"""Most pieces a virtual stage is cut into: FSDP groups or gradient buckets beyond this number
change the exposed first and last piece by less than 1/40 of the traffic."""


def bucket_counts(model: ModelSpec, workload: Workload, layouts: LayoutBatch, preset: FrameworkPreset) -> IntArray:
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
    kinds : Kinds
        Of the virtual stages, d of them.
    unshard_s, reduce_s : Estimate (n, d)
        One bucket.
    gather_s : Estimate (n, pp)
        Parameters after a sharded optimizer step.
    mirror_s : Estimate (n, pp)
        Gradients between the mirror ranks of a bidirectional pipeline; zero elsewhere.
    elements : ndarray (n, pp)
        Trained parameters of a rank whose optimizer it runs (its shard).
    other : ndarray (n, pp)
        Those of them that are no hidden matrix.
    copy_out_s, copy_in_s : ndarray (n, d)
        Computing stream of one bucket: a gathered buffer to its parameters, gradients to the buffer that is reduced
        (`planner.shard_copies`); zero where the framework has one flat parameter.
    """

    kinds: Kinds
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
        counts = self.kinds.counts.sum(axis=0)
        parts = [(p, counts) for p in (self.unshard_s, self.reduce_s)]
        parts += [(p, np.ones(p.mid.shape[1])) for p in (self.gather_s, self.mirror_s)]
        seconds = sum((p.mid @ times for p, times in parts), start=np.zeros(len(self.elements)))
        weighted = sum(((p.mid * p.spread) @ times for p, times in parts), start=np.zeros(len(self.elements)))
        return np.divide(weighted, seconds, out=np.zeros_like(seconds), where=seconds > 0)

    def take(self, rows: IntArray) -> DataParallelCosts:
        """Those of `rows`."""

        def estimate(e: Estimate) -> Estimate:
            return Estimate(e.mid[rows], np.broadcast_to(e.spread, e.mid.shape)[rows])

        unshard, reduce, gather, mirror = map(estimate, (self.unshard_s, self.reduce_s, self.gather_s, self.mirror_s))
        rest = (v[rows] for v in (self.elements, self.other, self.copy_out_s, self.copy_in_s))
        return DataParallelCosts(self.kinds, unshard, reduce, gather, mirror, *rest)


@dataclass(frozen=True, slots=True, eq=False)
class DataParallelTraffic:
    """What data parallelism moves, not priced yet.

    Attributes
    ----------
    unshard, reduce, gather : tuple of Move
        One after another; `unshard` and `reduce` by kind, `gather` by rank.
    shards_s : ndarray (n, d)
        Of shards from host memory before each gather.
    kinds, mirror_s, elements, other, copy_out_s, copy_in_s
        As in `DataParallelCosts`.
    """

    kinds: Kinds
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

    def total(moves: tuple[Move, ...], like: FloatArray) -> Estimate:
        if not moves:
            return Estimate.of(np.zeros_like(like))
        return sum(islice(priced, len(moves) - 1), start=next(priced))

    found = []
    for each in traffic:
        unshard, reduce = total(each.unshard, each.shards_s), total(each.reduce, each.shards_s)
        if each.shards_s.any():
            unshard = unshard + Estimate.of(each.shards_s)
        gather = total(each.gather, each.elements)
        rest = (each.mirror_s, each.elements, each.other, each.copy_out_s, each.copy_in_s)
        found.append(DataParallelCosts(each.kinds, unshard, reduce, gather, *rest))
    return found


@dataclass(frozen=True, slots=True, eq=False)
class Way:
    """How layouts gather parameters and reduce gradients: bytes (n, d) to moves."""

    axes: Axes
    rows: slice
    fsdp: FloatArray
    expert_shard: FloatArray
    preset: FrameworkPreset
    zero_stage: int
    has_experts: bool

    @property
    def whole(self) -> bool:
        """Whether ZeRO-1 all-reduces whole gradients."""
        return self.zero_stage == 1 and self.preset.zero1_all_reduce and not self.has_experts

    def _move(self, op: str, nbytes: FloatArray, axis: str, times: FloatArray | float = 1.0) -> Move:
        return Move(op, nbytes, self.axes.shape(axis, self.rows), times)

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
    workload: Workload,
    axes: Axes,
    rows: slice,
    held: StageElements,
    preset: FrameworkPreset,
    plan: CommPlan,
    pp: int,
    schedule: str,
    zero_stage: int,
) -> DataParallelTraffic:
    """Gradient and parameter collectives of layouts that share pp, vpp and ZeRO stage.

    ZeRO-0 all-reduces gradients over dp·cp (experts over their own data-parallel group). ZeRO-1
    to 3 reduce-scatter within the shard group and all-reduce the shard over the replicas; ZeRO-1
    and 2 all-gather parameters after the step or behind the next forward, ZeRO-3 before use.

    Parameters
    ----------
    rows : slice
        Of the layouts of `axes`.
    held : StageElements
        Of these layouts.
    """
    layouts, cluster, kinds = axes.layouts.take(rows), axes.cluster, held.kinds
    dense, expert = held.dense.trained, held.expert.trained
    sent, sent_expert = (p.gathered_bytes(held.weights, whole=zero_stage >= 3) for p in (held.dense, held.expert))
    grad, k = gradient_bytes(workload, preset), float(plan.buckets)
    has_experts = bool(np.any(held.expert.all > 0))
    fsdp = (layouts.fsdp_degree * layouts.cp).astype(np.float64)[:, None]
    expert_shard = layouts.expert_shard.astype(np.float64)[:, None]
    way = Way(axes, rows, fsdp, expert_shard, preset, zero_stage, has_experts)
    unshards, shards = plan.unshard != "none", np.zeros_like(dense)
    if unshards and np.any(layouts.offload_parameters):
        own_bytes = (sent / fsdp + sent_expert / expert_shard) / k
        shards = shard_seconds(cluster, own_bytes * layouts.offload_parameters[:, None])
    own, own_expert = (1.0, 1.0) if zero_stage == 0 else (fsdp, expert_shard)
    elements = np.asarray(kinds.by_rank(dense) / own + kinds.by_rank(expert) / own_expert)
    mirror = Estimate.of(np.zeros(elements.shape))
    if get_schedule(schedule).directions > 1:
        mirror = mirror_seconds(layouts, cluster, elements * grad, pp)
    copies = np.zeros_like(dense), np.zeros_like(dense)
    if zero_stage >= 3 and unshards:
        copies = _shard_copies(workload, preset, cluster, (sent + sent_expert) / k, (dense + expert) / k)
    return DataParallelTraffic(
        kinds,
        way.gathered(sent / k, sent_expert / k) if unshards else (),
        way.reduced(dense * grad / k, expert * grad / k) if plan.reduce != "none" else (),
        way.gathered(kinds.by_rank(sent), kinds.by_rank(sent_expert)) if plan.gather_after_step else (),
        shards,
        mirror,
        elements,
        np.asarray(kinds.by_rank(held.dense.other) / own),
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
