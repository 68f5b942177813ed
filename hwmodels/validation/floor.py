"""The error that remains between rows which are equal in every input: no law can do better.

Rows of equal key (`Scored.key`: shape, device, dtype, op, implementation ... all that a law is told) differ by noise or
by what no column states. Any function of the inputs gives all rows of such a set one time c. With t_i the measured
times of the set, the floor takes the c of least squared relative error, the minimum of sum (c / t_i - 1)^2::

    c = sum(1 / t_i) / sum(1 / t_i^2)

and keeps |c / t_i - 1| of each row. (The c of least *median* error would pass through one row of each pair and call the
median of any number of pairs zero, which says nothing about the noise.) Figures are taken over rows that have at least
one twin, every row counted once. The mean squares of real noise are larger still: of two rows with independent
noise of deviation s the constant absorbs half of the variance, so the floor is a low estimate.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hwmodels.estimate import FloatArray

ENOUGH = 0.5
"""Share of a selection's rows that must have twins before the floor speaks for the selection."""


@dataclass(frozen=True, slots=True)
class Floor:
    """Residuals of rows that have twins.

    Attributes
    ----------
    rows, twins : int
        Rows of the selection; those of them with at least one twin.
    median_pct, p90_pct, worst_pct : float or None
        Of |c / t - 1| over the rows with twins, per cent; None where there are none.
    """

    rows: int
    twins: int
    median_pct: float | None
    p90_pct: float | None
    worst_pct: float | None

    @property
    def speaks(self) -> bool:
        """Whether enough of the selection has twins to stand for all of it (`ENOUGH`)."""
        return self.twins > 0 and self.twins >= ENOUGH * self.rows

    def of(self, metric: str) -> float | None:
        """The figure of a metric: ``median``, ``p90`` or ``worst``."""
        return {"median": self.median_pct, "p90": self.p90_pct, "worst": self.worst_pct}[metric]


def residuals(key: NDArray[np.object_], seconds: FloatArray) -> tuple[FloatArray, NDArray[np.bool_]]:
    """|c / t - 1| of every row with the best c of its set, and which rows have a twin.

    Parameters
    ----------
    key : ndarray of str, shape (n,)
    seconds : ndarray, shape (n,)
        Measured, > 0.

    Returns
    -------
    tuple of ndarray, each of shape (n,)
        Dimensionless; 0 for rows without a twin.
    """
    if not seconds.size:
        return np.zeros(0), np.zeros(0, np.bool_)
    _, place, count = np.unique(key.astype(str), return_inverse=True, return_counts=True)
    rate = 1.0 / seconds
    best = np.bincount(place, rate) / np.bincount(place, rate**2)
    twin = count[place] > 1
    return np.where(twin, np.abs(best[place] * rate - 1.0), 0.0), twin


def floor(key: NDArray[np.object_], seconds: FloatArray) -> Floor:
    """The `Floor` of a selection of rows; arguments as for `residuals`."""
    left, twin = residuals(key, seconds)
    kept = 100.0 * left[twin]
    if not kept.size:
        return Floor(int(seconds.size), 0, None, None, None)
    median, p90 = (float(np.quantile(kept, q)) for q in (0.5, 0.9))
    return Floor(int(seconds.size), int(kept.size), median, p90, float(kept.max()))
