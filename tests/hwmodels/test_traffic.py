"""Traffic of process groups on the edges of a fabric: routes, conservation, algorithms, and bad groups."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hwmodels import catalog
from hwmodels.errors import InputError
from hwmodels.network import ALGORITHMS, Fabric, Flows, place, traffic, wire
from hwmodels.network.routing import route
from hwmodels.network.traffic import double_tree
from tests.hwmodels.fabrics import WIRINGS, everyone, rails


@settings(deadline=None, max_examples=80)
@given(st.data())
def test_every_flow_arrives_whole(data: st.DataObject) -> None:
    """Kirchhoff at every vertex: what leaves the source arrives, and nothing is lost or made on the way."""
    w = WIRINGS[data.draw(st.integers(0, len(WIRINGS) - 1))]
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
@given(st.integers(0, 4), st.integers(0, 10**6), st.integers(0, 10**6))
def test_routes_are_shortest_paths(which: int, a: int, b: int) -> None:
    w = WIRINGS[which]
    gpus = w.fabric.nodes * w.fabric.gpus_per_node
    source, target = a % gpus, b % gpus
    graph = w.to_networkx()
    hops = nx.shortest_path_length(graph, w.vertices[source], w.vertices[target])
    found = route(w, np.asarray([source]), np.asarray([target]), pxn=False)
    assert found.share.sum() == pytest.approx(hops)
    # Forwarding inside the node may cost two hops more, and saves the spine where the leaves are the same.
    assert hops - 1e-9 <= route(w, np.asarray([source]), np.asarray([target])).share.sum() <= hops + 2 + 1e-9


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


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_collectives_conserve_bytes(data: st.DataObject) -> None:
    """Every rank of a symmetric collective sends and receives what the collective's arithmetic says."""
    w = WIRINGS[data.draw(st.sampled_from([0, 1, 3, 5, 6, 8]))]
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
