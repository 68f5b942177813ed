"""`PricedModel`: the blocks of a model priced for many layouts at once.

Blocks are priced once for each distinct combination of `BLOCK_KEYS`, since nothing else changes
what one micro-batch runs.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hwmodels import collectives
from hwmodels.cluster import Cluster
from hwmodels.records import dataclass
from planner.frameworks import FrameworkPreset
from planner.frameworks import of as preset_of
from planner.layout import LayoutBatch
from planner.layout.axes import is_default, is_placed
from planner.layout.recompute import Policy, policies
from planner.model.spec import ModelSpec
from planner.plan import Workload
from planner.precision import recipe_of, require, with_plain_ends
from planner.price import CORNER, BlockPrice, price_block
from planner.price_table import PriceTable
from planner.workload.lower import Lowered, lower
from planner.workload.moe import require_experts
from planner.workload.op import Block
from planner.workload.recompute import kept_bytes, rebuilt_bytes
from planner.workload.vision import require_images

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BLOCK_KEYS = ("tp", "sp", "cp", "mbs", "ep", "etp", "cp_kind", "cp_ulysses", "order", "placement")


def block_keys(layouts: LayoutBatch) -> tuple[str, ...]:
    """`BLOCK_KEYS`, and the axes that may lie between those ranks in another order than the default one."""
    plain = is_default(layouts) and not is_placed(layouts)
    return BLOCK_KEYS if plain else (*BLOCK_KEYS, "dp", "pp", "fsdp")


@dataclass(frozen=True, slots=True, eq=False)
class PricedModel:
    """A model's blocks priced for the distinct block keys of many layouts.

    Attributes
    ----------
    inverse : ndarray (n,)
        Position of each layout in the distinct rows.
    lowered, embedding, layers, head
        The blocks and their prices over the distinct rows.
    sync_s : ndarray (n,)
        Gradient norm (or finite check) over the world of each layout.
    policies : tuple of Policy
        The distinct recompute policies of the layouts; `BlockPrice.rerun` is in their order.
    policy : ndarray (n,)
        Position of each layout's policy.
    recomputed : tuple of (kept, rebuilt)
        Bytes under each policy of the blocks (embedding, layers, head): ndarray (policies, distinct rows).
    table : PriceTable
        What of these prices is summed over stages.
    """

    model: ModelSpec
    workload: Workload
    cluster: Cluster
    preset: FrameworkPreset
    layouts: LayoutBatch
    inverse: IntArray
    lowered: Lowered
    embedding: BlockPrice
    layers: tuple[BlockPrice, ...]
    head: BlockPrice
    sync_s: FloatArray
    policies: tuple[Policy, ...]
    policy: IntArray
    recomputed: tuple[tuple[FloatArray, FloatArray], ...]
    table: PriceTable

    def hosted(self, preset: FrameworkPreset, corner: float = CORNER) -> PricedModel:
        """The same with `preset`, which differs in host constants only, without pricing anew (fits)."""

        def bound(block: BlockPrice) -> BlockPrice:
            return block.hosted(self.cluster, preset, corner)

        layers = tuple(bound(block) for block in self.layers)
        embedding, head = bound(self.embedding), bound(self.head)
        table = PriceTable.of((*layers, embedding, head))
        return replace(self, preset=preset, embedding=embedding, layers=layers, head=head, table=table)

    def chosen(self, index: int, layouts: LayoutBatch, workload: Workload) -> PricedModel:
        """The blocks of the layout at `index` for one layout (a batch of one) that differs from it in fields outside
        `BLOCK_KEYS` alone, and a workload that differs in gbs alone, without pricing anew.
        """
        return replace(
            self,
            workload=workload,
            layouts=layouts,
            inverse=self.inverse[[index]],
            sync_s=_sync(layouts, self.cluster, self.preset),
            policy=self.policy[[index]],
        )


def price_model(model: ModelSpec, workload: Workload, layouts: LayoutBatch, cluster: Cluster) -> PricedModel:
    """Lower and price the blocks of one micro-batch for all `layouts` (shape (n,)).

    Raises
    ------
    hwmodels.errors.InputError
        Where the framework or the device does not have the workload's precision, with the nearest that it has; where
        the model does not take the workload's images, or has no experts for its routing.
    """
    preset = preset_of(workload)
    require(workload, preset, cluster.device)
    require_images(model, workload)
    require_experts(model, workload)
    model = with_plain_ends(model, recipe_of(workload, preset))
    first, inverse = layouts.distinct(block_keys(layouts))
    distinct = layouts.take(first).with_cp_kind(preset.cp_kind)
    lowered = lower(model, workload, distinct, preset)
    found, policy = policies(layouts.recompute, layouts.recompute_modules)

    def price(block: Block) -> BlockPrice:
        return price_block(block, cluster, distinct, preset, found)

    def sized(block: Block) -> tuple[FloatArray, FloatArray]:
        shape = (len(distinct),)
        kept = np.stack([np.broadcast_to(kept_bytes(block, p), shape) for p in found])
        return kept, np.stack([np.broadcast_to(rebuilt_bytes(block, p), shape) for p in found])

    first_block, layers, last_block = price(lowered.embedding), tuple(map(price, lowered.layers)), price(lowered.head)
    return PricedModel(
        model,
        workload,
        cluster,
        preset,
        layouts,
        inverse,
        lowered,
        first_block,
        layers,
        last_block,
        _sync(layouts, cluster, preset),
        found,
        policy,
        tuple(sized(block) for block in (lowered.embedding, *lowered.layers, lowered.head)),
        PriceTable.of((*layers, first_block, last_block)),
    )


def _sync(layouts: LayoutBatch, cluster: Cluster, preset: FrameworkPreset) -> FloatArray:
    """Seconds of an all-reduce of one number over the world: ndarray (n,); zero where no gradient is clipped."""
    if not preset.clips_gradients:
        return np.zeros(len(layouts))
    if is_placed(layouts):
        return collectives.seconds(cluster, "all_reduce", 4.0, layouts.group("world", cluster)).mid
    worlds, where = np.unique(layouts.world, return_index=True)
    shape = layouts.take(where).group("world", cluster)
    seconds = collectives.seconds(cluster, "all_reduce", np.full(len(worlds), 4.0), shape).mid
    return np.asarray(seconds[np.searchsorted(worlds, layouts.world)])
