"""The chain down to ops adds up to the phases of the step."""

from __future__ import annotations

import numpy as np
import pytest

from hwmodels import cluster as clusters
from planner.layout import Layout
from planner.model import load
from planner.plan import Workload
from planner.predict import predict
from planner.results import Step

MICRO_BATCH = {
    "forward": ("forward",),
    "backward": ("backward_input", "backward_weight"),
    "recompute": ("recompute",),
}
LAYOUTS = [
    Layout(tp=4, sp=1, pp=2, dp=2, zero_stage=1, recompute="selective"),
    Layout(tp=2, pp=4, vpp=2, dp=2, schedule="interleaved-1f1b", recompute="full"),
    Layout(tp=2, sp=1, pp=2, vpp=1, dp=4, schedule="dualpipe", recompute="selective"),
    Layout(dp=16, zero_stage=3),
]


def explained(layout: Layout) -> Step:
    model, _ = load("llama-3-8b")
    workload = Workload(8192, 32 * layout.dp, switches=(("cuda_graphs", "true"),))  # no gap waits for the host
    return predict(model, clusters.load("dgx-h100:2"), workload, layout, explain=True)


@pytest.mark.parametrize("layout", LAYOUTS, ids=Layout.label)
def test_ops_add_up_to_the_phases_of_all_ranks(layout: Layout) -> None:
    step = explained(layout)
    for phase, parts in MICRO_BATCH.items():
        ops = sum(r["exposed_s"] for r in step.explain if r["phase"] in parts and not r["group"])
        assert ops == pytest.approx(sum(rank[phase] for rank in step.phases), rel=1e-9), phase
    for axis in ("tp", "cp", "ep"):
        ops = sum(r["exposed_s"] for r in step.explain if r["group"] == axis and r["block"] != "step")
        assert ops == pytest.approx(sum(rank[f"{axis}_comm"] for rank in step.phases), rel=1e-9, abs=1e-12)


def test_a_collective_is_exposed_or_hidden_and_no_more() -> None:
    rows = [r for r in explained(LAYOUTS[0]).explain if r["exposed_s"] is not None]
    whole = np.asarray([r["seconds_per_step"] for r in rows])
    assert np.allclose([r["exposed_s"] + r["hidden_s"] for r in rows], whole)
    assert any(r["hidden_s"] > 0 for r in rows)  # the gathered input runs beside a gradient GEMM


def test_traffic_of_the_step_has_rows_of_its_own() -> None:
    names = {r["op"]: r for r in explained(LAYOUTS[0]).explain if r["block"] == "step"}
    # ZeRO-1 reduces the gradients once, gathers the parameters once, sends each micro-batch, and updates
    assert {"gradients.reduce", "parameters.gather", "boundary.send", "gradients.norm", "optimizer"} <= names.keys()
    assert names["gradients.reduce"]["kind"] == "reduce_scatter"
    assert names["boundary.send"]["runs_per_step"] == 32
    fsdp = {r["op"]: r for r in explained(LAYOUTS[3]).explain if r["block"] == "step"}
    # gathered before each forward and each backward of 32 micro-batches
    assert fsdp["parameters.gather"]["runs_per_step"] == 64
