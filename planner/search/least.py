"""What would work where nothing does: the binding constraint, and the nearest request that fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hwmodels.cluster import Cluster
from hwmodels.errors import InfeasibleError
from hwmodels.records import dataclass
from hwmodels.units import format_bytes
from planner.elements import BlockElements
from planner.layout import SCHEDULES, Layout, RuleContext, faults
from planner.model.spec import ModelSpec
from planner.plan import Workload
from planner.priced import PricedModel
from planner.search.objective_base import Constraint
from planner.search.space import Space, variants
from planner.search.variant import variants_of
from planner.step.assemble import group_memory

FloatArray = NDArray[np.float64]
SIZED = 1024
"""Candidates that are sized together in the look for the least memory."""
MOST_TIMES = 256
"""How many times the nodes are doubled at most in the look for a cluster that is large enough."""


def peak_bytes(priced: PricedModel) -> FloatArray:
    """Peak bytes of every layout, on the rank that needs most: ndarray (n,)."""
    layouts = priced.layouts
    peak, blocks = np.zeros(len(layouts)), BlockElements.of(priced.model, priced.workload, layouts)
    first, inverse = layouts.distinct(("pp", "vpp", "schedule"))
    for i, f in enumerate(first):
        index = np.flatnonzero(inverse == i)
        pp, vpp, schedule = int(layouts.pp[f]), int(layouts.vpp[f]), SCHEDULES[int(layouts.schedule[f])]
        sized = group_memory(priced, index, pp, vpp, schedule, blocks=blocks.take(index), of_fullest=True)
        peak[index] = sized.peak_bytes.max(axis=1)
    return peak


def illegal(
    model: ModelSpec, workload: Workload, cluster: Cluster, considered: int, near: Layout | None
) -> InfeasibleError:
    """The error for a space in which no layout is legal, with the way out of the one closest to it."""
    asked = (
        f"No layout of {model.name} on {cluster.n_ranks} ranks with gbs={workload.gbs}, seq_len={workload.seq_len} is "
        f"legal: {considered} considered, all dropped."
    )
    if near is None:
        return InfeasibleError(asked, "the given dp is no quotient of the ranks", "leave dp open")
    broken = faults(near, RuleContext.of(model, workload, cluster.n_ranks))
    binding = "; ".join(f"{f.what} [{f.rule}]" for f in broken)
    ways = "; ".join(f.fix for f in broken)
    return InfeasibleError(asked, f"the closest, {near.label()}, breaks {binding}", ways)


@dataclass(frozen=True, slots=True, eq=False)
class Least:
    """The legal layout that needs least memory, priced alone, out of how many."""

    priced: PricedModel
    peak_bytes: float
    legal: int


def least(
    space: Space, model: ModelSpec, cluster: Cluster, workload: Workload, constraints: Sequence[Constraint] = ()
) -> Least | None:
    """The layout of a space that needs least memory; None where none is legal.

    Candidates are sized in the order of the screen's lower bounds, until those of the others are above the least.
    """
    best: tuple[float, PricedModel] | None = None
    legal = 0
    for _, _, variant in variants_of(space, model, cluster, variants(space, workload), constraints):
        if variant is None:
            continue
        parts = [(work, state, variant.screened(work, state)[1]) for work, state in variant.found.chunks()]
        work, state, low = (np.concatenate([part[i] for part in parts]) for i in range(3))
        legal += len(work)
        order = np.argsort(low, kind="stable")
        for begin in range(0, len(order), SIZED):
            some = order[begin : begin + SIZED]
            if best is not None and low[some[0]] >= best[0]:
                break
            priced = variant.of(work[some], state[some])
            peak = peak_bytes(priced)
            i = int(np.argmin(peak))
            if best is None or peak[i] < best[0]:
                best = float(peak[i]), variant.of(work[some[[i]]], state[some[[i]]])
    return None if best is None else Least(best[1], best[0], legal)


def too_large(
    model: ModelSpec, cluster: Cluster, workload: Workload, space: Space, constraints: Sequence[Constraint],
    headroom: float,
) -> InfeasibleError:  # fmt: skip
    """The error for legal layouts of which none fits the memory.

    Raises
    ------
    ValueError
        Where no layout is legal at all.
    """
    found = least(space, model, cluster, workload, constraints)
    if found is None:
        raise ValueError("no layout is legal")
    priced, peak = found.priced, found.peak_bytes
    layout, device = priced.layouts.layout(0), cluster.device
    limit = device.memory_bytes * (1.0 - headroom)
    sized = group_memory(priced, np.asarray([0]), layout.pp, layout.vpp, layout.schedule)
    stage = int(np.argmax(sized.peak_bytes[0]))
    largest = max(sized.by_category, key=lambda k: float(sized.by_category[k][0, stage]))
    capacity, need, excess = (format_bytes(v) for v in (device.memory_bytes, peak, peak - limit))
    return InfeasibleError(
        f"None of {found.legal} legal layouts of {model.name} fits in {capacity} of {device.name} "
        f"with {headroom:.0%} headroom.",
        f"memory of stage {stage}: {layout.label()} misses by least, {need} needed, {excess} too much, "
        f"most of it {largest}",
        _fitting(found, space, headroom, constraints),
    )


def _fitting(found: Least, space: Space, headroom: float, constraints: Sequence[Constraint]) -> str:
    """The smallest change of the request under which a layout fits: other fields, or more nodes."""
    priced = found.priced
    cluster = priced.cluster
    if space != Space() and (fits := _fits(priced, Space(), cluster, headroom, constraints)):
        return f"without the given fields, {fits}"
    times = 2
    while times <= MOST_TIMES:
        pools = tuple(replace(pool, nodes=pool.nodes * times) for pool in cluster.pools)
        fabric = replace(cluster.fabric, nodes=cluster.fabric.nodes * times)
        larger = replace(cluster, pools=pools, fabric=fabric)
        if fits := _fits(priced, space, larger, headroom, constraints):
            return f"with {cluster.n_ranks * times} ranks instead of {cluster.n_ranks}, {fits}"
        times *= 2
    need = found.peak_bytes / (1.0 - headroom)
    return f"a device with {format_bytes(need)}; up to {MOST_TIMES} times the ranks are not enough"


def _fits(
    priced: PricedModel, space: Space, cluster: Cluster, headroom: float, constraints: Sequence[Constraint]
) -> str:
    """The layout of least memory under another request, or nothing where none fits."""
    found = least(space, priced.model, cluster, priced.workload, constraints)
    if found is None or found.peak_bytes > cluster.device.memory_bytes * (1.0 - headroom):
        return ""
    return f"{found.priced.layouts.layout(0).label()} needs {format_bytes(found.peak_bytes)}"
