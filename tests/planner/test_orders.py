"""Orders of the axes: where ranks lie, what groups have of the network, and which layouts are the same."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hwmodels import cluster as clusters
from hwmodels.network import Flows, place, traffic, wire
from hwmodels.topology import group_shape
from planner import frameworks
from planner.evaluate import exact_seconds
from planner.layout import ORDERS, Layout, LayoutBatch
from planner.layout.axes import AXES, crossings, levels
from planner.layout.order_rules import alike
from planner.mixed.arrangement import faults as arrangement_faults
from planner.mixed.arrangement import in_order as mixed_in_order
from planner.model import load
from planner.plan import Workload, build_plan, expert_grid
from planner.predict import predict
from planner.priced import price_model
from planner.search.space import Space, enumerate_layouts
from planner.step.assemble import assemble, dag_groups
from tests.hwmodels.fabrics import rails

MEGATRON = Layout(tp=2, pp=4, dp=2)  # the 16 GPUs of Megatron-Core's `initialize_model_parallel`


def groups(layout: Layout, axis: str) -> list[list[int]]:
    """Ranks of every group of an axis."""
    parts = [(int(n), int(s)) for n, s in levels(LayoutBatch.of(layout), axis)]
    starts = [r for r in range(layout.world) if all(r // s % n == 0 for n, s in parts)]
    members = [0]
    for n, s in parts:
        members = [m + i * s for i in range(n) for m in members]
    return [sorted(start + m for m in members) for start in starts]


def test_groups_of_megatrons_two_orders() -> None:
    # docstring of initialize_model_parallel
    assert groups(MEGATRON, "pp") == [[0, 4, 8, 12], [1, 5, 9, 13], [2, 6, 10, 14], [3, 7, 11, 15]]
    assert groups(MEGATRON, "dp")[:2] == [[0, 2], [1, 3]]
    # --use-tp-pp-dp-mapping: two tp ranks, then four stages, then the other half of the data
    other = replace(MEGATRON, order="tp-cp-pp-dp")
    assert groups(other, "tp")[:2] == [[0, 1], [2, 3]]
    assert groups(other, "pp")[:2] == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert groups(other, "dp")[:2] == [[0, 8], [1, 9]]


def test_experts_fold_onto_the_ranks_of_a_stage() -> None:
    # stage 0 holds ranks 0, 1, 4, 5 (tp 2, pp 2, dp 2): experts of four ranks are 0 to 3 in that numbering
    layout = Layout(tp=2, sp=1, pp=2, dp=2, ep=4, order="tp-cp-pp-dp")
    assert groups(layout, "ep") == [[0, 1, 4, 5], [2, 3, 6, 7]]
    assert groups(replace(layout, ep=2), "edp")[:2] == [[0, 4], [1, 5]]


def test_deepspeeds_axes_and_torchtitans_mesh() -> None:
    # ProcessTopology(axes=['pipe', 'data', 'model']) has model fastest, as ParallelDims has tp
    for name in ("deepspeed", "fsdp2", "megatron", "ours", "generic"):
        assert frameworks.get(name).orders[0] == "tp-cp-dp-pp"
    assert frameworks.get("fsdp2").orders == ("tp-cp-dp-pp",)
    assert frameworks.get("megatron").orders == ("tp-cp-dp-pp", "tp-cp-pp-dp")


degrees = st.sampled_from((1, 2, 4))
some = st.builds(Layout, tp=degrees, cp=degrees, pp=degrees, dp=degrees, ep=degrees, order=st.sampled_from(ORDERS))


@settings(deadline=None, max_examples=80)
@given(some)
def test_groups_of_an_axis_share_out_the_world(layout: Layout) -> None:
    if (layout.tp * layout.cp * layout.dp) % layout.ep:
        layout = replace(layout, ep=1)
    for axis in AXES:
        found = groups(layout, axis)
        assert sorted(rank for group in found for rank in group) == list(range(layout.world)), axis
        assert {len(group) for group in found} == {int(LayoutBatch.of(layout).axis(axis)[0])}


@settings(deadline=None, max_examples=60)
@given(some, st.sampled_from((2, 3, 4, 8)), st.data())
def test_a_hop_crosses_where_any_of_its_pairs_does(layout: Layout, gpus: int, data: st.DataObject) -> None:
    a, b = (data.draw(st.integers(0, layout.pp - 1)) for _ in range(2))
    found = crossings(LayoutBatch.of([layout]), np.asarray([a]), np.asarray([b]), gpus)
    pairs = [(group[a], group[b]) for group in groups(layout, "pp")]
    assert bool(found[0, 0]) == any(x // gpus != y // gpus for x, y in pairs)


CLUSTER = replace(clusters.load("dgx-h100:8"), fabric=rails(8, leaf_nodes=4, oversubscription=4.0))


def test_shards_with_a_pipeline_between_them() -> None:
    # cp lies in a node (2 ranks, 2 apart), dp over every second one of 8 nodes, 16 ranks apart
    batch = LayoutBatch.of(Layout(tp=2, cp=2, pp=4, dp=4, zero_stage=3, order="tp-cp-pp-dp"))
    shape = batch.group("fsdp", CLUSTER)
    assert [int(v) for v in (shape.ranks_per_node, shape.nodes, shape.stride, shape.leaf)] == [2, 4, 4, 2]
    # four groups share eight ports of 50 GB/s, and two nodes a leaf have half of them behind uplinks of a quarter
    assert float(CLUSTER.fabric.group_bandwidth(shape)) == 8 * 50e9 / 4 * 2 / 4


@pytest.mark.parametrize("axis", ["fsdp", "dp", "cp", "pp", "tp"])
@pytest.mark.parametrize(
    "layout",
    [
        Layout(tp=2, cp=2, pp=4, dp=4, zero_stage=3, order="tp-cp-pp-dp"),
        Layout(tp=4, cp=2, pp=2, dp=4, zero_stage=3, order="cp-tp-dp-pp"),
        Layout(tp=2, cp=4, pp=8, dp=1, order="tp-pp-cp-dp"),
        Layout(tp=4, pp=2, dp=8, order="pp-dp-tp-cp"),
    ],
)
def test_bandwidth_of_groups_is_that_of_their_traffic_on_the_graph(layout: Layout, axis: str) -> None:
    shape = LayoutBatch.of(layout).group(axis, CLUSTER)
    if int(shape.nodes) == 1:
        return
    every = [[(r // 8, r % 8) for r in group] for group in groups(layout, axis)]
    flows = Flows.together([traffic(CLUSTER.fabric, ranks, "all_gather", 1e9) for ranks in every])
    busy = place(wire(CLUSTER.fabric), flows)
    n = len(every[0])
    network = [s for a, b, _, s in busy.busiest(10_000) if {a.split(":")[0], b.split(":")[0]} & {"leaf", "port"}]
    assert max(network) == pytest.approx((n - 1) / n * 1e9 / float(CLUSTER.fabric.group_bandwidth(shape)))


def test_axes_of_one_rank_may_stand_anywhere() -> None:
    batch = LayoutBatch.of([Layout(tp=2, dp=2, order=order) for order in ORDERS])
    same = alike(batch, "tp-cp-dp-pp")
    # half of the orders have tp before dp
    assert same.sum() == 12
    assert all(o.index("tp") < o.index("dp") for o, s in zip(ORDERS, same, strict=True) if s)


def test_the_search_takes_each_arrangement_once() -> None:
    model, cluster = load("llama-3.2-1b")[0], clusters.load("dgx-h100:1")
    space = Space.of({"tp": (2,), "cp": (1,), "pp": (2,), "mbs": (1,), "recompute": ("none",), "sp": (0,),
                      "zero_stage": (0,), "vpp": (1,), "order": ("any",)})  # fmt: skip
    found = enumerate_layouts(space, model, cluster, Workload(1024, 16, framework="megatron"))
    assert {found.layouts.layout(i).order for i in range(len(found.layouts))} == {"tp-cp-dp-pp", "tp-cp-pp-dp"}
    generic = enumerate_layouts(space, model, cluster, Workload(1024, 16))
    assert len({found.layouts.layout(i).schedule for i in range(len(found.layouts))}) * 6 == len(generic.layouts)
    default = enumerate_layouts(replace(space, order=()), model, cluster, Workload(1024, 16))
    assert {default.layouts.layout(i).order for i in range(len(default.layouts))} == {"tp-cp-dp-pp"}


def test_a_plan_says_the_order_in_its_grids() -> None:
    layout = Layout(tp=2, pp=4, dp=2, order="tp-cp-pp-dp")
    model, config = load("gpt2")
    plan = build_plan("p", config, model, "dgx-h100:2", Workload(512, 8), layout, 8)
    assert plan.dense_grid == (("dp", 2), ("pp", 4), ("cp", 1), ("tp", 2))
    assert expert_grid(layout) == (("edp", 4), ("pp", 4), ("ep", 1), ("etp", 1))
    assert expert_grid(replace(layout, dp=1)) == (("pp", 4), ("edp", 2), ("ep", 1), ("etp", 1))


def test_a_pipeline_inside_the_node_costs_data_parallelism_the_network() -> None:
    model, cluster, work = load("llama-3.2-1b")[0], clusters.load("dgx-h100:2"), Workload(2048, 64)
    plain = Layout(tp=2, pp=4, dp=2)
    inner = predict(model, cluster, work, replace(plain, order="tp-cp-pp-dp"))
    outer = predict(model, cluster, work, plain)
    # default: stages 4 ranks apart, two in each node; the other order: all four in one node, dp over both nodes
    assert outer.traffic["pp_comm"].inter_node > 0 and outer.traffic["dp_comm"].inter_node == 0
    assert inner.traffic["pp_comm"].inter_node == 0 and inner.traffic["dp_comm"].inter_node > 0
    assert outer.traffic["tp_comm"] == inner.traffic["tp_comm"]


@settings(deadline=None, max_examples=60)
@given(st.lists(some, min_size=1, max_size=6), st.sampled_from((4, 8, 72)))
def test_the_default_order_has_the_shapes_that_it_always_had(many: list[Layout], gpus: int) -> None:
    usual = [replace(lay, order=ORDERS[0], ep=lay.ep if lay.tp * lay.cp * lay.dp % lay.ep == 0 else 1) for lay in many]
    cluster = replace(CLUSTER, pools=(replace(CLUSTER.pools[0], gpus_per_node=gpus),))
    b = LayoutBatch.of(usual)
    one = np.ones_like(b.tp)
    table = {
        "tp": (b.tp, one), "cp": (b.cp, b.tp), "dp": (b.dp, b.tp * b.cp), "dp_cp": (b.dp * b.cp, b.tp),
        "fsdp": (b.fsdp_degree * b.cp, b.tp), "replica": (b.dp // b.fsdp_degree, b.tp * b.cp * b.fsdp_degree),
        "ep_etp": (b.ep * b.etp, one), "edp": (b.edp, b.ep * b.etp), "pp": (b.pp, b.tp * b.cp * b.dp),
        "world": (b.world, one),
    }  # fmt: skip
    for axis, (size, stride) in table.items():
        wanted = group_shape(size, stride, gpus)
        for found in (b.group(axis, cluster), b.group(axis, gpus)):
            assert not np.any(found.leaf) and not np.any(found.pod)
            for field in ("ranks_per_node", "nodes", "stride"):
                assert np.array_equal(getattr(found, field), getattr(wanted, field)), (axis, field)


def test_pools_are_filled_in_the_default_order_alone() -> None:
    cluster = clusters.load("dgx-h100:2")
    lay = Layout(tp=8, dp=2, order="dp-tp-cp-pp")
    found = arrangement_faults(mixed_in_order(cluster, lay, 8), cluster, 8)
    assert [fault.what for fault in found] == ["order=dp-tp-cp-pp over pools"]


def test_many_orders_and_placements_together_are_one_by_one() -> None:
    model, cluster, work = load("llama-3.2-1b")[0], clusters.load("dgx-h100:2"), Workload(1024, 64)
    moved = tuple(int(r) for r in np.random.default_rng(1).permutation(16))
    many = [
        Layout(tp=tp, pp=pp, dp=16 // tp // pp // cp, cp=cp, zero_stage=zero, order=order, placement=seats)
        for tp, pp, cp in ((2, 2, 1), (2, 4, 1), (2, 2, 2), (4, 2, 1))
        for zero in (0, 1, 3)
        for order in (ORDERS[0], "tp-cp-pp-dp", "dp-pp-tp-cp")
        for seats in ((), moved)
    ]
    priced = price_model(model, work, LayoutBatch.of(many), cluster)
    for shape in dag_groups(priced, np.arange(len(many))):
        group = assemble(priced, *shape)
        seconds = exact_seconds(group, np.arange(len(group.index)))
        for i, found in zip(group.index, seconds, strict=True):
            assert found == predict(model, cluster, work, many[i]).step_s.mid, many[i].label()
