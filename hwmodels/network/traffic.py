"""What a collective sends from GPU to GPU under an algorithm, as flows.

`b` is the size by the nccl-tests convention, `n` the ranks, `r` the ranks in a node, `N` the nodes.

=============  =================================================================================================
ring           ``2 (n-1)/n b`` (all-reduce) or ``(n-1)/n b`` (all-gather, reduce-scatter) from each rank to the
               next; broadcast ``b`` along the chain. Over nodes there are `r` rings, each a share of the bytes,
               and ring `c` enters each node at its GPU `c`, so that every port works (NCCL's channels).
tree           all-reduce: a double binary tree over the nodes, chains inside them; every edge of a tree carries
               ``b / 2`` up and as much down (Sanders, Speck & Traeff 2009, "Two-tree algorithms for full bandwidth
               broadcast, reduction and scan"; NCCL ``src/graph/trees.cc``). Broadcast: down only.
direct         all-to-all: ``b / n`` from each rank to each other; all-gather and reduce-scatter likewise.
hierarchical   all-reduce: reduce-scatter inside each node, a ring all-reduce of ``b / r`` over the nodes on each
               rail, all-gather inside each node. All-gather, reduce-scatter: the same without the other half.
pairwise       send/recv: ``b`` from the first half of the ranks to the second, rank by rank.
=============  =================================================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hwmodels.errors import Fault, InputError
from hwmodels.estimate import FloatArray
from hwmodels.records import dataclass

if TYPE_CHECKING:
    from hwmodels.network.fabric import Fabric

IntArray = NDArray[np.int64]

RING_BYTES: Mapping[str, Callable[[float], float]] = {
    "all_reduce": lambda n: 2.0 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1.0,
}
"""Bytes over each edge of a ring of `n` ranks, per byte of the collective."""


@dataclass(frozen=True, slots=True, eq=False)
class Flows:
    """Bytes from GPU to GPU. Checked when built.

    Attributes
    ----------
    source, target : ndarray of int64 (flows,)
        Global GPU numbers, ``node x gpus_per_node + gpu``.
    nbytes : ndarray (flows,)
        Bytes, finite and >= 0.
    """

    source: IntArray
    target: IntArray
    nbytes: FloatArray

    def __post_init__(self) -> None:
        if not (self.source.shape == self.target.shape == self.nbytes.shape and self.source.ndim == 1):
            raise InputError(
                Fault("source, target and nbytes differ in length", "flows", fix="one entry for each flow")
            )
        if self.nbytes.size and not (np.all(np.isfinite(self.nbytes)) and self.nbytes.min() >= 0):
            raise InputError(Fault("a flow has no finite size >= 0", "flows", fix="bytes of 0 or more"))

    def __len__(self) -> int:
        return int(self.source.size)

    @classmethod
    def of(cls, source: ArrayLike, target: ArrayLike, nbytes: ArrayLike) -> Flows:
        """Build from anything array-like; a single size serves all flows."""
        s, t = np.asarray(source, np.int64).ravel(), np.asarray(target, np.int64).ravel()
        return cls(s, t, np.broadcast_to(np.asarray(nbytes, np.float64), s.shape).copy())

    @classmethod
    def together(cls, parts: Sequence[Flows]) -> Flows:
        """All flows of several sets."""
        if not parts:
            return cls.of([], [], 0.0)
        return cls(
            np.concatenate([p.source for p in parts]),
            np.concatenate([p.target for p in parts]),
            np.concatenate([p.nbytes for p in parts]),
        )


def _ring(nodes: list[IntArray], op: str, nbytes: float) -> Flows:
    n = sum(m.size for m in nodes)
    equal = len({m.size for m in nodes}) == 1
    channels = nodes[0].size if equal and len(nodes) > 1 else 1
    parts = []
    for c in range(channels):
        order = np.concatenate([np.roll(members, -c) for members in nodes])
        edges = order.size - 1 if op == "broadcast" else order.size
        parts.append(Flows.of(order[:edges], np.roll(order, -1)[:edges], RING_BYTES[op](n) * nbytes / channels))
    return Flows.together(parts)


def double_tree(n: int) -> tuple[IntArray, IntArray]:
    """Parents of `n` nodes in the two trees of NCCL (-1 for the root): leaves of one are inside the other.

    The first tree joins node `i` (its lowest set bit `l`) to ``i - l + 2 l`` or ``i - l``; the second is its mirror
    for even `n` and its shift by one for odd `n` (NCCL ``src/graph/trees.cc``).
    """

    def parent(i: int) -> int:
        low = i & -i if i else 1 << max(n - 1, 1).bit_length()
        up = (i ^ low) | (low << 1)
        if i == 0:
            return -1
        return up if up < n else i ^ low

    first = np.asarray([parent(i) for i in range(n)], dtype=np.int64)
    place = np.arange(n)[::-1] if n % 2 == 0 else np.roll(np.arange(n), -1)
    second = np.full(n, -1, dtype=np.int64)
    for i in range(n):
        second[place[i]] = place[first[i]] if first[i] >= 0 else -1
    return first, second


def _tree(nodes: list[IntArray], op: str, nbytes: float) -> Flows:
    if len({m.size for m in nodes}) != 1:
        raise InputError(Fault("nodes hold unlike numbers of ranks", "tree", fix="algorithm ring"))
    r, parts = nodes[0].size, []
    for c in range(r if len(nodes) > 1 else 1):
        chains = np.stack([np.roll(members, -c) for members in nodes])
        share = nbytes / 2.0 / (r if len(nodes) > 1 else 1)
        for parents in double_tree(len(nodes)):
            below = np.flatnonzero(parents >= 0)
            ends = [(chains[:, 1:].ravel(), chains[:, :-1].ravel()), (chains[below, 0], chains[parents[below], 0])]
            for low, high in ends:
                if op == "all_reduce":
                    parts.append(Flows.of(low, high, share))
                parts.append(Flows.of(high, low, share))
    return Flows.together(parts)


def _direct(nodes: list[IntArray], op: str, nbytes: float) -> Flows:
    ranks = np.concatenate(nodes)
    source, target = np.repeat(ranks, ranks.size), np.tile(ranks, ranks.size)
    other = source != target
    return Flows.of(source[other], target[other], nbytes / ranks.size)


def _hierarchical(nodes: list[IntArray], op: str, nbytes: float) -> Flows:
    if len({m.size for m in nodes}) != 1:
        raise InputError(Fault("nodes hold unlike numbers of ranks", "hierarchical", fix="algorithm ring"))
    r, parts = nodes[0].size, []
    halves = 2.0 if op == "all_reduce" else 1.0
    # An all-gather brings the other nodes' parts over the rails first, and passes on all of them inside.
    if r > 1:
        parts += [Flows.of(m, np.roll(m, -1), halves * (r - 1) / r * nbytes) for m in nodes]
    if len(nodes) > 1:
        over = halves * (len(nodes) - 1) / len(nodes) * nbytes / r
        parts += [Flows.of(rail, np.roll(rail, -1), over) for rail in np.stack(nodes).T]
    return Flows.together(parts)


def _pairwise(nodes: list[IntArray], op: str, nbytes: float) -> Flows:
    ranks = np.concatenate(nodes)
    half = ranks.size // 2
    if ranks.size % 2:
        raise InputError(Fault(f"{ranks.size} ranks do not form pairs", "pairwise", fix="an even number of ranks"))
    return Flows.of(ranks[:half], ranks[half:], nbytes)


ALGORITHMS: dict[str, tuple[tuple[str, ...], Callable[[list[IntArray], str, float], Flows]]] = {
    "ring": (("all_reduce", "all_gather", "reduce_scatter", "broadcast"), _ring),
    "tree": (("all_reduce", "broadcast"), _tree),
    "direct": (("all_to_all", "all_gather", "reduce_scatter"), _direct),
    "hierarchical": (("all_reduce", "all_gather", "reduce_scatter"), _hierarchical),
    "pairwise": (("send_recv",), _pairwise),
}
"""Algorithm -> (collectives that it can run, what it sends)."""

DEFAULT_ALGORITHM = {
    "all_reduce": "ring", "all_gather": "ring", "reduce_scatter": "ring", "broadcast": "ring",
    "all_to_all": "direct", "send_recv": "pairwise",
}  # fmt: skip


def members(fabric: Fabric, ranks: Sequence[tuple[int, int]]) -> list[IntArray]:
    """Global GPU numbers of a group, node by node in the order that they first appear.

    Parameters
    ----------
    fabric : Fabric
    ranks : sequence of (node, gpu)
        In rank order.

    Raises
    ------
    InputError
        For a place that the fabric does not have, or one that is named twice: all faults at once.
    """
    faults, seen = [], set()
    by_node: dict[int, list[int]] = {}
    for rank, (node, gpu) in enumerate(ranks):
        where = f"rank {rank}"
        if not (0 <= node < fabric.nodes and 0 <= gpu < fabric.gpus_per_node):
            why = f"there are {fabric.nodes} nodes of {fabric.gpus_per_node} GPUs"
            faults.append(Fault(f"is placed on node {node}, GPU {gpu}", where, why, "a place from 0"))
        elif (node, gpu) in seen:
            faults.append(Fault(f"is placed on node {node}, GPU {gpu} as another rank", where, fix="a GPU of its own"))
        seen.add((node, gpu))
        by_node.setdefault(node, []).append(node * fabric.gpus_per_node + gpu)
    if not ranks:
        faults.append(Fault("the group has no ranks", "group", fix="at least one"))
    if faults:
        raise InputError(faults)
    return [np.asarray(gpus, dtype=np.int64) for gpus in by_node.values()]


def traffic(
    fabric: Fabric, ranks: Sequence[tuple[int, int]], op: str, nbytes: float, algorithm: str | None = None
) -> Flows:
    """What a collective sends, GPU to GPU; table in the module docstring.

    Parameters
    ----------
    fabric : Fabric
    ranks : sequence of (node, gpu)
        The group's ranks in order.
    op : str
        ``all_reduce``, ``all_gather``, ``reduce_scatter``, ``broadcast``, ``all_to_all``, ``send_recv``.
    nbytes : float
        By the nccl-tests convention.
    algorithm : str, optional
        One of `ALGORITHMS`; the usual one of the collective by default.

    Returns
    -------
    Flows
        None for a group of one, and of no bytes for a size of zero.

    Raises
    ------
    InputError
        For an unknown collective or algorithm, or one that cannot run the other; for a negative or infinite size;
        for places that the fabric does not have.
    """
    chosen = algorithm or DEFAULT_ALGORITHM.get(op, "")
    if op not in DEFAULT_ALGORITHM:
        raise InputError(Fault(f"collective {op!r} is unknown", "traffic", fix=", ".join(DEFAULT_ALGORITHM)))
    if chosen not in ALGORITHMS or op not in ALGORITHMS[chosen][0]:
        can = ", ".join(name for name, (ops, _) in ALGORITHMS.items() if op in ops)
        raise InputError(Fault(f"algorithm {chosen!r} cannot run {op}", "traffic", fix=can))
    if not (np.isfinite(nbytes) and nbytes >= 0):
        raise InputError(Fault(f"nbytes is {nbytes:g}", "traffic", "sizes are finite and >= 0", "a size of 0 or more"))
    nodes = members(fabric, ranks)
    if sum(m.size for m in nodes) == 1:
        return Flows.of([], [], 0.0)
    return ALGORITHMS[chosen][1](nodes, op, float(nbytes))
