"""Least squares of a law's coefficients on measured rows. SciPy is imported while fitting only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hwmodels import catalog
from hwmodels.device import Coefficient, Device
from hwmodels.errors import RunError
from hwmodels.estimate import FloatArray
from hwmodels.laws import Block


@dataclass(frozen=True, slots=True)
class Free:
    """A coefficient that a fit may move: name, start, bounds."""

    name: str
    start: float
    low: float
    high: float


def solve(
    predict: Callable[[FloatArray], FloatArray],
    free: Sequence[Free],
    actual: FloatArray,
    weight: FloatArray | None = None,
    scale: float = 0.06,
    prior: float = 0.0,
    tolerance: float = 1e-8,
) -> tuple[FloatArray, FloatArray]:
    """Values of `free` that bring ``predict(values)`` nearest to `actual`, and the log errors.

    Least squares of the logarithm of predicted over actual with a soft L1 loss, so that a few odd
    rows do not bend the law (`scale`: log error from which a row counts less); bounds keep every value
    physical, and `prior` (the weight of one row that says "as at the start") what the rows do not tell. It ends when a
    step lowers the cost by less than `tolerance` of it.

    Raises
    ------
    RunError
        Where SciPy is not installed.
    """
    try:
        from scipy.optimize import least_squares
    except ImportError:
        raise RunError("fitting needs SciPy, which is not installed. Try: pip install 'meshwright[fit]'") from None

    start = np.asarray([f.start for f in free])
    root = 1.0 if weight is None else np.sqrt(weight)

    def errors(x: FloatArray) -> FloatArray:
        found = np.log(predict(x * start) / actual) * root
        return np.concatenate([found, prior * np.log(np.maximum(x, 1e-9))]) if prior else np.asarray(found)

    found = least_squares(
        errors,
        np.ones(len(free)),
        bounds=([f.low / f.start for f in free], [f.high / f.start for f in free]),
        loss="soft_l1",
        f_scale=scale,
        diff_step=1e-3,
        max_nfev=200,
        ftol=tolerance,
    )
    values = np.asarray(found.x * start)
    return values, np.asarray(np.log(predict(values) / actual))


def rms(errors: FloatArray) -> float:
    """Root mean square of log errors with the widest tenth cut off, as a relative spread."""
    if errors.size == 0:
        return 0.0
    size = np.sort(np.abs(errors))
    kept = size[: max(1, int(np.ceil(0.9 * size.size)))]
    return float(np.sqrt(np.mean(kept**2)) * 1.15)  # 1.15: the cut removes that much of a normal spread


def with_coefficients(device: Device, numbers: dict[str, float]) -> Device:
    """`device` with plain `numbers` among its coefficients (while fitting)."""
    extra = {name: Coefficient(float(v), "fit", 1) for name, v in numbers.items()}
    return replace(device, coefficients={**device.coefficients, **extra})


def bare(name: str) -> Device:
    """The device without fitted coefficients: a fit must not depend on the one before."""
    return replace(catalog.device(name), coefficients={})


def block(prefix: str, free: Sequence[Free], values: FloatArray, errors: FloatArray, source: str) -> Block:
    """What one fit found, as it is recorded."""
    found = {f.name: float(v) for f, v in zip(free, values, strict=True)}
    return Block(prefix, source, int(errors.size), rms(errors), found)
