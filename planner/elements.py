"""Parameters that each virtual stage holds, by what they cost: `StageElements`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.frameworks import FrameworkPreset
from planner.layout import LayoutBatch
from planner.model.spec import ModelSpec
from planner.plan import Workload
from planner.schedule import get as get_schedule
from planner.stages import over_stages
from planner.state import WeightBytes, block_parameters, weight_bytes

FloatArray = NDArray[np.float64]
SHARDING_KEYS = ("tp", "ep", "etp", "pp", "stage_layers")
"""Fields of a layout that say which parameters a rank holds, before data parallelism shards them."""


@dataclass(frozen=True, slots=True, eq=False)
class Elements:
    """Elements on one rank by virtual stage, each ndarray (n, pp, chunks), as in `LocalParameters`.

    `adapters`: what is trained are adapters, which no narrow format covers; else packed matrices are trained.
    """

    all: FloatArray
    frozen: FloatArray
    packed: FloatArray
    other: FloatArray
    adapters: bool = False

    @property
    def trained(self) -> FloatArray:
        """Elements with a gradient and optimizer state."""
        return np.asarray(self.all - self.frozen)

    def by_rank(self) -> Elements:
        """Summed over the virtual stages of a rank: ndarray (n, pp)."""
        whole, frozen, packed, other = (v.sum(axis=2) for v in (self.all, self.frozen, self.packed, self.other))
        return Elements(whole, frozen, packed, other, self.adapters)

    def gathered_bytes(self, weights: WeightBytes, *, whole: bool) -> FloatArray:
        """Bytes of these elements in a parameter gather: of all (`whole`, ZeRO-3), or of what an update changed."""
        narrower = weights.packed_gathered - weights.gathered
        if whole:
            return np.asarray(self.all * weights.gathered + self.packed * narrower)
        trained = np.asarray(self.trained * weights.gathered)
        return trained if self.adapters else np.asarray(trained + self.packed * narrower)


@dataclass(frozen=True, slots=True, eq=False)
class StageElements:
    """Dense and expert elements of every virtual stage, and the bytes of an element of a weight."""

    dense: Elements
    expert: Elements
    weights: WeightBytes


def stage_elements(
    model: ModelSpec,
    workload: Workload,
    layouts: LayoutBatch,
    preset: FrameworkPreset,
    pp: int,
    vpp: int,
    schedule: str,
) -> StageElements:
    """Parameters of every virtual stage of layouts that share (pp, vpp, schedule)."""
    first, same = layouts.distinct(SHARDING_KEYS)
    few = layouts.take(first)
    embedding, layers, head = block_parameters(model, few, workload)

    def total(name: str) -> FloatArray:
        parts = [getattr(p, name) for p in (*layers, embedding, head)]
        if not any(np.any(p) for p in parts):
            return np.zeros((len(layouts), pp, get_schedule(schedule).chunks(vpp)))
        full = [np.broadcast_to(p, (len(few),)) for p in parts]
        return over_stages(model, pp, vpp, schedule, few.stage_layers, full[:-2], *full[-2:])[same]

    adapters = workload.lora is not None
    dense = Elements(total("dense"), total("frozen_dense"), total("packed_dense"), total("other_dense"),
                     adapters)  # fmt: skip
    none = np.zeros_like(dense.all)
    expert = Elements(total("expert"), total("frozen_expert"), total("packed_expert"), none, adapters)
    return StageElements(dense, expert, weight_bytes(workload, preset))
