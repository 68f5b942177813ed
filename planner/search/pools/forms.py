"""Ways to use pools, as arrays: replicas in several pools, and pipelines over them, each with an estimate of its time.

The estimate orders what is priced; it is no part of an answer. Its bound is one: compute of the busiest rank alone,
with the best shares and the best split there could be, in fractions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, pairwise, permutations, product

import numpy as np
from numpy.typing import NDArray

from hwmodels.cluster import Cluster
from hwmodels.pools import island, joined, pool_link
from planner.layout import LayoutBatch, RuleContext
from planner.mixed import Pieces
from planner.mixed.apportion import proportional
from planner.search.objective_base import Constraint
from planner.search.pools.bases import Speed, memory_of
from planner.state import gradient_bytes

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
FRACTIONS = (1.0, 0.75, 0.5, 0.25)
"""Parts of a pool that are tried beside all of it, one replica less, and one replica."""
MOST_POOLS = 3
"""Pools that one arrangement is searched over."""
ESTIMATE_SLACK = 0.98
"""Screened memory is of even stages and a near number of replicas; what is chosen is sized exactly."""


@dataclass(frozen=True, slots=True, eq=False)
class Form:
    """Candidates of one kind over the same pools, in one order.

    Attributes
    ----------
    kind : {'shares', 'pipeline'}
    pools : tuple of int
        In the order of the replicas, or of the pipeline.
    base : ndarray (k,)
        Position among the bases.
    parts : ndarray (k, pools)
        Replicas in each pool, or pipeline ranks.
    dp : ndarray (k,)
        Replicas in all.
    microbatches : ndarray (k, pools)
        Of a replica of each pool, or of every replica of the pipeline.
    seconds, bound : ndarray (k,)
        Estimate of a step, and what it cannot be less than.
    gpus : ndarray (k, pools)
    """

    kind: str
    pools: tuple[int, ...]
    base: IntArray
    parts: IntArray
    dp: IntArray
    microbatches: IntArray
    seconds: FloatArray
    bound: FloatArray
    gpus: IntArray

    def __len__(self) -> int:
        return len(self.base)

    def take(self, rows: BoolArray | IntArray) -> Form:
        """The candidates at `rows`."""
        return Form(
            self.kind, self.pools, self.base[rows], self.parts[rows], self.dp[rows], self.microbatches[rows],
            self.seconds[rows], self.bound[rows], self.gpus[rows],
        )  # fmt: skip


@dataclass(slots=True, eq=False)
class Forms:
    """Everything that is tried, for one model, cluster and batch."""

    pieces: Pieces
    layouts: LayoutBatch
    speeds: list[Speed]
    capacity: list[float]
    constraints: Sequence[Constraint] = ()
    dropped: dict[str, int] = field(default_factory=dict)
    _memory: FloatArray | None = None

    def every(self) -> Iterator[Form]:
        """All forms with candidates, pools alone first."""
        cluster = self.pieces.cluster
        numbers = range(len(cluster.pools))
        for size in range(1, min(len(numbers), MOST_POOLS) + 1):
            for chosen in combinations(numbers, size):
                if joined(cluster, chosen):
                    yield self._allowed(self._shares(chosen))
        for size in range(2, min(len(numbers), MOST_POOLS) + 1):
            for order in permutations(numbers, size):
                if joined(cluster, order):
                    yield from map(self._allowed, self._pipelines(order))

    def _allowed(self, form: Form) -> Form:
        """Without what a constraint on fields forbids, which is counted."""
        for constraint in self.constraints:
            layouts = replace(self.layouts.take(form.base), dp=form.dp)
            context = RuleContext.of(self.pieces.model, self.pieces.workload, self.pieces.cluster.n_ranks)
            holds = np.broadcast_to(constraint.holds(layouts, context), (len(form),))
            if not holds.all():
                self.dropped[constraint.id] = self.dropped.get(constraint.id, 0) + int((~holds).sum())
                form = form.take(holds)
        return form

    @property
    def _total(self) -> IntArray:
        """Micro-batches of the step: ndarray (n,)."""
        return np.asarray(self.pieces.workload.gbs // self.layouts.mbs)

    @property
    def _unit(self) -> IntArray:
        """What micro-batches of a replica are a multiple of: ndarray (n,)."""
        return np.where(self.layouts.vpp > 1, self.layouts.pp, 1)

    def _sharded(self, dp: IntArray, rows: IntArray | slice = slice(None)) -> BoolArray:
        """Whether every replica has work, and ZeRO something to shard over."""
        cp, zero = (np.asarray(getattr(self.layouts, name))[rows] for name in ("cp", "zero_stage"))
        return np.asarray((dp * self._unit[rows] <= self._total[rows]) & ((dp * cp > 1) | (zero == 0)))

    def _shares(self, pools: Sequence[int]) -> Form:
        """Replicas within a pool each, in all of `pools`."""
        cluster, layouts = self.pieces.cluster, self.layouts
        size = np.asarray(layouts.tp * layouts.cp * layouts.pp)
        most = np.stack([cluster.pools[i].n_ranks // size for i in pools], axis=1)
        parts = []
        for column in range(len(pools)):
            full = most[:, column]
            tried = [np.floor(full * f).astype(np.int64) for f in FRACTIONS] + [full - 1, np.ones_like(full)]
            parts.append(np.stack(tried if len(pools) < MOST_POOLS else tried[:3], axis=1))
        base, counts = [], []
        for choice in product(*(range(p.shape[1]) for p in parts)):
            count = np.stack([p[:, j] for p, j in zip(parts, choice, strict=True)], axis=1)
            rows = np.flatnonzero(((count >= 1) & (count <= most)).all(axis=1) & self._sharded(count.sum(axis=1)))
            base.append(rows)
            counts.append(count[rows])
        rows, count = np.concatenate(base), np.concatenate(counts)
        keys = np.unique(np.concatenate([rows[:, None], count], axis=1), axis=0)
        rows, count = keys[:, 0], keys[:, 1:]
        fits = self._fit(rows, count, pools)
        rows, count = rows[fits], count[fits]
        slope, ramp = (np.stack([getattr(self.speeds[i], name)[rows] for i in pools], axis=1)
                       for name in ("slope", "ramp"))  # fmt: skip
        known = np.isfinite(slope).all(axis=1)
        rows, count, slope, ramp = rows[known], count[known], slope[known], ramp[known]
        total, unit = self._total[rows], self._unit[rows]
        each = proportional(slope, ramp, count, total, unit) if len(rows) else np.zeros((0, len(pools)))
        over = self._reduced(rows, pools)
        seconds = (ramp + slope * each).max(axis=1, initial=0.0) + over
        bound = total / np.maximum((count / slope).sum(axis=1), 1e-30)
        return Form("shares", tuple(pools), rows, count, count.sum(axis=1), each.astype(np.int64), seconds, bound,
                    count * size[rows][:, None])  # fmt: skip

    def _fit(self, rows: IntArray, count: IntArray, pools: Sequence[int]) -> BoolArray:
        """Whether even stages fit where the next power of four of replicas shards them."""
        most = int(count.max(initial=1))
        degrees = [4**i for i in range(most.bit_length() // 2 + 2)]
        sized = self._sized(degrees)
        shared = {i: sum(count[:, j] for j, p in enumerate(pools) if self._home(p) == self._home(i)) for i in pools}
        fits = np.ones(len(rows), dtype=np.bool_)
        for i in pools:
            column = np.ceil(np.log2(np.maximum(shared[i], 1)) / 2.0).astype(np.int64)
            need = sized[rows, np.minimum(column, len(degrees) - 1)]
            fits &= ~np.isfinite(need) | (need * ESTIMATE_SLACK <= self.capacity[i])
        return fits

    def _home(self, pool: int) -> int:
        return island(self.pieces.cluster, pool)

    def _sized(self, degrees: Sequence[int]) -> FloatArray:
        """Memory of the bases on the first pool, found once for as many degrees as were asked for."""
        if self._memory is None or self._memory.shape[1] < len(degrees):
            self._memory = memory_of(self.pieces, 0, degrees)
        return self._memory

    def _reduced(self, rows: IntArray, pools: Sequence[int]) -> FloatArray:
        """Seconds of all gradients over the links between fabrics at full speed, if nothing hides them."""
        homes = {self._home(i): i for i in pools}
        if len(homes) < 2:
            return np.zeros(len(rows))
        n, work = len(homes), self.pieces.workload
        priced = self.pieces.base(pools[0])
        whole = priced.model.parameters * gradient_bytes(work, priced.preset)
        return np.full(len(rows), 2.0 * (n - 1) / n * whole / self._narrowest(list(homes.values())))

    def _narrowest(self, pools: Sequence[int]) -> float:
        links = [pool_link(self.pieces.cluster, a, b) for a, b in combinations(pools, 2)]
        return min((link.bandwidth for link in links if link is not None), default=np.inf)

    def _pipelines(self, order: Sequence[int]) -> Iterator[Form]:
        """Every replica a pipeline over all of `order`, in that order, with whole ranks in each pool."""
        cluster, layouts = self.pieces.cluster, self.layouts
        have = np.asarray([cluster.pools[i].n_ranks for i in order])
        deep = np.flatnonzero((layouts.vpp == 1) & (layouts.pp >= len(order)))
        found = []
        for pp in np.unique(layouts.pp[deep]):
            mine = deep[layouts.pp[deep] == pp]
            for cut in combinations(range(1, int(pp)), len(order) - 1):
                ranks = np.diff([0, *cut, int(pp)])
                size = np.asarray(layouts.tp * layouts.cp)[mine]
                most = (have[None, :] // (ranks[None, :] * size[:, None])).min(axis=1)
                options = [np.floor(most * f).astype(np.int64) for f in FRACTIONS] + [most - 1]
                for dp in options:
                    keep = (dp >= 1) & self._sharded(dp, mine)
                    found.append((mine[keep], dp[keep], np.broadcast_to(ranks, (int(keep.sum()), len(order)))))
        if not found:
            return
        rows, dp, ranks = (np.concatenate(part) for part in zip(*found, strict=True))
        keys = np.unique(np.concatenate([rows[:, None], dp[:, None], ranks], axis=1), axis=0)
        rows, dp, ranks = keys[:, 0], keys[:, 1], keys[:, 2:]
        form = self._pipeline_form(cluster, tuple(order), rows, dp, ranks)
        if len(form):
            yield form

    def _pipeline_form(
        self, cluster: Cluster, order: tuple[int, ...], rows: IntArray, dp: IntArray, ranks: IntArray
    ) -> Form:
        layouts = self.layouts
        whole = np.stack([self.speeds[i].whole[rows] for i in order], axis=1)
        slope = 1.0 / (ranks / whole).sum(axis=1)
        total = -(-self._total[rows] // dp)
        pp = np.asarray(layouts.pp)[rows]
        send = np.zeros(len(rows))
        priced = self.pieces.base(order[0])
        boundary = np.broadcast_to(priced.lowered.boundary_bytes, (len(priced.embedding.forward.compute_s),))
        moved = boundary[priced.inverse[rows]] * np.asarray(layouts.tp * layouts.cp)[rows] * dp
        for one, other in pairwise(order):
            link = pool_link(cluster, one, other)
            if link is not None:
                send = np.maximum(send, link.link.latency_s + moved / link.bandwidth)
        beside = 0.0 if priced.preset.p2p_overlap else 2.0
        period = np.maximum(slope + beside * send, send)
        seconds = total * period + (pp - 1) * slope + 2.0 * (len(order) - 1) * send
        size = np.asarray(layouts.tp * layouts.cp)[rows]
        sized = self._sized([1])[rows, 0]
        room = np.asarray([self.capacity[i] for i in order])
        keep = np.isfinite(slope) & (sized * 0.5 * pp <= (ranks * room).sum(axis=1))
        gpus = ranks * (size * dp)[:, None]
        each = np.broadcast_to(total[:, None], ranks.shape)
        return Form("pipeline", order, rows, ranks, dp, each, seconds, total * slope, gpus).take(keep)
