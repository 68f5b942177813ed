"""Kernels, and the host that launches them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hwmodels.cluster import load
from planner import frameworks
from planner.price import host_bound


def bound(busy_s: float, launches: float, **switches: object) -> float:
    preset = replace(frameworks.get("generic"), **switches)  # type: ignore[arg-type]
    return float(host_bound(np.asarray(busy_s), np.asarray(launches), load("dgx-a100:1"), preset))


def test_the_host_runs_ahead_of_the_kernels():
    # 100 launches of 5 us are 500 us: with as much to compute 3/16 more, with twice as much (1/4)^2 / 3 of it more,
    # and from four times as much on the kernels alone tell. Nothing to compute takes what launching it takes.
    assert bound(500e-6, 100) == pytest.approx(593.75e-6)
    assert bound(1000e-6, 100) == pytest.approx(1000e-6 * (1 + 1 / 48))
    assert bound(2000e-6, 100) == pytest.approx(2000e-6)
    assert bound(0.0, 100) == pytest.approx(500e-6)
    assert bound(0.0, 0) == 0.0


def test_blocking_launches_add_up():
    assert bound(300e-6, 100, blocking_launches=True) == pytest.approx(800e-6)


def test_a_graph_launches_nothing():
    assert bound(300e-6, 100, cuda_graphs=True) == pytest.approx(300e-6)
