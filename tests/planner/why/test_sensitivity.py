"""sensitivity: changes alter what they say, effects point the right way, what cannot run is never ranked first."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hwmodels import cluster as clusters
from hwmodels.cluster import Cluster
from hwmodels.errors import Fault, InfeasibleError, InputError
from planner import model as models
from planner.layout import Layout
from planner.plan import Workload
from planner.predict import predict
from planner.results import Step
from planner.search import search
from planner.why import CHANGES, Effect, sensitivity

MODEL, _ = models.load("llama-3-8b")
WORKLOAD = Workload(8192, 64, framework="megatron")
CLUSTER = clusters.load("dgx-h100:4")
LAYOUT = Layout(tp=4, sp=1, pp=1, dp=8, mbs=1, zero_stage=1)
BY_NAME = {change.name: change for change in CHANGES}
HARMFUL = {"network /2", "memory -20%", "batch /2"}


@pytest.fixture(scope="module")
def effects() -> dict[str, Effect]:
    return {effect.change.name: effect for effect in sensitivity(MODEL, CLUSTER, WORKLOAD, LAYOUT)}


def changed(name: str, cluster: Cluster = CLUSTER, workload: Workload = WORKLOAD) -> tuple[Cluster, Workload]:
    found = BY_NAME[name].apply(cluster, workload)
    assert found is not None
    return found


def test_changes_alter_the_figure_that_they_name_and_no_other() -> None:
    device = CLUSTER.device
    assert changed("memory -20%")[0].device == replace(device, memory_bytes=0.8 * device.memory_bytes)
    doubled = changed("network x2")[0].fabric
    assert CLUSTER.fabric.inter is not None and doubled.inter is not None
    assert doubled.inter.bandwidth == 2 * CLUSTER.fabric.inter.bandwidth
    assert doubled.intra == CLUSTER.fabric.intra
    assert changed("compute x2")[0].device.peak("bf16") == 2 * device.peak("bf16")
    assert changed("batch x2")[1].gbs == 128
    assert changed("nodes x2")[0].n_ranks == 64


def test_changes_with_nothing_to_work_on_are_left_out() -> None:
    one_node, odd = clusters.load("dgx-h100:1"), replace(WORKLOAD, gbs=63)
    assert BY_NAME["network x2"].apply(one_node, WORKLOAD) is None
    assert BY_NAME["batch /2"].apply(CLUSTER, odd) is None
    assert BY_NAME["fp8"].apply(clusters.load("dgx-a100:4"), WORKLOAD) is None
    names = {e.change.name for e in sensitivity(MODEL, one_node, WORKLOAD, replace(LAYOUT, dp=2))}
    assert names.isdisjoint({"network x2", "network /2"})


def test_measured_curves_go_with_the_link_that_they_are_of() -> None:
    curves = {"all_reduce": {8: ((1e6, 1e-4), (1e9, 1e-2))}}
    fabric = replace(CLUSTER.fabric, tables=curves)
    cluster = replace(CLUSTER, fabric=fabric)
    assert not changed("node-link x2", cluster)[0].fabric.tables
    assert changed("network x2", cluster)[0].fabric.tables


def test_effects_are_the_predictions_under_the_change(effects: dict[str, Effect]) -> None:
    base = predict(MODEL, CLUSTER, WORKLOAD, LAYOUT)
    for name in ("network x2", "compute x2", "batch x2"):
        cluster, workload = changed(name)
        step = predict(MODEL, cluster, workload, LAYOUT)
        expected = step.tokens_per_s_per_gpu / base.tokens_per_s_per_gpu - 1.0
        assert effects[name].same.gain == pytest.approx(expected, rel=1e-12)
        assert effects[name].same.step_s == step.step_s.mid


@pytest.mark.parametrize("name", [c.name for c in CHANGES if c.name not in HARMFUL and not c.of_request])
def test_better_hardware_never_slows_a_layout(name: str, effects: dict[str, Effect]) -> None:
    gain = effects[name].same.gain
    assert gain is not None and gain >= -1e-12


def test_twice_the_compute_gains_less_than_twice_and_more_nodes_less_than_twice_the_tokens(
    effects: dict[str, Effect],
) -> None:
    for name in ("compute x2", "nodes x2"):
        gain = effects[name].same.gain
        assert gain is not None and 0.2 < gain < 1.0
    more = effects["nodes x2"].same
    assert more.layout is not None and more.layout.dp == 16
    assert more.gain is not None and more.cheaper == pytest.approx((1 + more.gain) / 2 - 1)


def test_the_order_is_by_what_a_gpu_second_is_worth_and_what_cannot_run_is_last() -> None:
    tight = predict(MODEL, CLUSTER, WORKLOAD, LAYOUT).memory[0].peak_bytes / CLUSTER.device.memory_bytes * 1.1
    pool = CLUSTER.pools[0]
    small = replace(pool.device, memory_bytes=pool.device.memory_bytes * tight)
    found = sensitivity(MODEL, replace(CLUSTER, pools=(replace(pool, device=small),)), WORKLOAD, LAYOUT)
    worths = [effect.worth for effect in found]
    assert worths == sorted(worths, reverse=True)
    stopped = [effect.change.name for effect in found if effect.same.gain is None]
    assert "memory -20%" in stopped and [effect.change.name for effect in found[-len(stopped) :]] == stopped
    assert "out of memory" in found[-1].same.why_not


def test_a_layout_that_breaks_a_rule_under_a_change_says_which() -> None:
    one = replace(WORKLOAD, gbs=8)
    found = {e.change.name: e for e in sensitivity(MODEL, CLUSTER, one, LAYOUT)}
    assert "gbs" in found["batch /2"].same.why_not  # 4 sequences over dp 8


def test_the_best_layout_under_a_change_is_no_worse_than_the_same_one() -> None:
    def find(cluster: Cluster, workload: Workload) -> tuple[Layout, Step]:
        row = search(MODEL, cluster, workload, top=1).rows[0]
        return row.layout, row.step

    layout, _ = find(CLUSTER, WORKLOAD)
    chosen = [BY_NAME[n] for n in ("network x2", "memory -20%", "batch x2")]
    for effect in sensitivity(MODEL, CLUSTER, WORKLOAD, layout, changes=chosen, search=find):
        assert effect.best is not None and effect.best.gain is not None
        if effect.same.gain is not None and effect.same.peak_bytes is not None:
            assert effect.best.gain >= effect.same.gain - 1e-9


def test_a_search_that_finds_nothing_is_told_and_not_raised() -> None:
    def nothing(cluster: Cluster, workload: Workload) -> tuple[Layout, Step]:
        raise InfeasibleError("no", "binding", "way")

    def refused(cluster: Cluster, workload: Workload) -> tuple[Layout, Step]:
        raise InputError(Fault("gbs is odd"))

    for search_, words in ((nothing, "no layout fits"), (refused, "gbs is odd")):
        (effect,) = sensitivity(MODEL, CLUSTER, WORKLOAD, LAYOUT, changes=[BY_NAME["batch x2"]], search=search_)
        assert effect.best is not None and effect.best.why_not == words
        assert effect.worth == -1.0
