"""Graphs of fabrics: the vertices and edges of every topology, their bandwidths, and how fast large ones are built."""

from __future__ import annotations

import time
from dataclasses import replace

import networkx as nx
import numpy as np
import pytest

from hwmodels import catalog
from hwmodels import cluster as clusters
from hwmodels.errors import InputError
from hwmodels.network import Fabric, Flows, Link, PcieTree, place, traffic, wire
from hwmodels.network.fabric import torus_shape
from hwmodels.network.link import CUBE_MESH
from tests.hwmodels.fabrics import NDR, everyone, rails, torus


def test_graph_of_rails() -> None:
    graph = clusters.load("dgx-h100:3").fabric.graph()
    # 24 GPUs, 3 switches, 24 ports, 8 leaves (one a rail), 1 spine.
    assert graph.number_of_nodes() == 24 + 3 + 24 + 8 + 1
    # Each direction is an edge: 24 GPU-switch, 24 GPU-port, 24 port-leaf, 8 leaf-spine links.
    assert graph.number_of_edges() == 2 * (24 + 24 + 24 + 8)
    assert nx.is_strongly_connected(graph)
    # GPU 2 of node 0 reaches GPU 2 of node 2 over its own rail: gpu, port, leaf, port, gpu.
    path = ["gpu:0.2", "port:0.2", "leaf:0.2", "port:2.2", "gpu:2.2"]
    assert nx.shortest_path(graph, "gpu:0.2", "gpu:2.2") == path
    assert graph["gpu:0.0"]["switch:0"]["bandwidth"] == 450e9
    assert graph["port:0.0"]["leaf:0.0"]["bandwidth"] == NDR
    # Between two nodes 8 ports can carry 400 GB/s.
    flow, _ = nx.maximum_flow(graph, "switch:0", "switch:1", capacity="bandwidth")
    assert flow == pytest.approx(400e9)


def test_oversubscribed_bisection() -> None:
    # Two leaves of 4 nodes, 8 rails: 4 x 8 ports x 50 GB/s = 1600 GB/s down, at 2:1 only 800 GB/s cross the spine.
    fabric = rails(8, leaf_nodes=4, oversubscription=2.0, spines=2)
    graph = fabric.graph()
    for n in range(8):
        for i in range(8):
            graph.add_edge("left" if n < 4 else f"gpu:{n}.{i}", f"gpu:{n}.{i}" if n < 4 else "right")
    flow, _ = nx.maximum_flow(graph, "left", "right", capacity="bandwidth")
    assert flow == pytest.approx(800e9)


def test_three_tiers() -> None:
    # Pods of 4 nodes, 1:1 inside, 4:1 out: a pod has 4 x 8 x 50 / 4 = 400 GB/s towards the core.
    fabric = rails(8, leaf_nodes=2, pod_nodes=4, pod_oversubscription=4.0)
    graph = fabric.graph()
    assert graph["spine:0.0"]["core"]["bandwidth"] == pytest.approx(400e9)
    assert nx.shortest_path_length(graph, "port:0.0", "port:7.0") == 6  # port leaf spine core spine leaf port
    with pytest.raises(InputError, match="whole leaves of 4"):
        rails(8, leaf_nodes=4, pod_nodes=6)
    with pytest.raises(InputError, match="no pod"):
        rails(8, pod_oversubscription=2.0)


def test_rack_of_72_is_one_hop() -> None:
    graph = clusters.load("gb200-nvl72:2").fabric.graph()
    assert nx.shortest_path_length(graph, "gpu:0.0", "gpu:0.71") == 2
    assert graph["gpu:0.71"]["switch:0"]["bandwidth"] == 900e9
    assert graph.in_degree("switch:1") == 72


def test_graph_of_mesh_and_plain_tree() -> None:
    mesh = clusters.load("mi300x").fabric.graph()
    assert mesh.number_of_edges() == 56 and mesh["gpu:0.0"]["gpu:0.7"]["bandwidth"] == 64e9
    p4d = clusters.load("aws-p4d:2").fabric.graph()
    assert nx.shortest_path_length(p4d, "port:0.0", "port:1.3") == 4  # port, leaf, spine, leaf, port
    # Eight GPUs share four ports, so every GPU is on one, and every port has two GPUs.
    assert all(sum(n.startswith("gpu:0") for n in p4d["port:0." + str(p)]) == 2 for p in range(4))
    # p5: 32 ports for 8 GPUs, four each.
    p5 = clusters.load("aws-p5:2").fabric.graph()
    assert sum(n.startswith("port") for n in p5["gpu:0.3"]) == 4


def test_cube_mesh() -> None:
    lanes = np.asarray(CUBE_MESH)
    # Every V100 has six NVLinks; the matrix is symmetric.
    assert (lanes == lanes.T).all() and (lanes.sum(axis=1) == 6).all() and not lanes.diagonal().any()
    link = Link("cube", "nvlink", 150e9, 0.5e-6, "test", "cube-mesh")
    # 25 GB/s a lane: GPUs 0 and 1 share one lane, the first quad has at least four of them inside, all eight all.
    assert link.reach(np.asarray([2, 4, 8])).tolist() == [25e9, 100e9, 150e9]
    graph = Fabric(8, 1, link).graph()
    assert graph["gpu:0.0"]["gpu:0.3"]["bandwidth"] == 50e9
    # GPU 0 and GPU 7 have no lane: two hops, over 3 or 4, which both join them.
    w = wire(Fabric(8, 1, link))
    placed = place(w, Flows.of([0], [7], 1e9))
    assert {w.edge(e) for e in np.flatnonzero(placed.load)} == {
        ("gpu:0.0", "gpu:0.3"), ("gpu:0.3", "gpu:0.7"), ("gpu:0.0", "gpu:0.4"), ("gpu:0.4", "gpu:0.7"),
    }  # fmt: skip
    assert placed.load.max() == pytest.approx(0.5e9)
    with pytest.raises(InputError, match="at most 8"):
        wire(Fabric(16, 1, link))


def test_bridged_pairs() -> None:
    link = catalog.link("nvlink3-bridge")
    # Two cards have the bridge, three or four the slot.
    assert link.reach(np.asarray([2, 3, 4])).tolist() == [300e9, 31e9, 31e9]
    w = wire(Fabric(4, 1, link, pcie=PcieTree(sockets=2)))
    assert place(w, Flows.of([0], [1], 300e9)).seconds == pytest.approx(1.0)
    assert place(w, Flows.of([1], [2], 31e9)).seconds == pytest.approx(1.0)
    # A ring over all four crosses slots on two of its edges: they decide.
    ring = place(w, traffic(w.fabric, everyone(w.fabric), "all_gather", 31e9))
    assert ring.seconds == pytest.approx(0.75)


def test_pcie_tree() -> None:
    link = catalog.link("pcie4")
    fabric = Fabric(8, 1, link, pcie=PcieTree(sockets=2, gpus_per_switch=2, socket_bandwidth=20e9))
    graph = fabric.graph()
    assert nx.shortest_path(graph, "gpu:0.0", "gpu:0.1") == ["gpu:0.0", "pcie:0.0", "gpu:0.1"]
    assert nx.shortest_path_length(graph, "gpu:0.0", "gpu:0.7") == 5  # gpu, switch, root, root, switch, gpu
    assert graph["root:0.0"]["root:0.1"]["bandwidth"] == 20e9
    w = wire(fabric)
    # All eight to all: 4 x 4 pairs of b / 8 cross each way between sockets: 2 b over 20 GB/s.
    assert place(w, traffic(fabric, everyone(fabric), "all_to_all", 10e9)).seconds == pytest.approx(1.0)
    with pytest.raises(InputError, match="sockets"):
        PcieTree(sockets=0)
    with pytest.raises(InputError, match="socket_bandwidth"):
        PcieTree(socket_bandwidth=0.0)


def test_torus_graph() -> None:
    graph = torus(4, 3).graph()
    # 12 chips, 12 routers; four neighbours of each router and its chip.
    assert all(graph.out_degree(f"router:{n}") == 5 for n in range(12))
    # Node 0 = (0, 0): neighbours (1, 0), (3, 0), (0, 1), (0, 2).
    assert {n for n in graph["router:0"] if n.startswith("router")} == {f"router:{k}" for k in (3, 9, 1, 2)}
    two = torus(2, 4).graph()  # both ports of a pair along the first dimension lead to the same neighbour
    assert two["router:0"]["router:4"]["bandwidth"] == 100e9
    assert torus_shape(256, 2) == (16, 16) and torus_shape(128, 3) == (8, 4, 4) and torus_shape(7, 2) == (7, 1)
    with pytest.raises(InputError, match="product is 12"):
        replace(torus(4, 3), nodes=13)
    with pytest.raises(InputError, match="two neighbours each"):
        replace(torus(4, 3), ports_per_node=6)
    with pytest.raises(InputError, match="belong together"):
        rails(4, torus=(2, 2))


def test_large_fabrics_are_built_in_seconds() -> None:
    start = time.perf_counter()
    fabric = rails(512, leaf_nodes=32, spines=4)  # 4,096 GPUs
    graph = fabric.graph()
    assert graph.number_of_nodes() == 4096 + 512 + 4096 + 16 * 8 + 4
    load = place(wire(fabric), traffic(fabric, everyone(fabric), "all_reduce", 1e9))
    assert time.perf_counter() - start < 5.0
    # Eight rings of a node share its eight ports evenly: 2 x 4095/4096 x 1e9 / 8 bytes over 50 GB/s.
    assert load.seconds == pytest.approx(2 * 4095 / 4096 * 1e9 / 8 / NDR)
