"""The best placement of a layout on the nodes that it has, by priced traffic.

1. Candidates: every order of the axes; the axes cut at the node and at the leaf (`planner.placement.candidates`), the
   best few of each cut carried on to the next; then nodes of different leaves exchanged as long as that helps.
2. Each is measured by what its traffic puts on the links (`planner.placement.loads`): seconds of every axis on its
   fullest link, added up.
3. The best few of those, and the placement in order, are priced as whole steps by the cost model, which knows what
   hides behind compute. The fastest step is taken, and of equal ones the least traffic, and of those the usual one.

Where few placements differ, all of them are priced. So the choice is never slower than ranks in order, by the same
measure; that no better one exists is proven only where all were priced.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import comb, gcd, prod

import numpy as np
from numpy.typing import NDArray

from hwmodels.cluster import Cluster
from planner.evaluate import exact_seconds
from planner.layout import Layout, LayoutBatch
from planner.model.spec import ModelSpec
from planner.placement import candidates
from planner.placement.allocation import Allocation, first_nodes
from planner.placement.demand import Demand, demands
from planner.placement.loads import Loads, loads
from planner.plan import Workload
from planner.priced import price_model
from planner.step.assemble import assemble, dag_groups

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
KEPT = 5
"""Cuts that are carried on from the node to the leaf, and from there to the orders of the rest."""
FINALISTS = 8
"""Placements that are priced as whole steps."""
MOST_EXACT = 128
"""Placements up to which all are priced."""
WORK = 400_000
"""Ranks times candidates that are measured in all: a few seconds."""


@dataclass(frozen=True, slots=True, eq=False)
class Placed:
    """A placement and what it costs, beside that of ranks in order.

    Attributes
    ----------
    layout : Layout
        With its `placement`, empty where ranks fill all nodes of the cluster in order.
    gpus : ndarray of int64 (world,)
        GPU of every rank, ``node x gpus_per_node + gpu``.
    ordered : ndarray of int64 (world,)
        The same of ranks in order on the same nodes.
    loads, ordered_loads : Loads
    step_s, ordered_step_s : float
        Seconds of a step by the cost model, both by the shapes of their groups.
    tried : int
        Placements that were measured.
    exact : bool
        Whether those were all that there are, each priced as a whole step.
    """

    layout: Layout
    gpus: IntArray
    ordered: IntArray
    loads: Loads
    ordered_loads: Loads
    step_s: float
    ordered_step_s: float
    tried: int
    exact: bool

    @property
    def moved(self) -> bool:
        """Whether ranks lie elsewhere than in order."""
        return not np.array_equal(self.gpus, self.ordered)


def place(
    model: ModelSpec, cluster: Cluster, workload: Workload, layout: Layout, allocation: Allocation | None = None
) -> Placed:
    """Place the ranks of a layout.

    Parameters
    ----------
    layout : Layout
        Legal; a placement that it states counts as one candidate more.
    allocation : Allocation, optional
        Nodes that the job has; as many as it needs from node 0 by default.

    Raises
    ------
    hwmodels.errors.InfeasibleError
        Where there are fewer nodes than the ranks need.
    """
    fabric = cluster.fabric
    have = allocation or first_nodes(fabric, layout.world)
    have.held(fabric)
    bare = replace(layout, placement=())
    wanted = demands(price_model(model, workload, LayoutBatch.of([bare]), cluster))
    search = _Search(cluster, wanted, bare, have)
    stated = [np.asarray(layout.placement, dtype=np.int64)] if layout.placement else []
    found, exact = search.run(stated)
    steps = step_seconds(model, cluster, workload, bare, found)
    best = min(range(len(found)), key=lambda i: (round(steps[i] / steps[0], 9), search.measured(found[i]), i))
    gpus = found[best]
    plain = np.array_equal(gpus, np.arange(cluster.n_ranks))
    return Placed(
        replace(layout, placement=() if plain else tuple(int(gpu) for gpu in gpus)), gpus, found[0],
        loads(fabric, wanted, gpus), loads(fabric, wanted, found[0]), steps[best], steps[0], len(search.seen), exact,
    )  # fmt: skip


def step_seconds(
    model: ModelSpec, cluster: Cluster, workload: Workload, layout: Layout, placements: Sequence[IntArray]
) -> list[float]:
    """Seconds of a step under each placement, all priced together."""
    each = [replace(layout, placement=tuple(int(gpu) for gpu in gpus)) for gpus in placements]
    priced = price_model(model, workload, LayoutBatch.of(each), cluster)
    found = np.empty(len(each))
    for shape in dag_groups(priced, np.arange(len(each))):
        group = assemble(priced, *shape)
        found[group.index] = exact_seconds(group, np.arange(len(group.index)))
    return [float(seconds) for seconds in found]


class _Search:
    """Candidates of one layout, each measured once."""

    def __init__(self, cluster: Cluster, wanted: tuple[Demand, ...], layout: Layout, have: Allocation) -> None:
        self.fabric, self.wanted, self.layout, self.have = cluster.fabric, wanted, layout, have
        self.each = self.fabric.gpus_per_node
        self.fill = self.each
        self.seen: dict[bytes, float] = {}
        self.budget = max(WORK // layout.world, 60)

    @property
    def count(self) -> int:
        """Nodes that the ranks need, so many on each."""
        return -(-self.layout.world // self.fill)

    def measured(self, gpus: IntArray) -> float:
        """Seconds of the traffic on its links."""
        key = gpus.tobytes()
        if key not in self.seen:
            self.seen[key] = loads(self.fabric, self.wanted, gpus).seconds
        return self.seen[key]

    def run(self, stated: list[IntArray]) -> tuple[list[IntArray], bool]:
        """Ranks in order, and the best of the others; whether those are all that there are."""
        nodes = self.have.of(self.count, self.fabric, 1)
        default = candidates.seated(np.arange(self.layout.world), sorted(nodes), self.each)
        if self._all_there_are(nodes) <= MOST_EXACT:
            every = candidates.assignments(self.layout.world, self.each, sorted(nodes), self.fabric.leaf_span)
            found = [np.asarray(gpus, dtype=np.int64) for gpus in every]
            return self._best(default, [*stated, *self._whole(nodes), *found], 2 * MOST_EXACT), True
        found = list(stated)
        for fill in candidates.fills(self.layout.world, self.each, len(self.have.nodes)):
            self.fill = fill
            found += [*self._whole(self.have.of(self.count, self.fabric, 1)), *self._cut()]
        best = min(found, key=self.measured)
        return self._best(default, [*found, self._exchanged(best)], FINALISTS), False

    def _all_there_are(self, nodes: Sequence[int]) -> int:
        """Ways to share the ranks out over the nodes, those of a leaf alike."""
        if self.layout.world > 4 * self.each or self.layout.world % self.each or len(self.have.nodes) != len(nodes):
            return MOST_EXACT + 1
        left, found = self.layout.world, 1
        while left:
            found, left = found * comb(left, self.each), left - self.each
        leaves = [node // self.fabric.leaf_span for node in nodes]
        return found // prod(prod(range(1, leaves.count(leaf) + 1)) for leaf in set(leaves))

    def _best(self, default: IntArray, found: Iterable[IntArray], most: int) -> list[IntArray]:
        """The default, and those with least traffic in the order of that."""
        distinct = {gpus.tobytes(): gpus for gpus in found}
        distinct.pop(default.tobytes(), None)
        self.measured(default)
        ranked = sorted(distinct.values(), key=self.measured)
        return [default, *ranked[: most - 1]]

    def _whole(self, nodes: Sequence[int]) -> list[IntArray]:
        """Every order of whole axes, on the nodes in order and with whole leaves first."""
        sequences = {tuple(sorted(nodes)): None, tuple(nodes): None}
        digits = candidates.orders(self.layout)[: max(self.budget // 2, 1)]
        return [self._seat(each, sequence) for each in digits for sequence in sequences]

    def _seat(self, digits: candidates.Digits, nodes: Sequence[int]) -> IntArray:
        return candidates.seated(candidates.positions(self.layout, digits), nodes, self.each, self.fill)

    def _cut(self) -> list[IntArray]:
        """Axes cut at the node, then at the leaf, then the rest in every order."""
        inside = gcd(self.fill, self.layout.world)
        plain = self.have.of(self.count, self.fabric, 1)
        begun = self._kept(candidates.blocks(self.layout, (), inside), plain)
        found = [self._seat(candidates.filled(self.layout, digits), plain) for digits in begun]
        for block in self._leaf_blocks():
            nodes = self.have.of(self.count, self.fabric, block)
            cuts = (cut for digits in begun for cut in candidates.blocks(self.layout, digits, block))
            for digits in self._kept(cuts, nodes):
                rest = {candidates.filled(self.layout, digits, order): None for order in _few_orders()}
                found += [self._seat(each, nodes) for each in rest]
        return found[: self.budget]

    def _leaf_blocks(self) -> list[int]:
        """Numbers of nodes that may be kept below one leaf: divisors of all that some leaf holds."""
        leaves = [node // self.fabric.leaf_span for node in self.have.nodes]
        most = max(leaves.count(leaf) for leaf in set(leaves))
        return [b for b in range(min(most, self.count), 1, -1) if self.count % b == 0 and b < self.count][:3]

    def _kept(self, cuts: Iterable[candidates.Digits], nodes: Sequence[int]) -> list[candidates.Digits]:
        """The best few, what is left of the axes laid out in the usual order."""
        scored = []
        for i, digits in enumerate(cuts):
            if i >= self.budget:
                break
            scored.append((self.measured(self._seat(candidates.filled(self.layout, digits), nodes)), i, digits))
        return [digits for _, _, digits in sorted(scored)[:KEPT]]

    def _exchanged(self, gpus: IntArray) -> IntArray:
        """Nodes of different leaves exchanged, and nodes that are not used taken, as long as that helps."""
        span, best = self.fabric.leaf_span, gpus
        left = self.budget
        improved = True
        while improved and left > 0:
            improved = False
            used = np.unique(best // self.each)
            others = sorted(self.have.nodes)
            for a in used:
                for b in others:
                    if left <= 0 or a // span == b // span or (b in used and b < a):
                        continue
                    left -= 1
                    node = best // self.each
                    swapped = np.where(node == a, b, np.where(node == b, a, node)) * self.each + best % self.each
                    if self.measured(swapped) < self.measured(best) * (1.0 - 1e-9):
                        best, improved = swapped, True
                        break
                if improved:
                    break
        return best


def _few_orders() -> tuple[tuple[str, ...], ...]:
    """Orders of what lies beyond the leaves: the usual one, and each axis before the others."""
    parts = candidates.PARTS
    return (parts, *((axis, *(other for other in parts if other != axis)) for axis in parts[1:]))
