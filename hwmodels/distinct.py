"""The distinct values of an array."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Scalar = TypeVar("Scalar", bound=np.generic)


def distinct(values: NDArray[Scalar]) -> NDArray[Scalar]:
    """Every value once, sorted: `numpy.unique` without the masked arrays that it imports to look for masks.

    That import takes 10 ms, a hundredth of what a search may take from its start to its answer.

    Parameters
    ----------
    values : ndarray
        Of any shape; not masked.

    Returns
    -------
    ndarray (number of distinct values,)
    """
    flat = np.sort(values, axis=None)
    first = np.ones(len(flat), bool)
    first[1:] = flat[1:] != flat[:-1]
    return flat[first]
