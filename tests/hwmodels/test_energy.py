"""Watts, joules and carbon dioxide, against hand calculation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hwmodels import catalog, energy
from hwmodels.device import Device
from hwmodels.energy import Phase, co2_kg, energy_j, power_w, step_energy_j
from hwmodels.errors import InputError
from hwmodels.estimate import Estimate
from hwmodels.kernels.sustained import COMPUTE_WEIGHT

SHARE = st.floats(0.0, 1.0)


def device(tdp_w: float = 1000.0) -> Device:
    return Device("toy", "none", "gpu", "toy", {"bf16": 1e15}, 1e11, 1e12, 0.0, 10, tdp_w, 0.0)


def test_watts_by_hand() -> None:
    # idle 120 W of 1000; half of the peak: 120 + 880 x 1.1 x 0.5 = 604; full bandwidth alone: 120 + 880 x 0.5 = 560.
    assert float(power_w(device(), 0.0).mid) == pytest.approx(120.0)
    assert float(power_w(device(), 0.5).mid) == pytest.approx(604.0)
    assert float(power_w(device(), 0.0, 1.0).mid) == pytest.approx(560.0)
    # A GEMM that throttles: 0.8 of the peak with a quarter of the bandwidth is 1.1 x 0.8 + 0.125 > 1: all of it.
    assert float(power_w(device(), 0.8, 0.25).mid) == 1000.0
    assert float(power_w(device(), 0.8, 0.25, cap_w=600.0).mid) == 600.0
    assert float(power_w(device(), 0.1, cap_w=5000.0).mid) == float(power_w(device(), 0.1).mid)


def test_joules_by_hand() -> None:
    # 604 W and 100 W of host, 1.5 of building, 8 GPUs, 10 s: 704 x 1.5 x 8 x 10 = 84,480 J
    found = energy_j(device(), Estimate.of(10.0, 0.1), 0.5, gpus=8, host_w=100.0, pue=1.5)
    assert float(found.mid) == pytest.approx(84480.0)
    assert float(found.spread) == pytest.approx(energy.POWER_SPREAD + 0.1)


def test_a_step_is_its_phases_and_idling() -> None:
    # 2 s at full power, 1 s at full bandwidth, 1 s of nothing: 2000 + 560 + 120 J, on 4 GPUs.
    phases = [Phase.of(2.0, 1.0, 1.0), Phase.of(1.0, 0.0, 1.0)]
    assert float(step_energy_j(device(), phases, 4.0, gpus=4).mid) == pytest.approx(4 * 2680.0)
    assert float(step_energy_j(device(), [], 1.0).mid) == pytest.approx(120.0)
    with pytest.raises(InputError, match="more than the step"):
        step_energy_j(device(), phases, 2.9)
    assert step_energy_j(device(), [Phase.of(np.ones(3), 0.5)], np.full((2, 1), 2.0)).mid.shape == (2, 3)


def test_carbon_dioxide_by_hand() -> None:
    # 7.2 MJ are 2 kWh: at 0.4 kg/kWh 0.8 kg; the default says when and what it is.
    assert float(co2_kg(7.2e6, 0.4).mid) == pytest.approx(0.8)
    assert float(co2_kg(7.2e6).mid) == pytest.approx(2 * energy.GRID_KG_PER_KWH.value)
    assert float(co2_kg(Estimate.of(1.0, 0.2)).spread) == pytest.approx(0.2 + energy.GRID_KG_PER_KWH.residual)


def test_what_is_assumed_says_so() -> None:
    assumed = (energy.IDLE_SHARE, COMPUTE_WEIGHT, energy.MEMORY_WEIGHT, energy.PUE, energy.GRID_KG_PER_KWH)
    assert all(c.source.startswith("assumed") and c.rows == 0 and c.residual > 0 for c in assumed)
    assert all("2026" in c.source for c in (energy.PUE, energy.GRID_KG_PER_KWH))


@pytest.mark.parametrize("name", catalog.device_names())
def test_every_device_has_watts_or_says_why_not(name: str) -> None:
    known = catalog.device(name)
    if known.tdp_w > 0:
        assert 0 < float(power_w(known, 0.0).mid) < float(power_w(known, 1.0, 1.0).mid) == known.tdp_w
    else:
        with pytest.raises(InputError, match=f"the power of {name} is not known"):
            power_w(known, 0.5)


@settings(deadline=None, max_examples=60)
@given(compute=SHARE, memory=SHARE, more=SHARE)
def test_watts_rise_between_idle_and_board(compute: float, memory: float, more: float) -> None:
    here = float(power_w(device(), compute, memory).mid)
    assert 120.0 - 1e-9 <= here <= 1000.0
    assert float(power_w(device(), max(compute, more), memory).mid) >= here - 1e-9
    assert float(power_w(device(), compute, max(memory, more)).mid) >= here - 1e-9


def test_arrays_are_priced_in_one_call() -> None:
    found = power_w(device(), np.linspace(0, 1, 5)[:, None], np.linspace(0, 1, 3))
    assert found.mid.shape == (5, 3)
    assert energy_j(device(), np.ones(4), 0.5, gpus=np.ones((2, 1))).mid.shape == (2, 4)
    assert float(energy_j(device(), 0.0, 1.0).mid) == 0.0


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: power_w(device(), 1.5), "compute utilisation is 1.5"),
        (lambda: power_w(device(), 0.5, np.nan), "memory utilisation is nan"),
        (lambda: power_w(device(), 0.5, cap_w=100.0), "not above idle"),
        (lambda: energy_j(device(), -1.0), "seconds is -1"),
        (lambda: energy_j(device(), 1.0, pue=0.9), "the PUE is 0.9"),
        (lambda: energy_j(device(), 1.0, host_w=-5.0), "host_w is -5"),
        (lambda: power_w(device(0.0), 0.5), "no board power"),
        (lambda: Phase.of(1.0, 2.0), "compute utilisation is 2"),
        (lambda: co2_kg(-1.0), "joules is -1"),
    ],
)
def test_bad_input_is_refused(call: object, words: str) -> None:
    with pytest.raises(InputError, match=words):
        call()  # type: ignore[operator]
