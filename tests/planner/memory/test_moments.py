"""Moments of a schedule's list: by hand, and the same for any number of micro-batches beyond the pipeline's depth."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.memory.moments import ACTIONS, Moments, _moments, equivalent, moments
from planner.schedule import get, names


def counted(name: str, pp: int, count: int, vpp: int) -> list[Moments]:
    """Moments of every rank from lists of that many micro-batches."""
    return [_moments(name, pp, count, vpp, rank) for rank in range(pp)]


def as_set(found: Moments) -> set[tuple[float, ...]]:
    each = zip(found.rows.tolist(), found.actions.tolist(), found.runs.tolist(), strict=True)
    return {(*row, action, runs) for row, action, runs in each}


def test_1f1b_of_two_ranks_by_hand() -> None:
    # Rank 0: F0 F1 B0 F2 B1 B2: two in flight at most. Rank 1: F0 B0 ...: one, its loss between them.
    first, last = moments("1f1b", 2, 3, 1)
    forward, loss, loss_backward, backward = range(len(ACTIONS))
    assert as_set(first) == {(2, 0, 0, forward, True), (2, 0, 0, backward, True)}
    assert as_set(last) == {
        (1, 0, 0, forward, True), (1, 0, 1, loss, True), (1, 0, 1, loss_backward, True), (1, 0, 0, backward, True),
    }  # fmt: skip


def test_gpipe_holds_every_loss() -> None:
    (_, last) = moments("gpipe", 2, 5, 1)
    losses = {int(row[-1]) for row, action in zip(last.rows, last.actions, strict=True) if action == 1}
    assert losses == {5}


def test_a_split_backward_waits_for_its_weight_gradient() -> None:
    # zb-h1, 3 micro-batches, rank 1: 1F0 1I0 1F1 1I1 1W0 1F2 1I2 1W1 1W2 (the order of the schedule's own test).
    (_, last) = moments("zb-h1", 2, 3, 1)
    waiting = {int(row[1]) for row, runs in zip(last.rows, last.runs, strict=True) if not runs}
    assert max(waiting) == 2


@pytest.mark.parametrize("count", [3, 7])
def test_gpipe_grows_evenly(count: int) -> None:
    for one, other in zip(moments("gpipe", 3, count, 1), counted("gpipe", 3, count, 1), strict=True):
        assert as_set(one) == as_set(other)


@settings(deadline=None, max_examples=60)
@given(name=st.sampled_from([n for n in names() if n != "gpipe"]), pp=st.sampled_from([2, 4]), more=st.integers(0, 30))
def test_more_micro_batches_than_the_pipeline_is_deep_change_nothing(name: str, pp: int, more: int) -> None:
    plan = get(name)
    vpp = plan.vpp_only or (3 if plan.interleaved else 1)
    count = 6 * pp + 1 + more
    if plan.check(pp, count, vpp) or (plan.interleaved and count % pp):
        return
    less = equivalent(plan, pp, count, vpp)
    assert less < count
    for one, other in zip(counted(name, pp, less, vpp), counted(name, pp, count, vpp), strict=True):
        assert as_set(one) == as_set(other)


@pytest.mark.parametrize(("name", "vpp"), [("1f1b", 1), ("interleaved-1f1b", 2), ("interleaved-1f1b", 3)])
def test_1f1b_has_the_moments_of_its_shortest_steady_state(name: str, vpp: int) -> None:
    plan = get(name)
    for pp in (2, 3, 4):
        for count in range(1, 6 * pp + 1):
            less = equivalent(plan, pp, count, vpp)
            if less < count:
                pairs = zip(counted(name, pp, less, vpp), counted(name, pp, count, vpp), strict=True)
                assert all(as_set(one) == as_set(other) for one, other in pairs)
    assert equivalent(get("1f1b"), 4, 24, 1) == 5
    assert equivalent(get("interleaved-1f1b"), 4, 24, 2) == 8


@pytest.mark.parametrize("name", names())
def test_nothing_is_left_when_a_list_ends(name: str) -> None:
    plan = get(name)
    vpp = plan.vpp_only or (2 if plan.interleaved else 1)
    for found in moments(name, 4, 8, vpp):
        assert (found.rows >= 0).all()
        assert np.isin(found.actions, range(len(ACTIONS))).all()


@settings(deadline=None, max_examples=40)
@given(
    name=st.sampled_from([n for n in names() if get(n).falling]), pp=st.integers(2, 6), vpp=st.integers(2, 4),
    count=st.integers(1, 40),
)  # fmt: skip
def test_ranks_of_a_falling_schedule_hold_no_more_than_those_before_them(
    name: str, pp: int, vpp: int, count: int
) -> None:
    plan = get(name)
    chunks = vpp if plan.interleaved else 1
    if plan.check(pp, count, chunks):
        return
    each = moments(name, pp, count, chunks)
    for one, later in pairwise(each[:-1]):
        for row, action, runs in zip(later.rows, later.actions, later.runs, strict=True):
            alike = (one.actions == action) & (one.runs == runs)
            assert (one.rows[alike] >= row).all(axis=1).any()


def test_lists_of_one_rank_are_those_of_all() -> None:
    for name in names():
        plan = get(name)
        chunks = plan.vpp_only or (2 if plan.interleaved else 1)
        assert [plan.actions_of(rank, 4, 8, chunks) for rank in range(4)] == plan.actions(4, 8, chunks)
