"""Plans whose ranks were moved: priced by what their groups really have of the network."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hwmodels import cluster as clusters
from hwmodels.errors import InputError
from hwmodels.topology import INSIDE
from planner.cli.inputs_layout import case_of
from planner.layout import Layout, LayoutBatch
from planner.model import load
from planner.plan import Plan, Workload, build_plan
from planner.predict import predict
from tests.hwmodels.fabrics import rails

CLUSTER = clusters.load("dgx-h100:2")
WORK = Workload(2048, 64, framework="megatron")
PLAIN = Layout(tp=2, pp=4, dp=2, zero_stage=1)


def as_ordered(layout: Layout, order: str) -> tuple[int, ...]:
    """GPUs that give a layout's ranks, in the default order, the places that they have in another order."""
    places = []
    for rank in range(layout.world):
        rest, at, gpu = rank, {}, 0
        for axis in ("tp", "cp", "dp", "pp"):
            rest, at[axis] = divmod(rest, getattr(layout, axis))
        for axis in reversed(order.split("-")):
            gpu = gpu * getattr(layout, axis) + at[axis]
        places.append(gpu)
    return tuple(places)


@pytest.mark.parametrize("order", ["tp-cp-dp-pp", "tp-cp-pp-dp", "pp-tp-cp-dp"])
def test_moved_ranks_cost_what_the_same_order_costs(order: str) -> None:
    model, work = load("llama-3.2-1b")[0], replace(WORK, framework="generic")
    moved = predict(model, CLUSTER, work, replace(PLAIN, placement=as_ordered(PLAIN, order)))
    ordered = predict(model, CLUSTER, work, replace(PLAIN, order=order))
    assert moved.step_s == ordered.step_s
    assert moved.traffic == ordered.traffic
    assert [m.peak_bytes for m in moved.memory] == [m.peak_bytes for m in ordered.memory]


def plan(layout: Layout) -> Plan:
    model, config = load("llama-3.2-1b")
    return build_plan("p", config, model, "dgx-h100:2", WORK, layout, 8)


def test_a_plan_with_moved_ranks_is_priced_by_its_placement() -> None:
    moved = plan(replace(PLAIN, placement=as_ordered(PLAIN, "tp-cp-pp-dp")))
    assert moved.layout.placement == ()
    assert [(p.node, p.gpu) for p in moved.placement[:4]] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    case = case_of(moved)
    ordered = predict(case.model, CLUSTER, WORK, replace(PLAIN, order="tp-cp-pp-dp"))
    step = predict(case.model, case.cluster, case.workload, case.layout, arrangement=case.arrangement)
    assert step.step_s == ordered.step_s
    assert case_of(plan(PLAIN)).layout == PLAIN


def test_a_rank_on_a_node_that_is_not_there_is_refused() -> None:
    seats = plan(PLAIN).placement
    with pytest.raises(InputError, match="rank 15 on node 7, GPU 7"):
        case_of(replace(plan(PLAIN), placement=(*seats[:15], replace(seats[15], node=7))))


LEAVES = replace(CLUSTER, fabric=rails(4, leaf_nodes=2, oversubscription=2.0))


def test_a_scattered_group_shares_uplinks_with_those_that_cross_there() -> None:
    # two groups of dp 2 with tp 8: nodes 0 and 1 lie below one leaf, nodes 0 and 2 below two
    near = LayoutBatch.of(Layout(tp=8, dp=2, placement=tuple(range(16))))
    far = LayoutBatch.of(Layout(tp=8, dp=2, placement=(*range(8), *range(16, 24))))
    assert float(near.group("dp", LEAVES).leaf) == INSIDE
    shape = far.group("dp", LEAVES)
    # eight groups cross, one from each rail; the leaf has uplinks for 2 x 8 ports, halved: all of a port for each
    assert (int(shape.ranks_per_node), int(shape.nodes), int(shape.stride), float(shape.leaf)) == (1, 2, 8, 2.0)
    assert float(LEAVES.fabric.group_bandwidth(shape)) == 50e9
    # with the leaf full of such groups, 16 of them, each has half
    nodes = (0, 2, 1, 3)
    every = tuple(node * 8 + gpu for node in nodes for gpu in range(8))
    full = LayoutBatch.of(Layout(tp=8, pp=2, dp=2, placement=every))
    assert float(full.group("dp", LEAVES).leaf) == 1.0
    assert float(LEAVES.fabric.group_bandwidth(full.group("dp", LEAVES))) == 25e9
