"""The choice of a placement: never slower than ranks in order, exact on tiny fabrics, told in a framework's words."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hwmodels import cluster as clusters
from hwmodels.cluster import Cluster
from hwmodels.errors import InfeasibleError, InputError
from hwmodels.network import place as route_all
from hwmodels.network import wire
from planner.layout import ORDERS, Layout, LayoutBatch
from planner.model import load
from planner.placement import candidates as cut
from planner.placement import demands, loads, parse_nodes, place
from planner.placement.allocation import Allocation, first_nodes
from planner.placement.choose import step_seconds
from planner.placement.loads import flows_of
from planner.placement.report import axis_rows, host_lines, in_order, node_sequence, order_flags, rank_lines, told
from planner.plan import Workload
from planner.priced import price_model
from tests.hwmodels.fabrics import plain, rails

MODEL = load("llama-3.2-1b")[0]
WORK = Workload(2048, 96, framework="megatron")


def cluster(nodes: int, gpus: int, **more: object) -> Cluster:
    base = clusters.load(f"dgx-h100:{nodes}")
    fabric = replace(rails(nodes, **more), gpus_per_node=gpus, ports_per_node=gpus)
    return replace(base, pools=(replace(base.pools[0], gpus_per_node=gpus),), fabric=fabric)


TINY = cluster(4, 2, leaf_nodes=2, oversubscription=4.0)


@pytest.mark.parametrize("layout", [Layout(pp=3, dp=2), Layout(tp=2, dp=3), Layout(cp=3, pp=2)])
def test_small_worlds_are_enumerated_whole(layout: Layout) -> None:
    # six ranks on three nodes of two leaves: 6! permutations, of which those that differ are 45
    wanted = demands(price_model(MODEL, WORK, LayoutBatch.of([layout]), TINY))
    every = list(cut.assignments(6, 2, (0, 1, 2), 2))
    assert len(set(every)) == len(every) == 45
    measured = min(loads(TINY.fabric, wanted, np.asarray(gpus)).seconds for gpus in every)
    brute = min(loads(TINY.fabric, wanted, np.asarray(gpus)).seconds for gpus in permutations(range(6)))
    assert measured == pytest.approx(brute, rel=1e-12)
    placed = place(MODEL, TINY, WORK, layout)
    assert placed.exact and placed.tried >= 45
    shuffled = [np.asarray(gpus) for gpus in permutations(range(6))]
    steps = step_seconds(MODEL, TINY, WORK, layout, shuffled[::7])
    assert placed.step_s <= min(steps) * (1 + 1e-12)
    assert placed.step_s == pytest.approx(min(step_seconds(MODEL, TINY, WORK, layout, [np.asarray(g) for g in every])))


CLUSTER = cluster(16, 8, leaf_nodes=4, oversubscription=4.0)


@settings(deadline=None, max_examples=6)
@given(
    st.sampled_from((Layout(tp=4, sp=1, pp=2, dp=4, zero_stage=1), Layout(tp=2, pp=8, dp=2), Layout(tp=2, cp=2, dp=8),
                     Layout(tp=4, pp=4, dp=2, order="tp-cp-pp-dp"))),
    st.sets(st.integers(0, 15), min_size=4, max_size=6),
)  # fmt: skip
def test_a_choice_is_never_slower_than_ranks_in_order(layout: Layout, nodes: set[int]) -> None:
    have = Allocation(tuple(sorted(nodes)))
    placed = place(MODEL, CLUSTER, WORK, layout, have)
    assert placed.step_s <= placed.ordered_step_s * (1 + 1e-9)
    assert len(set(placed.gpus.tolist())) == layout.world
    assert {int(gpu) // 8 for gpu in placed.gpus} <= nodes


def test_scattered_nodes_are_put_together() -> None:
    # two stages of four ranks each on nodes 0, 1 below one leaf and 4, 5 below another: in order each stage keeps a
    # leaf; listed so that stages straddle them, ranks are moved back
    work, layout = replace(WORK, framework="generic"), Layout(tp=8, sp=1, dp=2, pp=2, order="tp-cp-pp-dp")
    placed = place(MODEL, CLUSTER, work, layout, parse_nodes("0,1,4,5"))
    by_axis = {row.axis: row for row in axis_rows(placed, CLUSTER.fabric)}
    assert placed.moved and placed.step_s < placed.ordered_step_s
    assert by_axis["dp_cp"].where == "rails of a leaf" and by_axis["pp"].where == "crosses the spine"
    assert by_axis["tp"].where == "inside nvlink" and by_axis["tp"].network_bytes_per_gpu == 0.0
    graph = wire(CLUSTER.fabric)
    for axis in placed.loads.axes:  # rails are kept, so that the graph has the same loads
        routed = route_all(graph, flows_of(CLUSTER.fabric, axis.demand, placed.gpus))
        assert axis.least_s == pytest.approx(routed.seconds)
    said = told(placed, MODEL, work, CLUSTER)
    assert node_sequence(in_order(placed.layout, said.layout.order, placed.gpus), 8) == said.hosts


@settings(deadline=None, max_examples=40)
@given(st.sampled_from((Layout(tp=4, pp=2, dp=4), Layout(tp=2, cp=2, pp=4, dp=4, zero_stage=3, fsdp=2),
                        Layout(dp=8, pp=2, order="pp-tp-cp-dp"))), st.sampled_from((2, 4, 8)))  # fmt: skip
def test_every_cut_is_a_permutation_of_the_ranks(layout: Layout, size: int) -> None:
    cuts = list(cut.blocks(layout, (), size))
    assert len(set(cuts)) == len(cuts)
    for digits in cuts:
        whole = cut.filled(layout, digits)
        assert sorted(cut.positions(layout, whole)) == list(range(layout.world))
    usual = cut.orders(layout)[0]
    if layout.order == ORDERS[0]:
        assert cut.positions(layout, usual).tolist() == list(range(layout.world))


def test_an_order_is_told_in_the_words_of_the_framework() -> None:
    layout = Layout(tp=2, pp=4, dp=2, order="tp-cp-pp-dp")
    orders = ("tp-cp-dp-pp", "tp-cp-pp-dp")
    assert order_flags(replace(layout, order=orders[0]), "megatron", orders) == ()
    assert order_flags(layout, "megatron", orders) == ("--use-tp-pp-dp-mapping",)
    assert order_flags(layout, "megatron-bridge", orders) == ("dist.use_tp_pp_dp_mapping=true",)
    (text,) = order_flags(layout, "deepspeed", orders)
    assert text == "PipelineModule(topology=ProcessTopology(axes=['data', 'pipe', 'model'], dims=[2, 4, 2]))"
    (text,) = order_flags(layout, "generic", orders)
    assert text == "init_device_mesh(device_type, (2, 4, 2), mesh_dim_names=('dp', 'pp', 'tp'))"


def test_ranks_that_lie_as_another_order_has_them_are_told_as_that_order() -> None:
    layout, two = Layout(tp=2, pp=4, dp=2), cluster(2, 8)
    placed = place(MODEL, two, WORK, layout)
    gpus = cut.positions(layout, (("tp", 2), ("pp", 4), ("shard", 2)))
    other = replace(placed, gpus=gpus, layout=replace(layout, placement=tuple(map(int, gpus))))
    said = told(other, MODEL, WORK, two)
    assert (said.layout, said.hosts, said.flags) == (
        replace(layout, order="tp-cp-pp-dp"), (0, 1), ("--use-tp-pp-dp-mapping",)
    )  # fmt: skip
    # no order of Megatron-Core has dp fastest: every rank is told by itself
    gpus = cut.positions(layout, (("shard", 2), ("tp", 2), ("pp", 4)))
    said = told(replace(placed, gpus=gpus, layout=replace(layout, placement=tuple(map(int, gpus)))), MODEL, WORK, two)
    assert said.layout.order == "tp-cp-dp-pp" and said.hosts == () and "rank map" in said.flags[0]
    have = Allocation((0, 1), ("alpha", "beta"))
    assert host_lines(said, have, 8)[:5] == ["alpha"] * 5
    # ranks 0, 1, 2, 3 are (tp, dp) = (0, 0), (1, 0), (0, 1), (1, 1), which lie at 0, 2, 1, 3
    assert rank_lines(said, have, 8)[:4] == ["0\talpha\t0", "1\talpha\t2", "2\talpha\t1", "3\talpha\t3"]


def test_racks_that_groups_do_not_fill_are_left_part_empty() -> None:
    # 16 ranks in order fill two of three nodes of 6 and tear a group of 4 apart; 4 on each of four nodes do not
    assert cut.fills(24, 6, 6) == [6] and cut.fills(256, 72, 4) == [72, 64]
    assert cut.fills(16, 6, 3) == [6] and cut.fills(16, 6, 4) == [6, 4]
    layout, odd = Layout(tp=4, sp=1, dp=4, zero_stage=1), cluster(4, 6)
    assert first_nodes(odd.fabric, 16).nodes == (0, 1, 2, 3)
    placed = place(MODEL, odd, replace(WORK, gbs=64), layout)
    assert placed.step_s < placed.ordered_step_s
    assert {row.axis: row.where for row in axis_rows(placed, odd.fabric)}["tp"] == "inside nvlink"
    said = told(placed, MODEL, replace(WORK, gbs=64), odd)
    assert said.hosts == (0, 1, 2, 3) and said.flags == ("4 ranks a node (torchrun --nproc-per-node 4)",)


def test_nodes_are_read_from_text_and_files(tmp_path: object) -> None:
    assert parse_nodes("0-2,8").nodes == (0, 1, 2, 8)
    path = tmp_path / "nodes"  # type: ignore[operator]
    path.write_text("12 host-a\n3 host-b  # rack 0\n")
    assert parse_nodes(str(path)) == Allocation((3, 12), ("host-b", "host-a"))
    with pytest.raises(InputError) as error:
        parse_nodes("0-2,x,2,5-3")
    assert len(error.value.faults) == 3
    with pytest.raises(InputError, match="nodes 0 to 15"):
        place(MODEL, CLUSTER, WORK, Layout(tp=8, dp=2), parse_nodes("3,16"))
    with pytest.raises(InfeasibleError, match="2 nodes are allocated and the layout needs 4"):
        place(MODEL, CLUSTER, WORK, Layout(tp=8, dp=4), parse_nodes("3,4"))


def test_whole_blocks_below_a_leaf_come_first() -> None:
    fabric = plain(16, leaf_nodes=4)
    # leaf 0 has three, leaf 1 four, leaf 2 one: blocks of two are 4-5, 6-7, 0-1, then 2 and 8
    have = Allocation((0, 1, 2, 4, 5, 6, 7, 8))
    assert have.of(6, fabric, 2) == (4, 5, 6, 7, 0, 1)
    assert have.of(8, fabric, 2) == (0, 1, 4, 5, 6, 7, 2, 8)
    assert first_nodes(fabric, 128).nodes == tuple(range(16))
