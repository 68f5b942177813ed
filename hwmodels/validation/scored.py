"""`Scored`: predictions beside the measured times of one file."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hwmodels.estimate import FloatArray
from hwmodels.measured import Rows


@dataclass(frozen=True, slots=True, eq=False)
class Scored:
    """Predictions beside the measured times of one file, one element a row.

    Attributes
    ----------
    file, kind : str
        Path of the file; ``gemm``, ``attention``, ``collective`` or ``expert``.
    line : ndarray of int
    group : ndarray of str
        Device or system, dtype, op, implementation and size class; empty where the row was skipped.
    pool : ndarray of str
        The same without the implementation.
    key : ndarray of str
        Everything that the law knows of a row: rows of equal key differ by noise or by what no column states.
    reason : ndarray of str
        Why a row was skipped.
    measured_s, predicted_s, spread : ndarray
        Seconds, seconds, relative.
    x : ndarray
        Size for plots: FLOP (gemm, attention prefill), bytes (collective, expert, attention decode).
    """

    file: str
    kind: str
    line: NDArray[np.int64]
    group: NDArray[np.object_]
    pool: NDArray[np.object_]
    key: NDArray[np.object_]
    reason: NDArray[np.object_]
    measured_s: FloatArray
    predicted_s: FloatArray
    spread: FloatArray
    x: FloatArray

    @classmethod
    def empty(cls, file: str, kind: str, rows: Rows, measured_s: FloatArray) -> Scored:
        """Nothing predicted yet; the arrays are filled in place."""

        def words() -> NDArray[np.object_]:
            return np.full(len(rows), "", object)

        def zeros() -> FloatArray:
            return np.zeros(len(rows))

        return cls(
            file, kind, rows.line, words(), words(), words(), words(), measured_s, zeros(), zeros(), zeros()
        )  # fmt: skip

    @property
    def predicted(self) -> NDArray[np.bool_]:
        """Rows that were predicted."""
        return np.asarray(self.group != "", dtype=np.bool_)


def keys(*columns: Iterable[object]) -> list[str]:
    """One text a row of the columns given (arrays of equal length)."""
    return ["|".join(str(cell) for cell in row) for row in zip(*columns, strict=True)]
