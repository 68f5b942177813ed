"""The answer so far: the best of one objective, the front of several, and what could still belong to it."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from planner.schedule import Kind, names
from planner.schedule import get as get_schedule
from planner.search.ranking import Ranking
from planner.search.screen.shapes import means, ranks_of, shape_of, waiting
from tests.planner.search.test_regret import dense


def test_the_last_row_closes_what_costs_as_much() -> None:
    ranking: Ranking[str] = Ranking(1, 2)
    ranking.add(np.asarray([[3.0], [1.0]]), [(0,), (1,)], ["c", "a"])
    assert ranking.open(np.asarray([[2.0], [3.0], [3.1]])).tolist() == [True, False, False]
    ranking.add(np.asarray([[2.0]]), [(2,)], ["b"])
    assert [entry for _, entry in ranking.rows()] == ["a", "b"]
    assert ranking.worst == 2.0


def test_ties_are_ordered_by_place_whenever_they_come() -> None:
    for order in ((0, 1, 2), (2, 1, 0)):
        ranking: Ranking[int] = Ranking(1, 2)
        for i in order:
            ranking.add(np.asarray([[1.0]]), [(i,)], [i])
        assert [entry for _, entry in ranking.rows()] == [0, 1]


def test_a_front_by_hand() -> None:
    """(1, 4), (2, 2) and (4, 1) beat each other nowhere; (2, 2) beats (3, 3); a bound of (2, 2) still is open."""
    ranking: Ranking[str] = Ranking(2, 10)
    ranking.add(np.asarray([[4.0, 1.0], [3.0, 3.0], [1.0, 4.0]]), [(0,), (1,), (2,)], ["d", "c", "a"])
    ranking.add(np.asarray([[2.0, 2.0]]), [(3,)], ["b"])
    assert [entry for _, entry in ranking.rows()] == ["a", "b", "d"]
    assert ranking.open(np.asarray([[2.0, 2.0], [2.0, 2.1], [1.5, 3.0]])).tolist() == [True, False, True]


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=25), st.randoms())
def test_a_front_is_what_nothing_beats(points: list[tuple[int, int]], random: object) -> None:
    """However the points come in."""
    random.shuffle(points)  # type: ignore[attr-defined]
    ranking: Ranking[tuple[int, int]] = Ranking(2, 1)
    for i, point in enumerate(points):
        ranking.add(np.asarray([point], dtype=np.float64), [(i,)], [point])
    kept = sorted(entry for _, entry in ranking.rows())
    beaten = {p for p in points if any(q[0] <= p[0] and q[1] <= p[1] and q != p for q in points)}
    assert kept == sorted(p for p in points if p not in beaten)


def test_what_waits_at_the_first_backward_is_what_the_lists_say() -> None:
    """Forwards of each chunk of a rank before its first backward, for every schedule."""
    model = dense(16)
    for name in names():
        plan = get_schedule(name)
        vpp = plan.vpp_only or (2 if plan.interleaved else 1)
        for count in (8, 12):
            shape = shape_of(model, 4, vpp, name)
            found = waiting(shape, count)
            orders = plan.actions(4, count, vpp)
            for row, rank in enumerate(ranks_of(4)):
                chunks = [0] * plan.chunks(vpp)
                for action in orders[rank]:
                    if action.kind is not Kind.FORWARD:
                        break
                    chunks[plan.chunk_of(action.stage, 4)] += 1
                assert found[row].tolist() == chunks, (name, rank)


def test_means_over_ranks_weigh_one_in_all() -> None:
    """Alike on each rank, and leaning to the ranks where less waits: of 2 ranks with 2 and 1 waiting, 1/3 and 2/3."""
    assert means(2)[0].tolist() == [0.5, 0.5]
    assert means(2)[3].round(12).tolist() == [round(1 / 3, 12), round(2 / 3, 12)]
    assert np.allclose(means(7).sum(axis=1), 1.0)
