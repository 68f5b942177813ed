"""Host constants of a preset: the fit finds those that made the times, and leaves alone what explains nothing."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from hwmodels.errors import InputError
from planner import frameworks
from planner.compare.host_fit import SCANS, fit_host, fitted_presets, measurements, preset_rows, usable
from planner.compare.rows import read_rows
from planner.compare.validation import FACTS, PUBLISHED

DATA = FACTS / PUBLISHED
ROWS = {"one": 5, "two": 7}


def score(values: Mapping[str, float]) -> dict[str, float]:
    """As if times came from 20 us a kernel and 3 ms a micro-batch, with 2% that nothing explains."""
    off = abs(values["kernel_s"] - 20e-6) / 20e-6 + abs(values["microbatch_s"] - 3e-3) / 3e-3
    return dict.fromkeys(ROWS, 2.0 + 100.0 * off)


def test_constants_that_made_the_times_are_found() -> None:
    found = fit_host("deepspeed-2022", ROWS, score)
    assert found.constants["kernel_s"].value == pytest.approx(20e-6)
    assert found.constants["microbatch_s"].value == pytest.approx(3e-3)
    assert found.constants["step_s"].value == 0.0  # it moves nothing
    assert found.constants["kernel_s"].rows == 12
    assert found.constants["kernel_s"].residual == pytest.approx(0.02)
    assert "5 rows of one and 7 rows of two, in steps of 5 us" in found.constants["kernel_s"].source
    assert found.before_pct == pytest.approx({"one": 202.0, "two": 202.0})
    assert found.after_pct == pytest.approx({"one": 2.0, "two": 2.0})


def test_what_takes_away_less_than_a_twentieth_stays_at_zero() -> None:
    def slight(values: Mapping[str, float]) -> dict[str, float]:
        return {"one": 10.0 - 0.4 * (values["step_s"] == 0.5)}

    assert all(c.value == 0.0 for c in fit_host("megatron", {"one": 3}, slight).constants.values())


def test_each_group_is_predicted_by_the_others() -> None:
    def apart(values: Mapping[str, float]) -> dict[str, float]:
        """Group one wants 50 us, group two 100 us; errors of 1% for each 5 us."""
        return {"one": 1 + abs(values["kernel_s"] - 50e-6) / 5e-6, "two": 1 + abs(values["kernel_s"] - 100e-6) / 5e-6}

    found = fit_host("megatron", ROWS, apart)
    assert found.left_out["one"]["kernel_s"] == pytest.approx(100e-6)
    assert found.left_out_pct == pytest.approx({"one": 11.0, "two": 11.0})


def test_nothing_is_left_out_of_a_single_group() -> None:
    found = fit_host("megatron", {"one": 3}, lambda values: {"one": 4.0})
    assert found.left_out == {} and found.left_out_pct == {}


def test_scans_lie_in_their_range() -> None:
    scan = SCANS["kernel_s"]
    assert scan.first()[0] == 0.0 and scan.first()[-1] == pytest.approx(scan.most)
    near = scan.around(scan.most)
    assert max(near) == pytest.approx(scan.most) and min(near) > scan.most - scan.coarse
    assert min(scan.around(0.0)) == 0.0


def test_a_preset_without_rows_is_refused() -> None:
    with pytest.raises(InputError, match="no row ran generic"):
        preset_rows(DATA, "generic")
    with pytest.raises(InputError, match="unknown framework preset"):
        preset_rows(DATA, "nope")


def test_presets_of_a_file_and_the_file_of_a_folder(tmp_path) -> None:
    assert measurements(DATA) == DATA
    assert measurements(tmp_path) == tmp_path / "training_measurements.csv"
    found = fitted_presets(DATA)
    assert {"megatron-2021", "deepspeed-2022", "bigscience-2022", "composer"} <= set(found)
    assert len(found) == len(set(found)) and set(found) <= set(frameworks.names())


def test_smoke_checks_are_not_fitted() -> None:
    left = {row.id for row in read_rows(DATA)} - {row.id for row in usable(DATA)}
    assert left == {r.id for r in read_rows(DATA) if r.trust == "C" or r.oom or not r.measured}
