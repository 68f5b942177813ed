"""Pipeline ranks that stand for all in the look for the one that needs most memory."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from planner.layout import LayoutBatch
from planner.model.spec import ModelSpec
from planner.recompute import Stages, coverage
from planner.schedule import get as get_schedule
from planner.stages import assignment


def fullest(model: ModelSpec, layouts: LayoutBatch, pp: int, vpp: int, schedule: str) -> tuple[int, ...]:
    """Ranks among which that of most memory is, for every one of the layouts that share (pp, vpp, schedule).

    Of ranks that hold the same layers the first one has most in flight where the schedule says so
    (`Schedule.falling`), and everything else of them is equal; other schedules have all ranks looked at.
    """
    if not get_schedule(schedule).falling:
        return tuple(range(pp))
    partial = Stages(model, layouts, pp, vpp, schedule).partial
    keys = [layouts.stage_layers, *(np.where(partial, v, 0) for v in (layouts.recompute, layouts.recompute_layers))]
    if all(key.min() == key.max() for key in keys):
        cases = [tuple(int(key[0]) for key in keys)]
    else:
        cases = [tuple(map(int, row)) for row in np.unique(np.stack(keys, axis=1), axis=0)]
    return _first_of_each(model, pp, vpp, schedule, tuple(cases))


@lru_cache(maxsize=1024)
def _first_of_each(
    model: ModelSpec, pp: int, vpp: int, schedule: str, cases: tuple[tuple[int, ...], ...]
) -> tuple[int, ...]:
    """The first rank of those that hold the same in every case of (split, kind, layers)."""
    held = [b""] * pp
    for split, kind, layers in cases:
        tables = [assignment(model, pp, vpp, schedule, split)]
        if kind:
            found = coverage(model, pp, vpp, schedule, split, kind, layers)
            tables += [found.again, found.inputs, np.moveaxis(found.moments, 3, 1)]
        for rank in range(pp):
            held[rank] += b"".join(table[:, rank].tobytes() for table in tables)
    return tuple(sorted({same: rank for rank, same in reversed(list(enumerate(held)))}.values()))
