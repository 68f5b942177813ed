"""Measured curves of collectives inside a node, as `calibrate` writes them.

A group size that has a curve is read off it: straight lines in log-log space between the
measured sizes (increasing, because `fit_collectives` makes the curve increasing), the smallest
measured time below them, and in proportion to the bytes above. A group size between two curves is
interpolated in the logarithm of the ranks; one below them takes the first curve, one above the last,
longer by the steps that a ring has more.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hwmodels.collectives.base import Group
from hwmodels.estimate import FloatArray
from hwmodels.network import Fabric

UNMEASURED_SIZE_SPREAD = 0.25
"""Added where a group size has no curve of its own."""


def read_curve(points: tuple[tuple[float, float], ...], nbytes: FloatArray) -> FloatArray:
    """Seconds at `nbytes` on one curve of ``(bytes, seconds)``, sizes ascending."""
    sizes = np.log([max(p[0], 1.0) for p in points])
    times = np.log(np.maximum.accumulate([p[1] for p in points]))
    x = np.log(np.maximum(nbytes, 1.0))
    result = np.interp(x, sizes, times)
    return np.exp(np.where(x > sizes[-1], times[-1] + x - sizes[-1], result))


def replace(
    fabric: Fabric, op: str, nbytes: FloatArray, group: Group, law: FloatArray
) -> tuple[FloatArray, Callable[[FloatArray], FloatArray]]:
    """`law` with the measured curves put in its place, and what that does to the spread."""
    tables = fabric.tables[op]
    measured = sorted(tables)
    curves = {size: read_curve(tables[size], nbytes) for size in measured}
    logs = np.log2(np.asarray(measured, dtype=np.float64))
    ranks = np.maximum(group.ranks, 1.0)
    x = np.log2(ranks)
    result = np.zeros(nbytes.shape)
    for i, size in enumerate(measured):
        low = logs[i - 1] if i else -np.inf
        high = logs[i + 1] if i + 1 < len(measured) else np.inf
        # Hat functions: 1 at its own size, 0 at the neighbours', flat beyond the ends.
        weight = np.where(
            x <= logs[i],
            1.0 if i == 0 else np.clip((x - low) / (logs[i] - low), 0.0, 1.0),
            1.0 if i + 1 == len(measured) else np.clip((high - x) / (high - logs[i]), 0.0, 1.0),
        )
        result = result + weight * np.log(curves[size])
    seconds = np.exp(result)
    # Beyond the measured sizes a step-by-step algorithm grows with its steps.
    top = float(measured[-1])
    seconds = seconds * np.maximum((ranks - 1.0) / max(top - 1.0, 1.0), 1.0)
    known = np.isin(group.ranks, np.asarray(measured, dtype=np.float64))
    residual = fabric.tables_source.residual if fabric.tables_source is not None else 0.15
    spread = np.where(known, residual, residual + UNMEASURED_SIZE_SPREAD)
    inside = group.ranks > 1.0
    return np.where(inside, seconds, law), lambda old: np.where(inside, spread, old)
