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
