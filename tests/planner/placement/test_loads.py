"""Loads of a placement: by hand on two leaves, and equal to the traffic routed over the graph of the fabric."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hwmodels import cluster as clusters
from hwmodels.network import place, wire
from planner.layout import Layout, LayoutBatch
from planner.layout.placed import group_ranks
from planner.model import load
from planner.placement.demand import DIRECT, HOPS, RING, Demand, demands
from planner.placement.loads import flows_of, loads
from planner.plan import Workload
from planner.predict import predict
from planner.priced import price_model
from tests.hwmodels.fabrics import rails

# two leaves of two nodes of 8 GPUs, ports of 50 GB/s, uplinks for half of them
FABRIC = rails(4, leaf_nodes=2, oversubscription=2.0)
NO_HOPS = np.zeros((0, 2), dtype=np.int64)


def demand(layout: Layout, axis: str, nbytes: float, pattern: str = RING) -> Demand:
    ranks = group_ranks(LayoutBatch.of([layout]), axis)
    hops = np.asarray([(i, i + 1) for i in range(layout.pp - 1)]) if pattern == HOPS else NO_HOPS
    return Demand(axis, "dp_comm", pattern, nbytes, ranks, hops)


def test_a_ring_over_two_leaves_by_hand() -> None:
    # tp 8 in each node, dp 4: eight groups, one for each rail, over all four nodes; 1 GB from each member
    wanted = demand(Layout(tp=8, dp=4), "dp", 1e9)
    (axis,) = loads(FABRIC, [wanted], np.arange(32)).axes
    # a node: 8 groups x 1 GB over 8 x 50 GB/s; a leaf: 8 groups leave once, over 2 x 400 / 2 GB/s
    assert axis.seconds == {"gpu": 0.0, "port": 0.02, "node": 0.02, "leaf": 0.02, "pod": 0.0}
    assert axis.nbytes == {"gpu": 0.0, "port": 32e9, "node": 32e9, "leaf": 16e9, "pod": 0.0}
    assert axis.leaf_out.tolist() == [8e9, 8e9]


def test_a_scattered_pair_of_groups_by_hand() -> None:
    # dp 2 x pp 2 with tp 8: in order dp keeps to a leaf and pp crosses; nodes 0, 2, 1, 3 turn that round
    lay, turned = Layout(tp=8, dp=2, pp=2), np.concatenate([np.arange(8) + 8 * n for n in (0, 2, 1, 3)])
    wanted = [demand(lay, "dp", 1e9), demand(lay, "pp", 0.25e9, HOPS)]
    inside, crossing = loads(FABRIC, wanted, np.arange(32)).axes
    assert inside.seconds["leaf"] == 0.0 and inside.seconds["node"] == 0.02
    # 16 pairs of 0.25 GB in each direction
    assert crossing.nbytes["leaf"] == 2 * 16 * 0.25e9
    assert crossing.seconds["leaf"] == 16 * 0.25e9 / 400e9
    inside, crossing = loads(FABRIC, wanted, turned).axes
    # all 16 groups of dp cross: twice as much as the uplinks carry in the time of a port
    assert inside.seconds["leaf"] == 0.04 and inside.slowest == "leaf"
    assert crossing.seconds["leaf"] == 0.0


def test_an_exchange_of_experts_by_hand() -> None:
    # 32 ranks, 31 GB from each: 1 GB to each other one; 7 inside, 24 out of the node, 16 of them to the other leaf
    (axis,) = loads(FABRIC, [demand(Layout(dp=32), "dp", 31e9, DIRECT)], np.arange(32)).axes
    assert axis.nbytes == pytest.approx({"gpu": 32 * 7e9, "port": 32 * 24e9, "node": 32 * 24e9, "leaf": 32 * 16e9,
                                         "pod": 0.0})  # fmt: skip
    assert axis.seconds["port"] == pytest.approx(24e9 / 50e9)
    assert axis.seconds["leaf"] == pytest.approx(16 * 16e9 / 400e9)


LAYOUTS = (
    (Layout(tp=8, dp=2, pp=2), "dp", RING), (Layout(tp=2, dp=16), "dp", RING), (Layout(tp=4, cp=2, dp=4), "cp", RING),
    (Layout(tp=4, dp=2, pp=4), "pp", HOPS), (Layout(tp=8, pp=4), "pp", HOPS), (Layout(tp=1, dp=32), "dp", DIRECT),
    (Layout(tp=2, dp=4, pp=4, order="tp-cp-pp-dp"), "dp", RING), (Layout(tp=16, dp=2), "tp", RING),
)  # fmt: skip


@settings(deadline=None, max_examples=40)
@given(st.sampled_from(LAYOUTS), st.permutations(range(4)))
def test_loads_are_those_of_the_graph(case: tuple[Layout, str, str], nodes: list[int]) -> None:
    layout, axis, pattern = case
    gpus = np.concatenate([np.arange(8) + 8 * node for node in nodes])
    wanted = demand(layout, axis, 1e9, pattern)
    found = loads(FABRIC, [wanted], gpus).axes[0]
    routed = place(wire(FABRIC), flows_of(FABRIC, wanted, gpus))
    assert found.least_s == pytest.approx(routed.seconds)
    # traffic is conserved: what leaves a GPU is inside or on a port, and what leaves a leaf has left its node
    assert found.nbytes["gpu"] + found.nbytes["port"] == pytest.approx(wanted.total)
    assert found.nbytes["leaf"] <= found.nbytes["node"] * (1 + 1e-12)


def test_demands_are_the_traffic_that_predict_shows() -> None:
    model, cluster = load("llama-3.2-1b")[0], clusters.load("dgx-h100:2")
    work = Workload(2048, 64, framework="megatron")
    for layout in (Layout(tp=2, sp=1, pp=4, dp=2, zero_stage=1), Layout(tp=2, cp=2, dp=4, zero_stage=1),
                   Layout(dp=16, zero_stage=3, fsdp=8)):  # fmt: skip
        step = predict(model, cluster, work, layout)
        found: dict[str, float] = {}
        for one in demands(price_model(model, work, LayoutBatch.of([layout]), cluster)):
            found[one.phase] = found.get(one.phase, 0.0) + one.total / layout.world
        assert found == pytest.approx({p: b.intra_node + b.inter_node for p, b in step.traffic.items()})
        moved = replace(layout, placement=tuple(reversed(range(16))))
        assert predict(model, cluster, work, moved).step_s.mid == pytest.approx(step.step_s.mid)
