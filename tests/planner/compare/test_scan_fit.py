"""A number that groups share: the best of a scan, and what each group's error is when it had no say."""

from __future__ import annotations

import pytest

from hwmodels.errors import InputError
from planner.compare.scan_fit import powered_rows, scan
from planner.compare.validation import FACTS, PUBLISHED

DATA = FACTS / PUBLISHED
BEST = {"a": 2.0, "b": 3.0, "c": 3.0}


def score(value: float) -> dict[str, float]:
    """Each group is 1% off at its best value and 4% more for each unit away."""
    return {group: 1.0 + 4.0 * abs(value - best) for group, best in BEST.items()}


def test_the_least_mean_error_over_groups_wins() -> None:
    found = scan("x", [1.0, 2.0, 3.0, 4.0], {"a": 5, "b": 1, "c": 1}, score)
    assert found.value == 3.0 and found.step == 1.0
    assert found.residual == pytest.approx((5.0 + 1.0 + 1.0) / 3.0 / 100.0, abs=5e-4)
    assert found.left_out["a"] == 3.0 and found.left_out_pct["a"] == pytest.approx(5.0)


def test_a_finer_scan_looks_between_the_values() -> None:
    found = scan("x", [1.0, 2.0, 3.0], {"a": 5}, lambda value: {"a": 1.0 + abs(value - 2.4)}, finer=5)
    assert found.value == pytest.approx(2.4) and found.step == pytest.approx(0.2)
    assert list(found.errors_pct) == sorted(found.errors_pct)


def test_nothing_is_left_out_of_a_single_group() -> None:
    found = scan("x", [1.0, 2.0], {"a": 5}, lambda value: {"a": value})
    assert found.value == 1.0 and not found.left_out and not found.left_out_pct


def test_rows_of_a_generation_and_format() -> None:
    rows, most = powered_rows(DATA, "ampere", "bf16")
    assert {row.gpu for row in rows} == {"A100"} and {row.trust for row in rows} == {"A"}
    assert most == pytest.approx(312e12 / 400.0)


def test_a_generation_without_rows_is_refused() -> None:
    with pytest.raises(InputError, match="no row ran fp8 on ampere"):
        powered_rows(DATA, "ampere", "fp8")
