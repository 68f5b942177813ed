"""Graphs of fabrics, routes over them, and the analytic bandwidth of groups held against placed traffic."""

from __future__ import annotations

import time
from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hwmodels import catalog
from hwmodels import cluster as clusters
from hwmodels.errors import InputError
from hwmodels.network import ALGORITHMS, Fabric, Flows, Link, PcieTree, Wiring, place, traffic, wire
from hwmodels.network.fabric import torus_shape
from hwmodels.network.link import CUBE_MESH
from hwmodels.network.routing import route
from hwmodels.topology import GroupShape

NDR = 50e9  # bytes/s per direction of a 400 Gb/s port


def rails(nodes: int, **more: object) -> Fabric:
    link = catalog.link("infiniband-ndr")
    return replace(Fabric(8, nodes, catalog.link("nvlink4"), link, 8, 1.0, "rail-fat-tree"), **more)


def plain(nodes: int, **more: object) -> Fabric:
    return replace(rails(nodes, topology="fat-tree"), **more)


def torus(*dims: int) -> Fabric:
    ici = Link("ici", "ici", 50e9, 1e-6, "test", "torus")
    nodes = int(np.prod(dims))
    return Fabric(1, nodes, ici, ici, 2 * len(dims), 1.0, "torus", torus=tuple(dims))


def shape(ranks: int, nodes: int, stride: int) -> GroupShape:
    return GroupShape(np.asarray(ranks), np.asarray(nodes), np.asarray(stride))


def everyone(fabric: Fabric) -> list[tuple[int, int]]:
    return [(n, i) for n in range(fabric.nodes) for i in range(fabric.gpus_per_node)]


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


FABRICS = (
    rails(4), rails(6, leaf_nodes=2, spines=3), rails(8, leaf_nodes=2, pod_nodes=4, oversubscription=2.0),
    plain(4), plain(6, leaf_nodes=3, oversubscription=1.5), clusters.load("aws-p4d:3").fabric,
    clusters.load("aws-p5:2").fabric, clusters.load("mi300x:2").fabric, torus(4, 3), torus(2, 2, 3), torus(5, 1),
    Fabric(8, 1, Link("cube", "nvlink", 150e9, 0.5e-6, "test", "cube-mesh")),
    Fabric(4, 2, catalog.link("nvlink3-bridge"), catalog.link("infiniband-hdr"), 2, 1.0, "rail-fat-tree"),
    Fabric(6, 1, catalog.link("pcie4"), pcie=PcieTree(2, 2)),
)  # fmt: skip
WIRINGS = tuple(wire(f) for f in FABRICS)


@settings(deadline=None, max_examples=80)
@given(st.data())
def test_every_flow_arrives_whole(data: st.DataObject) -> None:
    """Kirchhoff at every vertex: what leaves the source arrives, and nothing is lost or made on the way."""
    w = data.draw(st.sampled_from(WIRINGS))
    gpus = w.fabric.nodes * w.fabric.gpus_per_node
    ends = data.draw(st.lists(st.tuples(st.integers(0, gpus - 1), st.integers(0, gpus - 1)), min_size=1, max_size=6))
    source, target = (np.asarray(x) for x in zip(*ends, strict=True))
    pxn = data.draw(st.booleans())
    hashed = data.draw(st.one_of(st.none(), st.integers(0, 9)))
    found = route(w, source, target, pxn, hashed)
    assert (found.share > 0).all() and (found.share <= 1).all() and (found.edge >= 0).all()
    balance = np.zeros((source.size, len(w.vertices)))
    np.add.at(balance, (found.flow, w.tail[found.edge]), found.share)
    np.add.at(balance, (found.flow, w.head[found.edge]), -found.share)
    want = np.zeros_like(balance)
    np.add.at(want, (np.arange(source.size), source), 1.0)
    np.add.at(want, (np.arange(source.size), target), -1.0)
    # GPU vertices come first, in order, so that GPU numbers are vertex numbers.
    np.testing.assert_allclose(balance, want, atol=1e-9)


@settings(deadline=None, max_examples=40)
@given(st.sampled_from(WIRINGS[:5]), st.integers(0, 10**6), st.integers(0, 10**6))
def test_routes_are_shortest_paths(w: Wiring, a: int, b: int) -> None:
    gpus = w.fabric.nodes * w.fabric.gpus_per_node
    source, target = a % gpus, b % gpus
    graph = w.to_networkx()
    hops = nx.shortest_path_length(graph, w.vertices[source], w.vertices[target])
    found = route(w, np.asarray([source]), np.asarray([target]), pxn=False)
    assert found.share.sum() == pytest.approx(hops)
    # Forwarding inside the node may cost two hops more, and saves the spine where the leaves are the same.
    assert hops <= route(w, np.asarray([source]), np.asarray([target])).share.sum() <= hops + 2


def test_cross_rail_traffic() -> None:
    w = wire(rails(2, leaf_nodes=2))
    flow = Flows.of([0], [8 + 5], 1e9)
    assert place(w, flow).bytes_by_link() == {"host": 2e9, "infiniband-ndr": 2e9, "nvlink4": 2e9}
    without = place(w, flow, pxn=False)
    assert without.bytes_by_link() == {"host": 2e9, "infiniband-ndr": 4e9, "nvlink4": 0.0}
    assert {w.edge(e) for e in np.flatnonzero(without.load)} >= {("leaf:0.0", "spine:0.0"), ("spine:0.0", "leaf:0.5")}


def test_spines_are_shared_evenly_or_by_hash() -> None:
    w = wire(rails(4, leaf_nodes=1, spines=4))
    up = [e for e in range(len(w)) if w.edge(e)[0] == "leaf:0.0" and w.edge(e)[1].startswith("spine")]
    flows = Flows.of(np.zeros(8), np.full(8, 8), 1e9)
    assert place(w, flows).load[up].tolist() == [2e9] * 4
    hashed = place(w, flows, hashed=1)
    assert hashed.load[up].sum() == pytest.approx(8e9)
    assert hashed.load[up].max() > 2e9  # connections collide on a spine: what entropy on the wire avoids
    assert hashed.load[up].tolist() == place(w, flows, hashed=1).load[up].tolist()


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
    st.sampled_from(FABRICS), st.integers(1, 8), st.integers(2, 8), st.integers(1, 64),
    st.sampled_from(["ring", "all_to_all", "pair"]),
)  # fmt: skip
def test_group_bandwidth_is_bounded(fabric: Fabric, ranks: int, nodes: int, stride: int, pattern: str) -> None:
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


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_collectives_conserve_bytes(data: st.DataObject) -> None:
    """Every rank of a symmetric collective sends and receives what the collective's arithmetic says."""
    w = data.draw(st.sampled_from([WIRINGS[i] for i in (0, 1, 3, 5, 6, 8)]))
    fabric = w.fabric
    nodes = data.draw(st.integers(1, fabric.nodes))
    per = data.draw(st.integers(1, fabric.gpus_per_node))
    ranks = [(n, i) for n in range(nodes) for i in range(per)]
    n, b = len(ranks), data.draw(st.one_of(st.just(0.0), st.floats(1.0, 1e12)))
    algorithm = data.draw(st.sampled_from(sorted(ALGORITHMS)))
    op = data.draw(st.sampled_from(ALGORITHMS[algorithm][0]))
    if algorithm == "pairwise" and n > 1 and n % 2:
        with pytest.raises(InputError, match="do not form pairs"):
            traffic(fabric, ranks, op, b, algorithm)
        return
    flows = traffic(fabric, ranks, op, b, algorithm)
    if n == 1:
        assert len(flows) == 0
        return
    gpus = fabric.nodes * fabric.gpus_per_node
    sent = np.bincount(flows.source, weights=flows.nbytes, minlength=gpus)
    got = np.bincount(flows.target, weights=flows.nbytes, minlength=gpus)
    members = np.asarray([node * fabric.gpus_per_node + i for node, i in ranks])
    assert sent.sum() == pytest.approx(got.sum())
    assert np.delete(sent, members).sum() == 0.0 == np.delete(got, members).sum()
    if algorithm in ("ring", "direct") and op != "broadcast":
        per_rank = {"all_reduce": 2 * (n - 1) / n}.get(op, (n - 1) / n) * b
        np.testing.assert_allclose(sent[members], per_rank)
        np.testing.assert_allclose(got[members], per_rank)
    if op == "broadcast":
        assert got.sum() == pytest.approx((n - 1) * b)  # everyone but the root once
    if algorithm == "tree" and op == "all_reduce":
        assert sent.sum() == pytest.approx(2 * (n - 1) * b)  # each of n-1 edges up and down, halves of two trees
    placed = place(w, flows)
    by_end = np.bincount(w.head, weights=placed.load, minlength=len(w.vertices))
    by_start = np.bincount(w.tail, weights=placed.load, minlength=len(w.vertices))
    np.testing.assert_allclose((by_start - by_end)[:gpus], sent - got, atol=1e-3 + 1e-9 * b)
    np.testing.assert_allclose(by_start[gpus:], by_end[gpus:], atol=1e-3 + 1e-9 * b)


def test_hierarchical_sends_less_between_nodes_than_a_ring() -> None:
    fabric = rails(2)
    w, ranks = wire(fabric), everyone(fabric)
    ring = place(w, traffic(fabric, ranks, "all_reduce", 16e9)).bytes_by_link()
    layered = place(w, traffic(fabric, ranks, "all_reduce", 16e9, "hierarchical")).bytes_by_link()
    # Ring: 8 rings x 2 node boundaries x 2 x 15/16 x 16e9 / 8; layered: 16 rail edges x 2 x 1/2 x 16e9 / 8.
    # Both pass two InfiniBand edges (port up, port down).
    assert ring["infiniband-ndr"] == pytest.approx(2 * 8 * 2 * 2 * 15 / 16 * 16e9 / 8)
    assert layered["infiniband-ndr"] == pytest.approx(2 * 16 * 2 * 1 / 2 * 16e9 / 8)


def test_tree_has_two_complementary_halves() -> None:
    from hwmodels.network.traffic import double_tree

    for n in range(1, 40):
        trees = double_tree(n)
        for parents in trees:
            assert (parents < 0).sum() == 1  # one root
            for i in range(n):
                seen, at = 0, i
                while parents[at] >= 0:
                    at, seen = parents[at], seen + 1
                    assert seen <= 2 * max(1, n.bit_length())  # logarithmic, without a loop
            assert np.bincount(parents[parents >= 0], minlength=n).max(initial=0) <= 2
        if n > 2:
            # Nobody is inside both trees but for one node when n is odd (Sanders et al., section 3).
            inner = [set(p[p >= 0].tolist()) for p in trees]
            assert len(inner[0] & inner[1]) <= 2


def test_faults_of_a_group() -> None:
    fabric = rails(2)
    with pytest.raises(InputError) as error:
        traffic(fabric, [(0, 0), (0, 0), (2, 0), (1, 9)], "all_reduce", 1e9)
    assert len(error.value.faults) == 3
    with pytest.raises(InputError, match="no ranks"):
        traffic(fabric, [], "all_reduce", 1e9)
    with pytest.raises(InputError, match="cannot run all_to_all"):
        traffic(fabric, [(0, 0), (0, 1)], "all_to_all", 1e9, "ring")
    with pytest.raises(InputError, match="unknown"):
        traffic(fabric, [(0, 0), (0, 1)], "gather_scatter", 1e9)
    for nbytes in (-1.0, float("nan"), float("inf")):
        with pytest.raises(InputError, match="nbytes"):
            traffic(fabric, [(0, 0), (0, 1)], "all_reduce", nbytes)
    with pytest.raises(InputError, match="unlike numbers"):
        traffic(fabric, [(0, 0), (0, 1), (1, 0)], "all_reduce", 1e9, "hierarchical")
    with pytest.raises(InputError, match="unlike numbers"):
        traffic(fabric, [(0, 0), (0, 1), (1, 0)], "all_reduce", 1e9, "tree")
    nothing = place(wire(fabric), traffic(fabric, [(0, 0), (1, 0)], "all_reduce", 0.0))
    assert nothing.seconds == 0.0 and nothing.bottleneck is None and nothing.busiest() == []
    lonely = wire(Fabric(2, 1, catalog.link("nvlink4")))
    with pytest.raises(InputError, match="length"):
        Flows(np.asarray([0]), np.asarray([1, 2]), np.asarray([1.0]))
    with pytest.raises(InputError, match="finite size"):
        Flows.of([0], [1], -1.0)
    assert place(lonely, Flows.of([0], [0], 1e9)).seconds == 0.0


def test_busiest_edges() -> None:
    w = wire(rails(2))
    placed = place(w, Flows.of([0, 1], [8, 9], [2e9, 1e9]))
    tail, head, nbytes, seconds = placed.busiest(1)[0]
    assert (tail, head, nbytes, seconds) == ("gpu:0.0", "port:0.0", 2e9, pytest.approx(0.04))
    assert placed.bottleneck == ("gpu:0.0", "port:0.0") and placed.seconds == pytest.approx(0.04)
