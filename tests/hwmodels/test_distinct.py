"""Distinct values are those of NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwmodels.distinct import distinct


@given(st.lists(st.integers(-9, 9)), st.sampled_from(["int64", "float64", "U2", "bool"]))
def test_they_are_those_of_numpy(values: list[int], dtype: str) -> None:
    array = np.asarray(values).astype(dtype)
    assert np.array_equal(distinct(array), np.unique(array)) and distinct(array).dtype == array.dtype


@pytest.mark.parametrize("shape", [(2, 3), (0, 4), ()])
def test_of_any_shape(shape: tuple[int, ...]) -> None:
    array = np.arange(int(np.prod(shape))).reshape(shape) % 4
    assert np.array_equal(distinct(array), np.unique(array))
