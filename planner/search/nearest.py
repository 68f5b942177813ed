"""What would work where nothing does: the binding constraint, and the nearest request that fits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hwmodels.cluster import Cluster
from hwmodels.errors import InfeasibleError
from hwmodels.units import format_bytes
from planner.layout import SCHEDULES, RuleContext, faults
from planner.model.spec import ModelSpec
from planner.plan import Workload
from planner.priced import PricedModel, price_model
from planner.search.space import Enumerated, Space, enumerate_layouts
from planner.search.uneven import with_balanced_stages
from planner.step.assemble import group_memory

FloatArray = NDArray[np.float64]
MOST_TIMES = 256
"""How many times the nodes are doubled at most in the look for a cluster that is large enough."""


def peak_bytes(priced: PricedModel) -> FloatArray:
    """Peak bytes of every layout, on the rank that needs most: ndarray (n,)."""
    layouts = priced.layouts
    peak = np.zeros(len(layouts))
    first, inverse = layouts.distinct(("pp", "vpp", "schedule"))
    for i, f in enumerate(first):
        index = np.flatnonzero(inverse == i)
        pp, vpp, schedule = int(layouts.pp[f]), int(layouts.vpp[f]), SCHEDULES[int(layouts.schedule[f])]
        sized = group_memory(priced, index, pp, vpp, schedule)
        peak[index] = sized.peak_bytes.max(axis=1)
    return peak


def illegal(model: ModelSpec, workload: Workload, cluster: Cluster, found: Enumerated) -> InfeasibleError:
    """The error for a space in which no layout is legal, with the way out of the one closest to it."""
    asked = (
        f"No layout of {model.name} on {cluster.n_ranks} ranks with gbs={workload.gbs}, seq_len={workload.seq_len} is "
        f"legal: {found.considered} considered, all dropped."
    )
    if found.closest is None:
        return InfeasibleError(asked, "the given dp is no quotient of the ranks", "leave dp open")
    context = RuleContext.of(model, workload, cluster.n_ranks)
    broken = faults(found.closest, context)
    binding = "; ".join(f"{f.what} [{f.rule}]" for f in broken)
    ways = "; ".join(f.fix for f in broken)
    return InfeasibleError(asked, f"the closest, {found.closest.label()}, breaks {binding}", ways)


def too_large(priced: PricedModel, space: Space, headroom: float) -> InfeasibleError:
    """The error for legal layouts of which none fits the memory."""
    peak = peak_bytes(priced)
    i = int(np.argmin(peak))
    layout, device = priced.layouts.layout(i), priced.cluster.device
    limit = device.memory_bytes * (1.0 - headroom)
    sized = group_memory(priced, np.asarray([i]), layout.pp, layout.vpp, layout.schedule)
    stage = int(np.argmax(sized.peak_bytes[0]))
    largest = max(sized.by_category, key=lambda k: float(sized.by_category[k][0, stage]))
    capacity, need, excess = (format_bytes(v) for v in (device.memory_bytes, peak[i], peak[i] - limit))
    return InfeasibleError(
        f"None of {len(priced.layouts)} legal layouts of {priced.model.name} fits in {capacity} of {device.name} "
        f"with {headroom:.0%} headroom.",
        f"memory of stage {stage}: {layout.label()} misses by least, {need} needed, {excess} too much, "
        f"most of it {largest}",
        _fitting(priced, space, headroom),
    )


def _fitting(priced: PricedModel, space: Space, headroom: float) -> str:
    """The smallest change of the request under which a layout fits: other fields, or more nodes."""
    cluster = priced.cluster
    if space != Space() and (found := _fits(priced, Space(), cluster, headroom)):
        return f"without the given fields, {found}"
    times = 2
    while times <= MOST_TIMES:
        pools = tuple(replace(pool, nodes=pool.nodes * times) for pool in cluster.pools)
        fabric = replace(cluster.fabric, nodes=cluster.fabric.nodes * times)
        if found := _fits(priced, space, replace(cluster, pools=pools, fabric=fabric), headroom):
            return f"with {cluster.n_ranks * times} ranks instead of {cluster.n_ranks}, {found}"
        times *= 2
    need = float(peak_bytes(priced).min()) / (1.0 - headroom)
    return f"a device with {format_bytes(need)}; up to {MOST_TIMES} times the ranks are not enough"


def _fits(priced: PricedModel, space: Space, cluster: Cluster, headroom: float) -> str:
    """The layout of least memory under another request, or nothing where none fits."""
    found = enumerate_layouts(space, priced.model, cluster, priced.workload)
    if not len(found.layouts):
        return ""
    other = with_balanced_stages(price_model(priced.model, priced.workload, found.layouts, cluster))
    peak = peak_bytes(other)
    i = int(np.argmin(peak))
    if peak[i] > cluster.device.memory_bytes * (1.0 - headroom):
        return ""
    return f"{other.layouts.layout(i).label()} needs {format_bytes(peak[i])}"
