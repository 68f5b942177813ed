"""Every collective keeps the contract; the formulas against hand calculation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hwmodels import cluster as clusters
from hwmodels import collectives
from hwmodels.collectives.base import Collective, Group
from hwmodels.collectives.curves import read_curve
from hwmodels.device import Coefficient
from hwmodels.errors import InputError
from hwmodels.network import Fabric, Link
from hwmodels.topology import GroupShape, group_shape

PRESETS = ("dgx-a100:64", "dgx-h100:64", "hgx-b200:64", "gb200-nvl72:8", "mi300x:64", "aws-p4d:64", "cpu-local:4")


def shape(ranks: int, nodes: int, stride: int = 1) -> GroupShape:
    return GroupShape(np.asarray(ranks), np.asarray(nodes), np.asarray(stride))


def toy(nvls: bool = False, **numbers: float) -> Fabric:
    """100 GB/s inside nodes of 8, four ports of 10 GB/s; latencies of zero unless given."""
    zero = {
        f"{op}.{p}.{x}": 0.0
        for op in collectives.names()
        for p in ("ll", "ll128", "simple", "nvls")
        for x in ("latency", "hop")
    } | {f"{op}.{p}.{x}": 0.0 for op in collectives.names() for p in ("small", "bulk") for x in ("latency", "hop")}
    ones = {f"{op}.group_half": 0.0 for op in collectives.names()}
    ones |= {
        f"{op}.{p}.efficiency": 1.0
        for op in collectives.names()
        for p in ("ll", "ll128", "simple", "nvls", "small", "bulk")
    }
    ones |= {f"{op}.tree.cost": 1.0 for op in collectives.names()} | {
        f"{op}.overlap_loss": 0.0 for op in collectives.names()
    }
    given_ = {k.replace("__", "."): v for k, v in numbers.items()}
    coefficients = {k: Coefficient(v, "test", 1) for k, v in {**zero, **ones, **given_}.items()}
    intra = Link("toy-switch", "nvlink", 100e9, 0.0, "test", nvls=nvls, coefficients=coefficients)
    inter = Link("toy-port", "infiniband", 10e9, 0.0, "test", "rail-fat-tree", coefficients=coefficients)
    return Fabric(8, 16, intra, inter, 4, topology="rail-fat-tree")


@pytest.mark.parametrize("op", collectives.names())
@pytest.mark.parametrize("preset", PRESETS)
@settings(deadline=None, max_examples=10)
@given(data=st.data())
def test_contract(op: str, preset: str, data: st.DataObject) -> None:
    """Increasing in bytes, never under the bandwidth bound, zero for one rank and for nothing, finite."""
    cluster = clusters.load(preset)
    ranks = data.draw(st.integers(1, cluster.gpus_per_node))
    nodes = data.draw(st.integers(1, cluster.nodes))
    small = data.draw(st.floats(1.0, 1e10))
    large = small * data.draw(st.floats(1.0, 100.0))
    group = shape(ranks, nodes)
    estimate = collectives.seconds(cluster, op, [small, large], group)
    first, second = estimate.mid
    assert np.isfinite(estimate.mid).all() and np.isfinite(estimate.high).all()
    assert second >= first >= 0
    bound = collectives.bound(cluster, op, [small, large], group)
    assert (estimate.mid >= bound * (1 - 1e-12)).all()
    if ranks * nodes == 1:
        assert first == second == 0
    else:
        assert first > 0
    assert float(collectives.seconds(cluster, op, 0, group).mid) == 0


@pytest.mark.parametrize("op", collectives.names())
def test_members_are_complete(op: str) -> None:
    member = collectives.MEMBERS[op]
    assert isinstance(member, Collective)
    assert member.name == op
    group = Group(np.asarray([1.0, 4.0, 8.0]), np.asarray([4.0, 2.0, 1.0]))
    assert (member.least_wire(group) <= member.wire(group) + 1e-12).all()
    for switched in (False, True):
        out = member.out(group, np.full(3, switched))
        assert (member.least_out(group) <= out + 1e-12).all()


@pytest.mark.parametrize(
    ("op", "ranks", "nodes", "expected"),
    [
        # One node of 8 at 100 GB/s: 2 * 7/8 * 1e9 B / 1e11.
        ("all_reduce", 8, 1, 0.0175),
        ("all_gather", 8, 1, 0.00875),
        ("reduce_scatter", 4, 1, 0.0075),
        ("broadcast", 8, 1, 0.01),
        ("all_to_all", 8, 1, 0.00875),
        ("send_recv", 2, 1, 0.01),
        # Two nodes of 8 with 4 ports of 10 GB/s: a tree sends 2 * 1/2 * 1e9 B at 40 GB/s; a ring 1.875e9.
        ("all_reduce", 8, 2, 0.025),
        # A ring passes 15/16 of the data through every node boundary.
        ("all_gather", 8, 2, 0.9375 / 40),
        ("reduce_scatter", 8, 2, 0.9375 / 40),
        ("broadcast", 8, 2, 0.025),
        # 8 ranks each send 8/16 of 1e9 B to the other node: 4e9 B at 40 GB/s.
        ("all_to_all", 8, 2, 0.1),
        # One rank a node: an eighth of the ports (5 GB/s), as seven other groups run beside it.
        ("all_reduce", 1, 2, 0.2),
        ("all_gather", 1, 4, 0.75 / 5),
        ("send_recv", 1, 2, 0.2),
    ],
)
def test_bandwidth_by_hand(op: str, ranks: int, nodes: int, expected: float) -> None:
    assert float(collectives.seconds(toy(), op, 1e9, shape(ranks, nodes)).mid) == pytest.approx(expected, rel=1e-9)


def test_protocols_by_hand() -> None:
    # ll: 5 us + 1 us * 3 hops, 10% of 100 GB/s; simple: 20 us, all of it. 4 ranks gather: wire 3/4.
    fabric = toy(
        **{"all_gather__ll.latency": 5e-6, "all_gather__ll.hop": 1e-6, "all_gather__ll.efficiency": 0.1,
           "all_gather__ll128.latency": 1.0, "all_gather__simple.latency": 20e-6}
    )  # fmt: skip
    small, large = collectives.seconds(fabric, "all_gather", [1e3, 1e9], shape(4, 1)).mid
    assert small == pytest.approx(8e-6 + 750 / 10e9, rel=1e-9)
    assert large == pytest.approx(20e-6 + 0.75e9 / 100e9, rel=1e-9)


def test_switch_reduction_by_hand() -> None:
    # NVLS: every GPU sends its 1e9 B once: 10 ms against 17.5 ms of the ring; groups of 4 get none.
    fabric = toy(nvls=True)
    assert float(collectives.seconds(fabric, "all_reduce", 1e9, shape(8, 1)).mid) == pytest.approx(0.010, rel=1e-9)
    assert float(collectives.seconds(fabric, "all_reduce", 1e9, shape(4, 1)).mid) == pytest.approx(0.015, rel=1e-9)
    ring = collectives.seconds(fabric, "all_reduce", 1e9, shape(8, 1), algorithm="ring")
    assert float(ring.mid) == pytest.approx(0.0175, rel=1e-9)
    forced = collectives.seconds(fabric, "all_reduce", 1e9, shape(8, 1), algorithm="nvls")
    assert float(forced.mid) == pytest.approx(0.010, rel=1e-9)


def test_overlap_of_levels_by_hand() -> None:
    # Inside 15/16 * 1e9 / 100 GB/s = 9.375 ms, between 15/16 * 1e9 / 40 GB/s = 23.4375 ms; 20% of the shorter remains.
    fabric = toy(all_gather__overlap_loss=0.2)
    expected = 0.0234375 + 0.2 * 0.009375
    assert float(collectives.seconds(fabric, "all_gather", 1e9, shape(8, 2)).mid) == pytest.approx(expected, rel=1e-9)


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


@pytest.mark.parametrize(
    ("op", "nbytes", "group", "algorithm", "message"),
    [
        ("gossip", 1, shape(8, 1), None, "unknown"),
        ("all_reduce", -1, shape(8, 1), None, "nbytes"),
        ("all_reduce", float("nan"), shape(8, 1), None, "nbytes"),
        ("all_reduce", 1, shape(9, 1), None, "9 ranks in a node"),
        ("all_reduce", 1, shape(8, 65), None, "65 nodes"),
        ("all_reduce", 1, shape(0, 1), None, "no members"),
        ("all_reduce", 1, shape(8, 1), "butterfly", "cannot run"),
        ("all_gather", 1, shape(8, 1), "nvls", "cannot run"),
        ("all_gather", 1, shape(8, 1), "tree", "cannot run"),
    ],
)
def test_bad_requests(op: str, nbytes: float, group: GroupShape, algorithm: str | None, message: str) -> None:
    with pytest.raises(InputError, match=message):
        collectives.seconds(clusters.load("dgx-h100:64"), op, nbytes, group, algorithm=algorithm)


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
