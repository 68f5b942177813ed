"""What lies in host memory: bytes, seconds and rules against hand-worked values."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hwmodels import host as hosts
from hwmodels.cluster import load
from planner.layout import Layout, LayoutBatch, RuleContext, faults
from planner.model import load as load_model
from planner.model.shape import from_shape
from planner.model.spec import ModelSpec
from planner.offload import activation_seconds, optimizer_seconds, shard_seconds
from planner.plan import Workload
from planner.predict import predict
from planner.recompute import Stages
from planner.results import StageMemory, Step

S, H = 512, 1024
GIB = 2.0**30


def gpt(layers: int = 8) -> ModelSpec:
    return from_shape(name="gpt", layers=layers, hidden=H, heads=16, ffn_hidden=4 * H, vocab=8192, seq_len=S)


def run(layout: Layout, framework: str = "generic") -> Step:
    return predict(gpt(), load("dgx-a100:1"), Workload(S, 64, framework=framework), layout)


def most(step: Step, category: str) -> float:
    return max(s.by_category[category] for s in step.memory)


def test_links_of_the_catalog_have_the_rates_of_their_sources() -> None:
    # 88% of 31 GB/s; half of a node's 2 x 8 x 25.6 GB/s at 80% over 8 ranks
    a100, gb200 = hosts.of(load("dgx-a100:1")), hosts.of(load("gb200-nvl72:1"))
    assert a100.to_device == pytest.approx(0.88 * 31e9, rel=2e-3)
    assert a100.memory_bandwidth == pytest.approx(2 * 8 * 25.6e9 * 0.8 / 8)
    assert gb200.to_device == 359e9 and gb200.memory_bandwidth == 512e9 * 0.8 / 2
    assert "assumed" in hosts.of(load("mi300x:1")).source


def test_an_offloaded_optimizer_takes_its_slowest_way() -> None:
    cluster = load("dgx-a100:1")
    # a billion parameters, half of them there: 4 bytes of gradients out at 27.3 GB/s; 30 bytes each at 40.96 GB/s, or
    # 2 bytes back; the device has 0.1 s for its half
    seconds = optimizer_seconds(
        cluster, np.asarray([[0.5]]), np.asarray([[0.2]]), np.asarray([[1e9]]), 4.0, 2.0, 30.0
    )
    assert float(seconds[0, 0]) == pytest.approx(0.5e9 * 4 / 27.3e9 + 0.5e9 * 30 / 40.96e9)
    alone = optimizer_seconds(cluster, np.asarray([[0.001]]), np.asarray([[9.0]]), np.asarray([[1e9]]), 4.0, 2.0, 30.0)
    assert float(alone[0, 0]) == pytest.approx(9.0 * 0.999)
    assert float(shard_seconds(cluster, np.asarray(27.3e9))) == 1.0


def test_copies_hide_behind_a_layer_and_the_rest_is_exposed() -> None:
    cluster, layouts = load("dgx-a100:1"), LayoutBatch.of([Layout(offload_activations=3), Layout()])
    stages = Stages(gpt(), layouts, 1, 1, "1f1b")
    nbytes = [np.asarray([27.3e6, 27.3e6])]  # a millisecond each way
    found = activation_seconds(cluster, stages, nbytes, [np.full(2, 0.4e-3)], [np.full(2, 2e-3)])
    assert found is not None
    assert found.forward[:, 0, 0] == pytest.approx([3 * 0.6e-3, 0.0])
    assert not found.backward.any()
    none = Stages(gpt(), layouts.take(np.asarray([1])), 1, 1, "1f1b")
    assert activation_seconds(cluster, none, nbytes, nbytes, nbytes) is None


def test_device_memory_falls_by_what_leaves() -> None:
    base = Layout(dp=8, zero_stage=1)
    plain, half = run(base), run(replace(base, offload_optimizer=50))
    assert most(half, "optimizer") == pytest.approx(most(plain, "optimizer") / 2, abs=2)
    assert most(half, "gradients") == most(plain, "gradients")
    sharded = Layout(dp=8, zero_stage=3)
    there = run(replace(sharded, offload_optimizer=100, offload_parameters=1))
    assert most(there, "parameters") == most(there, "optimizer") == 0
    assert most(there, "gathered") > 0 and most(there, "activations") > 0
    assert there.step_s.mid > run(sharded).step_s.mid
    # 8 layers, the first five leave, one is on its way
    layer = 32 * S * H + 4 * 16 * S
    saved, away = run(base), run(replace(base, offload_activations=5))
    assert most(saved, "activations") - most(away, "activations") == pytest.approx(5 * layer)
    assert most(away, "recompute") in (0, pytest.approx(layer))  # on its way back, where a backward sets the peak


def test_hosts_that_are_too_small_are_out_of_memory() -> None:
    """124 M parameters: 12 bytes each over all ranks of the node are about 1.4 GiB."""
    layout = Layout(dp=8, zero_stage=1, offload_optimizer=100)
    cluster, workload = load("dgx-a100:1"), Workload(S, 64)
    model = gpt()
    need = model.parameters * 12
    for room, verdict in ((need * 1.01, "fits"), (need * 0.99, "out of memory")):
        step = predict(model, replace(cluster, host_memory_bytes=room), workload, layout)
        assert step.verdict == verdict
        assert any("[host-memory]" in note for note in step.notes) == (verdict != "fits")
    unstated = predict(model, cluster, workload, layout)
    assert any("does not state" in note for note in unstated.notes)
    assert not any("host memory" in note for note in predict(model, cluster, workload, Layout(dp=8)).notes)


@pytest.mark.parametrize(
    ("layout", "rule", "fix"),
    [
        (Layout(offload_optimizer=101), "offload-amounts", "0 to 100"),
        (Layout(offload_parameters=1), "offload-parameters", "zero_stage=3"),
        (Layout(offload_activations=8), "offload-activations", "0 to 7"),
        (Layout(offload_activations=2, recompute="full"), "offload-activations", "recompute=none"),
    ],
)
def test_rules_name_a_way_out(layout: Layout, rule: str, fix: str) -> None:
    found = faults(layout, RuleContext.of(gpt(), Workload(S, 64), 1))
    assert [f.rule for f in found] == [rule]
    assert fix in found[0].fix


def test_zero_3_with_offload_counts_what_stays_on_the_device() -> None:
    """deepspeedai/DeepSpeed issue 4527: 6.8B, one node of four: 0.49 GB by the estimator, 19.9 to 21.3 GiB in training.

    The resident floor is two gathered layers; activations, gathered parameters and the context come on top.
    """
    model = load_model("llama-2-7b")[0]
    cluster, workload = load("dgx-a100:1"), Workload(2048, 32, framework="deepspeed")
    layout = Layout(dp=8, zero_stage=3, mbs=4, offload_optimizer=100, offload_parameters=1, recompute="full")
    step = predict(model, cluster, workload, layout)
    worst: StageMemory = max(step.memory, key=lambda s: s.peak_bytes)
    assert worst.by_category["parameters"] == 0 == worst.by_category["optimizer"]
    assert worst.peak_bytes > 3 * GIB
    assert all(worst.by_category[c] > 0 for c in ("gathered", "activations", "context"))
