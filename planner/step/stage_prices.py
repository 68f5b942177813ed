"""What one micro-batch takes of every virtual stage: sums of block prices, their split by phase, spread and FLOPs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.layout import LayoutBatch
from planner.offload import HostSeconds, activation_seconds
from planner.pairs import unpaired_shares
from planner.price import COMM_GROUPS, BlockPrice, PassPrice
from planner.priced import PricedModel
from planner.recompute import Stages
from planner.schedule import get as get_schedule
from planner.stages import StageSums

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Work:
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
class StagePrices:
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
    def of(cls, priced: PricedModel, index: IntArray, pp: int, vpp: int, schedule: str) -> StagePrices:
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

    def work(self) -> Work:
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
        return Work(plan.directions, ahead, back, weight, parts, hidden, kernels, collectives, flops)

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

    def ends(self) -> tuple[FloatArray, FloatArray]:
        """What of a forward the embedding and the head are: ndarray (b, pp, chunks) each."""
        p, zero = self.priced, np.zeros(len(self.rows))
        none = [zero for _ in p.layers]
        first, last = p.embedding.forward.total_s[self.rows], p.head.forward.total_s[self.rows]
        return (self.sums.whole(self.sums.sum([*none, first, zero])),
                self.sums.whole(self.sums.sum([*none, zero, last])))  # fmt: skip
