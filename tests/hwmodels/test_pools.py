"""Pools of one cluster: islands, links, prices, and what contradicts itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hwmodels import cluster as clusters
from hwmodels import collectives
from hwmodels.errors import InputError
from hwmodels.pools import bridge, joined, pool_link, subcluster
from hwmodels.topology import GroupShape

TWO = """
name: two
pools:
- name: h100
  device: h100-sxm-80gb
  gpus_per_node: 8
  nodes: 2
  fabric: {intra_node: nvlink4, inter_node: {link: infiniband-ndr, ports_per_node: 8}}
  price: {usd_per_gpu_hour: 3.0, source: a test}
- name: edge
  device: l40s-48gb
  gpus_per_node: 4
  nodes: 1
  fabric: {intra_node: pcie4}
  price: {usd_per_gpu_hour: 1.0, source: a test}
links:
- between: [h100, edge]
  link: {name: wan, kind: ethernet, bandwidth: 10Gb/s, latency: 30ms, topology: fat-tree, source: a test}
  ports: 2
  usd_per_gb: {usd: 0.02, source: a test}
context: 1GiB
context_source: a test
"""


def two() -> clusters.Cluster:
    return clusters.parse(TWO, "two.yaml")


def test_pools_of_unlike_nodes_make_one_cluster() -> None:
    found = two()
    assert found.mixed and found.n_ranks == 20 and found.nodes == 3
    # 16 GPUs at 3 $ and 4 at 1 $
    assert found.usd_per_gpu_hour is not None and found.usd_per_gpu_hour.value == pytest.approx(2.6)
    assert clusters.parse(clusters.to_yaml(found), "again.yaml") == found


def test_two_equal_pools_on_one_fabric_are_one_cluster() -> None:
    text = clusters.to_yaml(clusters.load("dgx-h100:4"))
    whole = clusters.parse(text, "x")
    halves = replace(whole, pools=(replace(whole.pools[0], nodes=1), replace(whole.pools[0], nodes=3)))
    assert not halves.mixed and halves.n_ranks == whole.n_ranks


def test_a_pool_is_a_cluster_of_its_own() -> None:
    edge = subcluster(two(), 1)
    assert (edge.name, edge.n_ranks, edge.device.name) == ("two/edge", 4, "l40s-48gb")
    assert edge.usd_per_gpu_hour is not None and edge.usd_per_gpu_hour.value == 1.0
    assert subcluster(two(), 0, 7).fabric.nodes == 7
    with pytest.raises(InputError, match="no path between nodes"):
        subcluster(two(), 1, 2)


def test_flows_share_the_link_between_pools() -> None:
    cluster = two()
    link = pool_link(cluster, 0, 1)
    assert link is not None and link.bandwidth == pytest.approx(2 * 10e9 / 8)
    shape = GroupShape(*(np.asarray(n) for n in (1, 2, 4)))
    seconds = float(collectives.seconds(bridge(cluster, (0, 1), 4), "send_recv", 1e9, shape).mid)
    # four flows of 1 GB over 2.5 GB/s take 1.6 s, less than twice that with what protocols lose, and 30 ms on top
    assert 1.6 + 0.03 < seconds < 3.2
    one = GroupShape(*(np.asarray(n) for n in (1, 2, 1)))
    alone = float(collectives.seconds(bridge(cluster, (0, 1), 1), "send_recv", 1e9, one).mid)
    assert seconds - 0.03 == pytest.approx(4 * (alone - 0.03), rel=0.01)


def test_no_flow_is_faster_than_its_own_port() -> None:
    cluster = two()
    fat = replace(cluster.links[0], ports=1000)
    way = bridge(replace(cluster, links=(fat,)), (0, 1), 2)
    assert way.inter is not None
    port = cluster.pools[0].fabric.inter_bandwidth_per_gpu  # type: ignore[union-attr]
    assert way.inter.bandwidth == pytest.approx(2 * port)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("between: [h100, edge]", "between: [h100, cloud]", "no pool is called cloud"),
        ("between: [h100, edge]", "between: [h100, h100]", "joins a pool to itself"),
        ("  fabric: {intra_node: pcie4}\n", "", "no fabric"),
        ("- name: edge", "- name: h100", "several pools are called h100"),
        ("ports: 2", "ports: 0", "ports"),
    ],
)
def test_contradictions_are_named(old: str, new: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        clusters.parse(TWO.replace(old, new), "two.yaml")


def test_unlike_nodes_on_one_fabric_are_refused_with_a_way_out() -> None:
    text = TWO.replace("  fabric: {intra_node: pcie4}\n", "").replace(
        "  fabric: {intra_node: nvlink4, inter_node: {link: infiniband-ndr, ports_per_node: 8}}\n", ""
    )
    text += "fabric: {intra_node: nvlink4, inter_node: {link: infiniband-ndr, ports_per_node: 8}}\n"
    with pytest.raises(InputError, match=r"unlike gpus_per_node.*fabric: in each pool") as caught:
        clusters.parse(text, "two.yaml")
    assert "needs no link" in str(caught.value)


def test_pools_without_a_link_are_not_joined() -> None:
    apart = replace(two(), links=())
    assert not joined(apart, (0, 1)) and joined(apart, (1,)) and joined(two(), (0, 1))
    with pytest.raises(InputError, match="nothing joins h100 and edge"):
        bridge(apart, (0, 1), 1)
