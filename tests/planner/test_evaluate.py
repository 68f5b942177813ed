"""Bounds of a step: nothing exposed below, nothing hidden above."""

from __future__ import annotations

import pytest

from hwmodels import cluster as clusters
from planner.layout import Layout
from planner.model import load
from planner.plan import Workload
from planner.predict import predict
from planner.results import Step


def step(layout: Layout, framework: str = "generic") -> Step:
    model, _ = load("llama-3-8b")
    switches = (("cuda_graphs", "true"),)  # no gap waits for the host
    return predict(model, clusters.load("dgx-h100:2"), Workload(8192, 64, "bf16", framework=framework,
                                                                switches=switches), layout)  # fmt: skip


def test_with_every_transfer_hidden_compute_is_left() -> None:
    found = step(Layout(dp=16, zero_stage=3), "fsdp2")
    (phases,) = found.phases
    assert phases["dp_comm"] > 0.05 * found.step_s.mid  # gathers that come out from behind compute
    alone = sum(seconds for name, seconds in phases.items() if not name.endswith("_comm") and name != "bubble")
    assert found.lower_bound_s == pytest.approx(alone, rel=1e-6)  # forward, backward, optimizer: one rank, one stage
    assert found.lower_bound_s < found.step_s.mid < found.upper_bound_s


def test_tensor_parallel_collectives_are_no_part_of_the_lower_bound() -> None:
    found = step(Layout(tp=8, sp=1, dp=2))
    (phases,) = found.phases
    assert found.lower_bound_s <= found.step_s.mid - 0.9 * phases["tp_comm"]
    assert found.lower_bound_s >= phases["forward"] + phases["backward"]
