"""Rows priced once: the times are those of the ordinary prediction, with host and device as a trial has them."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from hwmodels.kernels.sustained import power_name
from planner import frameworks
from planner.compare.fit_rows import FitRow, counts, device_errors, host_errors, priced_rows, sampled
from planner.compare.host_fit import preset_rows
from planner.compare.rows import Row, read_rows
from planner.compare.validation import FACTS, PUBLISHED
from planner.frameworks import HostConstant
from planner.predict import predict

DATA = FACTS / PUBLISHED


def some(preset: str, most: int = 1) -> list[FitRow]:
    return priced_rows(sampled(preset_rows(DATA, preset), most))


def ordinary_pct(one: FitRow) -> float:
    case = one.case
    step = predict(case.model, case.cluster, case.workload, case.layout).step_s.mid
    return abs(math.log(step / one.measured_s)) * 100.0


@pytest.mark.parametrize("preset", ["deepspeed-2022", "bigscience-2022", "composer"])
def test_a_row_that_nothing_is_tried_on_is_predicted_as_ever(preset: str) -> None:
    for one in some(preset):
        assert host_errors([one], {})[one.row.group] == pytest.approx(ordinary_pct(one), rel=1e-9)
        assert device_errors([one], {})[one.row.group] == pytest.approx(ordinary_pct(one), rel=1e-9)


@pytest.mark.parametrize("preset", ["deepspeed-2022", "bigscience-2022"])
def test_bounding_anew_is_pricing_anew(preset: str) -> None:
    one = some(preset)[0]
    other = {"kernel_s": 80e-6, "microbatch_s": 2e-3, "step_s": 0.1}
    constants = {name: HostConstant(value, "test") for name, value in other.items()}
    with frameworks.instead(replace(frameworks.get(preset), **constants)):  # type: ignore[arg-type]
        assert host_errors([one], other)[one.row.group] == pytest.approx(ordinary_pct(one), rel=1e-9)


def test_a_wider_corner_takes_no_less_time() -> None:
    rows = some("deepspeed-2022")
    signed = []
    for corner in (0.0, 0.5, 1.0):
        one = rows[0]
        signed.append(one.error_pct(one.priced.hosted(one.priced.preset, corner)))
    assert signed == sorted(signed)


def test_a_joule_that_does_less_makes_steps_longer() -> None:
    one = some("composer")[0]
    name = power_name("bf16")

    def signed(value: float) -> float:
        """Error without its sign at twice and half of a step four times as long as any."""
        long = replace(one, measured_s=one.measured_s / 100.0)
        return device_errors([long], {name: value})[one.row.group]

    assert signed(0.2e12) > signed(0.4e12) > signed(0.8e12)


def test_large_groups_are_sampled_evenly() -> None:
    row = read_rows(DATA)[0]
    assert len(sampled([row] * 1000, 48)) == 48
    assert sampled([row] * 3, 48) == [row] * 3
    many = [replace(row, id=str(i)) for i in range(101)]
    assert [int(r.id) for r in sampled(many, 5)] == [0, 25, 50, 75, 100]


def test_progress_is_told_and_rows_without_a_prediction_are_left_out() -> None:
    row: Row = some("composer")[0].row
    told: list[tuple[int, int]] = []
    found = priced_rows([row, replace(row, tp=7)], lambda done, of: told.append((done, of)))
    assert told == [(1, 2), (2, 2)]
    assert counts(found) == {row.group: 1}
