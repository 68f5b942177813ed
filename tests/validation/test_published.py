"""Predictions against the published facts kept here."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.compare import validate

TARGETS = ("megatron_a100_sc21", "korthikanti_a100")


@pytest.fixture(scope="module")
def a100():
    return validate(groups=TARGETS)


def test_the_18_a100_rows_are_all_predicted_within_ten_per_cent_on_average(a100):
    assert len(a100.results) == 18 and not a100.skipped
    errors = [abs(p[2] / p[1] - 1.0) * 100.0 for r in a100.results if (p := r.time_pair)]
    assert len(errors) == 18
    assert sum(errors) / 18 <= 10.0
    for group in TARGETS:
        assert a100.group(group).mean_abs_pct <= 10.0


def test_no_a100_run_that_worked_is_called_out_of_memory(a100):
    assert a100.oom["false_oom"] == 0


def test_the_a100_errors_have_not_grown(a100):
    assert (Path(__file__).parent / "regression.json").exists()
    assert a100.regressions == ()


@pytest.mark.slow
def test_no_error_of_any_group_has_grown():
    assert validate().regressions == ()
