"""`Examiner`: sizes, prices and times candidates, and keeps the best of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

import numpy as np
from numpy.typing import NDArray

from hwmodels.cluster import Cluster
from hwmodels.distinct import distinct
from hwmodels.records import dataclass
from planner import power
from planner.evaluate import bounds, details, exact_seconds
from planner.priced import PricedModel
from planner.search.least import peak_bytes
from planner.search.objective_base import Candidates, Limit, Objective, costs
from planner.search.ranking import Ranking, best_first
from planner.search.result import Row
from planner.search.variant import Variant
from planner.simulate.dag import build_dag, durations
from planner.step.assemble import Group, assemble_all, dag_groups

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
WAVE = 16
"""Candidates that are timed before there is an answer."""
MOST_NODES = 30_000
"""Nodes of a step that the event engine plays within a search: a fraction of a second."""
DETAILED = 8
"""Candidates that are predicted in full before the next ones are held against the answer, where it asks for that."""
KEPT = 64
"""Rows that are kept when they have been predicted: most of an answer's."""
MANY = 64
"""Candidates of one graph that are timed together."""


@dataclass(frozen=True, slots=True, eq=False)
class Timed:
    """A candidate whose step has been timed: where it stands, and its seconds and peak bytes."""

    priced: PricedModel
    group: Group
    position: int
    step_s: float
    peak_bytes: float


@dataclass(frozen=True, slots=True, eq=False)
class _Priced:
    """Candidates of one group that fit: their places in the order of the search, peaks, bounds of their costs, seconds
    of their kernels (`kernel_seconds`; zero unless asked for), and whether limits leave them.
    """

    priced: PricedModel
    group: Group
    places: list[tuple[int, ...]]
    peak_bytes: FloatArray
    bounds: FloatArray
    compute_s: FloatArray
    kept: BoolArray


@dataclass(slots=True, eq=False)
class Examiner:
    """The dear end of a search, and its answer so far.

    Attributes
    ----------
    cluster : Cluster
    objectives, limits : tuple
    capacity : float
        Bytes that a rank may take.
    top : int
    ranking : Ranking
    sized, priced, simulated : int
        As in `SearchResult`.
    dropped : dict of str to int
        By memory and by limits.
    """

    cluster: Cluster
    objectives: tuple[Objective, ...]
    limits: tuple[Limit, ...]
    capacity: float
    top: int
    ranking: Ranking[Timed] = field(init=False)
    sized: int = 0
    priced: int = 0
    simulated: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    _rows: dict[Timed, Row] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.ranking = Ranking(len(self.objectives), self.top)

    @property
    def asks(self) -> bool:
        """Whether an objective or a limit reads more than seconds and bytes: kernels' seconds, the full prediction."""
        return not all([one.from_step for one in self.objectives] + [one.from_step for one in self.limits])

    def examine(self, variants: Sequence[Variant], variant: IntArray, work: IntArray, state: IntArray) -> None:
        """Size candidates, price those that fit, and time those whose bounds allow a place in the answer."""
        found: list[_Priced] = []
        for number in distinct(variant):
            mine = variant == number
            one, rows = variants[int(number)], zip(work[mine].tolist(), state[mine].tolist(), strict=True)
            found += self._price(one.of(work[mine], state[mine]), [(one.number, *pair) for pair in rows])
        if found:
            self._time(found)

    def add(self, priced: PricedModel, places: Sequence[tuple[int, ...]]) -> None:
        """Examine candidates that stand in no table; `places` order those of equal costs."""
        if found := self._price(priced, places):
            self._time(found)

    def _price(self, priced: PricedModel, places: Sequence[tuple[int, ...]]) -> list[_Priced]:
        peak = peak_bytes(priced)
        fits = peak <= self.capacity
        self.sized += len(places)
        self._drop("memory", int((~fits).sum()))
        self.priced += int(fits.sum())
        found = []
        for group in assemble_all(priced, list(dag_groups(priced, np.flatnonzero(fits)))):
            compute_s = kernel_seconds(group) if self.asks else np.zeros(len(group.index))
            here = self._candidates(priced, group, bounds(group), peak[group.index], compute_s)
            kept = np.ones(len(group.index), dtype=np.bool_)
            for limit in self.limits:
                kept = self._limited(limit, kept, limit.may(here))
            rows = group.index
            each = [places[i] for i in rows]
            found.append(_Priced(priced, group, each, peak[rows], self._costs(here), compute_s, kept))
        return found

    def _limited(self, limit: Limit, kept: BoolArray, meets: BoolArray) -> BoolArray:
        """Those of the kept that meet a limit; the others are counted."""
        lost = int((kept & ~meets).sum())
        self._drop(limit.id, lost)
        self.priced -= lost
        return np.asarray(kept & meets)

    def _candidates(
        self, priced: PricedModel, group: Group, step_s: FloatArray, peak: FloatArray, compute_s: FloatArray
    ) -> Candidates:
        layouts = group.layouts
        return Candidates(
            step_s, peak, priced.workload, self.cluster, lambda name: np.asarray(getattr(layouts, name)), compute_s,
            whole=True,
        )  # fmt: skip

    def _costs(self, here: Candidates) -> FloatArray:
        return np.stack([costs(one, one.of(here)) for one in self.objectives], axis=1)

    def _time(self, found: Sequence[_Priced]) -> None:
        """Time the candidates in the order of their bounds, as long as these allow a place in the answer."""
        low = np.concatenate([part.bounds for part in found])
        owner = np.concatenate([np.full(len(part.bounds), i) for i, part in enumerate(found)])
        inside = np.concatenate([np.arange(len(part.bounds)) for part in found])
        left = np.flatnonzero(np.concatenate([part.kept for part in found]))
        order = left[best_first(low[left])]
        while len(order := order[self.ranking.open(low[order])]):
            # one graph times many as fast as a few: the best's own group comes with it, once there is an answer
            full = len(self.ranking) >= self.top
            wave = order[owner[order] == owner[order[0]]][:MANY] if full else order[:WAVE]
            order = order[~np.isin(order, wave)]
            for i in distinct(owner[wave]):
                self._exact(found[int(i)], inside[wave[owner[wave] == i]])

    def _exact(self, part: _Priced, positions: IntArray) -> None:
        seconds = exact_seconds(part.group, positions)
        self.simulated += len(positions)
        peak = part.peak_bytes[positions]
        timed = [
            Timed(part.priced, part.group, int(i), float(s), float(p))
            for i, s, p in zip(positions, seconds, peak, strict=True)
        ]
        layouts = part.group.layouts
        here = Candidates(
            seconds, peak, part.priced.workload, self.cluster,
            lambda name: np.asarray(getattr(layouts, name))[positions], part.compute_s[positions], whole=True,
            exact=True,
        )  # fmt: skip
        low = self._costs(here)
        order = best_first(low)
        while len(order := order[self.ranking.open(low[order])] if self.asks else order):
            some, order = (order[:DETAILED], order[DETAILED:]) if self.asks else (order, order[:0])
            self._add(part, positions[some], here.take(some), [timed[int(i)] for i in some])

    def _add(self, part: _Priced, positions: IntArray, here: Candidates, timed: Sequence[Timed]) -> None:
        """Timed candidates that limits leave, into the answer; what asks for the full prediction gets it here."""
        kept = np.ones(len(timed), dtype=np.bool_)
        for limit in self.limits:
            meets = kept & limit.may(here)
            if not limit.from_step:
                some = self.rows([timed[int(i)] for i in np.flatnonzero(meets)])
                meets[meets] = [limit.holds(row) for row in some]
            kept = self._limited(limit, kept, meets)
        rows = np.flatnonzero(kept)
        here, left = here.take(rows), [timed[int(i)] for i in rows]
        each = np.stack([costs(one, self._values(one, here, left)) for one in self.objectives], axis=1)
        self.ranking.add(each, [part.places[int(positions[i])] for i in rows], left)

    def _values(self, metric: Objective, here: Candidates, timed: Sequence[Timed]) -> FloatArray:
        """A metric of timed candidates."""
        return metric.of(here) if metric.from_step else np.asarray([metric.value(row) for row in self.rows(timed)])

    def rows(self, timed: Sequence[Timed]) -> list[Row]:
        """The rows of timed candidates; their ranks are for the answer to give. Those of late are kept."""
        new = [one for one in timed if one not in self._rows]
        steps = details([(one.priced, one.group, one.position) for one in new])
        found = {one: self._rows[one] for one in timed if one in self._rows}
        for at, step in zip(new, steps, strict=True):
            layout, count = at.group.layouts.layout(at.position), int(at.group.microbatches[at.position])
            found[at] = self._rows[at] = Row(0, layout, step, count, at.priced.workload)
        for old in list(self._rows)[: max(len(self._rows) - KEPT, 0)]:
            del self._rows[old]
        return [found[one] for one in timed]

    def contended_s(self, one: Timed) -> float | None:
        """Seconds of the event engine, where transfers share links; None for graphs of more than `MOST_NODES`."""
        from planner.simulate.events import simulate_events

        group = one.group
        dag = build_dag(group.schedule, group.pp, int(group.microbatches[one.position]), group.vpp, group.comm)
        if dag.n > MOST_NODES:
            return None
        costs = group.durations.costs(np.asarray([one.position]))
        return float(simulate_events(dag, durations(dag, costs), contention=True).step_s[0])

    def _drop(self, name: str, count: int) -> None:
        if count:
            self.dropped[name] = self.dropped.get(name, 0) + count


def kernel_seconds(group: Group) -> FloatArray:
    """Seconds of a step that a rank's kernels take, mean over pipeline ranks: ndarray (b,)."""
    parts = group.parts
    each = np.asarray(sum(parts[name] for name in power.COMPUTE if name in parts))
    return np.asarray(each.mean(axis=1) * group.microbatches)
