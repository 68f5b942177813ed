"""Placements that are tried: the axes of a layout cut into what lies in a node, below a leaf, and beyond.

Each is a list of digits, the fastest first: how far an axis is laid out before the next one. ``tp 8, pp 2, dp 4, pp 2``
keeps tp in a node of 8, two stages and four data-parallel ranks side by side below a leaf, and the two halves of the
pipeline apart. Every order of the axes is one such list, with each axis whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import permutations
from math import gcd

import numpy as np
from numpy.typing import NDArray

from planner.layout import Layout, divisors

IntArray = NDArray[np.int64]
Digits = tuple[tuple[str, int], ...]
PARTS: tuple[str, ...] = ("tp", "cp", "shard", "replica", "pp")
"""Axes that are laid out apart: dp as the ranks that shard together, and their replicas."""


def degrees(layout: Layout) -> dict[str, int]:
    """Ranks along each of `PARTS`."""
    shard = layout.fsdp or layout.dp
    return {"tp": layout.tp, "cp": layout.cp, "shard": shard, "replica": layout.dp // shard, "pp": layout.pp}


def coordinates(layout: Layout) -> dict[str, IntArray]:
    """Where every world rank stands along each of `PARTS`."""
    rest, found = np.arange(layout.world), {}
    for axis in layout.order.split("-"):
        size = getattr(layout, axis)
        found[axis], rest = rest % size, rest // size
    shard = layout.fsdp or layout.dp
    return {"tp": found["tp"], "cp": found["cp"], "shard": found["dp"] % shard, "replica": found["dp"] // shard,
            "pp": found["pp"]}  # fmt: skip


def positions(layout: Layout, digits: Digits) -> IntArray:
    """Place of every rank when ranks are laid out digit by digit: a permutation of the ranks."""
    left, place, run = coordinates(layout), np.zeros(layout.world, dtype=np.int64), 1
    for axis, size in digits:
        place = place + left[axis] % size * run
        left[axis] = left[axis] // size
        run *= size
    return place


def ordered(layout: Layout, order: Sequence[str]) -> Digits:
    """Digits with every axis whole, in an order of `PARTS`."""
    sizes = degrees(layout)
    return tuple((axis, sizes[axis]) for axis in order if sizes[axis] > 1)


def filled(layout: Layout, begun: Digits, rest: Sequence[str] = PARTS) -> Digits:
    """`begun`, with what it leaves of each axis laid out whole in the order `rest`."""
    left = degrees(layout)
    for axis, size in begun:
        left[axis] //= size
    return (*begun, *((axis, left[axis]) for axis in rest if left[axis] > 1))


def orders(layout: Layout) -> list[Digits]:
    """Every arrangement with whole axes, each once; the usual one first."""
    found = {ordered(layout, order): None for order in permutations(PARTS)}
    return list(found)


def blocks(layout: Layout, begun: Digits, size: int) -> Iterator[Digits]:
    """`begun` followed by every way to lay out `size` more ranks, faster axes of the usual order first."""
    left = degrees(layout)
    for axis, taken in begun:
        left[axis] //= taken
    for sizes in _cuts(tuple(left[axis] for axis in PARTS), size):
        yield (*begun, *((axis, cut) for axis, cut in zip(PARTS, sizes, strict=True) if cut > 1))


@cache
def _cuts(limits: tuple[int, ...], size: int) -> tuple[tuple[int, ...], ...]:
    """Every tuple of divisors of the limits whose product is `size`."""
    if not limits:
        return ((),) if size == 1 else ()
    first, *rest = limits
    return tuple(
        (d, *others) for d in reversed(divisors(gcd(first, size))) for others in _cuts(tuple(rest), size // d)
    )


def fills(ranks: int, gpus_per_node: int, nodes: int) -> list[int]:
    """Ranks a node that may be worth while: all GPUs, and fewer where that many nodes are there and none is part full.

    256 ranks on four racks of 72 GPUs: 72 a rack tear groups of 64 apart, 64 a rack do not.
    """
    even = [d for d in divisors(ranks, gpus_per_node - 1) if ranks // d <= nodes and ranks > gpus_per_node]
    return [gpus_per_node, *(even[-1:] if ranks % gpus_per_node else [])]


def seated(place: IntArray, nodes: Sequence[int], gpus_per_node: int, fill: int = 0) -> IntArray:
    """GPU of every rank from its place, nodes filled in the order given with `fill` ranks each (all GPUs: 0)."""
    each, held = np.asarray(nodes, dtype=np.int64), fill or gpus_per_node
    return np.asarray(each[place // held] * gpus_per_node + place % held)


def assignments(ranks: int, gpus_per_node: int, nodes: Sequence[int], leaf_span: int) -> Iterator[tuple[int, ...]]:
    """Every placement that differs in which ranks share a node and which nodes a leaf; GPUs of a node are alike.

    Nodes of a leaf are alike too: of those that differ by exchanging them the one that fills the first node with the
    lowest ranks is taken.
    """

    def fill(left: tuple[int, ...], at: int, lowest: dict[int, int], done: list[tuple[int, ...]]) -> Iterator[
        tuple[int, ...]
    ]:  # fmt: skip
        if at == len(nodes) or not left:
            found = [0] * ranks
            for node, held in zip(nodes, done, strict=False):
                for gpu, rank in enumerate(held):
                    found[rank] = node * gpus_per_node + gpu
            yield tuple(found)
            return
        leaf = nodes[at] // leaf_span
        for held in _subsets(left, min(gpus_per_node, len(left))):
            if held[0] < lowest.get(leaf, -1):
                continue
            rest = tuple(rank for rank in left if rank not in held)
            yield from fill(rest, at + 1, {**lowest, leaf: held[0]}, [*done, held])

    yield from fill(tuple(range(ranks)), 0, {}, [])


def _subsets(items: tuple[int, ...], size: int) -> Iterator[tuple[int, ...]]:
    from itertools import combinations

    yield from combinations(items, size)
