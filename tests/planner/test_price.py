"""Kernels, collectives and the host that launches them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hwmodels.cluster import load
from planner import presets
from planner.price import host_bound


def bound(busy_s: float, launches: float, comm_s: float = 0.0, **switches: object) -> float:
    preset = replace(presets.get("generic"), **switches)  # type: ignore[arg-type]
    return float(host_bound(np.asarray(busy_s), np.asarray(launches), load("dgx-a100:1"), preset, comm_s))


def test_the_host_runs_ahead_of_kernels_and_collectives():
    # 100 launches of 5 us: 500 us of host time; the kernels take 300 us, collectives 100 or 400 us on top.
    assert bound(300e-6, 100) == pytest.approx(500e-6)
    assert bound(300e-6, 100, 100e-6) + 100e-6 == pytest.approx(500e-6)
    assert bound(300e-6, 100, 400e-6) + 400e-6 == pytest.approx(700e-6)
    assert bound(900e-6, 100) == pytest.approx(900e-6)


def test_blocking_launches_add_up():
    assert bound(300e-6, 100, blocking_launches=True) == pytest.approx(800e-6)
    assert bound(900e-6, 100, 50e-6, blocking_launches=True) == pytest.approx(1400e-6)


def test_a_graph_launches_nothing():
    assert bound(300e-6, 100, cuda_graphs=True) == pytest.approx(300e-6)
