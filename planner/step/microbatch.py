"""`Microbatches`: what one micro-batch takes of a pipeline, found once for all layouts that have it alike.

Layouts that share (pp, vpp, schedule) differ in few micro-batches, whatever their ZeRO stage and sharding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

import numpy as np
from numpy.typing import NDArray

from hwmodels.records import dataclass
from planner.layout import LayoutBatch
from planner.priced import PricedModel
from planner.simulate.bound import Passes, Place, most_back
from planner.step.once import Pipeline, Sends, data_parallel_wait, sends, tied
from planner.step.stage_prices import StagePrices, Work

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
_NOT_OF_A_MICROBATCH = frozenset(
    {"pp", "vpp", "schedule", "zero_stage", "fsdp", "reshard", "offload_optimizer", "offload_parameters"}
)  # fmt: skip
MICROBATCH_KEYS = tuple(f.name for f in fields(LayoutBatch) if f.name not in _NOT_OF_A_MICROBATCH)
"""Fields that compute and transfers of a micro-batch depend on there, with how many of them a step has."""


@dataclass(frozen=True, slots=True, eq=False)
class Microbatches:
    """Seconds of one micro-batch, for j layouts that share (pp, vpp, schedule).

    Attributes
    ----------
    sends : Sends
    wait, tied : ndarray (j,)
        For the slowest data-parallel rank; for the gradient of a shared embedding.
    passes, most_back
        What a bound reads of them (`planner.simulate.bound`).
    """

    place: Place
    work: Work
    sends: Sends
    wait: FloatArray
    tied: FloatArray
    passes: Passes
    most_back: FloatArray

    @classmethod
    def of(cls, work: Work, sent: Sends, tied_s: FloatArray) -> Microbatches:
        """From compute and transfers."""
        prices = work.prices
        place = Place.of(prices.schedule, prices.pp, prices.vpp)
        columns = work.kinds.kind.reshape(-1)[place.at]
        chain, weight = work.backward_input, work.backward_weight
        if not place.split_backward:
            chain, weight = chain + weight, np.zeros_like(weight)
        onward, back = place.stages(sent.forward), place.stages(sent.backward)
        blocking = not prices.priced.preset.p2p_overlap
        forward, chain, weight = (value[:, columns] for value in (work.forward, chain, weight))
        return cls(
            place,
            work,
            sent,
            data_parallel_wait(prices.priced, prices.layouts, work.busy, prices.microbatches),
            tied_s,
            Passes.of(place, forward, chain, weight, onward, back, blocking=blocking),
            most_back(place, back),
        )

    def take(self, rows: IntArray) -> Microbatches:
        """Of some of the layouts."""
        sent = Sends(self.sends.forward[rows], self.sends.backward[rows], self.sends.spread[rows])
        return replace(self, work=self.work.take(rows), sends=sent, wait=self.wait[rows], tied=self.tied[rows],
                       passes=self.passes.take(rows), most_back=self.most_back[rows])  # fmt: skip


def microbatches(
    priced: PricedModel, pipelines: Sequence[Pipeline], indices: Sequence[IntArray], layouts: Sequence[LayoutBatch]
) -> list[tuple[Microbatches, IntArray]]:
    """Of the `layouts` at each of `indices`, which share one of `pipelines`; and which micro-batch each layout has."""
    distinct = [each.distinct(MICROBATCH_KEYS) for each in layouts]
    chosen = [index[first] for index, (first, _) in zip(indices, distinct, strict=True)]
    sent = sends(priced, chosen, pipelines)
    found = []
    for pipeline, few, one, every, (first, same) in zip(pipelines, chosen, sent, layouts, distinct, strict=True):
        prices = StagePrices.of(priced, few, every.take(first), *pipeline)
        found.append((Microbatches.of(prices.work(), one, tied(priced, prices.layouts, pipeline[0])), same))
    return found
