"""Parameters that each virtual stage holds, by what they cost: `StageElements`."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hwmodels.records import dataclass
from planner.frameworks import FrameworkPreset
from planner.layout import LayoutBatch
from planner.layout.distinct import distinct_rows
from planner.model.spec import ModelSpec
from planner.plan import Workload
from planner.stages import Kinds, StageSums
from planner.state import WeightBytes, block_parameters, weight_bytes

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
SHARDING_KEYS = ("tp", "ep", "etp", "pp")
"""Fields of a layout that say which share of a block a rank holds, before data parallelism shards it; of pp only
whether there is a pipeline."""
_PARTS = ("dense", "frozen_dense", "packed_dense", "other_dense", "expert", "frozen_expert", "packed_expert")


@dataclass(frozen=True, slots=True, eq=False)
class BlockElements:
    """Elements of every block on one rank, for the distinct `SHARDING_KEYS` of n layouts.

    Attributes
    ----------
    values : ndarray (parts, k, blocks)
        As in `LocalParameters`, of the layers, the embedding and the head.
    which : ndarray (n,)
        Which of the k each layout has.
    """

    values: FloatArray
    which: IntArray

    @classmethod
    def of(cls, model: ModelSpec, workload: Workload, layouts: LayoutBatch) -> BlockElements:
        """Of n layouts of any pipelines."""
        deep = np.minimum(layouts.pp, 2)
        first, which = replace(layouts, pp=deep).distinct(SHARDING_KEYS)
        embedding, layers, head = block_parameters(model, layouts.take(first), workload)
        blocks = (*layers, embedding, head)
        values = np.zeros((len(_PARTS), len(first), len(blocks)))
        for part, name in enumerate(_PARTS):
            for i, block in enumerate(blocks):
                values[part, :, i] = getattr(block, name)
        return cls(values, which)

    def take(self, index: IntArray | slice) -> BlockElements:
        """Of the layouts at `index`."""
        return BlockElements(self.values, self.which[index])

    def of_parts(self, *names: str) -> FloatArray:
        """Elements of some parts of `LocalParameters` together: ndarray (n, blocks)."""
        every = sum((self.values[_PARTS.index(name)] for name in names), start=np.zeros(self.values.shape[1:]))
        return np.asarray(every[self.which])


@dataclass(frozen=True, slots=True, eq=False)
class Elements:
    """Elements on one rank, each ndarray (n, d) by kind of virtual stage or (n, pp) by rank, as in `LocalParameters`.

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

    def by_rank(self, kinds: Kinds) -> Elements:
        """Summed over the virtual stages of a rank: (n, pp)."""
        every, frozen, packed, other = (kinds.by_rank(v) for v in (self.all, self.frozen, self.packed, self.other))
        return Elements(every, frozen, packed, other, self.adapters)

    def gathered_bytes(self, weights: WeightBytes, *, whole: bool) -> FloatArray:
        """Bytes of these elements in a parameter gather: of all (`whole`, ZeRO-3), or of what an update changed."""
        narrower = weights.packed_gathered - weights.gathered
        if whole:
            return np.asarray(self.all * weights.gathered + self.packed * narrower)
        trained = np.asarray(self.trained * weights.gathered)
        return trained if self.adapters else np.asarray(trained + self.packed * narrower)


@dataclass(frozen=True, slots=True, eq=False)
class StageElements:
    """Dense and expert elements of every kind of virtual stage, (n, d), and the bytes of an element of a weight."""

    dense: Elements
    expert: Elements
    weights: WeightBytes
    kinds: Kinds

    def on(self, ranks: IntArray) -> StageElements:
        """The same on some ranks alone."""
        return replace(self, kinds=self.kinds.take(ranks))

    def by_rank(self) -> tuple[Elements, Elements]:
        """Dense and expert elements summed over the virtual stages of a rank: (n, pp)."""
        return self.dense.by_rank(self.kinds), self.expert.by_rank(self.kinds)


def stage_elements(
    model: ModelSpec,
    workload: Workload,
    layouts: LayoutBatch,
    preset: FrameworkPreset,
    pp: int,
    vpp: int,
    schedule: str,
    blocks: BlockElements | None = None,
) -> StageElements:
    """Parameters of every kind of virtual stage of layouts that share (pp, vpp, schedule).

    Parameters
    ----------
    blocks : BlockElements or None
        Of these layouts, where they are known already.
    """
    held = blocks or BlockElements.of(model, workload, layouts)
    first, same = distinct_rows((held.which, layouts.stage_layers), len(layouts))
    sums = StageSums.of(model, pp, vpp, schedule, layouts.stage_layers[first])
    parts = sums.sums(held.values[:, held.which[first]])[:, same]
    found = dict(zip(_PARTS, parts, strict=True))
    adapters = workload.lora is not None
    dense = Elements(found["dense"], found["frozen_dense"], found["packed_dense"], found["other_dense"], adapters)
    none = np.zeros_like(found["expert"])
    expert = Elements(found["expert"], found["frozen_expert"], found["packed_expert"], none, adapters)
    return StageElements(dense, expert, weight_bytes(workload, preset), sums.kinds)
