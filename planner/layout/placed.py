"""What the groups of a layout have of the network where its ranks do not fill the nodes in order.

A placement is the GPU of every world rank, ``node x gpus_per_node + gpu``. Of each axis the group that has least
bandwidth out of a node governs: collectives of an axis wait for one another at the latest when the step ends.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hwmodels.records import dataclass
from hwmodels.topology import INSIDE, GroupShape
from planner.layout import axes
from planner.layout.splits import split_of

if TYPE_CHECKING:
    from hwmodels.cluster import Cluster
    from hwmodels.network import Fabric
    from planner.layout.degrees import LayoutBatch

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
_DEGREES = ("tp", "cp", "dp", "pp", "ep", "etp", "fsdp", "cp_kind", "cp_ulysses", "order", "placement")
KEPT = 4096
"""Shapes that are remembered: a prediction asks for the same few for every op."""


@dataclass(frozen=True, slots=True)
class Tiers:
    """Blocks of nodes below one switch: GPUs a node, nodes a leaf and a pod (0: unknown, which counts as one block)."""

    gpus_per_node: int
    leaf: int
    pod: int

    @classmethod
    def of(cls, fabric: Fabric) -> Tiers:
        """Of a fabric; a torus has none."""
        if fabric.torus:
            return cls(fabric.gpus_per_node, 0, 0)
        return cls(fabric.gpus_per_node, fabric.leaf_span, fabric.pod_nodes)


@dataclass(frozen=True, slots=True, eq=False)
class _Of:
    """A fabric as the key of what is remembered: itself, since its tables of curves have no hash."""

    fabric: Fabric | None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Of) and self.fabric is other.fabric

    def __hash__(self) -> int:
        return id(self.fabric)


def group_ranks(layouts: LayoutBatch, name: str) -> IntArray:
    """World ranks of every group of an axis of a single layout: ndarray (groups, size), neighbours beside each other.

    Parameters
    ----------
    layouts : LayoutBatch, shape (1,)
    """
    parts = [(int(n.reshape(-1)[0]), int(s.reshape(-1)[0])) for n, s in axes.levels(layouts, name)]
    ranks = np.arange(int(np.prod([np.reshape(getattr(layouts, axis), -1)[0] for axis in ("tp", "cp", "dp", "pp")])))
    first = np.logical_and.reduce([ranks // s % n == 0 for n, s in parts])
    members = np.zeros(1, dtype=np.int64)
    for n, s in parts:
        members = (np.arange(n)[:, None] * s + members[None, :]).reshape(-1)
    return np.asarray(ranks[first][:, None] + members[None, :])


def spreads(gpus: IntArray, tiers: Tiers) -> tuple[IntArray, IntArray, FloatArray, FloatArray]:
    """Nodes of each group, groups beside it that leave its fullest node too, and its `leaf` and `pod`.

    Of a block of `L` nodes whose uplinks `E` groups of the axis share, each has as much as if ``L s / E`` of its own
    nodes lay there, `s` beside each other (`hwmodels.network.contention`, which takes every block to be full).

    Parameters
    ----------
    gpus : ndarray (groups, size)
        Places of the members.
    """
    count = len(gpus)
    node = gpus // tiers.gpus_per_node
    pairs = np.unique(np.arange(count)[:, None] * (int(node.max()) + 1) + node)
    group, place = np.divmod(pairs, int(node.max()) + 1)
    nodes = np.bincount(group, minlength=count)
    leaves = nodes[group] > 1
    crowd = np.bincount(place[leaves], minlength=int(place.max()) + 1)
    beside = np.ones(count, dtype=np.int64)
    np.maximum.at(beside, group, np.maximum(crowd[place], 1))
    leaf, pod = (_uplinks(group, place, nodes, beside, block) for block in (tiers.leaf, tiers.pod))
    return nodes, beside, leaf, pod


def _uplinks(group: IntArray, place: IntArray, nodes: IntArray, beside: IntArray, block: int) -> FloatArray:
    """The `leaf` (or `pod`) of every group, in the block whose uplinks most groups share."""
    found = np.full(len(nodes), INSIDE)
    if not block:
        return found
    number = place // block
    width = int(number.max()) + 1
    owner, where = np.divmod(np.unique(group * width + number), width)
    crossing = np.bincount(owner, minlength=len(nodes))[owner] > 1
    owner, where = owner[crossing], where[crossing]
    edges = np.bincount(where, minlength=width)
    np.minimum.at(found, owner, block * beside[owner] / np.maximum(edges[where], 1))
    return found


@lru_cache(maxsize=KEPT)
def _shape(key: tuple[int, ...], name: str, tiers: Tiers, of: _Of) -> tuple[float, ...]:
    """Ranks a node, nodes, stride, leaf and pod of the group of an axis that governs."""
    fabric = of.fabric
    gpus = _places(key, name)
    size = gpus.shape[1]
    nodes, beside, leaf, pod = spreads(gpus, tiers)
    ranks = -(-size // nodes)
    stride = np.where(nodes > 1, np.minimum(beside, np.maximum(tiers.gpus_per_node // ranks, 1)), 1)
    if fabric is not None and fabric.torus:
        reach = (gpus.max(axis=1) - gpus.min(axis=1)) // tiers.gpus_per_node + 1
        apart = np.maximum(reach // np.maximum(nodes, 1), 1)
        stride = np.where((ranks == 1) & (apart > 1), apart * tiers.gpus_per_node, stride)
    worst = int(np.argmax(nodes))
    if fabric is not None and fabric.inter is not None and nodes.max() > 1:
        out = fabric.group_bandwidth(GroupShape(ranks, nodes, stride, leaf, pod)) / ranks
        slow = np.where(nodes > 1, out, np.inf)
        worst = int(np.lexsort((-nodes, slow))[0])
    return int(ranks[worst]), int(nodes[worst]), int(stride[worst]), float(leaf[worst]), float(pod[worst])


@lru_cache(maxsize=KEPT)
def _hop(key: tuple[int, ...], here: int, there: int, tiers: Tiers) -> tuple[bool, int, float, float]:
    """Whether any pair of two pipeline ranks crosses, most pairs that leave or enter a node, and their leaf and pod."""
    gpus = _places(key, "pp")
    ends = gpus[:, here], gpus[:, there]
    node = [end // tiers.gpus_per_node for end in ends]
    cross = node[0] != node[1]
    if not cross.any():
        return False, 1, INSIDE, INSIDE
    beside = max(int(np.bincount(side[cross]).max()) for side in node)
    found = []
    for block in (tiers.leaf, tiers.pod):
        number = [side // block if block else np.zeros_like(side) for side in node]
        far = number[0] != number[1]
        edges = max((int(np.bincount(side[far]).max()) for side in number if far.any()), default=0)
        found.append(block * beside / edges if edges else INSIDE)
    return True, beside, found[0], found[1]


def _places(key: tuple[int, ...], name: str) -> IntArray:
    """GPUs of every group of an axis: ndarray (groups, size)."""
    from planner.layout.degrees import LayoutBatch

    one = LayoutBatch.filled({field: np.asarray([value]) for field, value in zip(_DEGREES, key, strict=True)})
    return np.asarray(np.asarray(split_of(key[-1]), dtype=np.int64)[group_ranks(one, name)])


def crossings(
    layouts: LayoutBatch, here: IntArray, there: IntArray, ordered: NDArray[np.bool_], gpus_per_node: int
) -> NDArray[np.bool_]:
    """`ordered`, with whether hops leave a node where the placement of a layout says otherwise: ndarray (b, hops)."""
    found, tiers = ordered.copy(), Tiers(gpus_per_node, 0, 0)
    for i in np.flatnonzero(layouts.placement):
        key = _key(layouts, (int(i),))
        found[i] = [_hop(key, int(a), int(b), tiers)[0] for a, b in zip(here, there, strict=True)]
    return found


def pairs(
    layouts: LayoutBatch, here: IntArray, there: IntArray, ordered: GroupShape, cluster: Cluster
) -> GroupShape:
    """`ordered`, with the shape of the pairs of the hop that has least of the network in each layout with a placement.

    Parameters
    ----------
    here, there : ndarray (hops,)
        Pipeline ranks.
    """
    columns, tiers = _columns(ordered, np.shape(layouts.placement)), Tiers.of(cluster.fabric)
    for i in np.flatnonzero(layouts.placement):
        key = _key(layouts, (int(i),))
        each = [_hop(key, int(a), int(b), tiers) for a, b in zip(here, there, strict=True)]
        far = [hop for hop in each if hop[0]]
        if far and columns[1][i] > 1:
            columns[2][i] = max(beside for _, beside, _, _ in far)
            columns[3][i], columns[4][i] = (min(hop[j] for hop in far) for j in (2, 3))
    return GroupShape(*columns)


def _key(layouts: LayoutBatch, i: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(int(getattr(layouts, field)[i]) for field in _DEGREES)


def _columns(ordered: GroupShape, size: tuple[int, ...]) -> list[NDArray[Any]]:
    kinds = zip(("ranks_per_node", "nodes", "stride", "leaf", "pod"), "llldd", strict=True)
    return [np.array(np.broadcast_to(getattr(ordered, field), size), dtype=kind) for field, kind in kinds]


def shape(layouts: LayoutBatch, name: str, ordered: GroupShape, where: int | Cluster) -> GroupShape:
    """`ordered`, with what the placement of each layout that has one gives instead."""
    fabric = None if isinstance(where, int) else where.fabric
    tiers = Tiers(where, 0, 0) if isinstance(where, int) else Tiers.of(where.fabric)
    size = np.shape(layouts.placement)
    columns = _columns(ordered, size)
    for i in np.ndindex(size):
        if layouts.placement[i]:
            for column, value in zip(columns, _shape(_key(layouts, i), name, tiers, _Of(fabric)), strict=True):
                column[i] = value
    return GroupShape(*columns)
