"""Levels of graphs: by hand, against longest paths one node after the other, and of what has none."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from planner.simulate.levels import levels


def _of(n: int, edges: list[tuple[int, int]]) -> list[int] | None:
    source, target = np.array(edges, np.int64).reshape(-1, 2).T
    found = levels(n, source, target)
    return None if found is None else found.tolist()


def test_of_a_chain_with_a_short_cut() -> None:
    """0 -> 1 -> 2 -> 3 and 0 -> 3, 3 -> 4: the long way counts."""
    assert _of(5, [(0, 1), (1, 2), (2, 3), (0, 3), (3, 4)]) == [0, 1, 2, 3, 4]


def test_of_nodes_that_wait_for_nothing() -> None:
    assert _of(3, []) == [0, 0, 0]


def test_of_one_long_chain() -> None:
    assert _of(1024, [(i, i + 1) for i in range(1023)]) == list(range(1024))


def test_a_cycle_has_none() -> None:
    assert _of(2, [(0, 1), (1, 0)]) is None  # each waits for one other
    assert _of(4, [(0, 1), (1, 2), (2, 1), (3, 2)]) is None  # through a joint
    assert _of(3, [(0, 1), (0, 2), (1, 2), (2, 1)]) is None


@given(st.data())
def test_as_longest_paths_node_by_node(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 24))
    pairs = [(i, j) for j in range(n) for i in range(j)]
    edges = data.draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    name = data.draw(st.permutations(range(n)))
    expected = [0] * n
    for i, j in sorted(edges, key=lambda e: e[1]):
        expected[j] = max(expected[j], expected[i] + 1)
    found = _of(n, [(name[i], name[j]) for i, j in edges])
    assert found is not None
    assert [found[name[i]] for i in range(n)] == expected
