"""Peak bytes of layouts, and the layout of a space that needs least memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hwmodels.cluster import Cluster
from hwmodels.records import dataclass
from planner.elements import BlockElements
from planner.layout import SCHEDULES
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
