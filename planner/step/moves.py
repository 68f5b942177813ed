"""What data parallelism moves between ranks, priced for any number of groups of layouts together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, fields

import numpy as np
from numpy.typing import NDArray

from hwmodels import collectives
from hwmodels.cluster import Cluster
from hwmodels.estimate import Estimate
from hwmodels.records import dataclass
from hwmodels.topology import GroupShape
from planner.layout import LayoutBatch
from planner.layout.distinct import distinct_rows

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
FEW = 2048
"""Groups that are priced faster than those that are alike among them are found."""


@dataclass(frozen=True, slots=True, eq=False)
class Move:
    """One collective of every stage: `times` operations of `nbytes` (n, d) over groups whose fields are (n,).

    The d are kinds of stages, or ranks.
    """

    op: str
    nbytes: FloatArray
    shape: GroupShape
    times: FloatArray | float = 1.0


def price_moves(cluster: Cluster, moves: Sequence[Move]) -> list[Estimate]:
    """Seconds of each, by one call of the law for all moves of an operation: Estimates (n, d)."""
    found: dict[int, Estimate] = {}
    for op in dict.fromkeys(move.op for move in moves):
        mine = [i for i, move in enumerate(moves) if move.op == op]
        sizes = [moves[i].nbytes for i in mine]
        wide = np.concatenate([np.full(len(size), size.shape[1]) for size in sizes])

        def joined(name: str, mine: list[int] = mine, wide: IntArray = wide) -> IntArray:
            return np.repeat(np.concatenate([getattr(moves[i].shape, name) for i in mine]), wide)

        shape = GroupShape(*(joined(f.name) for f in fields(GroupShape)))
        every = _seconds(cluster, op, np.concatenate([size.reshape(-1) for size in sizes]), shape)
        cuts = np.cumsum([size.size for size in sizes])[:-1]
        values = (np.split(np.broadcast_to(part, every.mid.shape), cuts) for part in (every.mid, every.spread))
        for i, mid, spread in zip(mine, *values, strict=True):
            like, times = moves[i].nbytes.shape, moves[i].times
            one = Estimate(mid.reshape(like), spread.reshape(like))
            found[i] = one if isinstance(times, float) and times == 1.0 else one * times
    return [found[i] for i in range(len(moves))]


def _seconds(cluster: Cluster, op: str, nbytes: FloatArray, shape: GroupShape) -> Estimate:
    """Seconds of a collective of many groups (n,): the law is asked once for those that are alike to the last bit."""
    n, parts = len(nbytes), [np.asarray(getattr(shape, f.name)) for f in fields(GroupShape)]
    if n <= FEW:
        return collectives.seconds(cluster, op, nbytes, shape)
    columns = [part.astype(np.float64).view(np.int64) for part in (*parts, nbytes)]
    first, same = distinct_rows(columns, n)
    few = collectives.seconds(cluster, op, nbytes[first], GroupShape(*(part[first] for part in parts)))
    mid, spread = (np.broadcast_to(part, first.shape)[same] for part in (few.mid, few.spread))
    return Estimate(mid, spread)


@dataclass(frozen=True, slots=True, eq=False)
class Axes:
    """Shapes of the groups of many layouts, and what their collectives take from compute, each found once.

    Attributes
    ----------
    layouts : LayoutBatch, shape (n,)
    """

    layouts: LayoutBatch
    cluster: Cluster
    _shapes: dict[str, GroupShape] = field(default_factory=dict)
    _beside: dict[tuple[str, str], collectives.Beside] = field(default_factory=dict)

    def shape(self, axis: str, rows: slice) -> GroupShape:
        """Of the groups of an axis, for some of the layouts."""
        if axis not in self._shapes:
            found = self.layouts.group(axis, self.cluster)
            parts = (np.broadcast_to(getattr(found, f.name), found.nodes.shape) for f in fields(GroupShape))
            self._shapes[axis] = GroupShape(*parts)
        every = self._shapes[axis]
        return GroupShape(*(getattr(every, f.name)[rows] for f in fields(GroupShape)))

    def beside(self, op: str, axis: str, rows: slice) -> collectives.Beside:
        """Slow-downs beside a collective of an axis, for some of the layouts: ndarrays (k, 1)."""
        if (op, axis) not in self._beside:
            shape = self.shape(axis, slice(None))
            self._beside[op, axis] = collectives.beside(self.cluster, op, shape.nodes, shape.ranks_per_node)
        every = self._beside[op, axis]
        return collectives.Beside(every.compute[rows, None], every.collective[rows, None])
