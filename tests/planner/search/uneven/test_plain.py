"""Splits of layers that do not divide: the dynamic program against brute force, and the search that uses it."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hwmodels.cluster import load
from planner.layout import Layout, is_even
from planner.model.shape import from_shape
from planner.model.spec import ModelSpec
from planner.plan import Workload
from planner.predict import predict
from planner.search import Space, search
from planner.search.space import enumerate_layouts
from planner.search.uneven.slowest import balanced


def slowest(costs: list[float], first: float, last: float, shares: tuple[int, ...]) -> float:
    cuts = np.concatenate([[0], np.cumsum(shares)])
    sums = [sum(costs[a:b]) for a, b in pairwise(cuts)]
    sums[0] += first
    sums[-1] += last
    return max(sums)


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=9), st.integers(0, 12), st.integers(0, 12), st.integers(1, 5)
)
@settings(deadline=None, max_examples=120)
def test_no_split_has_a_faster_slowest_stage(costs: list[int], first: int, last: int, stages: int) -> None:
    stages = min(stages, len(costs))
    array = np.asarray([costs, costs], dtype=np.float64)
    found, again = balanced(array, np.asarray([first, first], float), np.asarray([last, last], float), stages)
    assert found == again
    assert len(found) == stages and sum(found) == len(costs) and min(found) >= 1
    best = min(
        slowest(costs, first, last, tuple(np.diff([0, *cuts, len(costs)]).tolist()))
        for cuts in combinations(range(1, len(costs)), stages - 1)
    )
    assert slowest(costs, first, last, found) == best


def test_by_hand() -> None:
    # Ten layers of 1 on four stages, embedding 0, head 2: no stage can do with less than 3; filled from the end:
    # 1 + 2 for the last, three each before it.
    one = balanced(np.ones((1, 10)), np.zeros(1), np.full(1, 2.0), 4)
    assert one == [(3, 3, 3, 1)]
    # Three light layers lead (DeepSeek-V3's dense ones): 1 1 1 4 4 4 4 on two stages: 11 and 8, not 7 and 12.
    assert balanced(np.asarray([[1.0, 1, 1, 4, 4, 4, 4]]), np.zeros(1), np.zeros(1), 2) == [(5, 2)]


def model(layers: int) -> ModelSpec:
    return from_shape(
        name="deep", layers=layers, hidden=2048, heads=16, ffn_hidden=8192, vocab=65536, seq_len=1024
    )


def test_a_pipeline_whose_layers_do_not_divide_is_searched_balanced() -> None:
    """13 layers (15 with the ends) on 2 and 8 stages; the head of 65536 x 2048 weighs more than a layer."""
    spec, cluster, workload = model(13), load("dgx-a100:1"), Workload(1024, 32)
    result = search(spec, cluster, workload, Space(tp=(1,), pp=(8,), mbs=(1,), recompute=("none",)), top=3)
    row = result.rows[0]
    assert row.layout.pp == 8 and sum(row.layout.stage_layers) == 13
    default = predict(spec, cluster, workload, Layout(pp=8, schedule=row.layout.schedule))
    assert row.step.step_s.mid <= default.step_s.mid
    # What the row says is what predict says of its layout.
    assert predict(spec, cluster, workload, row.layout).step_s.mid == pytest.approx(row.step.step_s.mid, rel=1e-12)


def test_open_ranges_prefer_even_stages() -> None:
    cluster, workload = load("dgx-a100:1"), Workload(1024, 32)
    found = enumerate_layouts(Space(), model(16), cluster, workload).layouts
    assert all(is_even(16, int(n)) for n in found.pp * found.vpp)
    # 20 layers: even on 2 and 4 ranks, never on 8, which is left out unless it is named
    found = enumerate_layouts(Space(), model(20), cluster, workload).layouts
    assert {int(p) for p in found.pp} == {1, 2, 4}
    found = enumerate_layouts(Space(pp=(8,)), model(20), cluster, workload).layouts
    assert {int(p) for p in found.pp} == {8}
    # 13 layers: never even on 2, 4 or 8 stages, so every power of two is tried
    found = enumerate_layouts(Space(), model(13), cluster, workload).layouts
    assert {(int(p), int(v)) for p, v in zip(found.pp, found.vpp, strict=True)} >= {(2, 1), (4, 1), (8, 1), (2, 2)}
    assert {int(s) for s in found.stage_layers} == {0}


def test_schedules_are_searched_where_the_framework_has_them() -> None:
    cluster = load("dgx-a100:1")

    def schedules(framework: str, **ranges: object) -> set[str]:
        workload = Workload(1024, 32, framework=framework)
        found = enumerate_layouts(Space.of({"pp": [4], **ranges}), model(16), cluster, workload)  # type: ignore[dict-item]
        return {found.layouts.layout(i).schedule for i in range(len(found.layouts))}

    classic = {"1f1b", "gpipe", "interleaved-1f1b"}
    assert schedules("megatron") == schedules("generic") == classic
    assert schedules("fsdp2") == classic | {"zb-h1", "interleaved-zb", "zb-v", "dualpipe-v"}
    assert schedules("generic", schedule=["dualpipe", "zb-v"]) == {"dualpipe", "zb-v"}
    assert schedules("megatron", schedule=["zb-h1"]) == set()


def test_split_and_dual_schedules_are_ranked_as_exhaustive_prediction_ranks_them() -> None:
    """Every legal layout of the space predicted alone; its bound holds, none is better than the answer."""
    spec, cluster, workload = model(16), load("dgx-a100:1"), Workload(1024, 32)
    space = Space.of({
        "schedule": ["zb-h1", "interleaved-zb", "zb-v", "dualpipe-v", "dualpipe"], "tp": [1], "pp": [2, 4],
        "vpp": [1, 2], "zero_stage": [0, 1], "mbs": [1], "recompute": ["none", "full"],
    })  # fmt: skip
    found = enumerate_layouts(space, spec, cluster, workload).layouts
    steps = {found.layout(i): predict(spec, cluster, workload, found.layout(i)) for i in range(len(found))}
    assert {layout.schedule for layout in steps} == set(space.schedule)
    for step in steps.values():
        assert step.lower_bound_s <= step.step_s.mid * (1 + 1e-12)
        assert step.step_s.mid <= step.upper_bound_s * (1 + 1e-12)
        for phases in step.phases:
            assert sum(phases.values()) == pytest.approx(step.step_s.mid, rel=1e-9)
    result = search(spec, cluster, workload, space, top=5)
    fits = [step.step_s.mid for step in steps.values() if step.verdict == "fits"]
    assert [row.step.step_s.mid for row in result.rows] == pytest.approx(sorted(fits)[:5], rel=1e-9)
