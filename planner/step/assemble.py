"""assemble: priced blocks -> the durations of every node of a step (`StageCosts`).

Layouts are grouped by what shapes their DAG (pp, vpp, schedule, ZeRO class, sharing); a group
is one batch from lowering to simulation. Blocks are priced once for each
distinct combination of what changes a micro-batch (`planner.priced.BLOCK_KEYS`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwmodels.collectives import beside
from planner.layout import RESHARDS, SCHEDULES, LayoutBatch
from planner.memory import MemoryEstimate, memory
from planner.priced import PricedModel
from planner.simulate.costs import CommPlan, StageCosts
from planner.step.data_parallel import (
    MAX_BUCKETS,
    DataParallelCosts,
    bucket_counts,
    comm_plan,
    data_parallel_costs,
    data_parallel_traffic,
)
from planner.step.durations import Beside, Durations
from planner.step.intervals import Spreads
from planner.step.once import data_parallel_wait, optimizer, sends, tied
from planner.step.stage_prices import StagePrices
from planner.workload.lower import Lowered
from planner.workload.op import Block

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


_NOT_DATA_PARALLEL = frozenset(
    {"sp", "pp", "vpp", "schedule", "zero_stage", "mbs", "recompute", "recompute_modules", "recompute_layers",
     "offload_activations"}
)  # fmt: skip
_NOT_OF_A_MICROBATCH = frozenset(
    {"pp", "vpp", "schedule", "zero_stage", "fsdp", "reshard", "offload_optimizer", "offload_parameters"}
)  # fmt: skip
DATA_PARALLEL_KEYS = tuple(f.name for f in fields(LayoutBatch) if f.name not in _NOT_DATA_PARALLEL)
"""Fields of a layout that its data-parallel traffic and optimizer depend on, in a group whose DAG has one shape."""
MICROBATCH_KEYS = tuple(f.name for f in fields(LayoutBatch) if f.name not in _NOT_OF_A_MICROBATCH)
"""Fields that compute and transfers of a micro-batch depend on there, with how many of them a step has."""


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Layouts that share a DAG shape (micro-batches apart), with their costs.

    Attributes
    ----------
    index : ndarray (b,)
        Positions in the batch that was assembled.
    durations : Durations
        Of the distinct micro-batches and the distinct data-parallel traffic of the layouts.
    spreads : Spreads
        Relative spread by law, for `planner.step.intervals`.
    """

    index: IntArray
    layouts: LayoutBatch
    pp: int
    vpp: int
    schedule: str
    microbatches: IntArray
    comm: CommPlan
    durations: Durations
    spreads: Spreads

    @property
    def costs(self) -> StageCosts:
        """Durations of every node of all layouts."""
        return self.durations.costs(np.arange(len(self.index)))

    @property
    def parts(self) -> dict[str, FloatArray]:
        """Seconds a micro-batch of each rank by phase, ndarray (b, pp).

        forward, backward, recompute, tp_comm, cp_comm, ep_comm, host time in `host`; they add up to the compute
        nodes' durations.
        """
        return {name: value[self.durations.same_work] for name, value in self.durations.work.parts.items()}

    @property
    def hidden(self) -> dict[str, FloatArray]:
        """Seconds a micro-batch hidden behind compute, by phase: ndarray (b, pp)."""
        return {name: value[self.durations.same_work] for name, value in self.durations.work.hidden.items()}

    @property
    def flops(self) -> FloatArray:
        """FLOPs a micro-batch executed by a rank, recomputation included: ndarray (b, pp)."""
        return self.durations.work.flops[self.durations.same_work]


def dag_groups(priced: PricedModel, index: IntArray) -> Iterator[Shape]:
    """Split positions `index` into runs that share (pp, vpp, schedule, ZeRO class, sharing, reshard, buckets)."""
    sub = priced.layouts.take(index)
    experts = any(layer.is_moe for layer in priced.model.layers)
    sharing = ((sub.dp * sub.cp > 1) | ((sub.edp > 1) & experts)).astype(np.int64)
    zero = np.where(sharing == 1, sub.zero_stage, 0)
    reshard = np.where(zero == 3, sub.reshard, 0)
    counts = bucket_counts(priced.model, priced.workload, sub, priced.preset)
    buckets = np.where((sharing == 1) & (zero < 3), counts, 1)
    # sp and mbs have no part in the shape: their places hold sharing and buckets
    shaped = replace(sub, zero_stage=zero, sp=sharing, reshard=reshard, mbs=buckets)
    first, inverse = shaped.distinct(("pp", "vpp", "schedule", "zero_stage", "sp", "reshard", "mbs"))
    for i, f in enumerate(first):
        pp, vpp, schedule = int(sub.pp[f]), int(sub.vpp[f]), SCHEDULES[int(sub.schedule[f])]
        rest = int(zero[f]), bool(sharing[f]), RESHARDS[int(reshard[f])], int(buckets[f])
        yield index[inverse == i], pp, vpp, schedule, *rest


def lowered_for(priced: PricedModel, index: IntArray) -> Lowered:
    """The lowered blocks with sizes picked for the layouts at `index` (bytes only)."""
    rows, policy = priced.inverse[index], priced.policy[index]
    n = len(priced.lowered.boundary_bytes.reshape(-1)) if np.ndim(priced.lowered.boundary_bytes) else 0

    def pick(array: FloatArray) -> FloatArray:
        return np.asarray(array[rows]) if np.ndim(array) and n else np.broadcast_to(array, rows.shape)

    def block(b: Block, recomputed: tuple[FloatArray, FloatArray]) -> Block:
        kept, rebuilt = (each[policy, rows] for each in recomputed)
        sizes = {f.name: getattr(b, f.name) for f in fields(Block)}
        picked: dict[str, Any] = {k: pick(v) for k, v in sizes.items() if isinstance(v, np.ndarray)}
        return Block(b.name, (), **(picked | {"kept_bytes": kept, "rebuilt_bytes": rebuilt}))

    low = priced.lowered
    first, *layers, last = map(block, (low.embedding, *low.layers, low.head), priced.recomputed)
    return Lowered(first, tuple(layers), last, pick(low.boundary_bytes), pick(low.shared_bytes))


def group_memory(priced: PricedModel, index: IntArray, pp: int, vpp: int, schedule: str) -> MemoryEstimate:
    """Memory of the layouts at `index`, which share (pp, vpp, schedule)."""
    return memory(
        priced.model,
        priced.workload,
        priced.layouts.take(index),
        priced.cluster,
        priced.preset,
        lambda chosen: lowered_for(priced, index[chosen]),
        pp,
        vpp,
        schedule,
    )


Shape = tuple[IntArray, int, int, str, int, bool, str, int]
"""Positions of layouts that share what follows: pp, vpp, schedule, ZeRO class, sharing, reshard, buckets."""


def assemble(
    priced: PricedModel,
    index: IntArray,
    pp: int,
    vpp: int,
    schedule: str,
    zero_stage: int,
    sharing: bool,
    reshard: str = "default",
    buckets: int = MAX_BUCKETS,
) -> Group:
    """Durations of every node for the layouts at `index`, which share the rest of the arguments."""
    return assemble_all(priced, [(index, pp, vpp, schedule, zero_stage, sharing, reshard, buckets)])[0]


def assemble_all(priced: PricedModel, shapes: Sequence[Shape]) -> list[Group]:
    """The group of each shape (`dag_groups`); their data-parallel traffic is priced together."""
    plans, traffic, same = [], [], []
    for index, pp, vpp, schedule, zero_stage, sharing, reshard, buckets in shapes:
        plans.append(comm_plan(priced.model, priced.preset, pp, vpp, zero_stage, sharing, schedule,
                               priced.workload.mtp_layers, reshard, buckets))  # fmt: skip
        layouts = priced.layouts.take(index)
        first, inverse = layouts.distinct(DATA_PARALLEL_KEYS)
        traffic.append(
            data_parallel_traffic(priced.model, priced.workload, layouts.take(first), priced.cluster, priced.preset,
                                  plans[-1], pp, vpp, schedule, zero_stage)
        )  # fmt: skip
        same.append((layouts, layouts.take(first), inverse))
    costs = data_parallel_costs(priced.cluster, traffic)
    return [
        _assembled(priced, shape, layouts, plan, alike, data, inverse)
        for shape, plan, (layouts, alike, inverse), data in zip(shapes, plans, same, costs, strict=True)
    ]


def _assembled(
    priced: PricedModel, shape: Shape, layouts: LayoutBatch, comm: CommPlan, alike: LayoutBatch,
    data: DataParallelCosts, same_data: IntArray,
) -> Group:  # fmt: skip
    """The group of one shape; `alike` have its distinct data-parallel traffic, which costs `data`."""
    index, pp, vpp, schedule, zero_stage, *_ = shape
    first, same_work = layouts.distinct(MICROBATCH_KEYS)
    stages = StagePrices.of(priced, index[first], pp, vpp, schedule)
    work = stages.work()
    onward, back, sending = sends(priced, stages.layouts, stages.rows, pp, vpp, schedule)
    update = optimizer(priced, data, alike, pp, vpp, schedule)
    updating = np.broadcast_to(update.spread, update.mid.shape).max(axis=1)
    durations = Durations(
        work,
        same_work,
        stages.ends(),
        onward,
        back,
        data_parallel_wait(priced, stages.layouts, work.busy, stages.microbatches),
        tied(priced, stages.layouts, pp),
        _beside(priced, alike, data, comm, zero_stage),
        same_data,
        update.mid,
        data.gather_s.mid,
        data.mirror_s.mid,
        priced.sync_s[index],
        float(priced.preset.step_s.value),
        comm.buckets,
    )
    spreads = (work.kernel_spread[same_work], work.comm_spread[same_work], data.spread[same_data],
               sending[same_work], updating[same_data])  # fmt: skip
    counts = layouts.microbatches(priced.workload.gbs)
    return Group(index, layouts, pp, vpp, schedule, counts, comm, durations, Spreads(*spreads))


def _beside(
    priced: PricedModel, layouts: LayoutBatch, data: DataParallelCosts, comm: CommPlan, zero_stage: int
) -> Beside:
    """What data-parallel traffic takes, and what it takes from the compute beside it.

    Traffic that runs beside compute slows it (`hwmodels.collectives.beside`): the backward that
    produces the gradients, and every pass that a prefetched gather runs beside. It becomes longer
    itself, except for the last gradients and the first gather, which have nothing to run beside. Copies between the
    buffers of FSDP's collectives and its parameters hold up the compute itself.
    """
    shape = layouts.group("fsdp" if zero_stage else "dp_cp", priced.cluster)
    nodes, ranks = shape.nodes[:, None, None], shape.ranks_per_node[:, None, None]
    reducing = beside(priced.cluster, "reduce_scatter" if zero_stage else "all_reduce", nodes, ranks)
    gathering = beside(priced.cluster, "all_gather", nodes, ranks)
    reduces, gathers = comm.reduce in ("bucketed", "each"), comm.unshard in ("each", "forward")
    ahead = comm.prefetch > 0 and gathers
    unshard, reduce = data.unshard_s.mid, data.reduce_s.mid
    none = np.zeros_like(unshard)
    forward = (gathering.taken(unshard) if ahead else none) + (data.copy_out_s if gathers else none)
    once = data.copy_out_s if comm.unshard == "once" else none
    return Beside(
        forward=forward,
        backward=forward if comm.unshard == "each" else none,
        reduced=(reducing.taken(reduce) if reduces else none) + (data.copy_in_s if reduces else none),
        first_unshard=unshard + once,
        unshard=(unshard * gathering.collective if ahead else unshard) + once,
        first_reduce=reduce,
        reduce=reduce * reducing.collective if reduces else reduce,
    )
