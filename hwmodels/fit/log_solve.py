"""Least squares over the logarithms of coefficients that span decades, each held where it started by a prior."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hwmodels.errors import RunError
from hwmodels.estimate import FloatArray

SCALE = 0.06
"""Log error from which a row counts less."""

ErrorsOf = Callable[[dict[str, Any]], FloatArray]
"""Values of the coefficients -> log errors of the rows; a value may be a column, then there is a row for each of it."""


def solve_log(
    start: Mapping[str, float],
    free: Sequence[str],
    limits: Mapping[str, tuple[float, float]],
    errors_of: ErrorsOf,
    weight: FloatArray,
    prior: float,
) -> tuple[dict[str, float], float]:
    """Values of `free` with the least errors, and their cost.

    A soft L1 loss from `SCALE` on, and `prior` times the logarithm of how far each moved as a further error. All
    slopes are taken in one call: `errors_of` gets columns of values.

    Raises
    ------
    RunError
        Where SciPy is not installed.
    """
    try:
        from scipy.optimize import least_squares
    except ImportError:
        raise RunError("fitting needs SciPy, which is not installed. Try: pip install 'meshwright[fit]'") from None
    low = np.log([limits[name][0] / start[name] for name in free])
    high = np.log([limits[name][1] / start[name] for name in free])
    origin = np.asarray([start[name] for name in free])

    def values(x: FloatArray) -> dict[str, Any]:
        found = origin * np.exp(x)
        columns = found if x.ndim == 1 else np.swapaxes(found, 0, 1)[:, :, None]
        return {**start, **dict(zip(free, columns, strict=True))}

    def residuals(x: FloatArray) -> FloatArray:
        return np.concatenate([errors_of(values(x)) * weight, prior * x])

    def slopes(x: FloatArray) -> FloatArray:
        at, step = errors_of(values(x)), 1e-4
        beside = errors_of(values(x + step * np.eye(x.size)))
        return np.concatenate([((beside - at) / step * weight).T, prior * np.eye(x.size)])

    x0 = np.clip(np.zeros(len(free)), low + 1e-6, high - 1e-6)
    best = least_squares(residuals, x0, jac=slopes, bounds=(low, high), loss="soft_l1", f_scale=SCALE, max_nfev=150)
    return {**start, **{name: float(v) for name, v in values(best.x).items()}}, float(best.cost)


def robust_cost(errors: FloatArray, weight: FloatArray) -> float:
    """Half the sum of the soft L1 loss that `solve_log` minimises, without the prior."""
    ratio = errors * weight / SCALE
    return float(SCALE**2 * np.sum(np.sqrt(1.0 + ratio * ratio) - 1.0))


def pays(
    name: str, values: Mapping[str, float], base: Mapping[str, float], errors_of: ErrorsOf, weight: FloatArray
) -> bool:
    """Whether the rows pay for a coefficient of their own by Akaike's information criterion.

    Taking it back to `base` must raise the cost by more than ``2 / n`` of itself (Akaike 1974).
    """
    with_it = robust_cost(errors_of(dict(values)), weight)
    without = robust_cost(errors_of({**values, name: base[name]}), weight)
    return without > with_it * (1.0 + 2.0 / weight.size)
