"""What one micro-batch takes of every virtual stage: sums of block prices, their split by phase, spread and FLOPs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hwmodels.records import dataclass
from planner.layout import LayoutBatch
from planner.offload import HostSeconds, activation_seconds
from planner.pairs import unpaired_shares
from planner.price import COMM_GROUPS
from planner.priced import PricedModel
from planner.recompute import Stages
from planner.schedule import get as get_schedule
from planner.stages import Kinds, StageSums

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
_HALVES = ("input", "weight")


@dataclass(frozen=True, slots=True, eq=False)
class StagePrices:
    """Sums of block prices over the virtual stages of layouts that share (pp, vpp, schedule).

    Seconds are summed for each kind of stage, ndarray (b, d) (`planner.stages.StageSums`).
    """

    priced: PricedModel
    index: IntArray
    layouts: LayoutBatch
    pp: int
    vpp: int
    schedule: str
    sums: StageSums

    @classmethod
    def of(
        cls, priced: PricedModel, index: IntArray, layouts: LayoutBatch, pp: int, vpp: int, schedule: str
    ) -> StagePrices:
        """For the layouts at `index`, which are `layouts`."""
        sums = Stages(priced.model, layouts, pp, vpp, schedule).sums()
        return cls(priced, index, layouts, pp, vpp, schedule, sums)

    def take(self, rows: IntArray) -> StagePrices:
        """Of some of them."""
        sums = StageSums(self.sums.tables, self.sums.case[rows])
        return replace(self, index=self.index[rows], layouts=self.layouts.take(rows), sums=sums)

    @property
    def rows(self) -> IntArray:
        """Distinct block keys of each layout: ndarray (b,)."""
        return self.priced.inverse[self.index]

    @property
    def directions(self) -> int:
        """Copies of the pipeline."""
        return get_schedule(self.schedule).directions

    @property
    def microbatches(self) -> IntArray:
        """Micro-batches of each layout: ndarray (b,)."""
        return self.layouts.microbatches(self.priced.workload.gbs)

    def once(self, *names: str) -> FloatArray:
        """Figures of `planner.price_table.ONCE` summed over what each kind of stage holds: ndarray (figures, b, d)."""
        return self.sums.sums(self.priced.table.once(names, self.rows))

    def again(self, *names: str) -> FloatArray:
        """Figures of what recomputation runs again under each layout's policy: ndarray (figures, b, d)."""
        values = self.priced.table.again(names, self.priced.policy[self.index], self.rows)
        found = self.sums.sums_again(values[:, :, :-2])
        if not self.priced.workload.mtp_layers:
            return found
        head = np.zeros_like(values)
        head[:, :, -1] = values[:, :, -1]
        return found + self.sums.sums(head)  # prediction steps behind the last layer

    def by_rank(self, value: FloatArray) -> FloatArray:
        """Per micro-batch of a rank: the sum of its virtual stages, each copy of a pipeline taking its share."""
        return np.asarray(self.sums.by_rank(value) / self.directions)

    def passes(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Seconds of F, I and W of one micro-batch without waits: ndarray (b, d) each."""
        host = float(self.priced.preset.microbatch_s.value)
        forward, cast, backward_input, weight, skipped = self.once(
            "forward", "forward_once", "input", "weight", "weight_skipped"
        )
        own = self.microbatches[:, None] / self.directions  # of each copy of the pipeline
        forward = forward + host / self.vpp - cast * (1.0 - 1.0 / own)  # what later micro-batches need not do again
        backward_input = backward_input + self.again("total")[0]
        weight = weight - skipped / own
        if get_schedule(self.schedule).split_backward:
            apart = [self.once(*(f"{half}_apart_{g}" for g in COMM_GROUPS)).sum(axis=0) for half in _HALVES]
            backward_input, weight = backward_input + apart[0], weight + apart[1]
        return forward, backward_input, weight

    def work(self) -> Work:
        """Seconds of one micro-batch."""
        waiting = 1.0 + self._waits()
        forward, backward_input, weight = (value * waiting for value in self.passes())
        kinds, copies = self.sums.kinds, self._host_copies()
        if not (self.priced.preset.moe_exchange_overlap or copies):
            return Work(self, kinds, forward, backward_input, weight)
        chunks = kinds.kind.shape[1]
        ahead, back = (kinds.whole(value) for value in (forward, backward_input))
        if self.priced.preset.moe_exchange_overlap:
            share, paired = self._unpaired()[:, :, None], self.once("forward_paired", "input_paired")
            ahead, back = (v + kinds.whole(p) * share for v, p in zip((ahead, back), paired, strict=True))
        if copies:
            ahead, back = ahead + copies.forward, back + copies.backward
        every = (value.reshape(len(value), -1) for value in (ahead, back, kinds.whole(weight)))
        return Work(self, Kinds.every(self.pp, chunks), *every)

    def _unpaired(self) -> FloatArray:
        """Share of the passes that run alone, whose exchanges nothing hides (`planner.pairs`): ndarray (b, pp)."""
        return unpaired_shares(self.schedule, self.pp, self.microbatches, self.vpp)

    def _host_copies(self) -> HostSeconds | None:
        """What copies of offloaded activations add to the passes."""
        if not np.any(self.layouts.offload_activations):
            return None
        p, rows = self.priced, self.rows
        saved = [np.broadcast_to(b.saved_bytes, (len(p.embedding.forward.compute_s),))[rows] for b in p.lowered.layers]
        each = 1.0 / (self.microbatches / self.directions)
        ahead = [b.forward.total_s[rows] - b.forward.once_s[rows] * (1.0 - each) for b in p.layers]
        back = [
            (b.backward_input.total_s + b.backward_weight.total_s)[rows] - b.backward_weight.skipped_s[rows] * each
            for b in p.layers
        ]
        stages = Stages(p.model, self.layouts, self.pp, self.vpp, self.schedule)
        return activation_seconds(p.cluster, stages, saved, ahead, back)

    def _waits(self) -> FloatArray:
        """Share by which ranks that work in step wait for the slowest of them in every micro-batch: ndarray (b, 1).

        Data parallelism waits once a step (`once.data_parallel_wait`). Neighbouring stages of a
        pipeline do unequal work and have slack between them: their waits are the bubble.
        """
        skew, b = self.priced.cluster.skew, self.layouts
        if skew is None:
            return np.zeros((len(b), 1))
        together = (b.tp > 1) | (b.cp > 1) | (b.ep > 1)
        return np.where(together, float(skew.value), 0.0)[:, None]

    def phases(self) -> tuple[dict[str, FloatArray], dict[str, FloatArray]]:
        """Seconds a micro-batch by phase, exposed and hidden: each ndarray (b, pp).

        Collectives that an unsplit backward hides behind the GEMMs of its other half are exposed in I and W;
        exchanges whose partner is another micro-batch in the passes that run alone.
        """
        comm, host = tuple(f"{g}_comm" for g in COMM_GROUPS), float(self.priced.preset.microbatch_s.value)
        own = self.microbatches[:, None] / self.directions
        forward, backward, cast, skipped = self.once(
            "forward_compute", "backward_compute", "forward_once", "weight_skipped"
        )
        recomputed, *again = self.again("compute", *comm)
        exposed, behind = self.once(*comm) + again, self.once(*(f"{g}_hidden" for g in COMM_GROUPS))
        if get_schedule(self.schedule).split_backward:
            apart = sum(self.once(*(f"{half}_apart_{g}" for g in COMM_GROUPS)) for half in _HALVES)
            exposed, behind = exposed + apart, behind - apart
        parts = {
            "forward": self.by_rank(forward - cast * (1.0 - 1.0 / own)),
            "backward": self.by_rank(backward - skipped / own),
            "recompute": self.by_rank(recomputed),
            **{name: self.by_rank(v) for name, v in zip(comm, exposed, strict=True)},
            "host": np.full((len(self.layouts), self.pp), host),
        }
        hidden = {name: self.by_rank(v) for name, v in zip(comm, behind, strict=True)}
        self._blame(parts, self.by_rank(sum(self.passes(), start=np.zeros(()))) * self._waits())
        if self.priced.preset.moe_exchange_overlap:
            moved = self.by_rank(self.once("forward_paired", "input_paired").sum(axis=0)) * self._unpaired()
            parts["ep_comm"], hidden["ep_comm"] = parts["ep_comm"] + moved, hidden["ep_comm"] - moved
        if (copies := self._host_copies()) is not None:
            parts["host"] = parts["host"] + (copies.forward + copies.backward).sum(axis=2) / self.directions
        return parts, hidden

    def _blame(self, parts: dict[str, FloatArray], waited: FloatArray) -> None:
        """Count the waits as the phase in which a rank spends them: its innermost group's."""
        left = np.ones(len(self.layouts), dtype=np.bool_)
        for axis in COMM_GROUPS:
            here = left & (getattr(self.layouts, axis) > 1)
            parts[f"{axis}_comm"] = parts[f"{axis}_comm"] + np.where(here[:, None], waited, 0.0)
            left &= ~here

    def spreads(self) -> tuple[FloatArray, FloatArray]:
        """Relative spread of kernels and of collectives in the compute of a micro-batch: ndarray (b,) each."""
        both = self.once("spread", "comm_spread") + self.again("spread", "comm_spread")
        busy = sum(self.passes(), start=np.zeros(())) * (1.0 + self._waits())
        seconds = np.maximum(self.sums.kinds.total(busy), 1e-30)
        kernels, comm = (self.sums.kinds.total(value) / seconds for value in both)
        return kernels, comm

    def flops(self) -> FloatArray:
        """FLOPs a micro-batch executed by a rank, recomputation included: ndarray (b, pp)."""
        return self.by_rank(self.once("flops")[0] + self.again("flops")[0])

    def ends(self) -> tuple[FloatArray, FloatArray]:
        """What of a forward the embedding and the head are: ndarray (b, pp, chunks) each."""
        values = self.priced.table.once(("forward",), self.rows)[0]
        first, last = np.zeros((2, *values.shape))
        first[:, -2], last[:, -1] = values[:, -2], values[:, -1]
        found = self.sums.sums(np.stack([first, last]))
        return self.sums.whole(found[0]), self.sums.whole(found[1])


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """Compute of the virtual stages for one micro-batch, by kind of stage: (b, d).

    Attributes
    ----------
    prices : StagePrices
        What they were summed from, which tells phases, spread and FLOPs.
    """

    prices: StagePrices
    kinds: Kinds
    forward: FloatArray
    backward_input: FloatArray
    backward_weight: FloatArray

    @property
    def busy(self) -> FloatArray:
        """Seconds a micro-batch of each rank, half of the micro-batches on each of two copies: ndarray (b, pp)."""
        whole = self.kinds.by_rank(self.forward + self.backward_input + self.backward_weight)
        return np.asarray(whole / self.prices.directions)

    def take(self, rows: IntArray) -> Work:
        """Of some of the layouts."""
        each = (v[rows] for v in (self.forward, self.backward_input, self.backward_weight))
        return Work(self.prices.take(rows), self.kinds, *each)
