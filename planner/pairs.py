"""Which micro-batches of a schedule find another to hide their expert exchanges behind.

A forward and a backward that a rank runs one after the other, and that do not wait for each other, can run side by
side (Megatron-Core ``combined_1f1b.py``; DualPipe). The share of forwards without such a partner is read off the
schedule's own list of actions: warm-up and cool-down of a pipeline, the first and the last micro-batch without one.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from planner.schedule import Action, Kind
from planner.schedule import get as get_schedule

FloatArray = NDArray[np.float64]
_BACKWARD = (Kind.BACKWARD, Kind.BACKWARD_INPUT)


def _beside(one: Action, two: Action) -> bool:
    """Whether one is a forward and the other a backward of other work."""
    kinds = {one.kind is Kind.FORWARD, two.kind is Kind.FORWARD}
    return len(kinds) == 2 and (one.stage, one.microbatch) != (two.stage, two.microbatch)


@lru_cache(maxsize=4096)
def unpaired(schedule: str, pp: int, microbatches: int, vpp: int) -> tuple[float, ...]:
    """Share of each rank's forwards (and backwards) that run alone, 0 to 1."""
    found = []
    for actions in get_schedule(schedule).actions(pp, microbatches, vpp):
        passes = [a for a in actions if a.kind is Kind.FORWARD or a.kind in _BACKWARD]
        forwards = sum(a.kind is Kind.FORWARD for a in passes)
        pairs = i = 0
        while i + 1 < len(passes):
            together = _beside(passes[i], passes[i + 1])
            pairs, i = pairs + together, i + (2 if together else 1)
        found.append(1.0 - pairs / forwards)
    return tuple(found)


def unpaired_shares(schedule: str, pp: int, microbatches: NDArray[np.int64], vpp: int) -> FloatArray:
    """`unpaired` of many layouts: ndarray (n, pp)."""
    counts, which = np.unique(microbatches, return_inverse=True)
    shares = np.asarray([unpaired(schedule, pp, int(m), vpp) for m in counts]).reshape(-1, pp)
    return np.asarray(shares[which.reshape(-1)])
