"""Where the ranks of a process group lie in the world order: sizes and strides of every axis under every order.

World ranks unfold into tp, cp, dp and pp, the fastest first in the words of a layout's `order`; Megatron-Core writes
its rank order the same way (``RankGenerator`` in ``parallel_state.py``). A group is one or two *levels* of equally
spaced ranks: fsdp over dp and cp, for instance, is two where a pipeline lies between them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hwmodels.topology import INSIDE, GroupShape, group_shape
from planner.frameworks.orders import DENSE_AXES as DENSE
from planner.frameworks.orders import ORDERS
from planner.layout import placed

if TYPE_CHECKING:
    from hwmodels.cluster import Cluster
    from planner.layout.degrees import LayoutBatch

IntArray = NDArray[np.int64]
Level = tuple[IntArray, IntArray]
"""Size and stride, in ranks, of equally spaced members."""

AXES: tuple[str, ...] = (
    "tp", "cp", "cp_inner", "cp_outer", "dp", "dp_cp", "fsdp", "replica", "ep", "etp", "ep_etp", "edp",
    "expert_shard", "expert_replica", "pp", "world",
)  # fmt: skip

_BEFORE = np.asarray([[[order.index(b) < order.index(a) for b in DENSE] for a in DENSE]
                      for order in (text.split("-") for text in ORDERS)])  # fmt: skip
"""``[order, axis, other]``: whether `other` varies faster than `axis`."""


def is_default(layouts: LayoutBatch) -> bool:
    """Whether all layouts have the default order."""
    return not _any(layouts.order)


def _any(codes: IntArray) -> bool:
    """Whether any is not 0; one value that stands for all is looked at once."""
    return bool(codes.flat[0] if codes.size and not any(codes.strides) else np.any(codes))


def is_placed(layouts: LayoutBatch) -> bool:
    """Whether any layout says where its ranks run."""
    return _any(layouts.placement)


def stride(layouts: LayoutBatch, axis: str) -> IntArray:
    """Distance in ranks between neighbours of a dense axis."""
    if is_default(layouts):
        found = np.ones_like(layouts.tp)
        for other in DENSE[: DENSE.index(axis)]:
            found = found * getattr(layouts, other)
        return np.asarray(found)
    before = _BEFORE[layouts.order, DENSE.index(axis)]
    return np.asarray(np.prod([np.where(before[..., i], getattr(layouts, o), 1) for i, o in enumerate(DENSE)], axis=0))


def levels(layouts: LayoutBatch, name: str) -> tuple[Level, ...]:
    """Levels of the groups of an axis, the fastest first; one where its ranks are equally spaced in every layout.

    Within cp those that exchange sequence for heads are neighbours (the first of Megatron-Core's
    ``hierarchical_context_parallel_sizes``), within dp those that shard together (``dp = replicas x fsdp``). The expert
    grid folds onto the ranks of a pipeline stage, in their order, as etp, ep, edp from the fastest
    (Megatron-Core's second ``RankGenerator``, whose pipeline groups must be those of the first).
    """
    b, one = layouts, np.ones_like(layouts.tp)
    table: dict[str, Callable[[], tuple[Level, ...]]] = {
        "tp": lambda: ((b.tp, stride(b, "tp")),),
        "cp": lambda: ((b.cp, stride(b, "cp")),),
        "cp_inner": lambda: ((b.cp_inner, stride(b, "cp")),),
        "cp_outer": lambda: ((b.cp_outer, np.asarray(stride(b, "cp") * b.cp_inner)),),
        "dp": lambda: ((b.dp, stride(b, "dp")),),
        "dp_cp": lambda: _with_context(b, b.dp),
        "fsdp": lambda: _with_context(b, b.fsdp_degree),
        "replica": lambda: ((np.asarray(b.dp // b.fsdp_degree), np.asarray(stride(b, "dp") * b.fsdp_degree)),),
        "etp": lambda: _folded(b, b.etp, one),
        "ep": lambda: _folded(b, b.ep, b.etp),
        "ep_etp": lambda: _folded(b, np.asarray(b.ep * b.etp), one),
        "edp": lambda: _folded(b, b.edp, np.asarray(b.ep * b.etp)),
        "expert_shard": lambda: _folded(b, b.expert_shard, np.asarray(b.ep * b.etp)),
        "expert_replica": lambda: _folded(
            b, np.asarray(b.edp // b.expert_shard), np.asarray(b.ep * b.etp * b.expert_shard)
        ),
        "pp": lambda: ((b.pp, stride(b, "pp")),),
        "world": lambda: ((b.world, one),),
    }
    return table[name]()


def _with_context(layouts: LayoutBatch, size: IntArray) -> tuple[Level, ...]:
    """So many neighbours on the dp axis with all of cp, over which their state is shared too."""
    if is_default(layouts):
        return ((np.asarray(size * layouts.cp), layouts.tp),)
    return _joined((size, stride(layouts, "dp")), (layouts.cp, stride(layouts, "cp")))


def _joined(first: Level, second: Level) -> tuple[Level, ...]:
    """Two axes as one group: one level where one of them continues the other in every layout, else two."""
    (n, s), (m, t) = first, second
    # A single member has no stride; what it would have continues whichever it stands beside.
    slow = (t >= s) & (m > 1) | (n == 1)
    low = np.where(slow, n, m), np.where(slow, s, t)
    high = np.where(slow, m, n), np.where(slow, t, s)
    alone = low[0] == 1
    even = alone | (high[0] == 1) | (high[1] == low[0] * low[1])
    whole = np.asarray(low[0] * high[0]), np.asarray(np.where(alone, high[1], low[1]))
    if np.all(even):
        return (whole,)
    return (
        (np.where(even, whole[0], low[0]), np.where(even, whole[1], low[1])),
        (np.where(even, 1, high[0]), np.where(even, whole[0] * whole[1], high[1])),
    )


def _folded(layouts: LayoutBatch, size: IntArray, apart: IntArray) -> tuple[Level, ...]:
    """Ranks `apart` in the numbering of one pipeline stage, as they lie in the world: a pipeline may come between."""
    if is_default(layouts):
        return ((size, apart),)
    inner = stride(layouts, "pp")
    below = np.where(apart >= inner, 1, np.minimum(size, np.maximum(inner // np.maximum(apart, 1), 1)))
    above = np.asarray(size // np.maximum(below, 1))
    return _joined((below, apart), (above, np.asarray(np.maximum(apart, inner) * layouts.pp)))


def shape(layouts: LayoutBatch, name: str, gpus_per_node: int, cluster: Cluster | None = None) -> GroupShape:
    """Shape of the groups of an axis, ranks filled node by node.

    Two levels multiply: the nodes of a group are those that each level takes, what is left of a node belongs to its
    siblings, and of its nodes so many lie below a switch as both levels leave there.

    Parameters
    ----------
    cluster : Cluster, optional
        Gives the tiers of the network; without it groups of two levels are taken to lie below one switch.
    """
    found = levels(layouts, name)
    if len(found) == 1:
        return group_shape(*found[0], gpus_per_node)
    (n, s), (m, t) = found
    low, high = group_shape(n, s, gpus_per_node), group_shape(m, t, gpus_per_node)
    nodes = np.asarray(low.nodes * high.nodes)
    ranks = np.asarray(-(-(n * m) // nodes))
    siblings = np.where(ranks > 1, np.maximum(gpus_per_node // ranks, 1), np.where(low.nodes > 1, s, t))
    whole = GroupShape(ranks, nodes, np.where(nodes > 1, siblings, np.where(n > 1, s, t)))
    one_level = m == 1
    if np.any(one_level):
        parts = ((getattr(low, key), getattr(whole, key)) for key in ("ranks_per_node", "nodes", "stride"))
        whole = GroupShape(*(np.where(one_level, a, b) for a, b in parts))
    if cluster is None or cluster.fabric.torus:
        return whole
    fabric = cluster.fabric
    below = [
        np.where(one_level | (nodes == 1), 0, _together(low, s, high, t, gpus_per_node, block))
        for block in (fabric.leaf_span, fabric.pod_nodes or fabric.nodes)
    ]
    return GroupShape(whole.ranks_per_node, whole.nodes, whole.stride, *below)


def _together(
    low: GroupShape, s: IntArray, high: GroupShape, t: IntArray, gpus_per_node: int, block: int
) -> NDArray[np.float64]:
    """Nodes of a group of two levels that lie in one block of nodes; `INSIDE` where all of them do."""

    def inside(nodes: IntArray, far: IntArray) -> tuple[IntArray, NDArray[np.bool_]]:
        apart = np.maximum(far // gpus_per_node, 1)
        whole = (nodes == 1) | ((nodes * apart <= block) & (block % np.maximum(nodes * apart, 1) == 0))
        return np.where(whole, nodes, np.clip(block // apart, 1, np.maximum(nodes - 1, 1))), whole

    near, fits = inside(low.nodes, s)
    far, all_far = inside(high.nodes, t)
    return np.where(fits & all_far, INSIDE, np.where(fits, near * far, near))


def crossings(layouts: LayoutBatch, here: IntArray, there: IntArray, gpus_per_node: int) -> NDArray[np.bool_]:
    """Whether the hop from pipeline rank `here[i]` to `there[i]` leaves a node, ranks filled node by node.

    A block of stride times pp ranks holds one run of neighbours of every pipeline rank; a hop counts as crossing when
    any of its pairs does, since the slowest pair holds up the stage. Of two such runs that lie in one node with their
    ends all others do too, and blocks repeat after as many as a node has GPUs.

    Parameters
    ----------
    here, there : ndarray (hops,)

    Returns
    -------
    ndarray (b, hops)
    """
    apart = stride(layouts, "pp")[:, None]
    block = apart * layouts.pp[:, None]
    count = layouts.world[:, None] // block
    found = np.zeros(np.broadcast_shapes(apart.shape, np.shape(here)), dtype=np.bool_)
    for i in range(min(int(count.max(initial=1)), gpus_per_node)):
        first, second = (np.minimum(i, count - 1) * block + stage * apart for stage in (here, there))
        ends = ((first, second), (first + apart - 1, second + apart - 1))
        found |= np.logical_or.reduce([a // gpus_per_node != b // gpus_per_node for a, b in ends])
    return placed.crossings(layouts, here, there, found, gpus_per_node) if is_placed(layouts) else found


def pair_shape(
    layouts: LayoutBatch, nodes: ArrayLike, here: IntArray, there: IntArray, cluster: Cluster
) -> GroupShape:
    """Two ranks of two pipeline stages, in one node or in two, while all pairs of the stages are busy: (b,).

    Parameters
    ----------
    here, there : ndarray (hops,)
        Pipeline ranks between which they send, of which a placement makes one the slowest.
    """
    apart = stride(layouts, "pp")
    count = np.broadcast_to(np.asarray(nodes, dtype=np.int64), apart.shape)
    # Within a node it does not matter how far apart they lie, and a batch holds strides that no node does.
    found = GroupShape(2 // count, count, np.where(count > 1, apart, 1))
    return placed.pairs(layouts, here, there, found, cluster) if is_placed(layouts) else found
