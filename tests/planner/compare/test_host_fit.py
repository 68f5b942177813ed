"""Host constants of a preset: the fit finds those that made the times, and leaves alone what explains nothing."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from hwmodels.errors import InputError
from planner import frameworks
from planner.compare.host_fit import ROWS_A_GROUP, fit_host, fitted_presets, measurements, sampled, trial
from planner.compare.rows import Row, read_rows
from planner.compare.validation import FACTS, PUBLISHED

DATA = FACTS / PUBLISHED


def score(rows: Sequence[Row]) -> dict[str, float]:
    """As if times came from 20 us a kernel and 3 ms a micro-batch, with 2% that nothing explains."""
    now = frameworks.get("deepspeed-2022")
    off = abs(float(now.kernel_s) - 20e-6) / 20e-6 + abs(float(now.microbatch_s) - 3e-3) / 3e-3
    return dict.fromkeys({row.group for row in rows}, 2.0 + 100.0 * off)


def test_constants_that_made_the_times_are_found() -> None:
    known = frameworks.get("deepspeed-2022")
    found = fit_host(DATA, "deepspeed-2022", score)
    assert found.constants["kernel_s"].value == pytest.approx(20e-6, rel=0.15)
    assert found.constants["microbatch_s"].value == pytest.approx(3e-3, rel=0.25)
    assert found.constants["step_s"].value == 0.0  # it moves nothing
    assert set(found.before_pct) == {"vtrain_a100_multi", "vtrain_a100_single"}
    assert all(value == pytest.approx(202.0) for value in found.before_pct.values())
    assert max(found.after_pct.values()) < 50.0
    assert frameworks.get("deepspeed-2022") is known


def test_a_trial_ends_with_its_block() -> None:
    before = frameworks.get("composer")
    with trial("composer", {"kernel_s": 1e-3}):
        assert frameworks.get("composer").kernel_s.value == 1e-3
    assert frameworks.get("composer") is before


def test_large_groups_are_sampled_evenly() -> None:
    row = read_rows(DATA)[0]
    kept = sampled([row] * 1000)
    assert len(kept) == ROWS_A_GROUP
    assert sampled([row] * 3) == [row] * 3


def test_a_preset_without_rows_is_refused() -> None:
    with pytest.raises(InputError, match="no row ran generic"):
        fit_host(DATA, "generic", score)
    with pytest.raises(InputError, match="unknown framework preset"):
        fit_host(DATA, "nope", score)


def test_presets_of_a_file_and_the_file_of_a_folder(tmp_path) -> None:
    assert measurements(DATA) == DATA
    assert measurements(tmp_path) == tmp_path / "training_measurements.csv"
    found = fitted_presets(DATA)
    assert {"megatron-2021", "deepspeed-2022", "bigscience-2022", "composer"} <= set(found)
    assert len(found) == len(set(found)) and set(found) <= set(frameworks.names())
