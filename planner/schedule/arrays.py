"""`ActionArrays`: the lists of a schedule as arrays, for those who read thousands of actions."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hwmodels.records import dataclass

IntArray = NDArray[np.int64]
FORWARD, BACKWARD = 0, 1
"""Positions in `planner.schedule.base.COMPUTE_KINDS`."""


@dataclass(frozen=True, slots=True, eq=False)
class ActionArrays:
    """Actions of all ranks, rank by rank, in the order of each.

    Attributes
    ----------
    rank, stage, microbatch : ndarray (n,)
    kind : ndarray (n,)
        Position in `planner.schedule.base.COMPUTE_KINDS`.
    """

    rank: IntArray
    stage: IntArray
    microbatch: IntArray
    kind: IntArray


def alternating(warmup: IntArray, chunk: IntArray, microbatch: IntArray, vpp: int) -> ActionArrays:
    """Forwards, then a forward and a backward in turn, then backwards: what both kinds of 1F1B run.

    With n forwards, w of them first, forward k has the place k of its rank's list, or 2k - w from the w-th on;
    backward k follows forward w + k, at w + 2k + 1, and the last w backwards follow one another, at n + k.

    Parameters
    ----------
    warmup : ndarray (pp,)
        Forwards of each rank before it alternates.
    chunk, microbatch : ndarray (n,)
        Of the k-th forward of any rank; backward k is of chunk ``vpp - 1 - chunk[k]``.
    vpp : int

    Returns
    -------
    ActionArrays
        Stages lie as looped placement has them: ``chunk * pp + rank``.
    """
    pp, n = len(warmup), len(chunk)
    k, first, rank = np.arange(n), warmup[:, None], np.arange(pp)[:, None]
    forward = np.where(k < first, k, 2 * k - first)
    backward = np.where(k < n - first, first + 2 * k + 1, n + k)
    stage, batch, kind = (np.empty((pp, 2 * n), np.int64) for _ in range(3))
    for at, of, code in ((forward, chunk, FORWARD), (backward, vpp - 1 - chunk, BACKWARD)):
        stage[rank, at] = of * pp + rank
        batch[rank, at] = microbatch
        kind[rank, at] = code
    return ActionArrays(np.repeat(np.arange(pp), 2 * n), stage.ravel(), batch.ravel(), kind.ravel())
