"""Shares of a batch and splits of layers: against every possibility, and by hand."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.mixed.apportion import apportioned, proportional, shared
from planner.mixed.split import split_over


def test_shares_follow_speed() -> None:
    # a replica that takes 1 s a micro-batch and one that takes 3 s: 12 go 9 to 3, both done after 9 s
    assert apportioned(lambda kind, m: (1.0, 3.0)[kind] * m, (1, 1), 12) == (9, 3)
    # two fast and one slow: 2*6 + 2 = 14 in 6 s
    assert apportioned(lambda kind, m: (1.0, 3.0)[kind] * m, (2, 1), 14) == (6, 2)
    # 13 cannot be cut so: one of the three runs one fewer
    assert shared((2, 1), (6, 2), 13) == [(0, 1, 6), (0, 1, 5), (1, 1, 2)]


def test_units_of_an_interleaved_schedule_stay_whole() -> None:
    found = apportioned(lambda kind, m: (1.0, 3.0)[kind] * m, (1, 1), 32, unit=4)
    assert found == (24, 8)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9), st.integers(1, 3)), min_size=1, max_size=3),
    st.integers(0, 12),
    st.data(),
)
def test_the_slowest_replica_is_as_fast_as_can_be(
    kinds: list[tuple[int, int, int]], more: int, data: st.DataObject
) -> None:
    counts = [count for _, _, count in kinds]
    total = sum(counts) + more
    start = [data.draw(st.integers(0, total)) for _ in kinds]

    def seconds(kind: int, m: int) -> float:
        return kinds[kind][1] + kinds[kind][0] * m

    found = apportioned(seconds, counts, total, start=start)
    assert sum(c * m for c, m in zip(counts, found, strict=True)) >= total
    covers = (
        max(seconds(k, m) for k, m in enumerate(ms))
        for ms in product(*(range(1, total + 1) for _ in kinds))
        if sum(c * m for c, m in zip(counts, ms, strict=True)) >= total
    )
    assert max(seconds(k, m) for k, m in enumerate(found)) == min(covers)
    dealt = shared(counts, found, total)
    assert sum(count * m for _, count, m in dealt) == total and all(m >= 1 for _, _, m in dealt)
    slope, ramp = (np.asarray([[k[i] for k in kinds]], dtype=np.float64) for i in (0, 1))
    whole = np.asarray([counts]), np.asarray([total]), np.asarray([1])
    quick = proportional(slope, ramp, *whole)[0]
    assert max(seconds(k, int(m)) for k, m in enumerate(quick)) == max(seconds(k, m) for k, m in enumerate(found))


def test_layers_go_where_they_are_fast() -> None:
    # stage 0 runs a layer in 1 s, stage 1 in 3 s: 8 layers go 6 to 2, both take 6 s
    costs = np.asarray([[1.0] * 8, [3.0] * 8])
    assert split_over(costs, 0.0, 0.0) == (6, 2)
    # a head of 3 s on the slow stage leaves it one layer: 7 s and 6 s
    assert split_over(costs, 0.0, 3.0) == (7, 1)
    # memory for four layers on the fast one
    assert split_over(costs, 0.0, 0.0, (4, 8)) == (4, 4)
    assert split_over(costs, 0.0, 0.0, (4, 3)) is None


@settings(deadline=None, max_examples=60)
@given(st.integers(2, 4), st.integers(4, 7), st.data())
def test_no_split_is_faster(stages: int, layers: int, data: st.DataObject) -> None:
    draw = st.integers(1, 9)
    costs = np.asarray([[data.draw(draw) for _ in range(layers)] for _ in range(stages)], dtype=np.float64)
    first, last = data.draw(draw), data.draw(draw)
    most = [data.draw(st.integers(1, layers)) for _ in range(stages)]

    def seconds(split: tuple[int, ...]) -> tuple[float, float]:
        at = np.concatenate([[0], np.cumsum(split)])
        each = [costs[s, at[s] : at[s + 1]].sum() for s in range(stages)]
        each[0] += first
        each[-1] += last
        return max(each), sum(each)

    legal = [
        split for split in product(range(1, layers + 1), repeat=stages)
        if sum(split) == layers and all(n <= m for n, m in zip(split, most, strict=True))
    ]  # fmt: skip
    found = split_over(costs, first, last, most)
    if not legal:
        assert found is None
        return
    assert found in legal
    assert seconds(found) == pytest.approx(min(seconds(split) for split in legal))
