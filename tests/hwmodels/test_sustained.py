"""Kernels of a step that runs for seconds, against hand calculation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwmodels import catalog, energy
from hwmodels.device import Coefficient, Device
from hwmodels.errors import InputError
from hwmodels.estimate import Estimate
from hwmodels.kernels import sustained_seconds
from hwmodels.kernels.sustained import COMPUTE_WEIGHT, compute_weight

PEAKS = {"bf16": 1e15, "fp16": 1e15, "fp8": 2e15}


def device(tdp_w: float = 1000.0, weight: float | None = 2.0) -> Device:
    """A toy of 1e15 FLOP/s whose tensor cores would draw `weight` kW at that."""
    own = Device("toy", "none", "gpu", "toy", PEAKS, 1e11, 1e12, 0.0, 10, tdp_w, 0.0)
    if weight is None:
        return own
    return replace(own, coefficients={"power.bf16.flop_per_j": Coefficient(1e12 / weight, "rows", 20, 0.03)})


def test_a_kernel_is_no_faster_than_the_board_power_feeds_it() -> None:
    # Twice the board power at the peak: half of the peak is sustained, 1e12 flop take 2 ms and not 1.25.
    hot = sustained_seconds(device(), Estimate.of([1.25e-3, 4e-3], 0.1), 1e12)
    assert hot.mid == pytest.approx([2e-3, 4e-3])
    assert hot.spread == pytest.approx([0.03, 0.1])


def test_half_the_power_takes_twice_as_long() -> None:
    # 0.5e12 FLOP a joule: 250 TFLOP/s at 500 W
    assert compute_weight(device(500.0)).value == pytest.approx(4.0)
    capped = sustained_seconds(device(500.0), Estimate.of(1e-3), 1e12)
    assert float(capped.mid) == pytest.approx(4e-3)


def test_formats_have_weights_of_their_own() -> None:
    assert compute_weight(device(), "fp16").value == 2.0
    assert compute_weight(device(), "fp8") == COMPUTE_WEIGHT
    # 1.1 x 1e12 / 2e15 = 0.55 ms binds nothing that reaches less than nine tenths of the peak
    assert float(sustained_seconds(device(), Estimate.of(0.6e-3), 1e12, "fp8").mid) == pytest.approx(0.6e-3)
    assert compute_weight(device(weight=None)) == COMPUTE_WEIGHT
    with pytest.raises(InputError):
        compute_weight(device(), "fp7")


def test_a_cpu_has_no_tensor_cores() -> None:
    cpu = catalog.device("cpu-core")
    alone = Estimate.of(1e-3)
    assert sustained_seconds(cpu, alone, 1e15) is alone


def test_watts_come_from_the_same_number() -> None:
    # The whole board power at half of the peak: 120 + 880 x min(2 x 0.5, 1)
    assert float(energy.power_w(device(), 0.5).mid) == pytest.approx(1000.0)
    assert float(energy.power_w(device(), 0.25).mid) == pytest.approx(560.0)
    assert float(energy.power_w(device(), 0.5, dtype="fp8").mid) == pytest.approx(604.0)


def test_siblings_of_a_measured_part_differ_by_their_board_power() -> None:
    known = {name: catalog.device(name) for name in ("b200-sxm-180gb", "gb200-186gb", "gb300-288gb", "h100-sxm-80gb",
                                                     "h100-sxm-96gb-500w", "a100-sxm-80gb")}  # fmt: skip
    rate = {name: one.peak("bf16") / compute_weight(one).value for name, one in known.items()}
    assert rate["gb200-186gb"] == pytest.approx(rate["b200-sxm-180gb"] * 1.2)
    assert rate["gb300-288gb"] == pytest.approx(rate["b200-sxm-180gb"] * 1.4)
    assert rate["h100-sxm-96gb-500w"] == pytest.approx(rate["h100-sxm-80gb"] * 5 / 7)
    assert compute_weight(known["a100-sxm-80gb"]) == COMPUTE_WEIGHT
    transferred = compute_weight(known["gb200-186gb"])
    assert "transferred" in transferred.source
    assert transferred.residual > compute_weight(known["b200-sxm-180gb"]).residual


@given(st.floats(1e-6, 1.0), st.floats(0.0, 1e15), st.floats(100.0, 2000.0))
def test_never_shorter_and_rises_with_work_and_falls_with_power(alone: float, flop: float, tdp_w: float) -> None:
    kernel = Estimate.of(alone)
    one = float(sustained_seconds(device(tdp_w), kernel, flop).mid)
    assert one >= alone
    assert float(sustained_seconds(device(tdp_w), kernel, 2.0 * flop).mid) >= one
    assert float(sustained_seconds(device(tdp_w + 100.0), kernel, flop).mid) <= one * (1.0 + 1e-12)
    assert np.isfinite(one)
