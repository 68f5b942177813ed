"""assemble: priced blocks -> the durations of every node of a step (`StageCosts`).

Layouts are grouped by what shapes their DAG (pp, vpp, schedule, ZeRO class, sharing); a group
is one batch from lowering to simulation. Blocks are priced once for each
distinct combination of what changes a micro-batch (`planner.priced.BLOCK_KEYS`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwmodels.collectives import beside
from planner.data_parallel import MAX_BUCKETS, DataParallelCosts, bucket_counts, comm_plan, data_parallel_costs
from planner.intervals import Spreads
from planner.layout import RESHARDS, SCHEDULES, LayoutBatch
from planner.memory import MemoryEstimate, memory
from planner.offload import HostSeconds, activation_seconds
from planner.once import data_parallel_wait, optimizer, sends, tied
from planner.pairs import unpaired_shares
from planner.price import COMM_GROUPS, BlockPrice, PassPrice
from planner.priced import PricedModel
from planner.recompute import Stages
from planner.schedule import get as get_schedule
from planner.simulate.costs import CommPlan, StageCosts
from planner.stages import StageSums
from planner.workload.lower import Lowered
from planner.workload.op import Block

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


_NOT_DATA_PARALLEL = frozenset(
    {"sp", "pp", "vpp", "schedule", "zero_stage", "mbs", "recompute", "recompute_modules", "recompute_layers",
     "offload_optimizer", "offload_activations"}
)  # fmt: skip
DATA_PARALLEL_KEYS = tuple(f.name for f in fields(LayoutBatch) if f.name not in _NOT_DATA_PARALLEL)
"""Fields of a layout that its data-parallel traffic depends on, in a group whose DAG has one shape."""


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Layouts that share a DAG shape (micro-batches apart), with their costs and memory.

    Attributes
    ----------
    index : ndarray (b,)
        Positions in the batch that was assembled.
    parts : dict of str to ndarray (b, pp)
        Seconds a micro-batch of each rank by phase (forward, backward, recompute, tp_comm,
        cp_comm, ep_comm), host time in `host`; they add up to the compute nodes' durations.
    hidden : dict of str to ndarray (b, pp)
        Seconds a micro-batch hidden behind compute, by phase.
    spreads : Spreads
        Relative spread by law, for `planner.intervals`.
    flops : ndarray (b, pp)
        FLOPs a micro-batch executed by a rank, recomputation included.
    """

    index: IntArray
    layouts: LayoutBatch
    pp: int
    vpp: int
    schedule: str
    microbatches: IntArray
    comm: CommPlan
    costs: StageCosts
    parts: dict[str, FloatArray]
    hidden: dict[str, FloatArray]
    spreads: Spreads
    flops: FloatArray


def dag_groups(priced: PricedModel, index: IntArray) -> Iterator[tuple[IntArray, int, int, str, int, bool, str, int]]:
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
    layouts = priced.layouts.take(index)
    comm = comm_plan(priced.model, priced.preset, pp, vpp, zero_stage, sharing, schedule,
                     priced.workload.mtp_layers, reshard, buckets)  # fmt: skip
    first, same = layouts.distinct(DATA_PARALLEL_KEYS)
    alike = layouts.take(first)
    data = data_parallel_costs(
        priced.model, priced.workload, alike, priced.cluster, priced.preset, comm, pp, vpp, schedule, zero_stage
    ).take(same)
    stages = _Stages.of(priced, index, pp, vpp, schedule)
    work = stages.work()
    costs, sending, updating = _stage_costs(stages, work, data, comm, zero_stage)
    return Group(
        index,
        layouts,
        pp,
        vpp,
        schedule,
        stages.microbatches,
        comm,
        costs,
        work.parts,
        work.hidden,
        Spreads(work.kernel_spread, work.comm_spread, data.spread, sending, updating),
        work.flops,
    )


def _stage_costs(
    stages: _Stages, work: _Work, data: DataParallelCosts, comm: CommPlan, zero_stage: int
) -> tuple[StageCosts, FloatArray, FloatArray]:
    """Put compute, transfers and data-parallel traffic on the nodes of `comm`; spreads of sends and optimizer.

    Traffic that runs beside compute slows it (`hwmodels.collectives.beside`): the backward that
    produces the gradients, and every pass that a prefetched gather runs beside. It becomes longer
    itself, except for the last gradients and the first gather, which have nothing to run beside. Copies between the
    buffers of FSDP's collectives and its parameters hold up the compute itself.
    """
    priced, layouts, pp = stages.priced, stages.layouts, stages.pp
    k = comm.buckets
    shape = layouts.group("fsdp" if zero_stage else "dp_cp", priced.cluster.gpus_per_node)
    nodes, ranks = shape.nodes[:, None, None], shape.ranks_per_node[:, None, None]
    reducing = beside(priced.cluster, "reduce_scatter" if zero_stage else "all_reduce", nodes, ranks)
    gathering = beside(priced.cluster, "all_gather", nodes, ranks)
    none = np.zeros_like(work.forward)
    overlapped = comm.reduce in ("bucketed", "each"), comm.prefetch > 0 and comm.unshard in ("each", "forward")
    reduced_beside = reducing.taken(data.reduce_s.mid) if overlapped[0] else none
    gathered_beside = gathering.taken(data.unshard_s.mid) if overlapped[1] else none
    onward, back, sending = sends(priced, layouts, stages.rows, pp, stages.vpp, stages.schedule)
    copied_in = data.copy_in_s if overlapped[0] else none
    copied_once = data.copy_out_s if comm.unshard == "once" else none
    copied_out = data.copy_out_s if comm.unshard in ("each", "forward") else none
    again = gathered_beside + copied_out if comm.unshard == "each" else none
    update = optimizer(priced, data, layouts, pp, stages.vpp, stages.schedule)

    def cut(value: FloatArray) -> FloatArray:
        return np.broadcast_to(value[..., None], (*value.shape, k))

    def stretched(value: FloatArray, factor: FloatArray, overlaps: bool) -> FloatArray:
        if not overlaps:
            return cut(value)
        pieces = cut(value * factor).copy()
        pieces[..., 0] = value
        return pieces

    costs = StageCosts(
        forward_s=stages.forward_pieces(work.forward, k) + (gathered_beside + copied_out)[..., None],
        backward_input_s=cut(work.backward_input / k + again),
        backward_weight_s=cut(work.backward_weight / k),
        backward_sync_extra_s=cut(reduced_beside + copied_in),
        send_forward_s=onward,
        send_backward_s=back,
        unshard_s=stretched(data.unshard_s.mid, gathering.collective, overlapped[1]) + cut(copied_once),
        reduce_s=stretched(data.reduce_s.mid, reducing.collective, overlapped[0]),
        optimizer_s=update.mid,
        gather_s=data.gather_s.mid,
        mirror_s=data.mirror_s.mid,
        sync_s=priced.sync_s[stages.index] + data_parallel_wait(priced, layouts, work.busy, stages.microbatches),
        tied_s=tied(priced, layouts, pp),
        step_s=np.full(len(layouts), float(priced.preset.step_s.value)),
    )
    return costs, sending, np.broadcast_to(update.spread, update.mid.shape).max(axis=1)


@dataclass(frozen=True, slots=True, eq=False)
class _Work:
    """Compute of the virtual stages for one micro-batch: (b, pp, chunks), the rest as in `Group`.

    A rank with two copies of the pipeline runs half of the micro-batches on each: `copies` is 2.
    """

    copies: int

    forward: FloatArray
    backward_input: FloatArray
    backward_weight: FloatArray
    parts: dict[str, FloatArray]
    hidden: dict[str, FloatArray]
    kernel_spread: FloatArray
    comm_spread: FloatArray
    flops: FloatArray

    @property
    def busy(self) -> FloatArray:
        """Seconds a micro-batch of each rank: ndarray (b, pp)."""
        whole = (self.forward + self.backward_input + self.backward_weight).sum(axis=2)
        return np.asarray(whole / self.copies)


@dataclass(frozen=True, slots=True, eq=False)
class _Stages:
    """Sums of block prices over the virtual stages of layouts that share (pp, vpp, schedule).

    Seconds are summed for each kind of stage, ndarray (b, d) (`planner.stages.StageSums`).
    """

    priced: PricedModel
    index: IntArray
    layouts: LayoutBatch
    rows: IntArray
    pp: int
    vpp: int
    schedule: str
    sums: StageSums

    @classmethod
    def of(cls, priced: PricedModel, index: IntArray, pp: int, vpp: int, schedule: str) -> _Stages:
        """For the layouts at `index`."""
        layouts = priced.layouts.take(index)
        sums = Stages(priced.model, layouts, pp, vpp, schedule).sums()
        return cls(priced, index, layouts, priced.inverse[index], pp, vpp, schedule, sums)

    @property
    def microbatches(self) -> IntArray:
        """Micro-batches of each layout: ndarray (b,)."""
        return self.layouts.microbatches(self.priced.workload.gbs)

    def sum(self, value: Callable[[BlockPrice], FloatArray]) -> FloatArray:
        """Of what each kind of stage holds: ndarray (b, d)."""
        p = self.priced
        return self.sums.sum([value(b)[self.rows] for b in (*p.layers, p.embedding, p.head)])

    def by_rank(self, value: FloatArray) -> FloatArray:
        """Per micro-batch of a rank: the sum of its virtual stages, each copy of a pipeline taking its share."""
        return np.asarray(self.sums.by_rank(value) / get_schedule(self.schedule).directions)

    def rerun(self, part: Callable[[PassPrice], FloatArray]) -> FloatArray:
        """Of what recomputation runs again under each layout's policy: ndarray (b, d)."""
        policy = self.priced.policy[self.index]

        def own(block: BlockPrice) -> FloatArray:
            each = [part(rerun)[self.rows] for rerun in block.rerun]
            return each[0] if len(each) == 1 else np.stack(each)[policy, np.arange(len(policy))]

        found = self.sums.again([own(block) for block in self.priced.layers])
        if not self.priced.workload.mtp_layers:
            return found
        none = [np.zeros(len(policy)) for _ in (*self.priced.layers, self.priced.embedding)]
        return found + self.sums.sum([*none, own(self.priced.head)])  # prediction steps behind the last layer

    def work(self) -> _Work:
        """Seconds, their split by phase, spread and FLOPs of one micro-batch."""
        plan, host = get_schedule(self.schedule), float(self.priced.preset.microbatch_s.value)
        own = self.microbatches[:, None] / plan.directions  # of each copy of the pipeline
        cast = self.sum(lambda b: b.forward.once_s) * (1.0 - 1.0 / own)  # what later micro-batches need not do again
        forward = self.sum(lambda b: b.forward.total_s) + host / self.vpp - cast
        backward_input = self.sum(lambda b: b.backward_input.total_s) + self.rerun(lambda p: p.total_s)
        skipped = self.sum(lambda b: b.backward_weight.skipped_s) / own
        backward_weight = self.sum(lambda b: b.backward_weight.total_s) - skipped
        parts, hidden = self._parts()
        if plan.split_backward:
            extra = self._apart(parts, hidden)
            backward_input, backward_weight = backward_input + extra[0], backward_weight + extra[1]
        parts["forward"] = parts["forward"] - self.by_rank(cast)
        parts["backward"] = parts["backward"] - self.by_rank(skipped)
        parts["host"] = np.full((len(self.layouts), self.pp), host)
        waits = [self._waits(v) for v in (forward, backward_input, backward_weight)]
        self._blame(parts, np.asarray(sum(self.by_rank(w) for w in waits)))
        kernels = self.whole(lambda p: p.spread_s)
        collectives = self.whole(lambda p: p.comm_spread_s)
        flops = self.sum(lambda b: b.forward.flops + b.backward_input.flops + b.backward_weight.flops)
        flops = self.by_rank(flops + self.rerun(lambda p: p.flops))
        forward, backward_input, backward_weight = (
            v + w for v, w in zip((forward, backward_input, backward_weight), waits, strict=True)
        )
        busy = self.sums.by_rank(forward + backward_input + backward_weight).sum(axis=1)
        kernels, collectives = (v / np.maximum(busy, 1e-30) for v in (kernels, collectives))
        ahead, back, weight = (self.sums.whole(v) for v in (forward, backward_input, backward_weight))
        if self.priced.preset.moe_exchange_overlap:
            alone = self._alone(parts, hidden)
            ahead, back = ahead + alone[0], back + alone[1]
        if (copies := self._host_copies()) is not None:
            ahead, back = ahead + copies.forward, back + copies.backward
            parts["host"] = parts["host"] + (copies.forward + copies.backward).sum(axis=2) / plan.directions
        return _Work(plan.directions, ahead, back, weight, parts, hidden, kernels, collectives, flops)

    def _host_copies(self) -> HostSeconds | None:
        """What copies of offloaded activations add to the passes."""
        p, rows = self.priced, self.rows
        saved = [np.broadcast_to(b.saved_bytes, (len(p.embedding.forward.compute_s),))[rows] for b in p.lowered.layers]
        each = 1.0 / (self.microbatches / get_schedule(self.schedule).directions)
        ahead = [b.forward.total_s[rows] - b.forward.once_s[rows] * (1.0 - each) for b in p.layers]
        back = [
            (b.backward_input.total_s + b.backward_weight.total_s)[rows] - b.backward_weight.skipped_s[rows] * each
            for b in p.layers
        ]
        stages = Stages(p.model, self.layouts, self.pp, self.vpp, self.schedule)
        return activation_seconds(p.cluster, stages, saved, ahead, back)

    def _apart(self, parts: dict[str, FloatArray], hidden: dict[str, FloatArray]) -> tuple[FloatArray, FloatArray]:
        """Collectives that an unsplit backward hides behind the GEMMs of its other half: exposed in I and W.

        Moves them from `hidden` to `parts`; returns the seconds (b, d) of I and of W.
        """
        totals = []
        for half in ("backward_input", "backward_weight"):
            total = np.zeros(())
            for g in COMM_GROUPS:

                def seconds(b: BlockPrice, half: str = half, g: str = g) -> FloatArray:
                    return getattr(b, half).apart_s[g]

                exposed = self.sum(seconds)
                parts[f"{g}_comm"] = parts[f"{g}_comm"] + self.by_rank(exposed)
                hidden[f"{g}_comm"] = hidden[f"{g}_comm"] - self.by_rank(exposed)
                total = total + exposed
            totals.append(total)
        return totals[0], totals[1]

    def _alone(self, parts: dict[str, FloatArray], hidden: dict[str, FloatArray]) -> tuple[FloatArray, FloatArray]:
        """Exchanges whose partner is another micro-batch, exposed in the passes that run alone (`planner.pairs`).

        Moves them from `hidden` to `parts`; returns the mean seconds (b, pp, chunks) a micro-batch of F and of B or I.
        """
        share = unpaired_shares(self.schedule, self.pp, self.microbatches, self.vpp)
        ahead = self.sum(lambda b: b.forward.paired_s["ep"])
        back = self.sum(lambda b: b.backward_input.paired_s["ep"])
        moved = self.by_rank(ahead + back) * share
        parts["ep_comm"] = parts["ep_comm"] + moved
        hidden["ep_comm"] = hidden["ep_comm"] - moved
        each = share[:, :, None]
        return np.asarray(self.sums.whole(ahead) * each), np.asarray(self.sums.whole(back) * each)

    def whole(self, part: Callable[[PassPrice], FloatArray]) -> FloatArray:
        """Of a micro-batch over all ranks, recomputation included: ndarray (b,)."""
        passes = self.sum(lambda b: part(b.forward) + part(b.backward_input) + part(b.backward_weight))
        return np.asarray(self.sums.by_rank(passes + self.rerun(part)).sum(axis=1))

    def _waits(self, seconds: FloatArray) -> FloatArray:
        """What ranks that work in step wait for the slowest of them in every micro-batch.

        Data parallelism waits once a step (`once.data_parallel_wait`). Neighbouring stages of a
        pipeline do unequal work and have slack between them: their waits are the bubble.
        """
        skew = self.priced.cluster.skew
        if skew is None:
            return np.zeros_like(seconds)
        b = self.layouts
        together = (b.tp > 1) | (b.cp > 1) | (b.ep > 1)
        return np.asarray(seconds * np.where(together, float(skew.value), 0.0)[:, None])

    def _blame(self, parts: dict[str, FloatArray], waited: FloatArray) -> None:
        """Count the waits as the phase in which a rank spends them: its innermost group's."""
        left = np.ones(len(self.layouts), dtype=np.bool_)
        for axis, phase in (("tp", "tp_comm"), ("cp", "cp_comm"), ("ep", "ep_comm")):
            here = left & (getattr(self.layouts, axis) > 1)
            parts[phase] = parts.get(phase, np.zeros_like(waited)) + np.where(here[:, None], waited, 0.0)
            left &= ~here

    def _parts(self) -> tuple[dict[str, FloatArray], dict[str, FloatArray]]:
        """Seconds a micro-batch by phase, exposed and hidden: each ndarray (b, pp)."""
        exposed = {
            "forward": self.sum(lambda b: b.forward.compute_s),
            "backward": self.sum(lambda b: b.backward_input.compute_s + b.backward_weight.compute_s),
            "recompute": self.rerun(lambda p: p.compute_s),
        }
        hidden: dict[str, FloatArray] = {}
        for g in COMM_GROUPS:

            def total(b: BlockPrice, g: str = g) -> FloatArray:
                return b.forward.comm_s[g] + b.backward_input.comm_s[g] + b.backward_weight.comm_s[g]

            def behind(b: BlockPrice, g: str = g) -> FloatArray:
                return b.forward.hidden_s[g] + b.backward_input.hidden_s[g] + b.backward_weight.hidden_s[g]

            def again(p: PassPrice, g: str = g) -> FloatArray:
                return p.comm_s[g]

            exposed[f"{g}_comm"] = self.sum(total) + self.rerun(again)
            hidden[f"{g}_comm"] = self.sum(behind)
        return {n: self.by_rank(v) for n, v in exposed.items()}, {n: self.by_rank(v) for n, v in hidden.items()}

    def forward_pieces(self, whole: FloatArray, k: int) -> FloatArray:
        """Cut the forward of each stage into k buckets: layers evenly, embedding first, head last."""
        if k == 1:
            return np.asarray(whole[..., None])
        p, zero = self.priced, np.zeros(len(self.rows))
        none = [zero for _ in p.layers]
        ends = p.embedding.forward.total_s[self.rows], p.head.forward.total_s[self.rows]
        first = self.sums.whole(self.sums.sum([*none, ends[0], zero]))
        last = self.sums.whole(self.sums.sum([*none, zero, ends[1]]))
        pieces = np.repeat(((whole - first - last) / k)[..., None], k, axis=-1)
        pieces[..., 0] += first
        pieces[..., -1] += last
        return pieces
