"""Micro-batches shared among unlike replicas so that the slowest ends as early as can be: exact, in whole numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
Seconds = Callable[[int, int], float]


def apportioned(
    seconds: Seconds, counts: Sequence[int], total: int, unit: int = 1, start: Sequence[int] = ()
) -> tuple[int, ...]:
    """Micro-batches of a replica of each kind, the least of the largest time that covers `total`.

    Parameters
    ----------
    seconds : callable
        ``seconds(kind, m)`` of a replica of that kind with m micro-batches, growing with m.
    counts : sequence of int
        Replicas of each kind.
    total : int
        Micro-batches of the step; a multiple of `unit`, and at least `unit` for every replica.
    unit : int
        Multiples that the schedule runs.
    start : sequence of int
        Where to begin; a good guess saves calls and changes nothing.

    Returns
    -------
    tuple of int
        ``sum(counts * m) >= total``: what is too much is left out by `shared`.

    Notes
    -----
    ``min over m of max_k T_k(m_k)``. Below a time t a kind holds at most the largest m with ``T_k(m) < t``; t is the
    optimum exactly when these do not cover `total`. So t is lowered to the largest time of a cover that lies below it
    until there is none: a descent over a finite set of times that ends at the optimum.
    """
    found = [max(unit, m) for m in (start or [unit] * len(counts))]
    while sum(c * m for c, m in zip(counts, found, strict=True)) < total:
        kind = min(range(len(counts)), key=lambda k: (seconds(k, found[k] + unit), k))
        found[kind] += unit
    while True:
        found = _trimmed(seconds, counts, total, unit, found)
        limit = max(seconds(k, m) for k, m in enumerate(found))
        below = [_most_below(seconds, k, m, unit, limit, total) for k, m in enumerate(found)]
        if min(below) < unit or sum(c * m for c, m in zip(counts, below, strict=True)) < total:
            return tuple(found)
        found = below


def _most_below(seconds: Seconds, kind: int, start: int, unit: int, limit: float, total: int) -> int:
    """The largest multiple of `unit`, up to `total`, whose time is below `limit`; 0 where none is."""
    m = start
    while m >= unit and seconds(kind, m) >= limit:
        m -= unit
    while m + unit <= total and seconds(kind, m + unit) < limit:
        m += unit
    return m


def _trimmed(seconds: Seconds, counts: Sequence[int], total: int, unit: int, found: list[int]) -> list[int]:
    """Fewer micro-batches wherever a whole kind can do with less, the slowest first."""
    found = list(found)
    while True:
        spare = sum(c * m for c, m in zip(counts, found, strict=True)) - total
        kinds = [k for k, c in enumerate(counts) if found[k] > unit and c * unit <= spare]
        if not kinds:
            return found
        slowest = max(kinds, key=lambda k: (seconds(k, found[k]), -k))
        found[slowest] -= unit


def shared(counts: Sequence[int], most: Sequence[int], total: int, unit: int = 1) -> list[tuple[int, int, int]]:
    """(kind, replicas, micro-batches) that sum to `total`, none above `most`; what is too much is taken evenly.

    Replicas that run a unit less are those of the kind with most micro-batches first.
    """
    spare = (sum(c * m for c, m in zip(counts, most, strict=True)) - total) // unit
    left = [[m] * c for c, m in zip(counts, most, strict=True)]
    for kind in sorted(range(len(counts)), key=lambda k: -most[k]):
        for i in range(counts[kind]):
            if spare > 0 and left[kind][-1 - i] > unit:
                left[kind][-1 - i] -= unit
                spare -= 1
    found: list[tuple[int, int, int]] = []
    for kind, each in enumerate(left):
        found += [(kind, each.count(m), m) for m in sorted(set(each), reverse=True)]
    return found


def proportional(slope: FloatArray, ramp: FloatArray, counts: IntArray, total: IntArray, unit: IntArray) -> FloatArray:
    """The least time in which replicas of ``ramp + slope * m`` seconds cover `total`, and their m.

    Parameters
    ----------
    slope, ramp : ndarray (n, kinds)
    counts : ndarray (n, kinds)
        0: the kind takes no part.
    total, unit : ndarray (n,)

    Returns
    -------
    ndarray (n, kinds)
        Micro-batches of a replica of each kind, multiples of `unit`, at least one of them.
    """
    each = unit[:, None].astype(np.float64)
    low = np.zeros(len(slope))
    high = (ramp + slope * (total[:, None] + each)).max(axis=1)

    def held(limit: FloatArray) -> FloatArray:
        whole = np.floor((limit[:, None] - ramp) / (slope * each) + 1e-9)
        return np.asarray(np.maximum(whole, 1.0) * each)

    for _ in range(48):
        middle = 0.5 * (low + high)
        covers = (held(middle) * counts).sum(axis=1) >= total
        low, high = np.where(covers, low, middle), np.where(covers, middle, high)
    return held(high)
