"""What a group has of its node's ports: shared, oversubscribed, on a torus; held against the placed traffic."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hwmodels import catalog, collectives
from hwmodels import cluster as clusters
from hwmodels.errors import InputError
from hwmodels.network import Fabric, Flows, place, traffic, wire
from hwmodels.topology import INSIDE, GroupShape
from tests.hwmodels.fabrics import FABRICS, everyone, plain, rails, shape, torus


def bound_by_ports(fabric: Fabric, group: GroupShape, pattern: str, nbytes: float) -> float:
    """Seconds for `nbytes` out of each node, by the analytic bandwidth of a group."""
    return nbytes / float(fabric.group_bandwidth(group, pattern))


@pytest.mark.parametrize(
    ("fabric", "nodes", "apart"),
    [
        (rails(16, leaf_nodes=4, oversubscription=2.0), 16, 1),
        (rails(16, leaf_nodes=4, oversubscription=6.0), 16, 1),
        (rails(16, leaf_nodes=4, oversubscription=2.0), 4, 4),
        (rails(16, leaf_nodes=4, oversubscription=2.0), 8, 2),
        (rails(16, leaf_nodes=4, oversubscription=3.0), 4, 1),
        (plain(12, leaf_nodes=3, oversubscription=2.5), 12, 1),
        (plain(8, oversubscription=2.0), 8, 1),
        (rails(16, leaf_nodes=2, pod_nodes=8, oversubscription=1.0, pod_oversubscription=4.0), 16, 1),
        (rails(16, leaf_nodes=2, pod_nodes=8, oversubscription=1.5, pod_oversubscription=4.0), 2, 8),
    ],
)
def test_analytic_bandwidth_equals_placed_traffic(fabric: Fabric, nodes: int, apart: int) -> None:
    """Every node busy with such groups: the graph's bottleneck is the group's bandwidth, exactly."""
    w = wire(fabric)
    rings, alls = [], []
    for first in range(0, fabric.nodes, nodes * apart):
        for offset in range(apart):
            for gpu in range(8):
                ranks = [(first + offset + k * apart, gpu) for k in range(nodes)]
                rings.append(traffic(fabric, ranks, "all_gather", 8e9))
                alls.append(traffic(fabric, ranks, "all_to_all", 8e9))
    group = shape(1, nodes, 8 * apart)
    sent = (nodes - 1) / nodes * 8e9
    assert place(w, Flows.together(rings)).seconds == pytest.approx(bound_by_ports(fabric, group, "ring", sent))
    assert place(w, Flows.together(alls)).seconds == pytest.approx(bound_by_ports(fabric, group, "all_to_all", sent))


def test_analytic_bandwidth_on_a_torus() -> None:
    fabric = torus(8, 4)
    w = wire(fabric)
    # Uniform all-to-all over all 32 chips: a link of the ring of 8 carries b x 8 / 8.
    ranks = everyone(fabric)
    whole = shape(1, 32, 1)
    placed = place(w, traffic(fabric, ranks, "all_to_all", 8e9))
    assert placed.seconds == pytest.approx(8e9 / 50e9)
    assert placed.seconds == pytest.approx(bound_by_ports(fabric, whole, "all_to_all", 31 / 32 * 8e9))
    # Rings along the last dimension (stride 1) and along the first (stride 4) have two ports each.
    for nodes, stride in ((4, 1), (8, 4)):
        assert float(fabric.group_bandwidth(shape(1, nodes, stride))) == pytest.approx(100e9)
    assert float(fabric.group_bandwidth(whole)) == pytest.approx(200e9)
    # Half of the last dimension is a line.
    assert float(fabric.group_bandwidth(shape(1, 2, 1))) == pytest.approx(50e9)
    odd = torus(5, 1)
    placed = place(wire(odd), traffic(odd, everyone(odd), "all_to_all", 8e9))
    assert placed.seconds == pytest.approx(bound_by_ports(odd, shape(1, 5, 1), "all_to_all", 4 / 5 * 8e9))


def test_shared_ports() -> None:
    p4d = clusters.load("aws-p4d:4").fabric  # 4 ports of 12.5 GB/s for 8 GPUs
    assert float(p4d.group_bandwidth(shape(8, 4, 1))) == pytest.approx(50e9)
    # Eight groups of one rank a node side by side: an eighth each. Alone, a rank has the port that it shares.
    assert float(p4d.group_bandwidth(shape(1, 4, 8))) == pytest.approx(6.25e9)
    assert float(p4d.group_bandwidth(shape(1, 4, 1))) == pytest.approx(12.5e9)
    assert float(p4d.group_bandwidth(shape(4, 4, 2))) == pytest.approx(25e9)
    # A stride of several nodes leaves a group for each GPU of a node.
    assert float(p4d.group_bandwidth(shape(1, 2, 16))) == pytest.approx(6.25e9)
    p5 = clusters.load("aws-p5:4").fabric  # 32 ports of 12.5 GB/s: four a GPU
    assert float(p5.group_bandwidth(shape(1, 4, 1))) == pytest.approx(50e9)
    assert float(p5.group_bandwidth(shape(1, 2, 1), "pair")) == pytest.approx(12.5e9)
    assert float(clusters.load("dgx-h100").fabric.group_bandwidth(shape(8, 1, 1))) == pytest.approx(400e9)
    assert float(replace(p4d, nodes=1, inter=None).group_bandwidth(shape(8, 1, 1))) == 0.0
    with pytest.raises(InputError, match="pattern"):
        p4d.group_bandwidth(shape(8, 1, 1), "spiral")


def test_latency_grows_with_the_tiers() -> None:
    fabric = rails(16, leaf_nodes=2, pod_nodes=8)
    seen = [float(fabric.group_latency(shape(8, n, 1))) for n in (1, 2, 4, 16)]
    # 2.7 us below a leaf; two InfiniBand switches more (0.13 us each) over a spine, two more over the core.
    assert seen == pytest.approx([0.0, 2.7e-6, 2.96e-6, 3.22e-6])


@settings(deadline=None, max_examples=60)
@given(
    st.integers(0, len(FABRICS) - 1), st.integers(1, 8), st.integers(2, 8), st.integers(1, 64),
    st.sampled_from(["ring", "all_to_all", "pair"]),
)  # fmt: skip
def test_group_bandwidth_is_bounded(which: int, ranks: int, nodes: int, stride: int, pattern: str) -> None:
    fabric = FABRICS[which]
    ranks = min(ranks, fabric.gpus_per_node)
    bandwidth = float(fabric.group_bandwidth(shape(ranks, nodes, stride), pattern))
    ports = fabric.inter.bandwidth * fabric.ports_per_node if fabric.inter is not None else 0.0
    assert 0.0 <= bandwidth <= ports * (1 + 1e-12)
    assert (bandwidth > 0.0) == (fabric.inter is not None)
    if fabric.inter is not None and not fabric.torus:
        worse = replace(fabric, oversubscription=fabric.oversubscription * 2, leaf_nodes=fabric.leaf_span)
        assert float(worse.group_bandwidth(shape(ranks, nodes, stride), pattern)) <= bandwidth * (1 + 1e-12)


def test_group_bandwidth_prices_a_million_groups_at_once() -> None:
    fabric = rails(64, leaf_nodes=4, oversubscription=2.0)
    n = np.arange(10**6)
    group = GroupShape(1 + n % 8, 1 + n % 64, 1 + n % 512)
    start = time.perf_counter()
    bandwidth = fabric.group_bandwidth(group)
    assert time.perf_counter() - start < 2.0
    picks = [0, 12345, 999_999]
    one = [float(fabric.group_bandwidth(shape(*(int(x[i]) for x in (group.ranks_per_node, group.nodes, group.stride)))))
           for i in picks]  # fmt: skip
    assert bandwidth[picks].tolist() == one


@settings(deadline=None, max_examples=80)
@given(
    st.integers(0, len(FABRICS) - 1), st.sampled_from(collectives.names()), st.integers(1, 8), st.integers(1, 12),
    st.sampled_from([1, 2, 4, 8, 16]), st.floats(0, 1e11), st.floats(1, 1e11),
)  # fmt: skip
def test_collectives_on_every_fabric(
    which: int, op: str, ranks: int, nodes: int, stride: int, nbytes: float, more: float
) -> None:
    """Zero for one rank and no bytes, never under the bandwidth bound, and longer for more bytes; a group that the
    fabric cannot hold is refused with its count."""
    fabric, group = FABRICS[which], shape(ranks, nodes, stride)
    if ranks > fabric.gpus_per_node or nodes > fabric.nodes or (ranks - 1) * stride >= fabric.gpus_per_node:
        with pytest.raises(InputError, match=r"a group (has|spans)"):
            collectives.seconds(fabric, op, nbytes, group)
        return
    small, large = (float(collectives.seconds(fabric, op, b, group).mid) for b in (nbytes, nbytes + more))
    bound = float(collectives.bound(fabric, op, nbytes, group))
    if ranks * nodes == 1:
        assert small == large == bound == 0.0
        return
    assert (small == 0.0) == (nbytes == 0.0)
    assert small <= large * (1 + 1e-9)
    assert small >= bound * (1 - 1e-9)


def test_a_link_of_no_bandwidth_and_a_group_of_nobody() -> None:
    with pytest.raises(InputError, match="could never finish"):
        replace(catalog.link("infiniband-ndr"), bandwidth=0.0)
    with pytest.raises(InputError, match="beyond"):
        replace(catalog.link("nvlink3-bridge"), beyond=0.0)
    with pytest.raises(InputError, match="beyond is given"):
        replace(catalog.link("nvlink3"), beyond=31e9)
    for ranks, nodes in ((0, 1), (1, 0)):
        with pytest.raises(InputError, match="no members"):
            collectives.seconds(rails(4), "all_reduce", 1e9, shape(ranks, nodes, 1))


def test_what_a_group_states_of_its_switches_replaces_what_its_stride_says() -> None:
    fabric = rails(16, leaf_nodes=4, oversubscription=4.0)
    by_stride, of = shape(1, 4, 8), GroupShape
    parts = (by_stride.ranks_per_node, by_stride.nodes, by_stride.stride)
    # four neighbouring nodes lie below one leaf; two a leaf share uplinks of a quarter with as many: half of a port
    assert float(fabric.group_bandwidth(by_stride)) == 50e9
    assert float(fabric.group_bandwidth(of(*parts, np.asarray(2.0)))) == 25e9
    assert float(fabric.group_bandwidth(of(*parts, np.asarray(INSIDE)))) == 50e9
    far = shape(1, 4, 32)
    assert float(fabric.group_bandwidth(far)) == 12.5e9
    apart = (far.ranks_per_node, far.nodes, far.stride)
    assert float(fabric.group_bandwidth(of(*apart, np.asarray(INSIDE)))) == 50e9
    # of an all-to-all over four nodes, two below the leaf: 2 of 3 parts leave, over a quarter of the ports
    assert float(fabric.group_bandwidth(of(*parts, np.asarray(2.0)), "all_to_all")) == 50e9 * 3 / 2 / 4
    assert float(fabric.group_latency(of(*parts, np.asarray(2.0)))) > float(fabric.group_latency(by_stride))
