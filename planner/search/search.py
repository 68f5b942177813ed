"""search: lay out, drop by rules and bounds, price what is left best first, time the best exactly.

The order of the answer is proven: candidates are looked at in the order of lower bounds of what they are ranked by,
each bound closer than the one before (the screen over all, the priced step, the max-plus engine), until every one that
is left has a bound above the last row of the answer, or behind the front.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hwmodels.cluster import Cluster
from hwmodels.errors import Fault, InfeasibleError, InputError
from planner.memory import HEADROOM
from planner.model.spec import ModelSpec
from planner.plan import Workload
from planner.search.asked import Asked, OnLayouts
from planner.search.examine import MOST_NODES, Examiner, Timed
from planner.search.objective_base import Limit
from planner.search.pool import Pool, first_rows, pool_of
from planner.search.question import Question, Target
from planner.search.result import Row, SearchResult
from planner.search.space import Space, variants
from planner.search.variant import Variant, variants_of

if TYPE_CHECKING:
    from planner.search.constraints import Constraint

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
Progress = Callable[[str], None]


def search(
    model: ModelSpec,
    cluster: Cluster,
    workload: Workload,
    space: Space | None = None,
    *,
    objective: str | Sequence[str] = "step_time",
    top: int = 10,
    memory_headroom: float = HEADROOM,
    where: Sequence[Constraint] = (),
    target: Target | None = None,
    shown: int | None = None,
    nearest: bool = True,
    contended: int = 0,
    progress: Progress | None = None,
) -> SearchResult:
    """Rank all legal layouts of a model on a cluster.

    Parameters
    ----------
    space : Space or None
        Values to search for each field, precisions and switches; None is the default space.
    objective : str or sequence of str
        Names of `planner.search.objectives`: one gives the `top` best by it, several give their whole Pareto front.
    top : int
        Rows of the answer to one objective.
    memory_headroom : float
        Share of the device memory that must stay free.
    where : sequence of Constraint
        Conditions on fields, applied like rules, and on figures, applied to bounds and then to exact values.
    target : Target or None
        The run and the site that figures beyond one step are about.
    shown : int or None
        Rows that are predicted in full, the best ones; None: all. `SearchResult.values` has those of the others.
    nearest : bool
        Whether the error of an empty answer says what stands in its way and which request is the nearest that has one;
        it takes some searches more.
    contended : int
        How many of the best rows the event engine plays with contention for links (`Row.contended_s`).
    progress : callable or None
        Told what happens, one line at a time.

    Raises
    ------
    InputError
        For an unknown objective, one that the question lacks something for, or an impossible headroom.
    InfeasibleError
        When no layout is legal or none fits, with the binding constraint and the nearest miss.
    """
    _check_arguments(top, memory_headroom)
    names = (objective,) if isinstance(objective, str) else tuple(objective)
    asked = Asked.of(Question(model, cluster, workload, target or Target()), names, where)
    objectives, constraints, limits = asked.objectives, asked.constraints, asked.limits
    tell = progress or (lambda _: None)
    if cluster.mixed:
        from planner.search import pools

        mixed = pools.Asked(objectives, top, memory_headroom, constraints, limits, tuple(where), target)
        answer = pools.search_pools(model, cluster, workload, space or Space(), mixed, tell)
        unplayed = ["rows over unlike pools are not played with contention here: simulate --contention"]
        return replace(answer, notes=[*answer.notes, *unplayed]) if contended else answer
    start = time.perf_counter()
    space = space or Space()
    capacity = cluster.device.memory_bytes * (1.0 - memory_headroom)
    examiner = Examiner(cluster, objectives, limits, capacity, top)
    pool, considered, dropped, found = _screened(
        model, cluster, variants(space, workload), space, constraints, examiner
    )
    ask = (model, cluster, workload, space, tuple(where), memory_headroom, target or Target())
    if not found:
        raise _nothing(ask, considered, nearest)
    screened = considered - sum(count for name, count in dropped.items() if name not in _screen_names(limits))
    tell(f"{considered:,} candidates, {screened:,} legal, {len(pool) + examiner.sized:,} could be in the answer")
    while len(pool):
        examiner.examine(found, *pool.open(examiner.ranking))
    tried = _extended(examiner, found, space.stages)
    if not len(examiner.ranking):
        raise _nothing(ask, considered, nearest)
    tell(f"{examiner.priced:,} priced, {examiner.simulated:,} timed exactly; the others have bounds above the answer")
    for name, count in (*examiner.dropped.items(), ("bound", pool.left)):
        if count:
            dropped[name] = dropped.get(name, 0) + count
    found_rows = examiner.ranking.rows()
    best = [entry for _, entry in found_rows[:shown]]
    rows, more = _played(examiner, _rows(examiner, best), best[:contended])
    values = tuple(float(costs[0]) for costs, _ in found_rows)
    return SearchResult(
        considered + tried, dropped, screened + tried, examiner.sized, examiner.priced, examiner.simulated,
        sum(row.contended_s is not None for row in rows), time.perf_counter() - start, rows, True,
        tuple(one.name for one in objectives), [*rows[0].step.notes, *more], values,
    )  # fmt: skip


def _extended(examiner: Examiner, found: Sequence[Variant], stages: Sequence[str]) -> int:
    """How many candidates with other stages were added (`planner.search.extend`)."""
    if not set(stages) - {"even"}:
        return 0
    from planner.search.extend import extend  # with all of `planner.search.uneven`: only where other stages are asked

    return extend(examiner, found, stages)


def _nothing(ask: tuple[Any, ...], considered: int, nearest: bool) -> InfeasibleError:
    """The error of an empty answer."""
    from planner.search.nothing import Ask, nothing

    if not nearest:
        return InfeasibleError(f"None of {considered:,} layouts is legal, fits and satisfies what was asked.")

    def best(other: Ask, objective: str) -> Row | None:
        try:
            return search(
                other.model, other.cluster, other.workload, other.space, objective=objective, top=1,
                memory_headroom=other.memory_headroom, where=other.where, target=other.target, nearest=False,
            ).rows[0]  # fmt: skip
        except InfeasibleError:
            return None

    return nothing(Ask(*ask), considered, best)


def _check_arguments(top: int, memory_headroom: float) -> None:
    faults = []
    if top < 1:
        faults.append(Fault(f"top is {top}", "top", "the answer has at least one row", "top=10"))
    if not 0.0 <= memory_headroom < 1.0:
        faults.append(
            Fault(f"memory_headroom is {memory_headroom}", "memory_headroom", "a share of the memory", "0.06")
        )
    if faults:
        raise InputError(faults)


def _screened(
    model: ModelSpec, cluster: Cluster, workloads: Sequence[Workload], space: Space,
    constraints: Sequence[OnLayouts], examiner: Examiner,
) -> tuple[Pool, int, dict[str, int], list[Variant]]:  # fmt: skip
    """What could be in the answer of all workloads, how many were considered and what was dropped."""
    considered, dropped, found = 0, dict[str, int](), list[Variant]()
    pool = Pool.joined([], len(examiner.objectives))
    for _, laid, variant in variants_of(space, model, cluster, workloads, constraints):
        considered += laid.considered
        lost = laid.dropped
        if variant is not None:
            found.append(replace(variant, number=len(found)))
            parts = first_rows(found[-1])
            for rows in parts:
                pool = pool.with_part(pool_of(found[-1], examiner, lost, rows))
                while len(pool) and len(examiner.ranking) < examiner.top and len(workloads) + len(parts) > 2:
                    examiner.examine(found, *pool.open(examiner.ranking))  # an answer keeps most of the next part out
        for name, count in lost.items():
            dropped[name] = dropped.get(name, 0) + count
    return pool, considered, dropped, found


def _screen_names(limits: Sequence[Limit]) -> set[str]:
    """What the screen counts as dropped of legal candidates."""
    return {"memory", "bound", *(limit.id for limit in limits)}


def _played(examiner: Examiner, rows: list[Row], best: Sequence[Timed]) -> tuple[list[Row], list[str]]:
    """The rows, the first of them as the event engine plays them with contention, and what it did not play."""
    found, notes = list(rows), []
    for i, one in enumerate(best):
        found[i] = replace(rows[i], contended_s=examiner.contended_s(one))
        if found[i].contended_s is None:
            notes.append(f"row {rows[i].rank} has more than {MOST_NODES:,} nodes, too many to play with contention "
                         "here: simulate --contention")  # fmt: skip
    return found, notes


def _rows(examiner: Examiner, timed: Sequence[Timed]) -> list[Row]:
    """The rows of the answer, with the marks of those that no other beats."""
    rows = [
        replace(row, rank=rank, figures={one.name: one.value(row) for one in examiner.objectives})
        for rank, row in enumerate(examiner.rows(timed), 1)
    ]
    if len(examiner.objectives) > 1:
        return [replace(row, pareto=True) for row in rows]
    least, marked = float("inf"), []
    for row in rows:
        peak = max(m.peak_bytes for m in row.step.memory)
        marked.append(replace(row, pareto=peak < least))
        least = min(least, peak)
    return marked
