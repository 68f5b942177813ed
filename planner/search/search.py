"""search: enumerate, drop by rules and memory, price all, time the best exactly.

The order of the answer is proven: candidates are timed in the order of their lower bounds,
until every one that is left has a bound above the last row of the answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hwmodels.cluster import Cluster
from hwmodels.errors import InputError
from hwmodels.units import format_bytes
from planner.evaluate import bounds, detail, exact_seconds
from planner.memory import HEADROOM
from planner.model.spec import ModelSpec
from planner.plan import Workload
from planner.priced import PricedModel, price_model
from planner.search.nearest import illegal, peak_bytes, too_large
from planner.search.result import Row, SearchResult
from planner.search.space import Space, enumerate_layouts
from planner.search.uneven import with_balanced_stages
from planner.step.assemble import Group, assemble_all, dag_groups, group_memory

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
OBJECTIVES = ("step_time", "tokens_per_s_per_gpu", "usd_per_mtoken")
"""All three order the layouts of one cluster and workload alike: by step time."""
WAVE = 16
"""Candidates that are timed together before the bound is looked at again."""
Progress = Callable[[str], None]


def search(
    model: ModelSpec,
    cluster: Cluster,
    workload: Workload,
    space: Space | None = None,
    *,
    objective: str = "step_time",
    top: int = 10,
    memory_headroom: float = HEADROOM,
    progress: Progress | None = None,
) -> SearchResult:
    """Rank all legal layouts of a model on a cluster.

    Parameters
    ----------
    space : Space or None
        Values to search for each field; None is the default space.
    objective : {'step_time', 'tokens_per_s_per_gpu', 'usd_per_mtoken'}
    top : int
        Rows of the answer.
    memory_headroom : float
        Share of the device memory that must stay free.
    progress : callable or None
        Told what happens, one line at a time.

    Raises
    ------
    InputError
        For an unknown objective or an impossible headroom.
    InfeasibleError
        When no layout is legal or none fits, with the binding constraint and the nearest miss.
    """
    _check_arguments(objective, top, memory_headroom)
    tell = progress or (lambda _: None)
    start = time.perf_counter()
    found = enumerate_layouts(space or Space(), model, cluster, workload)
    tell(f"{found.considered} candidates, {len(found.layouts)} legal")
    if not len(found.layouts):
        raise illegal(model, workload, cluster, found)
    priced = with_balanced_stages(price_model(model, workload, found.layouts, cluster))
    fits = peak_bytes(priced) <= cluster.device.memory_bytes * (1.0 - memory_headroom)
    dropped = dict(found.dropped)
    if (~fits).any():
        dropped["memory"] = int((~fits).sum())
    tell(f"{int(fits.sum())} fit in {format_bytes(cluster.device.memory_bytes)} with {memory_headroom:.0%} headroom")
    if not fits.any():
        raise too_large(priced, space or Space(), memory_headroom)
    groups = assemble_all(priced, list(dag_groups(priced, np.flatnonzero(fits))))
    best, simulated, proven = _best(groups, top, tell)
    rows = [_row(priced, groups[g], i, rank) for rank, (_, g, i) in enumerate(best, 1)]
    rows = _mark_pareto(rows)
    return SearchResult(
        found.considered,
        dropped,
        int(fits.sum()),
        simulated,
        time.perf_counter() - start,
        rows,
        proven,
        rows[0].step.notes,
    )


def _check_arguments(objective: str, top: int, memory_headroom: float) -> None:
    from hwmodels.errors import Fault

    faults = []
    if objective not in OBJECTIVES:
        faults.append(Fault(f"objective {objective!r} is unknown", "objective", "", " or ".join(OBJECTIVES)))
    if top < 1:
        faults.append(Fault(f"top is {top}", "top", "the answer has at least one row", "top=10"))
    if not 0.0 <= memory_headroom < 1.0:
        faults.append(
            Fault(f"memory_headroom is {memory_headroom}", "memory_headroom", "a share of the memory", "0.06")
        )
    if faults:
        raise InputError(faults)


def _best(groups: list[Group], top: int, tell: Progress) -> tuple[list[tuple[float, int, int]], int, bool]:
    """The `top` fastest of all groups: (seconds, group, position), how many were timed, proven.

    Ties are ordered by the layout's position, so that equal inputs give equal answers.
    """
    bound = [bounds(g) for g in groups]
    flat = np.concatenate(bound)
    owner = np.concatenate([np.full(len(b), i) for i, b in enumerate(bound)])
    inside = np.concatenate([np.arange(len(b)) for b in bound])
    order = np.argsort(flat, kind="stable")
    found: list[tuple[float, int, int, int]] = []
    timed = 0
    for begin in range(0, len(order), WAVE):
        wave = order[begin : begin + WAVE]
        if len(found) >= top and flat[wave[0]] > found[top - 1][0]:
            tell(f"{timed} timed exactly; the other {len(order) - timed} have lower bounds above row {top}")
            return [(s, g, i) for s, g, i, _ in found[:top]], timed, True
        for g in np.unique(owner[wave]):
            positions = inside[wave[owner[wave] == g]]
            seconds = exact_seconds(groups[g], positions)
            found += [
                (float(s), int(g), int(i), int(groups[g].index[i])) for s, i in zip(seconds, positions, strict=True)
            ]
        timed += len(wave)
        found.sort(key=lambda item: (item[0], item[3]))
    tell(f"all {timed} timed exactly")
    return [(s, g, i) for s, g, i, _ in found[:top]], timed, True


def _row(priced: PricedModel, group: Group, position: int, rank: int) -> Row:
    sized = group_memory(priced, group.index[[position]], group.pp, group.vpp, group.schedule)
    step = detail(priced, group, position, sized)
    return Row(rank, group.layouts.layout(position), step, int(group.microbatches[position]))


def _mark_pareto(rows: list[Row]) -> list[Row]:
    """Mark rows that no faster row beats in peak memory."""
    least = float("inf")
    marked = []
    for row in rows:
        peak = max(m.peak_bytes for m in row.step.memory)
        marked.append(replace(row, pareto=peak < least))
        least = min(least, peak)
    return marked
