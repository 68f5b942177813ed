"""Max-min fair sharing: examples worked by hand, the properties that define it, and groups side by side."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hwmodels import catalog
from hwmodels.errors import InputError
from hwmodels.network import Fabric, Flows, max_min, share, traffic, wire
from hwmodels.network.sharing import finish


def rates(paths: list[list[int]], capacity: list[float], limit: object = np.inf) -> list[float]:
    flow = np.asarray([f for f, path in enumerate(paths) for _ in path], dtype=np.int64)
    edge = np.asarray([e for path in paths for e in path], dtype=np.int64)
    result = max_min(flow, edge, np.ones(flow.size), np.asarray(capacity, float), len(paths), limit)
    return result.tolist()


def test_five_sessions() -> None:
    # Bertsekas & Gallager, section 6.5.2: sessions 2, 3, 5 share a link of 1 and get 1/3; session 1 shares a link of
    # 1 with session 3 and gets the remaining 2/3; session 4 has a link of 1 for itself.
    a, b, c = 0, 1, 2
    assert rates([[b], [a], [a, b], [c], [a]], [1.0, 1.0, 1.0]) == pytest.approx([2 / 3, 1 / 3, 1 / 3, 1.0, 1 / 3])


def test_parking_lot() -> None:
    # One long flow over three links and a short one on each: capacities 1, 2, 3. The first link gives its two 1/2;
    # the long one keeps 1/2 everywhere, the others take what is left: 3/2 and 5/2.
    assert rates([[0, 1, 2], [0], [1], [2]], [1.0, 2.0, 3.0]) == pytest.approx([0.5, 0.5, 1.5, 2.5])


def test_limits_and_idle_flows() -> None:
    # Of a link of 10, a flow held to 2 leaves 4 to each of two others; a flow without a link has its limit.
    assert rates([[0], [0], [0], []], [10.0], [2.0, np.inf, np.inf, 7.0]) == pytest.approx([2.0, 4.0, 4.0, 7.0])
    assert rates([[]], [1.0]) == [np.inf]
    assert rates([], [1.0]) == []


def test_weights_are_shares_of_a_flow() -> None:
    # A flow split over two links of 1 by halves runs at 2 beside nobody.
    got = max_min(np.asarray([0, 0]), np.asarray([0, 1]), np.asarray([0.5, 0.5]), np.ones(2), 1)
    assert got.tolist() == pytest.approx([2.0])


def test_a_dead_link_is_refused() -> None:
    with pytest.raises(InputError, match="never finish"):
        rates([[0]], [0.0])
    assert rates([[1]], [0.0, 3.0]) == [3.0]  # nobody uses it


@st.composite
def networks(draw: st.DrawFn) -> tuple[list[list[int]], list[float]]:
    edges = draw(st.integers(1, 6))
    capacity = draw(st.lists(st.floats(0.1, 1e11), min_size=edges, max_size=edges))
    paths = draw(
        st.lists(st.lists(st.integers(0, edges - 1), min_size=1, max_size=edges, unique=True), min_size=1, max_size=9)
    )
    return paths, capacity


@settings(deadline=None, max_examples=150)
@given(networks())
def test_max_min_defines_itself(network: tuple[list[list[int]], list[float]]) -> None:
    paths, capacity = network
    got = np.asarray(rates(paths, capacity))
    used = np.zeros(len(capacity))
    for rate, path in zip(got, paths, strict=True):
        used[path] += rate
    assert (got > 0).all()
    assert (used <= np.asarray(capacity) * (1 + 1e-6)).all()
    for rate, path in zip(got, paths, strict=True):
        # A bottleneck: full, and nobody on it is faster.
        fastest = [max(r for r, p in zip(got, paths, strict=True) if e in p) for e in path]
        assert any(
            used[e] >= capacity[e] * (1 - 1e-6) and rate >= fast * (1 - 1e-6)
            for e, fast in zip(path, fastest, strict=True)
        )


@settings(deadline=None, max_examples=80)
@given(networks(), st.floats(1.0, 100.0))
def test_max_min_is_monotone(network: tuple[list[list[int]], list[float]], factor: float) -> None:
    paths, capacity = network
    got = np.asarray(rates(paths, capacity))
    # All links wider by a factor: all rates by that factor. One flow less: the slowest of the rest is no slower.
    np.testing.assert_allclose(rates(paths, [c * factor for c in capacity]), got * factor, rtol=1e-6)
    if len(paths) > 1:
        assert min(rates(paths[:-1], capacity)) >= got[:-1].min() * (1 - 1e-6)
    # One link wider: the slowest flow is no slower (single flows may be).
    assert min(rates(paths, [capacity[0] * factor, *capacity[1:]])) >= got.min() * (1 - 1e-6)


def test_flows_that_end_leave_their_share() -> None:
    # Two flows of 1 and 3 bytes over a link of 1: 1/2 each until 2 s, then the longer alone: 2 + 2 = 4 s.
    end = finish(np.asarray([0, 1]), np.asarray([0, 0]), np.ones(2), np.ones(1), np.asarray([1.0, 3.0]))
    assert end.tolist() == pytest.approx([2.0, 4.0])
    assert finish(np.asarray([0]), np.asarray([0]), np.ones(1), np.ones(1), np.asarray([0.0])).tolist() == [0.0]


def fabric(**more: object) -> Fabric:
    link = catalog.link("infiniband-ndr")
    return replace(Fabric(8, 8, catalog.link("nvlink4"), link, 8, 1.0, "rail-fat-tree"), **more)


def pairs(f: Fabric, gpu: int) -> Flows:
    # Node k of the left leaf with node k + 4 of the right one: every flow crosses the spine.
    return Flows.together([traffic(f, [(k, gpu), (k + 4, gpu)], "send_recv", 50e9) for k in range(4)])


def test_groups_across_an_oversubscribed_spine() -> None:
    wide, narrow = fabric(leaf_nodes=4), fabric(leaf_nodes=4, oversubscription=4.0)
    # 50 GB over a port of 50 GB/s: one second, and no group is in another's way without oversubscription.
    alone = share(wire(wide), [pairs(wide, i) for i in range(4)])
    assert alone.together_s.tolist() == pytest.approx([1.0] * 4) and alone.slowdown.tolist() == pytest.approx([1.0] * 4)
    # At 4:1 a rail's four ports share one port's worth of uplink: 4 s; rails do not meet.
    crowded = share(wire(narrow), [pairs(narrow, i) for i in range(4)])
    assert crowded.alone_s.tolist() == pytest.approx([4.0] * 4)
    assert crowded.slowdown.tolist() == pytest.approx([1.0] * 4)


def test_two_jobs_on_one_fabric() -> None:
    f = fabric(topology="fat-tree", leaf_nodes=4, oversubscription=4.0)
    w = wire(f)
    # A leaf's uplinks: 4 nodes x 8 ports x 50 / 4 = 400 GB/s. Four sends of one job (200 GB/s) fit; four jobs do
    # not: 800 GB/s over 400 takes twice as long.
    assert share(w, [pairs(f, i) for i in range(2)]).slowdown.tolist() == pytest.approx([1.0, 1.0])
    assert share(w, [pairs(f, i) for i in range(4)]).slowdown.tolist() == pytest.approx([2.0] * 4)
    # A small job beside a large one: it ends early, and the large one has the rest of the time to itself.
    small, large = traffic(f, [(0, 0), (4, 0)], "send_recv", 5e9), traffic(f, [(0, 0), (4, 0)], "send_recv", 50e9)
    both = share(w, [small, large])
    # They share one port: 25 GB/s each until 0.2 s, then 45 GB at 50 GB/s: 1.1 s.
    assert both.together_s.tolist() == pytest.approx([0.2, 1.1])
    assert both.slowdown.tolist() == pytest.approx([2.0, 1.1])


def test_a_group_of_one_is_never_slowed() -> None:
    f = fabric()
    got = share(wire(f), [traffic(f, [(0, 0)], "all_reduce", 1e9), pairs(f, 0)])
    assert got.alone_s.tolist()[0] == 0.0 and got.slowdown.tolist() == pytest.approx([1.0, 1.0])
    assert share(wire(f), []).slowdown.size == 0


@settings(deadline=None, max_examples=25)
@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7), st.integers(0, 7), st.floats(1e6, 1e11)), min_size=1,
                max_size=5))  # fmt: skip
def test_company_never_makes_a_group_faster_than_its_bottleneck(spec: list[tuple[int, int, int, float]]) -> None:
    f = fabric(leaf_nodes=2, oversubscription=2.0)
    w = wire(f)
    groups = [Flows.of([8 * a + g], [8 * b + g], nbytes) for a, b, g, nbytes in spec]
    got = share(w, groups)
    # Single flows: alone at their bottleneck, together never faster (per flow, with weights 1 on a tree).
    assert (got.together_s >= got.alone_s * (1 - 1e-9)).all()
    assert (got.slowdown >= 1.0).all()
    total = sum(g.nbytes.sum() for g in groups)
    assert got.together_s.max() <= total / (w.bandwidth.min()) + 1e-9
