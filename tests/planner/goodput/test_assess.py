"""One layout in full, many for a search, data that a step reads, and the policy's own checks."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hwmodels import cluster as clusters
from hwmodels.device import Coefficient
from hwmodels.errors import InfeasibleError, InputError
from hwmodels.reliability import Storage
from planner import model as models
from planner.goodput.assess import assess
from planner.goodput.loading import data_need, sequence_bytes
from planner.goodput.policy import Policy
from planner.goodput.ranking import effective_seconds
from planner.layout import Layout, LayoutBatch
from planner.plan import Documents, Workload
from planner.predict import predict

LAYOUTS = [Layout(tp=8, dp=16), Layout(tp=8, pp=2, dp=8, zero_stage=1), Layout(tp=4, pp=4, dp=8, zero_stage=1)]


def case() -> tuple[Any, Any, Workload]:
    return models.load("llama-3-70b")[0], clusters.load("dgx-h100:16"), Workload(8192, 512)


def test_a_search_ranks_by_what_one_assessment_says() -> None:
    model, cluster, work = case()
    steps = np.asarray([20.0, 21.0, 22.0])
    for policy in (Policy(), Policy(mode="async"), Policy(elastic=True, straggler_node_s=1e8)):
        found = effective_seconds(steps, model, work, cluster, LayoutBatch.of(LAYOUTS), policy=policy)
        for i, layout in enumerate(LAYOUTS):
            one = assess(model, cluster, work, layout, float(steps[i]), policy, replications=0)
            assert found[i] == pytest.approx(one.step_s / one.goodput)
            assert one.goodput + sum(one.losses.values()) == pytest.approx(1.0)
        # a bound of the step gives a bound, also where the step is longer than the best interval
        for share in (0.3, 0.9, 1.0):
            lower = effective_seconds(steps * share, model, work, cluster, LayoutBatch.of(LAYOUTS), policy=policy)
            assert (lower <= found * (1.0 + 1e-12)).all()


def test_an_effective_step_is_longer_and_a_step_is_the_shortest_interval() -> None:
    model, cluster, work = case()
    often = replace(cluster, reliability=replace(cluster.reliability, hours={}),
                    mtbf_gpu_hours=Coefficient(10.0, "test"))  # fmt: skip
    one = assess(model, often, work, LAYOUTS[1], 60.0, Policy(mode="async"), replications=0)
    assert one.mtbf_s == pytest.approx(36000.0 / 128)
    assert one.best_interval_s == 60.0 and min(p.interval_s for p in one.curve) >= 60.0


def test_nothing_fails() -> None:
    model, cluster, work = case()
    safe = replace(cluster, reliability=replace(cluster.reliability, hours={}),
                   mtbf_gpu_hours=Coefficient(math.inf, "test"))  # fmt: skip
    one = assess(model, safe, work, LAYOUTS[0], 20.0, Policy(), days=1.0, replications=2)
    assert math.isinf(one.best_interval_s) and one.mtbf_s == math.inf
    found = effective_seconds([20.0], model, work, safe, LayoutBatch.of(LAYOUTS[:1]))
    assert float(found[0]) == pytest.approx(20.0)


def test_storage_that_bounds_is_named() -> None:
    model, cluster, work = case()
    slow = replace(cluster, storage=Storage(2e9, 1e4, 1e12, 1e12, 0.0, "a slow one"))
    one = assess(model, slow, work, LAYOUTS[1], 20.0, Policy(), replications=0)
    assert any("data loading bounds the step" in text and "a slow one" in text for text in one.bounds)
    assert any("longer than" in text for text in one.bounds)
    assert one.step_s > 20.0
    notes = predict(model, slow, work, LAYOUTS[1]).notes
    assert any("data loading bounds the step" in note for note in notes)
    slow = replace(cluster, storage=Storage(5e6, 1e9, 1e12, 1e12, 0.0, "a slow one"))
    one = assess(model, slow, work, LAYOUTS[1], 20.0, Policy(), replications=0)
    assert any("hold up training" in text and "storage per node" in text for text in one.bounds)
    later = assess(model, slow, work, LAYOUTS[1], 20.0, Policy(mode="async"), interval_s=60.0, replications=0)
    assert any("bounds the interval" in text for text in later.bounds)
    assert any("hold up training" in note for note in predict(model, slow, work, LAYOUTS[1]).notes)
    assert not any("storage" in note for note in predict(model, cluster, work, LAYOUTS[1]).notes)


def test_a_copy_needs_room_in_host_memory() -> None:
    model, cluster, work = case()
    small = replace(cluster, host_memory_bytes=1e9)
    with pytest.raises(InfeasibleError, match="host memory"):
        assess(model, small, work, LAYOUTS[1], 20.0, Policy(mode="async"), replications=0)


def test_data_of_a_step_by_hand() -> None:
    model, cluster, work = case()
    fast = replace(cluster, storage=Storage(1e9, 1e9, 1e12, 1e9, 0.25, "test"))
    # 128,256 words: 4 bytes a token; 512 x 8192 tokens in 10 s
    need = data_need(model, work, fast, LayoutBatch.of([Layout(tp=8, dp=16), Layout(dp=128)]), [10.0, 10.0])
    total = 512 * 8192 * 4.0
    assert need.sequence_bytes == 32768.0
    assert need.total_bytes_per_s == pytest.approx([total / 10.0] * 2)
    # one dp rank a node, or eight
    assert need.node_bytes_per_s == pytest.approx([total / 16 / 10.0, total / 128 * 8 / 10.0])
    assert need.read_s == pytest.approx([0.25 + total / 1e9] * 2)


def test_readers_of_a_node_follow_the_order_of_the_axes() -> None:
    model, cluster, work = case()
    # tp4 pp2 dp16: two dp ranks beside each other in a node, or a whole pipeline of one
    layouts = LayoutBatch.of([Layout(tp=4, pp=2, dp=16), Layout(tp=4, pp=2, dp=16, order="tp-cp-pp-dp")])
    need = data_need(model, work, cluster, layouts, [10.0, 10.0])
    assert need.node_bytes_per_s * 10.0 == pytest.approx([512 * 32768.0 / 8, 512 * 32768.0 / 16])


def test_bytes_of_a_sequence() -> None:
    small, _ = models.load("gpt2")
    assert sequence_bytes(small, Workload(1024, 8)) == 2048.0  # 50,257 words: two bytes
    assert sequence_bytes(small, Workload(1024, 8), 8.0) == 8192.0
    padded = Workload(1024, 8, documents=Documents(512.0, 512.0**2, "padded"))
    assert sequence_bytes(small, padded) == 1024.0  # padding is not stored


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"mode": "lazy"}, "mode"), ({"detect_s": -1.0}, "detect_s"), ({"weibull_shape": 0.0}, "weibull_shape"),
        ({"straggler_node_s": 0.0}, "straggler_node_s"), ({"straggler_factor": 0.9}, "straggler_factor"),
    ],
)  # fmt: skip
def test_a_policy_is_checked(values: dict[str, Any], word: str) -> None:
    with pytest.raises(InputError, match=word):
        Policy(**values)
