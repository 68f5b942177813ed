"""Distinct rows of whole-number columns, ranked through tables instead of sorting where numbers are small."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
_DENSE, _SMALL = 4, 1024
"""Size of a table of whole numbers up to which it ranks n of them faster than sorting does: _DENSE * n + _SMALL."""


def _ranks(values: IntArray) -> tuple[IntArray | None, int]:
    """Position of each of n >= 1 values among the distinct ones in their order, and how many those are; None: one."""
    if values.strides == (0,):  # one value in one place of memory
        return None, 1
    low, high = int(values.min()), int(values.max())
    if low == high:
        return None, 1
    if high - low > _DENSE * len(values) + _SMALL:
        unique, inverse = np.unique(values, return_inverse=True)
        return inverse.reshape(-1), len(unique)
    offset = values - low if low else values
    if high - low == 1:
        return offset, 2
    seen = np.zeros(high - low + 1, dtype=np.bool_)
    seen[offset] = True
    rank = np.cumsum(seen) - 1
    return rank[offset], int(rank[-1]) + 1


def distinct_rows(columns: Sequence[IntArray], n: int) -> tuple[IntArray, IntArray]:
    """Rows of n that differ in some of the columns, each ndarray (n,).

    Returns
    -------
    first : ndarray (k,)
        Position of the first row of each distinct combination, in the order of their values.
    inverse : ndarray (n,)
        Which of them each row has.
    """
    number, size = np.zeros(n, dtype=np.int64), 1
    for column in columns if n else ():
        codes, k = _ranks(np.asarray(column))
        if codes is not None:
            number, size = codes if size == 1 else number * k + codes, size * k
        if size > _DENSE * n + _SMALL:  # more numbers than a table is worth
            codes, size = _ranks(number)
            number = np.zeros(n, dtype=np.int64) if codes is None else codes
    first = np.full(size if n else 0, -1, dtype=np.int64)
    first[number[::-1]] = np.arange(n)[::-1]  # of equal indices the last is written
    used = first >= 0
    return first[used], (np.cumsum(used) - 1)[number]
