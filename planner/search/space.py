"""The space of layouts, laid out axis by axis, and the rules that drop candidates before they multiply.

Two tables are grown: what a micro-batch and its pipeline do (`WORK`), and where the model's state lies (`STATE`) over
each grid of ranks. A rule is applied as soon as the fields that it reads are laid out (`planner.layout.reads`), on
their distinct combinations; a prefix that it drops counts as all candidates behind it. A candidate is a pair of rows
of the two tables on the same grid: millions of them are never laid out field by field.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field

import numpy as np
from numpy.typing import NDArray

from hwmodels.cluster import Cluster
from hwmodels.records import dataclass
from planner.layout import RULES, Layout, LayoutBatch, RuleContext, check
from planner.layout.distinct import distinct_rows
from planner.layout.reads import FIELDS, fields_read
from planner.model.spec import ModelSpec
from planner.plan import Workload
from planner.search.axes import CELL, STATE, WORK, Axis, axes_of
from planner.search.objective_base import Constraint
from planner.search.ranges import (
    ANY_ORDER,
    MAX_MBS,
    MAX_VPP,
    OF_WORKLOAD,
    OFFLOADS,
    STAGES,
    Space,
    default_ranges,
    variants,
)

__all__ = [
    "ANY_ORDER", "MAX_MBS", "MAX_VPP", "OFFLOADS", "OF_WORKLOAD", "STAGES", "Enumerated", "Space", "Survey",
    "default_ranges",
    "enumerate_layouts", "survey", "variants",
]  # fmt: skip
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
Table = dict[str, IntArray]
CHUNK = 400_000
"""Candidates that are looked at together."""
FEW = 512
"""Rows that a rule is asked about one by one."""
MOST_CLOSE = 100_000
"""Candidates among which the one closest to legal is looked for."""


@dataclass(frozen=True, slots=True)
class Test:
    """A rule or a constraint with the searched fields that it reads."""

    id: str
    rule: Constraint
    reads: frozenset[str]

    def holds(self, batch: LayoutBatch, context: RuleContext) -> BoolArray | None:
        """True where layouts keep it, found on the distinct combinations of what it reads; None: all keep it."""
        n = len(batch)
        if not n:
            return None
        inverse = None
        if n > FEW:
            first, inverse = batch.distinct([name for name in FIELDS if name in self.reads])
            batch = batch.take(first)
        with np.errstate(divide="ignore"):
            held = np.asarray(self.rule.holds(batch, context))
        if held.all():
            return None
        held = np.broadcast_to(held, (len(batch),))
        return held if inverse is None else np.asarray(held[inverse])


@dataclass(slots=True, eq=False)
class Survey:
    """The legal candidates of a space as two tables, and what became of the others.

    Attributes
    ----------
    context : RuleContext
    work, state : dict of str to ndarray
        Fields of `WORK` (n rows) and of `STATE` over `CELL` (k rows), both ordered by cell.
    work_cell, state_cell : ndarray (cells + 1,)
        Where the rows of each grid of ranks begin.
    crossed : list of (id, ndarray (n,), ndarray (k,), ndarray)
        Rules that read fields of both: the class of each row, and whether each pair of classes keeps it.
    considered : int
    dropped : dict of str to int
        Of `crossed` rules what has been looked at so far.
    """

    context: RuleContext
    work: Table
    state: Table
    work_cell: IntArray
    state_cell: IntArray
    crossed: list[tuple[str, IntArray, IntArray, BoolArray]]
    considered: int
    dropped: dict[str, int] = field(default_factory=dict)

    @property
    def pairs(self) -> int:
        """Candidates that the rules of either table leave."""
        return int((np.diff(self.work_cell) * np.diff(self.state_cell)).sum())

    @property
    def states(self) -> IntArray:
        """Rows of state on the grid of each row of work: ndarray (n,)."""
        return np.repeat(np.diff(self.state_cell), np.diff(self.work_cell))

    def chunks(self, rows: IntArray | None = None, most: int = CHUNK) -> Iterator[tuple[IntArray, IntArray]]:
        """Rows of work and of state of every legal candidate, about `most` at a time; counts what is dropped.

        Parameters
        ----------
        rows : ndarray or None
            Rows of work whose candidates are asked for, in their order; all unless given.
        """
        rows = np.arange(self.work_cell[-1]) if rows is None else rows
        cell = np.searchsorted(self.work_cell, rows, side="right") - 1
        each = np.diff(self.state_cell)[cell]  # states of every such row
        rows, cell, each = rows[each > 0], cell[each > 0], each[each > 0]
        if not len(rows):
            return
        turn = (np.cumsum(each) - each) // most
        for some in np.split(np.arange(len(rows)), np.flatnonzero(np.diff(turn)) + 1):
            times = each[some]
            inside = np.arange(times.sum()) - np.repeat(np.cumsum(times) - times, times)
            state = np.repeat(self.state_cell[cell[some]], times) + inside
            yield self._legal(np.repeat(rows[some], times), state)

    def legal(self, rows: IntArray) -> int:
        """Legal candidates of rows of work, counted without laying them out; what is dropped is counted too."""
        if len(self.crossed) > 1:  # which of several rules is the first to drop one is not known of their classes
            return sum(len(work) for work, _ in self.chunks(rows))
        cell = np.searchsorted(self.work_cell, rows, side="right") - 1
        found = int(np.diff(self.state_cell)[cell].sum())
        for id_, of_work, of_state, kept in self.crossed:
            cells = np.repeat(np.arange(len(self.state_cell) - 1), np.diff(self.state_cell))
            k = kept.shape[1]
            counts = np.bincount(cells * k + of_state, minlength=(len(self.state_cell) - 1) * k).reshape(-1, k)
            holds = int((counts[cell] * kept[of_work[rows]]).sum())
            if holds < found:
                self.dropped[id_] = self.dropped.get(id_, 0) + found - holds
            found = holds
        return found

    def of_work(self, rows: IntArray) -> tuple[IntArray, IntArray]:
        """Rows of work and of state of every legal candidate on these rows of work."""
        cell = np.searchsorted(self.work_cell, rows, side="right") - 1
        begin, each = self.state_cell[cell], np.diff(self.state_cell)[cell]
        inside = np.arange(int(each.sum())) - np.repeat(np.cumsum(each) - each, each)
        return self._legal(np.repeat(rows, each), np.repeat(begin, each) + inside)

    def _legal(self, work: IntArray, state: IntArray) -> tuple[IntArray, IntArray]:
        """Those of the pairs that keep the rules which read fields of both tables."""
        for id_, of_work, of_state, kept in self.crossed:
            holds = kept[of_work[work], of_state[state]]
            if not holds.all():
                self.dropped[id_] = self.dropped.get(id_, 0) + int((~holds).sum())
                work, state = work[holds], state[holds]
        return work, state

    def layouts(self, work: IntArray, state: IntArray) -> LayoutBatch:
        """The candidates of these rows, field by field."""
        columns = {name: self.field(name, work, state) for name in (*WORK, *STATE)}
        return LayoutBatch.filled(columns)

    def field(self, name: str, work: IntArray, state: IntArray) -> IntArray:
        """One field of the candidates of these rows."""
        return np.asarray(self.work[name][work] if name in self.work else self.state[name][state], dtype=np.int64)


@dataclass(slots=True)
class Enumerated:
    """Legal layouts, how many were considered, and how many each rule dropped.

    `dropped` counts a candidate under the first rule that it breaks, in the order in which the fields of the rules
    are laid out; `closest` is one of those that break the fewest, where none is legal.
    """

    layouts: LayoutBatch
    considered: int
    dropped: dict[str, int] = field(default_factory=dict)
    closest: Layout | None = None


def enumerate_layouts(
    space: Space, model: ModelSpec, cluster: Cluster, workload: Workload, constraints: Sequence[Constraint] = ()
) -> Enumerated:
    """All legal layouts of the space, field by field; precision and switches are those of the workload."""
    found = survey(space, model, cluster, workload, constraints)
    parts = list(found.chunks())
    if parts:
        work, state = (np.concatenate([part[i] for part in parts]) for i in range(2))
    else:
        work = state = np.zeros(0, dtype=np.int64)
    near = None if len(work) else closest(space, model, cluster, workload, constraints)
    return Enumerated(found.layouts(work, state), found.considered, found.dropped, near)


def tests_of(context: RuleContext, constraints: Sequence[Constraint], searched: frozenset[str]) -> list[Test]:
    """Every rule and constraint with the searched fields that it reads in this context."""
    tests = [Test(rule.id, rule, fields_read(rule.holds, context) & searched) for rule in RULES]
    return tests + [Test(one.id, one, fields_read(one.holds, context) & searched) for one in constraints]


def survey(
    space: Space, model: ModelSpec, cluster: Cluster, workload: Workload, constraints: Sequence[Constraint] = ()
) -> Survey:
    """The candidates of the space, checked by every rule of `planner.layout` and by `constraints`.

    A candidate is one distinct combination; those whose tp·cp·pp does not divide the world count as dropped by
    ``world-product``.
    """
    work_axes, state_axes = axes_of(space, model, cluster, workload)
    axes = [*work_axes, *state_axes]
    context = RuleContext.of(model, workload, cluster.n_ranks)
    tests = tests_of(context, constraints, frozenset(axis.name for axis in axes))
    behind = _Behind(axes)
    considered = behind.count(0, {}, 1)[0]
    dropped: dict[str, int] = {}
    of_work = [test for test in tests if test.reads <= set(WORK)]
    work, n = _grown({}, 1, work_axes, of_work, context, behind, dropped, lambda _: None)
    order = np.lexsort([work[name] for name in reversed(CELL)])
    cells = np.stack([work[name][order] for name in CELL], axis=1)
    new = np.flatnonzero(np.any(cells[1:] != cells[:-1], axis=1)) + 1
    begins = np.concatenate([[0], new, [n]]) if n else np.zeros(1, dtype=np.int64)
    work = {name: column[order] for name, column in work.items()}
    grids = {name: work[name][begins[:-1]] for name in CELL}
    grids["cell"] = np.arange(len(begins) - 1)
    works = np.diff(begins)
    of_state = [test for test in tests if test not in of_work and test.reads <= {*CELL, *STATE}]
    state, k = _grown(
        grids, len(works), state_axes, of_state, context, behind, dropped, lambda table: works[table["cell"]],
        len(work_axes),
    )  # fmt: skip
    ends = np.concatenate([[0], np.cumsum(np.bincount(state["cell"], minlength=len(works)))]).astype(np.int64)
    crossed = [_crossed(test, work, n, state, k, context) for test in tests if test not in of_work + of_state]
    return Survey(
        context, work, {name: state[name] for name in STATE}, begins, ends, crossed, int(considered), dropped
    )


def _grown(
    table: Table, n: int, axes: Sequence[Axis], tests: Sequence[Test], context: RuleContext, behind: _Behind,
    dropped: dict[str, int], times: object, begin: int = 0,
) -> tuple[Table, int]:  # fmt: skip
    """Lay out axes over a table, and apply each test as soon as what it reads is there."""
    left = list(tests)
    for i, axis in enumerate(axes, begin):
        parent, own = _laid(table, n, axis)
        table = {name: column[parent] for name, column in table.items()} | {axis.name: own}
        n = len(own)
        ready = [test for test in left if test.reads <= table.keys()]
        left = [test for test in left if test not in ready]
        batch = LayoutBatch.filled({name: column for name, column in table.items() if name != "cell"})
        for test in ready:
            holds = test.holds(batch, context)
            if holds is None:
                continue
            lost = {name: column[~holds] for name, column in table.items()}
            weights = times(lost) if callable(times) else None
            counts = behind.count(i + 1, lost, int((~holds).sum()))
            number = int((counts if weights is None else counts * weights).sum())
            dropped[test.id] = dropped.get(test.id, 0) + number
            table = {name: column[holds] for name, column in table.items()}
            n, batch = int(holds.sum()), batch.take(holds)
    return table, n


def _laid(table: Mapping[str, IntArray], n: int, axis: Axis) -> tuple[IntArray, IntArray]:
    """Parent row and own value of every row that an axis makes of n rows of a table."""
    parent = np.repeat(np.arange(n), len(axis.values))
    own = np.tile(axis.values, n)
    kept, own = axis.lay({name: table[name][parent] for name in axis.reads}, own)
    if kept is not None and not kept.all():
        parent, own = parent[kept], own[kept]
    return parent, own


class _Behind:
    """How many candidates lie behind a prefix, rules apart: counted on what the later axes read of it."""

    def __init__(self, axes: Sequence[Axis]) -> None:
        self.axes = axes
        names = [axis.name for axis in axes]
        self.needs = [
            sorted({name for axis in axes[i:] for name in axis.reads} & set(names[:i])) for i in range(len(axes) + 1)
        ]

    def count(self, level: int, table: Mapping[str, IntArray], n: int) -> IntArray:
        """Candidates behind each of n prefixes that have the axes before `level`: ndarray (n,)."""
        if not n or level == len(self.axes):
            return np.ones(n, dtype=np.int64)
        names = self.needs[level]
        if not names:
            return np.full(n, self._each(level, {}, 1)[0])
        first, inverse = distinct_rows([table[name] for name in names], n)
        few = {name: table[name][first] for name in names}
        return np.asarray(self._each(level, few, len(first))[inverse])

    def _each(self, level: int, table: Mapping[str, IntArray], n: int) -> IntArray:
        axis = self.axes[level]
        parent, own = _laid(table, n, axis)
        below = {name: table[name][parent] for name in self.needs[level + 1] if name != axis.name}
        counts = self.count(level + 1, below | {axis.name: own}, len(own))
        return np.bincount(parent, weights=counts, minlength=n).astype(np.int64)


def _crossed(
    test: Test, work: Table, n: int, state: Table, k: int, context: RuleContext
) -> tuple[str, IntArray, IntArray, BoolArray]:
    """A rule over both tables, evaluated for every pair of what it reads of either."""
    sides, classes = [], []
    for table, size, names in ((work, n, WORK), (state, k, STATE)):
        read = [name for name in names if name in test.reads]
        first, inverse = distinct_rows([table[name] for name in read], size)
        sides.append({name: table[name][first] for name in read})
        classes.append((len(first), inverse))
    (a, of_work), (b, of_state) = classes
    both = {name: np.repeat(column, b) for name, column in sides[0].items()}
    both |= {name: np.tile(column, a) for name, column in sides[1].items()}
    kept = test.holds(LayoutBatch.filled(both), context) if a * b else None
    every = np.ones(a * b, dtype=np.bool_) if kept is None else kept
    return test.id, of_work, of_state, every.reshape(a, b)


def closest(
    space: Space, model: ModelSpec, cluster: Cluster, workload: Workload, constraints: Sequence[Constraint] = ()
) -> Layout | None:
    """A candidate that breaks the fewest rules, out of the first values of the later axes where they are many."""
    work_axes, state_axes = axes_of(space, model, cluster, workload)
    axes = [*work_axes, *state_axes]
    i = len(axes)
    while _Behind(axes).count(0, {}, 1)[0] > MOST_CLOSE and i:
        i -= 1
        axes[i] = Axis(axes[i].name, axes[i].values[:1], axes[i].reads, axes[i].lay)
    table: Table = {}
    n = 1
    for axis in axes:
        parent, own = _laid(table, n, axis)
        table = {name: column[parent] for name, column in table.items()} | {axis.name: own}
        n = len(own)
    if not n:
        return None
    context = RuleContext.of(model, workload, cluster.n_ranks)
    layouts = LayoutBatch.filled(table)
    kept = [*check(layouts, context).values(), *(one.holds(layouts, context) for one in constraints)]
    return layouts.layout(int(np.argmin(np.sum([~holds for holds in kept], axis=0))))
