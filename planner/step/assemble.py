"""assemble: priced blocks -> the durations of every node of a step (`StageCosts`).

Layouts are grouped by what shapes their DAG (pp, vpp, schedule, ZeRO class, sharing); a group
is one batch from lowering to simulation. Blocks are priced once for each
distinct combination of what changes a micro-batch (`planner.priced.BLOCK_KEYS`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwmodels.estimate import Estimate
from hwmodels.records import dataclass
from planner.elements import BlockElements, stage_elements
from planner.layout import RESHARDS, SCHEDULES, LayoutBatch
from planner.memory import MemoryEstimate, memory
from planner.priced import PricedModel
from planner.simulate.costs import CommPlan, StageCosts
from planner.state import reduces_each
from planner.step.data_parallel import (
    MAX_BUCKETS,
    DataParallelCosts,
    DataParallelTraffic,
    bucket_counts,
    comm_plan,
    data_parallel_costs,
    data_parallel_traffic,
)
from planner.step.durations import Beside, Durations
from planner.step.intervals import Spreads
from planner.step.microbatch import Microbatches, microbatches
from planner.step.moves import Axes
from planner.step.once import optimizers
from planner.step.single import Single
from planner.workload.lower import Lowered
from planner.workload.op import Block

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


_NOT_DATA_PARALLEL = frozenset(
    {"sp", "pp", "vpp", "schedule", "zero_stage", "mbs", "recompute", "recompute_modules", "recompute_layers",
     "offload_activations"}
)  # fmt: skip
DATA_PARALLEL_KEYS = tuple(f.name for f in fields(LayoutBatch) if f.name not in _NOT_DATA_PARALLEL)
"""Fields of a layout that its data-parallel traffic and optimizer depend on, in a group whose DAG has one shape."""


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Layouts that share a DAG shape (micro-batches apart), with their costs.

    Attributes
    ----------
    index : ndarray (b,)
        Positions in the batch that was assembled.
    durations : Durations
        Of the distinct micro-batches and the distinct data-parallel traffic of the layouts.
    """

    index: IntArray
    layouts: LayoutBatch
    pp: int
    vpp: int
    schedule: str
    microbatches: IntArray
    comm: CommPlan
    durations: Durations

    def take(self, positions: IntArray) -> Group:
        """Some of the layouts, each with what it has alone: cheap to ask for everything about a few of many."""
        return replace(
            self,
            index=self.index[positions],
            layouts=self.layouts.take(positions),
            microbatches=self.microbatches[positions],
            durations=self.durations.take(positions),
        )

    def single(self, position: int) -> Single:
        """One layout with everything that its step is made of."""
        one = self.take(np.asarray([position]))
        parts, hidden = one.phases
        return Single(self.pp, self.vpp, self.schedule, int(one.microbatches[0]), self.comm, one.costs, parts, hidden,
                      one.flops, one.spreads)  # fmt: skip

    @property
    def costs(self) -> StageCosts:
        """Durations of every node of all layouts."""
        return self.durations.costs(np.arange(len(self.index)))

    @property
    def spreads(self) -> Spreads:
        """Relative spread by law, for `planner.step.intervals`."""
        d = self.durations
        kernels, collectives = d.micro.work.prices.spreads()
        updating = np.broadcast_to(d.optimizer.spread, d.optimizer.mid.shape).max(axis=1)
        w, k = d.same_work, d.same_data
        return Spreads(kernels[w], collectives[w], d.data.spread[k], d.micro.sends.spread[w], updating[k])

    @property
    def phases(self) -> tuple[dict[str, FloatArray], dict[str, FloatArray]]:
        """Seconds a micro-batch of each rank by phase, exposed and hidden behind compute: ndarray (b, pp) each.

        forward, backward, recompute, tp_comm, cp_comm, ep_comm, host time in `host`; those exposed add up to the
        compute nodes' durations.
        """
        exposed, hidden = (
            {name: value[self.durations.same_work] for name, value in each.items()}
            for each in self.durations.micro.work.prices.phases()
        )
        return exposed, hidden

    @property
    def parts(self) -> dict[str, FloatArray]:
        """Exposed seconds of `phases`."""
        return self.phases[0]

    @property
    def hidden(self) -> dict[str, FloatArray]:
        """Hidden seconds of `phases`."""
        return self.phases[1]

    @property
    def flops(self) -> FloatArray:
        """FLOPs a micro-batch executed by a rank, recomputation included: ndarray (b, pp)."""
        return self.durations.micro.work.prices.flops()[self.durations.same_work]


def dag_groups(priced: PricedModel, index: IntArray) -> Iterator[Shape]:
    """Split positions `index` into runs that share (pp, vpp, schedule, ZeRO class, sharing, reshard, buckets).

    ZeRO-1 and ZeRO-2 are one class where their gradients are reduced alike: they differ in memory alone.
    """
    every = len(index) == len(priced.layouts) and bool((index == np.arange(len(index))).all())
    sub = priced.layouts if every else priced.layouts.take(index)
    experts = any(layer.is_moe for layer in priced.model.layers)
    sharing = ((sub.dp * sub.cp > 1) | ((sub.edp > 1) & experts)).astype(np.int64)
    zero = np.where(sharing == 1, sub.zero_stage, 0)
    if not priced.preset.zero1_all_reduce:
        each = np.asarray([reduces_each(priced.preset, pp, 2) for pp in (1, 2)])
        zero = np.where((zero == 2) & ~each[np.minimum(sub.pp, 2) - 1], 1, zero)
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


def group_memory(
    priced: PricedModel, index: IntArray, pp: int, vpp: int, schedule: str, *, blocks: BlockElements | None = None,
    of_fullest: bool = False,
) -> MemoryEstimate:  # fmt: skip
    """Memory of the layouts at `index`, which share (pp, vpp, schedule); `planner.memory.memory` has the rest."""
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
        blocks=blocks,
        of_fullest=of_fullest,
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
    """The group of each shape (`dag_groups`).

    Shapes share what they have alike: the micro-batches of a pipeline serve every ZeRO class, and the laws of
    collectives and of the optimizer are asked once for all shapes.
    """
    if not shapes:
        return []
    pipelines = list(dict.fromkeys(shape[1:4] for shape in shapes))
    members = [[i for i, shape in enumerate(shapes) if shape[1:4] == pipeline] for pipeline in pipelines]
    order = [i for each in members for i in each]  # the shapes of a pipeline beside each other
    data = _Data.of(priced, [shapes[i] for i in order])
    ends = np.cumsum([0, *(len(each) for each in members)])
    spans = [slice(data.whole[a].start, data.whole[b - 1].stop) for a, b in pairwise(ends)]
    indices = [np.concatenate([shapes[i][0] for i in each]) for each in members]
    shared = microbatches(priced, pipelines, indices, [data.layouts.take(span) for span in spans])
    found: dict[int, Group] = {}
    for (micro, same), span, a, b in zip(shared, spans, ends[:-1], ends[1:], strict=True):
        for at in range(a, b):
            part = slice(data.whole[at].start - span.start, data.whole[at].stop - span.start)
            found[order[at]] = _group(priced, shapes[order[at]], micro, same[part], data, at)
    return [found[i] for i in range(len(shapes))]


@dataclass(frozen=True, slots=True, eq=False)
class _Data:
    """Data-parallel traffic of all shapes: the distinct layouts of one after those of another.

    Attributes
    ----------
    layouts : LayoutBatch
        Of all shapes, one after another, as `whole` cuts them.
    rows : list of slice
        Of `axes`, the distinct traffic of each shape.
    same : list of ndarray
        Which of them each layout of a shape has.
    """

    layouts: LayoutBatch
    whole: list[slice]
    axes: Axes
    rows: list[slice]
    same: list[IntArray]
    plans: list[CommPlan]
    costs: list[DataParallelCosts]
    optimizers: list[Estimate]

    @classmethod
    def of(cls, priced: PricedModel, shapes: Sequence[Shape]) -> _Data:
        """Find the distinct traffic of each shape, and price all of it together."""
        layouts = priced.layouts.take(np.concatenate([shape[0] for shape in shapes]))
        sizes = [len(shape[0]) for shape in shapes]
        # pp has no part in it: its place holds the shape
        owner = np.repeat(np.arange(len(shapes)), sizes)
        first, inverse = replace(layouts, pp=owner).distinct(("pp", *DATA_PARALLEL_KEYS))
        ends = np.searchsorted(owner[first], np.arange(len(shapes) + 1))
        rows = [slice(int(a), int(b)) for a, b in pairwise(ends)]
        cuts = np.concatenate([[0], np.cumsum(sizes)])
        whole = [slice(int(a), int(b)) for a, b in pairwise(cuts)]
        axes = Axes(layouts.take(first), priced.cluster)
        plans, traffic = _traffic(priced, shapes, axes, rows)
        costs = data_parallel_costs(priced.cluster, traffic)
        alike = [axes.layouts.take(each) for each in rows]
        return cls(
            layouts,
            whole,
            axes,
            rows,
            [inverse[part] - each.start for part, each in zip(whole, rows, strict=True)],
            plans,
            costs,
            optimizers(priced, costs, alike, [shape[1:4] for shape in shapes]),
        )


def _traffic(
    priced: PricedModel, shapes: Sequence[Shape], axes: Axes, rows: list[slice]
) -> tuple[list[CommPlan], list[DataParallelTraffic]]:
    """What each shape moves."""
    model, workload, preset = priced.model, priced.workload, priced.preset
    blocks = BlockElements.of(model, workload, axes.layouts)
    plans, traffic = [], []
    for (_, pp, vpp, schedule, zero_stage, sharing, reshard, buckets), own in zip(shapes, rows, strict=True):
        plan = comm_plan(model, preset, pp, vpp, zero_stage, sharing, schedule, workload.mtp_layers, reshard, buckets)
        layouts = axes.layouts.take(own)
        held = stage_elements(model, workload, layouts, preset, pp, vpp, schedule, blocks.take(own))
        traffic.append(data_parallel_traffic(workload, axes, own, held, preset, plan, pp, schedule, zero_stage))
        plans.append(plan)
    return plans, traffic


def _group(priced: PricedModel, shape: Shape, micro: Microbatches, same: IntArray, data: _Data, i: int) -> Group:
    """The group of the i-th shape."""
    index, pp, vpp, schedule, zero_stage, *_ = shape
    layouts, costs, comm = data.layouts.take(data.whole[i]), data.costs[i], data.plans[i]
    beside = _beside(data.axes, data.rows[i], costs, comm, zero_stage)
    durations = Durations(micro, same, costs, beside, data.optimizers[i], data.same[i], priced.sync_s[index],
                          float(priced.preset.step_s.value), comm)  # fmt: skip
    return Group(index, layouts, pp, vpp, schedule, layouts.microbatches(priced.workload.gbs), comm, durations)


def _beside(axes: Axes, rows: slice, data: DataParallelCosts, comm: CommPlan, zero_stage: int) -> Beside:
    """What data-parallel traffic takes, and what it takes from the compute beside it.

    Traffic that runs beside compute slows it (`hwmodels.collectives.beside`): the backward that
    produces the gradients, and every pass that a prefetched gather runs beside. It becomes longer
    itself, except for the last gradients and the first gather, which have nothing to run beside. Copies between the
    buffers of FSDP's collectives and its parameters hold up the compute itself.
    """
    axis = "fsdp" if zero_stage else "dp_cp"
    reducing = axes.beside("reduce_scatter" if zero_stage else "all_reduce", axis, rows)
    gathering = axes.beside("all_gather", axis, rows)
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
