"""The dynamic program over stages against every split there is, and against HiGHS."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations_with_replacement

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from planner.search.uneven.chain import Table, best_splits

FloatArray = NDArray[np.float64]


def table_of(load: FloatArray, more: FloatArray) -> Table:
    """Of one problem; arrays (stages, layers + 1, widths)."""
    return lambda stage: (load[stage][None], more[stage][None])


def every_split(layers: int, stages: int) -> Iterator[tuple[int, ...]]:
    for cuts in combinations_with_replacement(range(layers + 1), stages - 1):
        yield tuple(np.diff([0, *cuts, layers]).tolist())


def value(load: FloatArray, more: FloatArray, shares: tuple[int, ...], weight: float) -> float:
    begins = np.cumsum([0, *shares[:-1]])
    if max(shares) >= load.shape[2]:
        return float("inf")
    each = [load[s, b, n] for s, (b, n) in enumerate(zip(begins, shares, strict=True))]
    if not np.isfinite(each).all():
        return float("inf")
    return weight * max(each) + sum(more[s, b, n] for s, (b, n) in enumerate(zip(begins, shares, strict=True)))


def highs(load: FloatArray, more: FloatArray, weight: float) -> float:
    """The same problem as a mixed-integer program: a 0-1 variable for each stage and window, a path through layers."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    stages, layers, widths = load.shape[0], load.shape[1] - 1, load.shape[2]
    arcs = [
        (s, b, n)
        for s in range(stages)
        for b in range(layers + 1)
        for n in range(widths)
        if b + n <= layers and np.isfinite(load[s, b, n])
    ]
    count = len(arcs) + 1  # and the seconds of the slowest stage
    cost = np.asarray([*(more[arc] for arc in arcs), weight])
    rows, low, high = [], [], []
    for s in range(stages + 1):  # what ends before stage s begins there
        for b in range(layers + 1):
            row = np.zeros(count)
            for i, (stage, begin, n) in enumerate(arcs):
                row[i] += (stage == s and begin == b) - (stage == s - 1 and begin + n == b)
            given_here = float(s == 0 and b == 0) - float(s == stages and b == layers)
            rows.append(row)
            low.append(given_here)
            high.append(given_here)
    for s in range(stages):
        row = np.zeros(count)
        for i, arc in enumerate(arcs):
            row[i] = load[arc] if arc[0] == s else 0.0
        row[-1] = -1.0
        rows.append(row)
        low.append(-np.inf)
        high.append(0.0)
    kinds = np.asarray([*(1 for _ in arcs), 0])
    upper = np.asarray([*(1.0 for _ in arcs), np.inf])
    found = milp(
        cost, integrality=kinds, bounds=Bounds(np.zeros(count), upper),
        constraints=LinearConstraint(np.stack(rows), low, high), options={"mip_rel_gap": 0.0},
    )  # fmt: skip
    return float(found.fun) if found.success else float("inf")


@st.composite
def problems(draw: st.DrawFn, most_layers: int = 6, most_stages: int = 4) -> tuple[FloatArray, FloatArray, float]:
    """Stages whose windows cost what their layers and recomputed layers do, some of them forbidden by memory."""
    layers = draw(st.integers(1, most_layers))
    stages = draw(st.integers(1, most_stages))
    widths = draw(st.integers(1, layers)) + 1
    cost = draw(st.lists(st.integers(1, 9), min_size=layers, max_size=layers))
    again = draw(st.lists(st.integers(0, 4), min_size=layers, max_size=layers))
    ends = draw(st.integers(0, 12)), draw(st.integers(0, 12))
    load = np.full((stages, layers + 1, widths), np.inf)
    for s in range(stages):
        for n in range(widths):
            # fewest recomputed layers of a window of n on this stage; one more than n: it does not fit
            need = draw(st.integers(0, n + 1)) if n else 0
            for b in range(layers + 1 - n):
                if need <= n:
                    load[s, b, n] = sum(cost[b : b + n]) + sum(again[b : b + need])
    load[0] += ends[0]
    load[-1] += ends[1]
    return load, load.copy(), float(draw(st.integers(0, 8)))


@given(problems())
@settings(deadline=None, max_examples=150)
def test_no_split_is_better(problem: tuple[FloatArray, FloatArray, float]) -> None:
    load, more, weight = problem
    stages, layers = load.shape[0], load.shape[1] - 1
    found = best_splits(table_of(load, more), stages, layers, np.asarray([weight]))
    shares = tuple(found.shares[0].tolist())
    each = {split: value(load, more, split, weight) for split in every_split(layers, stages)}
    assert found.seconds[0] == min(each.values())
    if np.isfinite(found.seconds[0]):
        assert each[shares] == found.seconds[0]


@given(problems(most_layers=9, most_stages=5))
@settings(deadline=None, max_examples=25)
def test_highs_finds_the_same_optimum(problem: tuple[FloatArray, FloatArray, float]) -> None:
    load, more, weight = problem
    stages, layers = load.shape[0], load.shape[1] - 1
    found = best_splits(table_of(load, more), stages, layers, np.asarray([weight]))
    assert np.isclose(found.seconds[0], highs(load, more, weight), rtol=1e-6, atol=1e-6) or (
        np.isinf(found.seconds[0]) and np.isinf(highs(load, more, weight))
    )


def windows(cost: list[float], stages: int, first: float = 0.0, last: float = 0.0) -> FloatArray:
    until = np.concatenate([[0.0], np.cumsum(cost)])
    n = len(until)
    load = np.full((stages, n, n), np.inf)
    for b in range(n):
        for width in range(n - b):
            load[:, b, width] = until[b + width] - until[b]
    load[0] += first
    load[-1] += last
    return load


def test_by_hand() -> None:
    # Ten layers of 1 on four stages, a head of 2: no stage can do with less than 3, the sum is 12; with 7 more
    # micro-batches 7 * 3 + 12 = 33. The most layers go to the front: 3, 3, 3 and 1 + 2.
    load = windows([1.0] * 10, 4, last=2.0)
    found = best_splits(table_of(load, load), 4, 10, np.asarray([7.0]))
    assert found.seconds.tolist() == [33.0] and found.shares.tolist() == [[3, 3, 3, 1]]
    # A slower slowest stage may pay where it saves recomputation: two layers of 4 on two stages, and the second stage
    # must run 3 again if it holds a layer at all. One each: slowest 7, sum 11. Both on the first: slowest 8, sum 8.
    load = windows([4.0, 4.0], 2)
    load[1, :, 1:] += 3.0
    for weight, shares, seconds in ((1.0, [2, 0], 16.0), (4.0, [1, 1], 39.0)):
        found = best_splits(table_of(load, load), 2, 2, np.asarray([weight]))
        assert found.shares.tolist() == [shares] and found.seconds.tolist() == [seconds]


def test_problems_are_solved_apart() -> None:
    """Many at once, one of them without any split, give what each gives alone."""
    cost = [3.0, 1.0, 1.0, 2.0, 2.0, 5.0]
    loads = [windows(cost, 3), windows(cost[::-1], 3), np.full((3, 7, 7), np.inf), windows(cost, 3, last=6.0)]
    together = np.stack(loads)
    weight = np.asarray([3.0, 0.0, 1.0, 15.0])
    found = best_splits(lambda s: (together[:, s], together[:, s]), 3, 6, weight)
    assert np.isinf(found.seconds[2]) and found.shares[2].tolist() == [0, 0, 0]
    for i, load in enumerate(loads):
        alone = best_splits(table_of(load, load), 3, 6, weight[i : i + 1])
        assert alone.seconds[0] == found.seconds[i] and alone.shares[0].tolist() == found.shares[i].tolist()
