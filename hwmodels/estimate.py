"""`Estimate`: seconds with the spread that their law is known to have."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hwmodels.records import dataclass

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Estimate:
    """Seconds (mid) and a relative spread, element by element.

    ``low = mid / (1 + spread)`` and ``high = mid * (1 + spread)``, so an estimate stays
    positive however wide it is. Errors of one law on one device are taken as fully
    correlated: the spread of a sum is the mid-weighted mean of the spreads.

    Attributes
    ----------
    mid : ndarray of float64, any shape
        Expected seconds.
    spread : ndarray of float64, broadcastable to `mid`
        Relative half-width, dimensionless, >= 0.
    """

    mid: FloatArray
    spread: FloatArray

    @classmethod
    def of(cls, mid: ArrayLike, spread: ArrayLike = 0.0) -> Estimate:
        """Build from anything array-like."""
        return cls(np.asarray(mid, dtype=np.float64), np.asarray(spread, dtype=np.float64))

    @property
    def low(self) -> FloatArray:
        """Seconds at the optimistic end."""
        return np.asarray(self.mid / (1.0 + self.spread))

    @property
    def high(self) -> FloatArray:
        """Seconds at the pessimistic end."""
        return np.asarray(self.mid * (1.0 + self.spread))

    def __add__(self, other: Estimate) -> Estimate:
        mid = self.mid + other.mid
        weight = self.mid * self.spread + other.mid * other.spread
        spread = np.divide(weight, mid, out=np.zeros_like(mid), where=mid > 0)
        return Estimate(np.asarray(mid), np.asarray(spread))

    def __mul__(self, factor: ArrayLike) -> Estimate:
        mid = np.asarray(self.mid * np.asarray(factor, dtype=np.float64))
        return Estimate(mid, np.broadcast_to(self.spread, mid.shape))

    __rmul__ = __mul__


def zero() -> Estimate:
    """The neutral element of the sum."""
    return Estimate.of(0.0)


def total(estimates: Any) -> Estimate:
    """Sum of an iterable of estimates (zero for none)."""
    result = zero()
    for estimate in estimates:
        result = result + estimate
    return result
