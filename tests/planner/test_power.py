"""Energy of a step by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hwmodels import catalog, energy
from planner.power import per_mtoken, step_joules, sustained_note


def phases(**seconds: float) -> dict[str, float]:
    return {"forward": 0.0, "backward": 0.0, "recompute": 0.0, "optimizer": 0.0, "bubble": 0.0, **seconds}


def test_a_step_by_hand() -> None:
    # H100, 700 W, idle 84 W. 8 GPUs: 1 + 2 s of compute at half of the peak, 0.5 s of optimizer, 0.5 s idle.
    # Compute: the peak is 989.4 TFLOP/s, and a joule is 0.9494e12 FLOP; optimizer: 84 + 616 x 0.5 x 0.65 W; PUE 1.2.
    watts = 84 + 616 * 0.5 * 989.4 / (0.9494 * 700)
    device = catalog.device("h100-sxm-80gb")
    flops = 0.5 * 3.0 * 8 * 1e15
    joules = step_joules(device, [phases(forward=1.0, backward=2.0, optimizer=0.5)], 4.0, flops, 8e15, 8)
    assert joules == pytest.approx((3 * watts + 0.5 * 284.2 + 0.5 * 84.0) * 8 * 1.2)
    kwh, co2 = per_mtoken(joules, 2e6)
    assert kwh == pytest.approx(joules / 3.6e6 / 2)
    assert co2 == pytest.approx(kwh * energy.GRID_KG_PER_KWH.value)


def test_between_idle_and_board_power() -> None:
    device = catalog.device("b200-sxm-180gb")
    idle = step_joules(device, [phases(bubble=2.0)], 2.0, 0.0, 1e15, 1)
    full = step_joules(device, [phases(forward=2.0)], 2.0, 9e15, 1e15, 1)
    assert idle == pytest.approx(energy.IDLE_SHARE.value * device.tdp_w * 2.0 * 1.2)
    assert full == pytest.approx(device.tdp_w * 2.0 * 1.2)


def test_unknown_power_gives_no_figure() -> None:
    assert step_joules(replace(catalog.device("cpu-core"), tdp_w=0.0), [phases(forward=1.0)], 1.0, 1e9, 1e9, 1) is None
    assert per_mtoken(None, 1e6) == (None, None)


def test_a_prediction_says_what_its_clock_rests_on() -> None:
    # 0.98e12 FLOP a joule at 1,200 W
    known = sustained_note(catalog.device("gb200-186gb"), "bf16")
    assert known.startswith("sustained clock: at most 1176 TFLOP/s in bf16 at 1200 W (least mean absolute error")
    assert "no measured step" in sustained_note(catalog.device("a100-sxm-80gb"), "bf16")
    narrow = sustained_note(catalog.device("gb200-186gb"), "nvfp4")
    assert "no measured step says what blackwell sustains in nvfp4" in narrow
