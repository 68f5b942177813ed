"""Every collective keeps the contract; the formulas against hand calculation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hwmodels import cluster as clusters
from hwmodels import collectives
from hwmodels.collectives.base import Collective, Group
from hwmodels.collectives.curves import read_curve
from hwmodels.collectives.protocols import network_latency
from hwmodels.device import Coefficient
from hwmodels.errors import InputError
from hwmodels.network import Fabric, Link
from hwmodels.topology import GroupShape, group_shape

PRESETS = ("dgx-a100:64", "dgx-h100:64", "hgx-b200:64", "gb200-nvl72:8", "mi300x:64", "aws-p4d:64", "cpu-local:4")
IMPLS = ("", "nccl-default", "trtllm-custom", "sglang-custom-graph", "vllm-custom-graph")
ZERO = ("ll.latency", "ll.hop", "ll.jump", "ll.jump_hop", "ll128.latency", "ll128.hop", "simple.latency", "simple.hop",
        "simple.tail", "nvls.latency", "nvls.tail", "group_half", "overlap_loss", "pair.latency", "pair.hop",
        "pair.bulk_latency", "pair.bulk_hop", "pair.tail")  # fmt: skip
ONE = ("ll.efficiency", "ll.sharpness", "ll128.efficiency", "simple.efficiency", "nvls.efficiency",
       "ring.efficiency", "tree.cost", "pair.efficiency", "pair.rate", "pair.sharpness")  # fmt: skip


def shape(ranks: int, nodes: int, stride: int = 1) -> GroupShape:
    return GroupShape(np.asarray(ranks), np.asarray(nodes), np.asarray(stride))


def toy(nvls: bool = False, **numbers: float) -> Fabric:
    """100 GB/s inside nodes of 8, four ports of 10 GB/s; latencies of zero and full efficiency unless given."""
    values = dict.fromkeys(ZERO, 0.0) | dict.fromkeys(ONE, 1.0) | {k.replace("__", "."): v for k, v in numbers.items()}
    coefficients = {k: Coefficient(v, "test", 1) for k, v in values.items()}
    intra = Link("toy-switch", "nvlink", 100e9, 0.0, "test", nvls=nvls, coefficients=coefficients)
    inter = Link("toy-port", "infiniband", 10e9, 0.0, "test", "rail-fat-tree", coefficients=coefficients)
    return Fabric(8, 16, intra, inter, 4, topology="rail-fat-tree")


@pytest.mark.parametrize("op", collectives.names())
@pytest.mark.parametrize("preset", PRESETS)
@settings(deadline=None, max_examples=15)
@given(data=st.data())
def test_contract(op: str, preset: str, data: st.DataObject) -> None:
    """Increasing in bytes, never under the bandwidth bound, zero for one rank and for nothing, finite."""
    cluster = clusters.load(preset)
    ranks = data.draw(st.integers(1, cluster.gpus_per_node))
    nodes = data.draw(st.integers(1, cluster.nodes))
    small = data.draw(st.floats(1.0, 1e10))
    large = small * data.draw(st.one_of(st.floats(1.0, 1.3), st.floats(1.0, 100.0)))
    group = shape(ranks, nodes, data.draw(st.integers(1, (cluster.gpus_per_node - 1) // max(ranks - 1, 1) or 1)))
    impl = data.draw(st.sampled_from(IMPLS))
    skew = data.draw(st.floats(1.0, 8.0)) if op == "all_to_all" else 1.0
    estimate = collectives.seconds(cluster, op, [small, large], group, impl=impl, skew=skew)
    first, second = estimate.mid
    assert np.isfinite(estimate.mid).all() and np.isfinite(estimate.high).all()
    assert second >= first >= 0
    bound = collectives.bound(cluster, op, [small, large], group, skew=skew)
    assert (estimate.mid >= bound * (1 - 1e-12)).all()
    if ranks * nodes == 1:
        assert first == second == 0
    else:
        assert first > 0
    assert float(collectives.seconds(cluster, op, 0, group).mid) == 0


@pytest.mark.parametrize("algorithm", ["ring", "tree", "nvls", "hierarchical", "one_shot", "two_shot"])
@settings(deadline=None, max_examples=25)
@given(data=st.data())
def test_forced_all_reduce_keeps_the_contract(algorithm: str, data: st.DataObject) -> None:
    cluster = clusters.load(data.draw(st.sampled_from(("dgx-h100:64", "hgx-b200:64"))))
    fewest, most = (2, 64) if algorithm == "hierarchical" else (1, 1) if algorithm.endswith("_shot") else (1, 64)
    group = shape(data.draw(st.integers(2, 8)), data.draw(st.integers(fewest, most)))
    small = data.draw(st.floats(1.0, 1e10))
    sizes = [small, small * data.draw(st.floats(1.0, 50.0))]
    first, second = collectives.seconds(cluster, "all_reduce", sizes, group, algorithm=algorithm).mid
    assert second >= first > 0
    assert (np.asarray([first, second]) >= collectives.bound(cluster, "all_reduce", sizes, group) * (1 - 1e-12)).all()


@pytest.mark.parametrize("op", collectives.names())
def test_members_are_complete(op: str) -> None:
    member = collectives.MEMBERS[op]
    assert isinstance(member, Collective)
    assert member.name == op
    group = Group(np.asarray([1.0, 4.0, 8.0]), np.asarray([4.0, 2.0, 1.0]))
    assert (member.least_wire(group) <= member.wire(group) + 1e-12).all()
    assert (member.least_out(group) <= member.out(group) + 1e-12).all()


@pytest.mark.parametrize(
    ("op", "ranks", "nodes", "stride", "expected"),
    [
        # One node of 8 at 100 GB/s: 2 * 7/8 * 1e9 B / 1e11.
        ("all_reduce", 8, 1, 1, 0.0175),
        ("all_gather", 8, 1, 1, 0.00875),
        ("reduce_scatter", 4, 1, 1, 0.0075),
        ("broadcast", 8, 1, 1, 0.01),
        ("all_to_all", 8, 1, 1, 0.00875),
        ("send_recv", 2, 1, 1, 0.01),
        # Two nodes of 8 with 4 ports of 10 GB/s: a tree sends 2 * 1/2 * 1e9 B at 40 GB/s; a ring 1.875e9.
        ("all_reduce", 8, 2, 1, 0.025),
        # A ring passes 15/16 of the data through every node boundary.
        ("all_gather", 8, 2, 1, 0.9375 / 40),
        ("reduce_scatter", 8, 2, 1, 0.9375 / 40),
        ("broadcast", 8, 2, 1, 0.025),
        # 8 ranks each send 8/16 of 1e9 B to the other node: 4e9 B at 40 GB/s.
        ("all_to_all", 8, 2, 1, 0.1),
        # One rank a node, seven other groups beside it: an eighth of the ports (5 GB/s).
        ("all_reduce", 1, 2, 8, 0.2),
        ("all_gather", 1, 4, 8, 0.75 / 5),
        # The same alone: a whole port.
        ("all_reduce", 1, 2, 1, 0.1),
        ("send_recv", 1, 2, 8, 0.2),
    ],
)
def test_bandwidth_by_hand(op: str, ranks: int, nodes: int, stride: int, expected: float) -> None:
    found = float(collectives.seconds(toy(), op, 1e9, shape(ranks, nodes, stride)).mid)
    assert found == pytest.approx(expected, rel=1e-9)


def test_protocols_by_hand() -> None:
    # ll: 5 us + 1 us * 3 hops, 10% of 100 GB/s; simple: 20 us + 3 * 2 us, all of it. 4 ranks gather: wire 3/4.
    fabric = toy(
        ll__latency=5e-6, ll__hop=1e-6, ll__efficiency=0.1, simple__latency=20e-6, simple__hop=2e-6, tuner__ll128=0.0
    )
    small, large = collectives.seconds(fabric, "all_gather", [1e3, 1e9], shape(4, 1)).mid
    assert small == pytest.approx(8e-6 + 750 / 10e9, rel=1e-9)
    assert large == pytest.approx(26e-6 + 0.75e9 / 100e9, rel=1e-9)
    forced = collectives.seconds(fabric, "all_gather", 1e9, shape(4, 1), protocol="ll").mid
    assert float(forced) == pytest.approx(8e-6 + 0.75e9 / 10e9, rel=1e-9)


def test_jump_and_tail_by_hand() -> None:
    # 4 ranks, 32 KiB: 8 KiB a rank is twice the 4 KiB of one channel: x = 4, sat = 0.8 of 2 us + 3 hops * 0.5 us.
    fabric = toy(ll__latency=5e-6, ll__jump=2e-6, ll__jump_hop=5e-7, simple__tail=1e-6)
    jumped = collectives.seconds(fabric, "all_gather", 32768, shape(4, 1), protocol="ll").mid
    assert float(jumped) == pytest.approx(5e-6 + 0.8 * 3.5e-6 + 0.75 * 32768 / 100e9, rel=1e-9)
    # 1e8 B move in 0.75 ms; sqrt(1e-6 * 7.5e-4) = 27.386 us of chunking.
    tail = collectives.seconds(fabric, "all_gather", 1e8, shape(4, 1), protocol="simple").mid
    assert float(tail) == pytest.approx(7.5e-4 + 2.7386127875e-5, rel=1e-9)


def test_small_groups_reach_less_by_hand() -> None:
    # h = 0.5: two ranks reach 1/1.5 * 7.5/7 = 0.7142857 of what eight do.
    fabric = toy(group_half=0.5)
    one = collectives.seconds(fabric, "all_gather", 1e9, shape(2, 1), protocol="simple").mid
    assert float(one) == pytest.approx(0.5 * 1e9 / (100e9 * 0.7142857142857143), rel=1e-9)
    eight = collectives.seconds(fabric, "all_gather", 1e9, shape(8, 1), protocol="simple").mid
    assert float(eight) == pytest.approx(0.00875, rel=1e-9)


def test_pairs_by_hand() -> None:
    # LL: 8 us + 6 peers * 0.5 us + (8000 / 8 B) / (1% of 100 GB/s) = 12 us. Simple, k = 2: hypot(30 us, 40 us) = 50 us,
    # where 40 us = 7/8 * b / (50% of 100 GB/s): b = 16e6 / 7.
    fabric = toy(pair__latency=8e-6, pair__hop=5e-7, pair__rate=0.01, pair__bulk_latency=30e-6, pair__sharpness=2.0,
                 pair__efficiency=0.5)  # fmt: skip
    small, large = collectives.seconds(fabric, "all_to_all", [8000.0, 16e6 / 7], shape(8, 1)).mid
    assert small == pytest.approx(12e-6, rel=1e-9)
    assert large == pytest.approx(50e-6, rel=1e-9)


def test_skew_by_hand() -> None:
    # The fullest pair carries three times the mean: three times 8.75 ms.
    assert float(collectives.seconds(toy(), "all_to_all", 1e9, shape(8, 1), skew=3.0).mid) == pytest.approx(0.02625)
    assert float(collectives.bound(toy(), "all_to_all", 1e9, shape(8, 1), skew=3.0)) == pytest.approx(0.02625)
    with pytest.raises(InputError, match=r"skew is 0\.5"):
        collectives.seconds(toy(), "all_to_all", 1e9, shape(8, 1), skew=0.5)
    with pytest.raises(InputError, match="all_gather has a skew"):
        collectives.seconds(toy(), "all_gather", 1e9, shape(8, 1), skew=2.0)


def test_switch_reduction_by_hand() -> None:
    # NVLS: every GPU sends its 1e9 B once: 10 ms against 17.5 ms of the ring; groups of 4 get none.
    fabric = toy(nvls=True)
    assert float(collectives.seconds(fabric, "all_reduce", 1e9, shape(8, 1)).mid) == pytest.approx(0.010, rel=1e-9)
    assert float(collectives.seconds(fabric, "all_reduce", 1e9, shape(4, 1)).mid) == pytest.approx(0.015, rel=1e-9)
    ring = collectives.seconds(fabric, "all_reduce", 1e9, shape(8, 1), algorithm="ring")
    assert float(ring.mid) == pytest.approx(0.0175, rel=1e-9)
    forced = collectives.seconds(fabric, "all_reduce", 1e3, shape(8, 1), algorithm="nvls")
    assert float(forced.mid) == pytest.approx(1e-8, rel=1e-9)


def test_overlap_of_levels_by_hand() -> None:
    # Inside 15/16 * 1e9 / 100 GB/s = 9.375 ms, between 15/16 * 1e9 / 40 GB/s = 23.4375 ms; 20% of the shorter remains.
    fabric = toy(overlap_loss=0.2)
    expected = 0.0234375 + 0.2 * 0.009375
    assert float(collectives.seconds(fabric, "all_gather", 1e9, shape(8, 2)).mid) == pytest.approx(expected, rel=1e-9)


def test_latencies_over_nodes_by_hand() -> None:
    # Ring of 16 in 2 nodes: 15 hops, one of them between nodes: 14 * 1 us + 7 us (LL), and 4 us to start.
    fabric = toy(ll__latency=4e-6, ll__hop=1e-6, simple__latency=1.0, ll128__latency=1.0)
    inter = replace(fabric.inter, coefficients={**fabric.inter.coefficients, "ll.hop": Coefficient(7e-6, "test", 1)})  # type: ignore[type-var, union-attr]
    gathered = collectives.seconds(replace(fabric, inter=inter), "all_gather", 1.0, shape(8, 2)).mid
    assert float(gathered) == pytest.approx(4e-6 + 14e-6 + 7e-6, rel=1e-4)
    # A tree of 2 nodes: the chain of 8 up and down is 14 hops, and the edge between nodes 2.
    reduced = collectives.seconds(replace(fabric, inter=inter), "all_reduce", 1.0, shape(8, 2)).mid
    assert float(reduced) == pytest.approx(4e-6 + 14e-6 + 14e-6, rel=1e-4)


def test_tuner_switches_where_nccl_does() -> None:
    """NCCL's own estimates, by hand: 2 A100, all-reduce: LL 6.6 + 2 * 0.6 = 7.8 us at 87.7 GB/s of data, Simple
    8.4 + 2 * 3.4 = 15.2 us at 240 GB/s: equal at 7.4e-6 / (1/87.69e9 - 1/240e9) = 1.0226e6 bytes."""
    cluster = clusters.load("dgx-a100:1")
    pair = shape(2, 1)
    words = collectives.chosen(cluster, "all_reduce", [1.02e6, 1.025e6], pair)
    assert words.tolist() == ["ring/ll", "ring/simple"]
    before, after = collectives.seconds(cluster, "all_reduce", [1.02e6, 1.025e6], pair).mid
    assert after > 1.2 * before  # the jump that 2 A100 show between 512 KiB and 1 MiB


def test_chosen_words() -> None:
    cluster = clusters.load("dgx-h100:4")
    assert collectives.chosen(cluster, "all_reduce", [0.0, 1e3, 1e9], shape(8, 1)).tolist() == [
        "", "ring/ll", "nvls/simple"
    ]  # fmt: skip
    assert collectives.chosen(cluster, "all_reduce", 1e9, shape(4, 1)).tolist() == "ring/simple"
    assert collectives.chosen(cluster, "all_reduce", 1e3, shape(8, 1), impl="trtllm-custom").tolist() == "one_shot"
    assert collectives.chosen(cluster, "all_reduce", 1e9, shape(8, 1), impl="trtllm-custom").tolist() == "nvls/simple"
    assert str(collectives.chosen(cluster, "all_reduce", 1e9, shape(8, 2))).startswith(("nvls", "tree", "ring"))
    assert str(collectives.chosen(cluster, "all_to_all", 1e9, shape(8, 1))) == "pairs/simple"
    forced = collectives.chosen(cluster, "all_reduce", 1e9, shape(8, 1), algorithm="ring", protocol="ll128")
    assert str(forced) == "ring/ll128"


def test_custom_kernels_by_hand() -> None:
    # 8 ranks: one shot 3 us + 7 * 0.1 us + 7 b / 50 GB/s, two shots 6 us + 7 * 0.2 us + 2 * 7/8 b / 50 GB/s, to 1 MB.
    numbers = {"one_shot__latency": 3e-6, "one_shot__hop": 1e-7, "one_shot__efficiency": 0.5,
               "two_shot__latency": 6e-6, "two_shot__hop": 2e-7, "two_shot__efficiency": 0.5,
               "limit": 1e6, "limit_slope": 0.0}  # fmt: skip
    fabric = toy(**{f"custom__trtllm__{k}": v for k, v in numbers.items()}, simple__latency=30e-6, ll__latency=30e-6)
    found = collectives.seconds(fabric, "all_reduce", [1000.0, 1e6, 1e9], shape(8, 1), impl="trtllm-custom").mid
    assert found[0] == pytest.approx(3.7e-6 + 7000 / 50e9, rel=1e-9)
    assert found[1] == pytest.approx(7.4e-6 + 1.75e6 / 50e9, rel=1e-9)
    assert found[2] == pytest.approx(0.0175 + 30e-6, rel=1e-6)  # NCCL
    one = collectives.seconds(fabric, "all_reduce", 1e6, shape(8, 1), algorithm="one_shot", impl="trtllm").mid
    assert float(one) == pytest.approx(3.7e-6 + 7e6 / 50e9, rel=1e-9)


def test_mesh_reaches_members_only() -> None:
    # MI300X: 64 GB/s to each of 7 peers. Two ranks use one link (trap: TP2 is slow), eight all seven.
    link = Link("mesh", "xgmi", 448e9, 0.0, "test", "mesh", 7)
    assert link.reach(np.asarray([2, 4, 8])).tolist() == [64e9, 192e9, 448e9]


def test_array_shapes() -> None:
    cluster = clusters.load("dgx-h100:64")
    groups = group_shape(np.array([1, 8, 16, 64]), 1, 8)
    estimate = collectives.seconds(cluster, "all_reduce", np.array([[1e3], [1e6], [1e9]]), groups)
    assert estimate.mid.shape == (3, 4)
    assert (estimate.mid[:, 0] == 0).all()
    one = collectives.seconds(cluster, "all_reduce", 1e6, group_shape(16, 1, 8))
    assert float(one.mid) == estimate.mid[1, 2]
    assert collectives.seconds(cluster, "all_reduce", np.zeros((0,)), group_shape(8, 1, 8)).mid.shape == (0,)


def test_strided_group_crosses_nodes() -> None:
    # Stride 8 on nodes of 8: every member on its own node, on its own rail.
    cluster = clusters.load("dgx-h100:64")
    group = group_shape(16, 8, 8)
    assert (int(group.ranks_per_node), int(group.nodes)) == (1, 16)
    inside = collectives.seconds(cluster, "all_gather", 1e9, group_shape(8, 1, 8)).mid
    across = collectives.seconds(cluster, "all_gather", 1e9, group).mid
    assert float(across) > 5 * float(inside)  # 50 GB/s of a port against 450 GB/s of NVLink


def test_wider_without_evidence() -> None:
    cluster = clusters.load("dgx-h100:64")
    near = collectives.seconds(cluster, "all_reduce", 1e9, shape(8, 4))
    far = collectives.seconds(cluster, "all_reduce", 1e9, shape(8, 5))
    assert float(far.spread) == pytest.approx(float(near.spread) + collectives.NO_EVIDENCE_SPREAD)
    assert collectives.evidence(shape(8, 4)) == ""
    assert "no measured evidence" in collectives.evidence(shape(8, 5))


def test_spread_is_wider_on_links_that_were_not_measured() -> None:
    measured = collectives.seconds(clusters.load("dgx-h100"), "all_gather", 1e9, shape(8, 1)).spread
    moved = collectives.seconds(clusters.load("mi300x"), "all_gather", 1e9, shape(8, 1)).spread
    assert 0 < float(measured) < 0.1 < float(moved)


def test_switches_stay_out_of_several_large_domains() -> None:
    # NCCL turns NVLSTree off in multi-node NVLink domains; two racks of GB200 reach what a ring does: 0.76 of 900 GB/s.
    cluster = clusters.load("gb200-nvl72:2")
    assert "nvls" not in str(collectives.chosen(cluster, "all_reduce", 1e10, shape(64, 2)))
    assert str(collectives.chosen(cluster, "all_reduce", 1e10, shape(64, 1))) == "nvls/simple"


def test_overlap_by_hand() -> None:
    link = clusters.load("dgx-h100").fabric.intra
    taken = collectives.overlap(link, 132)
    # 24 channels hold 24 of 132 SMs; compute has 108 left and 5% of memory traffic beside it: 132/108 * 1.05.
    assert taken.sm_share == pytest.approx(24 / 132)
    assert taken.compute_slowdown == pytest.approx(132 / 108 * 1.05)
    assert taken.collective_slowdown == pytest.approx(1.10)
    assert all(c.source for c in taken.sources)
    assert collectives.overlap(link, 132, "send_recv").sm_share == pytest.approx(12 / 132)
    assert collectives.overlap(link, 0).sm_share == 0
    with pytest.raises(InputError, match="n_sm"):
        collectives.overlap(link, -1)


@pytest.mark.parametrize(
    ("op", "nbytes", "group", "forced", "message"),
    [
        ("gossip", 1, shape(8, 1), {}, "unknown"),
        ("all_reduce", -1, shape(8, 1), {}, "nbytes"),
        ("all_reduce", float("nan"), shape(8, 1), {}, "nbytes"),
        ("all_reduce", 1, shape(9, 1), {}, "9 ranks in a node"),
        ("all_reduce", 1, shape(8, 65), {}, "65 nodes"),
        ("all_reduce", 1, shape(0, 1), {}, "no members"),
        ("all_reduce", 1, shape(8, 1, 0), {}, "stride 0"),
        ("all_reduce", 1, shape(2, 1, 8), {}, "2 ranks in a node, 8 apart.*a stride below 8"),
        ("all_gather", 1, shape(8, 1, 8), {}, "8 ranks in a node, 8 apart"),
        ("all_reduce", 1, shape(8, 4), {"algorithm": "one_shot"}, "spans 4.*ring, tree or nvls"),
        ("all_reduce", 1, shape(8, 2), {"algorithm": "two_shot"}, "spans 2"),
        ("all_reduce", 1, shape(8, 1), {"algorithm": "hierarchical"}, "lies in one.*ring, tree or nvls"),
        ("all_reduce", 1, shape(8, 1), {"algorithm": "butterfly"}, "cannot run"),
        ("all_gather", 1, shape(8, 1), {"algorithm": "nvls"}, "cannot run"),
        ("all_gather", 1, shape(8, 1), {"algorithm": "tree"}, "cannot run"),
        ("all_to_all", 1, shape(8, 1), {"algorithm": "ring"}, "cannot run"),
        ("all_gather", 1, shape(8, 1), {"algorithm": "one_shot"}, "cannot run"),
        ("all_reduce", 1, shape(8, 1), {"protocol": "udp"}, "unknown"),
        ("all_reduce", 1, shape(8, 1), {"algorithm": "nvls", "protocol": "ll"}, "cannot run NVLS"),
        ("send_recv", 1, shape(2, 1), {"protocol": "ll128"}, "cannot run send_recv"),
        ("all_reduce", 1, shape(8, 1), {"impl": "mpi"}, "implementation 'mpi'"),
    ],
)
def test_bad_requests(op: str, nbytes: float, group: GroupShape, forced: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        collectives.seconds(clusters.load("dgx-h100:64"), op, nbytes, group, **forced)  # type: ignore[arg-type]


CURVE = ((1e3, 1e-4), (1e5, 2e-4), (1e7, 2e-2))


def test_curve_by_hand() -> None:
    # Between 1e5 (2e-4 s) and 1e7 (2e-2 s) the log-log line has slope 1: 1e6 -> 2e-3. Below the first
    # size the smallest time; beyond the last in proportion: 1e8 -> 0.2.
    assert read_curve(CURVE, np.asarray([1e6, 10.0, 1e8])) == pytest.approx([2e-3, 1e-4, 0.2], rel=1e-12)
    # 1e4 lies half-way between 1e3 and 1e5: sqrt(1e-4 * 2e-4).
    assert float(read_curve(CURVE, np.asarray(1e4))) == pytest.approx((1e-4 * 2e-4) ** 0.5, rel=1e-12)


def test_measured_curves_replace_the_law() -> None:
    cluster = clusters.load("cpu-local")
    tables = {"all_reduce": {2: CURVE}}
    measured = clusters.with_calibration(
        cluster, device_coefficients={}, collective_tables=tables, source="here", residual=0.07
    )
    estimate = collectives.seconds(measured, "all_reduce", 1e6, shape(2, 1))
    assert float(estimate.mid) == pytest.approx(2e-3, rel=1e-12)
    assert float(estimate.spread) == 0.07
    # Another op, and one rank, stay with the law.
    assert collectives.seconds(measured, "all_gather", 1e6, shape(2, 1)).mid == pytest.approx(
        collectives.seconds(cluster, "all_gather", 1e6, shape(2, 1)).mid
    )
    assert float(collectives.seconds(measured, "all_reduce", 1e6, shape(1, 1)).mid) == 0


def test_curves_between_and_beyond_measured_sizes() -> None:
    fabric = replace(toy(), tables={"all_reduce": {2: ((1.0, 1e-3),), 8: ((1.0, 4e-3),)}})
    four = collectives.seconds(fabric, "all_reduce", 1.0, shape(4, 1))
    # Half-way in log2 of the ranks: the geometric mean of 1 ms and 4 ms.
    assert float(four.mid) == pytest.approx(2e-3, rel=1e-9)
    only_two = replace(toy(), tables={"all_reduce": {2: ((1.0, 1e-3),)}})
    # No curve for 4: three steps where two ranks take one.
    assert float(collectives.seconds(only_two, "all_reduce", 1.0, shape(4, 1)).mid) == pytest.approx(3e-3, rel=1e-9)


def test_one_rank_a_node_reaches_no_more_than_a_send_recv() -> None:
    # A port of 10 GB/s, rings at full rate of full nodes, a send-recv at 0.7 of it. One rank in each of two nodes: an
    # all-reduce sends b out of each: 1 GB / 7 GB/s. Two ranks drive two ports (20 GB/s): a third of the way (log2 2 /
    # log2 8) from 0.7 to 1, 0.8; the tree sends b out of a node too: 1 GB / 16 GB/s, longer than inside: 2 b at 100.
    fabric = toy(send_recv__pair__efficiency=0.7)
    one = collectives.seconds(fabric, "all_reduce", 1e9, shape(1, 2))
    assert float(one.mid) == pytest.approx(1 / 7)
    assert float(collectives.seconds(fabric, "all_reduce", 1e9, shape(2, 2)).mid) == pytest.approx(1 / 16)
    full = collectives.seconds(fabric, "all_reduce", 1e9, shape(8, 2))
    assert float(full.mid) == pytest.approx(1 / 40)  # 8 ranks over four ports
    assert float(one.spread) == pytest.approx(float(full.spread) + 0.2)
    known = toy(send_recv__pair__efficiency=0.7, least_ranks=1.0)
    assert float(collectives.seconds(known, "all_reduce", 1e9, shape(1, 2)).mid) == pytest.approx(1 / 10)


@pytest.mark.parametrize("preset", ["dgx-h100:16", "dgx-a100:16", "aws-p4d:16", "aws-p5:16", "hgx-b200:16"])
@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
def test_no_group_of_few_ranks_is_priced_at_the_wire(preset: str, op: str) -> None:
    group = shape(1, 2, 8)
    price = collectives.seconds(clusters.load(preset), op, 2.0**34, group)
    bound = float(collectives.bound(clusters.load(preset), op, 2.0**34, group))
    assert 1.1 < float(price.mid) / bound < 4.0
    assert float(price.spread) > 0.15


@pytest.mark.parametrize("ranks", [3, 5, 6, 7])
@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "reduce_scatter"])
def test_groups_never_measured_have_no_cliffs(op: str, ranks: int) -> None:
    sizes = 2.0 ** np.arange(10, 32, 0.001)
    for preset in ("dgx-a100", "dgx-h100", "hgx-b200"):
        times = collectives.seconds(clusters.load(preset), op, sizes, shape(ranks, 1)).mid
        steps = times[1:] / times[:-1]
        assert steps.min() >= 1.0 and steps.max() < 1.005


def test_kernel_times_are_less_sure() -> None:
    cluster = clusters.load("dgx-a100:1")
    plain = collectives.seconds(cluster, "all_reduce", 1e6, shape(8, 1)).spread
    kernel = collectives.seconds(cluster, "all_reduce", 1e6, shape(8, 1), impl="torch-nccl-kernel").spread
    assert float(kernel) >= float(plain) > 0


def test_further_network_hops_cost_no_more_than_nccls_own_estimate() -> None:
    # two nodes as fitted (25 us and the port's 2 us); 30 more of a ring 14 us each, Simple; LL128 4 us
    link = Link("net", "infiniband", 50e9, 2e-6, "test", coefficients={
        "simple.hop": Coefficient(25e-6, "test"), "ll128.hop": Coefficient(95e-6, "test"),
        "ll.hop": Coefficient(1e-6, "test")})  # fmt: skip
    two, many = np.asarray(1.0), np.asarray(31.0)

    def seconds(hops: NDArray[np.float64], algorithm: str, p: str, passes: float = 1.0) -> float:
        return float(network_latency(link, "reduce_scatter", hops, passes, algorithm, p))

    assert seconds(two, "ring", "simple") == pytest.approx(27e-6)
    assert seconds(many, "ring", "simple") == pytest.approx(27e-6 + 30 * 14e-6)
    assert seconds(many, "ring", "ll128") == pytest.approx(97e-6 + 30 * 4e-6)
    assert seconds(many, "ring", "ll") == pytest.approx(3e-6 + 30 * 2.7e-6)
    # a tree of 32 nodes has ten hops up and down, two of which two nodes have
    assert seconds(np.asarray(10.0), "tree", "ll128", 2.0) == pytest.approx(2 * 97e-6 + 8 * 8.5e-6)
    assert seconds(np.asarray(10.0), "tree", "simple", 2.0) == pytest.approx(2 * 27e-6 + 8 * 14e-6)
