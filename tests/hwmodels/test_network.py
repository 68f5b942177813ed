"""Links and fabrics: checks, shares of ports, the graph."""

from __future__ import annotations

import pickle
import subprocess
import sys

import numpy as np
import pytest

from hwmodels import catalog
from hwmodels import cluster as clusters
from hwmodels.errors import InputError
from hwmodels.network import Fabric, Link
from hwmodels.topology import GroupShape


def shape(ranks: int, nodes: int) -> GroupShape:
    return GroupShape(np.asarray(ranks), np.asarray(nodes), np.asarray(1))


def test_link_of_zero_bandwidth_is_refused() -> None:
    with pytest.raises(InputError, match="could never finish"):
        Link("dead", "nvlink", 0.0, 1e-6, "test")


def test_all_faults_of_a_link_at_once() -> None:
    with pytest.raises(InputError) as error:
        Link("x", "carrier-pigeon", float("inf"), -1.0, "test", "ring-road")
    assert len(error.value.faults) == 4


def test_nodes_need_a_network() -> None:
    with pytest.raises(InputError, match="no path between nodes"):
        Fabric(8, 2, catalog.link("nvlink4"))


def test_share_of_ports() -> None:
    # p4d: 4 ports of 100 Gb/s = 50 GB/s a node, 6.25 GB/s a GPU (hw_networks.csv says the same).
    assert clusters.load("aws-p4d:2").fabric.inter_bandwidth_per_gpu == pytest.approx(6.25e9)
    # p5: 32 ports of 100 Gb/s = 400 GB/s a node, 50 GB/s a GPU.
    assert clusters.load("aws-p5:2").fabric.inter_bandwidth_per_gpu == pytest.approx(50e9)
    assert clusters.load("dgx-h100:2").fabric.inter_bandwidth_per_gpu == pytest.approx(50e9)


def test_oversubscription_divides() -> None:
    link = catalog.link("infiniband-ndr")
    fabric = Fabric(8, 4, catalog.link("nvlink4"), link, 8, oversubscription=2.0, topology="fat-tree")
    assert fabric.inter_bandwidth_per_gpu == pytest.approx(25e9)
    with pytest.raises(InputError, match="oversubscription"):
        Fabric(8, 4, catalog.link("nvlink4"), link, 8, oversubscription=0.5)


def test_group_path() -> None:
    fabric = clusters.load("dgx-h100:4").fabric
    assert fabric.group_path(shape(1, 1)) == ()
    assert fabric.group_path(shape(8, 1)) == ("nvlink4",)
    assert fabric.group_path(shape(1, 4)) == ("infiniband-ndr",)
    assert fabric.group_path(shape(8, 4)) == ("nvlink4", "infiniband-ndr")
    with pytest.raises(InputError, match="5 nodes"):
        fabric.group_path(shape(8, 5))


def test_networkx_is_not_imported_before_a_graph_is_asked_for() -> None:
    code = (
        "import sys; from hwmodels import cluster, collectives, kernels; cluster.load('dgx-h100:2');"
        "bad = {'networkx', 'scipy', 'pandas', 'torch'} & set(sys.modules); sys.exit(str(bad) if bad else 0)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_pickles_for_worker_processes() -> None:
    cluster = clusters.load("gb200-nvl72:2")
    assert pickle.loads(pickle.dumps(cluster)) == cluster


TIERS = """
name: tiers
pools: [{device: a100-pcie-80gb, gpus_per_node: 4, nodes: 16}]
fabric:
  intra_node: nvlink3-bridge
  inter_node: {link: infiniband-hdr, ports_per_node: 2, oversubscription: 1.5, leaf_nodes: 4, pod_nodes: 8,
               pod_oversubscription: 2, spines: 2}
  pcie: {sockets: 2, gpus_per_switch: 2, socket_bandwidth: 20GB/s, source: lab book 2026}
context: 1GiB
context_source: lab book 2026
"""


def test_tiers_and_tori_in_cluster_files() -> None:
    cluster = clusters.parse(TIERS, "tiers.yaml")
    fabric = cluster.fabric
    assert (fabric.leaf_nodes, fabric.pod_nodes, fabric.pod_oversubscription, fabric.spines) == (4, 8, 2.0, 2)
    assert fabric.pcie.socket_bandwidth == 20e9 and fabric.intra.beyond == 31e9
    again = clusters.parse(clusters.to_yaml(cluster), "again.yaml").fabric
    for name in ("leaf_nodes", "pod_nodes", "pod_oversubscription", "spines", "torus", "pcie", "intra", "inter"):
        assert getattr(again, name) == getattr(fabric, name), name
    # Of two ports of 25 GB/s, a group of one rank in each of 16 nodes (four side by side): a quarter of 50 GB/s,
    # its ring crosses a leaf's uplinks once for four nodes, a pod's once for eight: nothing is lost.
    one = GroupShape(np.asarray(1), np.asarray(16), np.asarray(4))
    assert float(fabric.group_bandwidth(one)) == pytest.approx(12.5e9)
    # All to all: 15 / (12 x 1.5) at the leaves, 15 / (8 x 3) at the pods, which is less.
    assert float(fabric.group_bandwidth(one, "all_to_all")) == pytest.approx(12.5e9 * 15 / 24)
    assert clusters.load("tpu-v5e:256").fabric.torus == (16, 16)
    assert clusters.load("tpu-v5p:64").fabric.torus == (4, 4, 4)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("pod_nodes: 8", "pod_nodes: 6", "whole leaves of 4"),
        ("pod_nodes: 8,", "", "there is no pod"),
        ("oversubscription: 1.5", "oversubscription: 0.5", "oversubscription"),
        ("spines: 2", "spines: 0", "spines"),
        ("spines: 2", "topology: torus, torus: [4, 3]", "product is 12"),
        ("spines: 2", "topology: torus", "belong together"),
        ("spines: 2", "rails: 2", "unknown key 'rails'"),
        ("socket_bandwidth: 20GB/s, ", "", "socket_bandwidth"),
        ("source: lab book 2026}", "}", "source"),
    ],
)
def test_bad_tiers_are_named_with_their_line(old: str, new: str, words: str) -> None:
    assert old in TIERS
    with pytest.raises(InputError, match=words) as error:
        clusters.parse(TIERS.replace(old, new, 1), "tiers.yaml")
    assert str(error.value).startswith("tiers.yaml:")
