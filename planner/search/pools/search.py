"""search_pools: which pools, how many nodes of each, and what runs where.

Every pool alone is searched as the cluster that it is, proven. Arrangements over several pools, and over part of one,
are laid out as arrays, ordered by an estimate, and the best of them timed by the engine: the answer is the best of
what was timed, no worse than the best pool alone, and says whether a bound proves it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hwmodels.cluster import Cluster
from hwmodels.errors import InfeasibleError
from hwmodels.pools import subcluster
from planner.mixed import Arrangement, Pieces, Replicas, step_of
from planner.mixed.arrangement import Use
from planner.mixed.step import usd_per_mtoken
from planner.model.spec import ModelSpec
from planner.plan import Workload
from planner.search.constraints import Constraint as Condition
from planner.search.objective_base import Constraint, Limit, Objective
from planner.search.pools.bases import bases_of, speed_of
from planner.search.pools.examine import Examiner, Found
from planner.search.pools.explain import explained
from planner.search.pools.forms import Form, Forms
from planner.search.question import Target
from planner.search.ranges import Space, variants
from planner.search.result import Row, SearchResult

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
Progress = Callable[[str], None]
MOST_TIMED = 30
"""Arrangements that are timed in all."""
OF_A_POOL = 3
"""Rows that a pool alone is asked for at first; all of them where these stand in the answer."""
OF_EACH = 3
"""Best by estimate of every form that are timed before forms compete."""
MARGIN = 1.1
"""Estimates this far above the last row of the answer are not timed: an estimate leaves out what does not compute."""
QUICK = frozenset({"step_time", "tokens_per_s_per_gpu", "usd_per_mtoken"})
"""Objectives that seconds and dollars of a step give without its details."""
DOLLARS = frozenset({"usd_per_mtoken", "train_usd"})
BY_GPU = frozenset(
    {"tokens_per_s_per_gpu", "mfu", "energy_kwh_per_mtoken", "co2_kg_per_mtoken", "train_kwh", "train_co2_kg"}
)
"""Objectives whose estimate is GPU-seconds; that of `DOLLARS` is dollars of a step, of the others its seconds."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a search is asked for, as `planner.search.search` takes it."""

    objectives: tuple[Objective, ...]
    top: int
    memory_headroom: float
    constraints: tuple[Constraint, ...] = ()
    limits: tuple[Limit, ...] = ()
    where: tuple[Condition, ...] = ()
    target: Target | None = None

    @property
    def quick(self) -> bool:
        """Whether seconds and dollars of a step order the answer without its details."""
        return len(self.objectives) == 1 and self.objectives[0].name in QUICK and not self.limits


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """One candidate of the answer: its arrangement, and how its row is made."""

    cost: tuple[float, ...]
    arrangement: Arrangement
    make: Callable[[], Row]


def order_by(name: str, seconds: FloatArray, usd_per_s: FloatArray, gpus: FloatArray) -> FloatArray:
    """What candidates are ordered by for an objective, less being better; tokens of a step are the same for all."""
    if name in DOLLARS and np.all(np.isfinite(usd_per_s)):
        return np.asarray(seconds * usd_per_s)
    if name in BY_GPU:
        return np.asarray(seconds * gpus)
    return np.asarray(seconds)


def search_pools(
    model: ModelSpec, cluster: Cluster, workload: Workload, space: Space, asked: Asked, progress: Progress
) -> SearchResult:
    """Rank arrangements of a model on the pools of a cluster.

    Raises
    ------
    InfeasibleError
        Where nothing fits any pool or any joined pools; names what each lacks.
    """
    start = time.perf_counter()
    def alone(pool: int, rows: int) -> SearchResult:
        from planner.search.search import search

        return search(
            model, subcluster(cluster, pool), workload, space, objective=tuple(one.name for one in asked.objectives),
            top=rows, memory_headroom=asked.memory_headroom, where=asked.where, target=asked.target,
        )  # fmt: skip

    results, refused = _alone(cluster, alone, min(OF_A_POOL, asked.top), progress)
    dropped, forms, timed, lefts = dict[str, int](), list[Form](), list[Found](), list[float]()
    tried = 0
    for work in variants(space, workload):
        layouts, count, lost = bases_of(space, model, cluster, work)
        tried += count
        if len(layouts):
            pieces = Pieces(model, cluster, work, layouts)
            speeds = [speed_of(pieces.base(i)) for i in range(len(cluster.pools))]
            capacity = [pool.device.memory_bytes * (1.0 - asked.memory_headroom) for pool in cluster.pools]
            laid = Forms(pieces, layouts, speeds, capacity, asked.constraints, lost).every()
            mine = [form for form in laid if len(form)]
            examine = Examiner(pieces, speeds, asked.memory_headroom, lost)
            found, left = _timed(mine, examine, asked)
            forms, timed, lefts = [*forms, *mine], [*timed, *found], [*lefts, left]
        _add(dropped, lost)
    candidates = sum(len(form) for form in forms)
    progress(f"{tried:,} layouts of a replica, {candidates:,} arrangements over pools, {len(timed)} timed exactly")
    together = list(_entries(timed, asked))
    rows = _answer([*_entries_alone(results, asked), *together], cluster, asked, dropped)
    stand = {row.use.arrangement for row in rows if row.use is not None}
    short = [i for i, r in results.items() if len(r.rows) < asked.top and _of_pool(r.rows[-1], i) in stand]
    if short and asked.top > OF_A_POOL and len(asked.objectives) == 1:
        results |= {i: alone(i, asked.top) for i in short}
        rows = _answer([*_entries_alone(results, asked), *together], cluster, asked, dropped)
    if not rows:
        raise nothing_fits(model, cluster, workload, refused, candidates, dropped)
    for result in results.values():
        _add(dropped, result.dropped)
    proven = len(asked.objectives) == 1 and all(r.optimal for r in results.values())
    if proven:
        last = rows[-1]
        usd = np.inf if last.step.usd_per_mtoken is None else last.step.usd_per_mtoken * _mtokens(workload)
        at = order_by(
            asked.objectives[0].name, np.asarray(last.step.step_s.mid), np.asarray(usd / last.step.step_s.mid),
            np.asarray(float(last.layout.world)),
        )  # fmt: skip
        proven = min(lefts, default=np.inf) >= float(at) and asked.quick
    return SearchResult(
        considered=tried + candidates + sum(r.considered for r in results.values()),
        dropped=dropped,
        screened=candidates + sum(r.screened for r in results.values()),
        sized=len(timed) + dropped.get("memory", 0) + sum(r.sized for r in results.values()),
        priced=len(timed) + sum(r.priced for r in results.values()),
        simulated=len(timed) + sum(r.simulated for r in results.values()),
        contended=0,
        wall_s=time.perf_counter() - start,
        rows=rows,
        optimal=bool(proven),
        objectives=tuple(one.name for one in asked.objectives),
        notes=[*explained(cluster, rows, timed, refused, bool(proven)), *rows[0].step.notes],
    )


def _add(total: dict[str, int], more: dict[str, int]) -> None:
    for name, count in more.items():
        total[name] = total.get(name, 0) + count


def _mtokens(workload: Workload) -> float:
    """Millions of tokens of a step."""
    return workload.gbs * workload.tokens_per_sequence / 1e6


def _alone(
    cluster: Cluster, alone: Callable[[int, int], SearchResult], rows: int, progress: Progress
) -> tuple[dict[int, SearchResult], dict[int, str]]:
    """What each pool gives by itself, and why one gives nothing."""
    found, refused = {}, {}
    for i, pool in enumerate(cluster.pools):
        try:
            found[i] = alone(i, rows)
            progress(f"{pool.label} alone: {found[i].rows[0].step.step_s.mid:.4g} s")
        except InfeasibleError as error:
            refused[i] = str(error)
            progress(f"{pool.label} alone: nothing fits")
    return found, refused


def _rate(cluster: Cluster, form: Form) -> FloatArray:
    """Dollars a second of candidates; infinite where a price is not known."""
    prices = [cluster.pools[i].usd_per_gpu_hour or cluster.usd_per_gpu_hour for i in form.pools]
    each = np.asarray([np.inf if price is None else float(price.value) / 3600.0 for price in prices])
    return np.asarray((form.gpus * each).sum(axis=1))


def _orders(forms: Sequence[Form], cluster: Cluster, name: str, field: str) -> list[FloatArray]:
    """`order_by` of every candidate of every form, by its estimate or by its bound."""
    return [
        order_by(name, getattr(form, field), _rate(cluster, form), form.gpus.sum(axis=1).astype(np.float64))
        for form in forms
    ]  # fmt: skip


def _timed(forms: list[Form], examine: Examiner, asked: Asked) -> tuple[list[Found], float]:
    """The best by estimate of every form, then of all; and the least bound of what was not timed."""
    cluster, name = examine.pieces.cluster, asked.objectives[0].name
    values = _orders(forms, cluster, name, "seconds")
    orders = [np.argsort(value, kind="stable") for value in values]
    first = [(i, int(row)) for i, order in enumerate(orders) for row in order[:OF_EACH]]
    for other in asked.objectives[1:]:
        more = [np.argsort(value, kind="stable") for value in _orders(forms, cluster, other.name, "seconds")]
        first += [(i, int(row)) for i, order in enumerate(more) for row in order[:OF_EACH]]
    rest = [(float(values[i][row]), i, int(row)) for i, order in enumerate(orders) for row in order[OF_EACH:][:200]]
    queue = list(dict.fromkeys([*first, *((i, row) for _, i, row in sorted(rest))]))
    seen, found = set[tuple[int, int]](), list[Found]()
    for i, row in queue:
        reached = sorted(_quick(name, one) for one in found)
        late = len(reached) >= asked.top and float(values[i][row]) > MARGIN * reached[asked.top - 1]
        if len(seen) >= len(first) and (late or len(found) >= MOST_TIMED or len(seen) >= 3 * MOST_TIMED):
            break
        seen.add((i, row))
        one = examine(forms[i], row)
        if one is not None:
            found.append(one)
    left = np.inf
    for i, bound in enumerate(_orders(forms, cluster, name, "bound")):
        untimed = np.ones(len(bound), dtype=np.bool_)
        untimed[[row for j, row in seen if j == i]] = False
        left = min(left, float(bound[untimed].min(initial=np.inf)))
    return found, left


def _quick(name: str, one: Found) -> float:
    """`order_by` of an arrangement that was timed, charged links included."""
    per_mtoken = usd_per_mtoken(one.mix, one.seconds)
    usd = np.inf if per_mtoken is None else per_mtoken * _mtokens(one.mix.pieces.workload)
    seconds = np.asarray(one.seconds)
    return float(order_by(name, seconds, np.asarray(usd) / seconds, np.asarray(float(one.arrangement.layout.world))))


def _cost(asked: Asked, row: Row) -> tuple[float, ...]:
    """Values of the objectives of a row, less being better."""
    return tuple(one.value(row) if one.sense == "min" else -one.value(row) for one in asked.objectives)


def _of_pool(row: Row, pool: int) -> Arrangement:
    """A row of the search of one pool as an arrangement on the whole cluster."""
    each = Replicas(row.layout.dp, (pool,) * row.layout.pp, row.microbatches)
    return Arrangement(row.layout, (each,))


def _entries_alone(results: dict[int, SearchResult], asked: Asked) -> Iterator[Entry]:
    for i, result in results.items():
        for row in result.rows:
            arrangement = _of_pool(row, i)
            usd = np.inf
            if row.step.usd_per_mtoken is not None:
                usd = row.step.usd_per_mtoken * _mtokens(row.workload) / row.step.step_s.mid
            quick = order_by(
                asked.objectives[0].name, np.asarray(row.step.step_s.mid), np.asarray(usd),
                np.asarray(float(row.layout.world)),
            )  # fmt: skip
            cost = (float(quick),) if asked.quick else _cost(asked, row)
            yield Entry(cost, arrangement, lambda row=row: row)  # type: ignore[misc]


def _entries(timed: Sequence[Found], asked: Asked) -> Iterator[Entry]:
    for one in timed:

        def make(one: Found = one) -> Row:
            arrangement = one.arrangement
            most = max(each.microbatches for each in arrangement.replicas)
            return Row(0, arrangement.layout, step_of(one.mix), most, one.mix.pieces.workload)

        if asked.quick:
            yield Entry((_quick(asked.objectives[0].name, one),), one.arrangement, make)
        else:
            row = make()
            yield Entry(_cost(asked, row), one.arrangement, lambda row=row: row)  # type: ignore[misc]


def _answer(entries: list[Entry], cluster: Cluster, asked: Asked, dropped: dict[str, int]) -> list[Row]:
    """The best entries by one objective, or the front of several, each arrangement once, within the limits."""
    entries = sorted(entries, key=lambda entry: (entry.cost, entry.arrangement.layout.label()))
    rows: list[Row] = []
    taken: set[Arrangement] = set()
    for entry in entries:
        if entry.arrangement in taken or (len(asked.objectives) == 1 and len(rows) == asked.top):
            continue
        if len(asked.objectives) > 1 and _beaten(entry, entries):
            continue
        row = entry.make()
        late = [limit for limit in asked.limits if not limit.holds(row)]
        for limit in late:
            dropped[limit.id] = dropped.get(limit.id, 0) + 1
        if not late:
            taken.add(entry.arrangement)
            figures = {one.name: one.value(row) for one in asked.objectives}
            rows.append(replace(row, rank=len(rows) + 1, use=Use.of(entry.arrangement, cluster), figures=figures))
    return [replace(row, pareto=True) for row in rows] if len(asked.objectives) > 1 else _marked(rows)


def _beaten(entry: Entry, entries: Sequence[Entry]) -> bool:
    """Whether another one is no worse in anything and better in something."""
    return any(
        other.cost != entry.cost and all(a <= b for a, b in zip(other.cost, entry.cost, strict=True))
        for other in entries
    )  # fmt: skip


def _marked(rows: list[Row]) -> list[Row]:
    """Mark rows that no faster row beats in the fullest device's share of its memory."""
    least, found = float("inf"), []
    for row in sorted(rows, key=lambda row: row.step.step_s.mid):
        peak = max(m.peak_bytes / m.capacity_bytes for m in row.step.memory)
        found.append(replace(row, pareto=peak < least))
        least = min(least, peak)
    return sorted(found, key=lambda row: row.rank)


def nothing_fits(
    model: ModelSpec, cluster: Cluster, workload: Workload, refused: dict[int, str], candidates: int,
    dropped: dict[str, int],
) -> InfeasibleError:  # fmt: skip
    """The error where neither a pool alone nor pools together run the model."""
    names = " + ".join(f"{pool.n_ranks} x {pool.label}" for pool in cluster.pools)
    each = " ".join(f"{cluster.pools[i].label} alone: {text}" for i, text in refused.items())
    most = max(dropped, key=lambda rule: dropped[rule], default="")
    return InfeasibleError(
        f"No layout of {model.name} fits the pools {names} with gbs={workload.gbs}, alone or together "
        f"({candidates:,} arrangements over pools; most dropped by {most or 'no rule'}).",
        each or "no legal layout of one replica",
        "more nodes of the pool with most memory, more recomputation, a smaller mbs, or links between pools that "
        "have none",
    )
