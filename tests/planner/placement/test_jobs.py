"""Jobs that share a fabric: hand-worked contention, allocations, and the proposal of better nodes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hwmodels import cluster as clusters
from hwmodels.errors import InfeasibleError, InputError
from planner.layout import Layout
from planner.model import load
from planner.placement import Allocation
from planner.placement import jobs as on
from planner.placement.contention import Job, Phase, play
from planner.plan import Workload
from planner.predict import predict
from tests.hwmodels.fabrics import rails

ONE = np.asarray([100.0])


def job(compute: float, exposed: float, hidden: float, rate: float) -> Job:
    """One link, on which a transfer alone moves `rate` bytes/s."""
    return Job("j", compute, (Phase("dp_comm", exposed, hidden, np.asarray([rate * (exposed + hidden)])),))


def test_two_that_fill_a_link_take_twice_as_long() -> None:
    full = job(0.0, 1.0, 0.0, 100.0)
    assert play([full], ONE, 3) == [pytest.approx(1.0)]
    assert play([full, full], ONE, 3) == [pytest.approx(2.0)] * 2


def test_two_that_need_half_of_a_link_do_not_meet() -> None:
    half = job(0.5, 1.0, 0.0, 50.0)
    assert play([half, half], ONE, 3) == [pytest.approx(1.5)] * 2


def test_one_that_needs_little_keeps_it() -> None:
    # max-min: 25 of 100 for the one, 75 for the other, which needs 100
    found = play([job(0.0, 1.0, 0.0, 25.0), job(0.0, 1.0, 0.0, 100.0)], ONE, 6)
    assert found == [pytest.approx(1.0), pytest.approx(4.0 / 3.0)]


def test_what_hides_behind_compute_may_become_longer_unseen() -> None:
    # half a second at full rate behind one of compute: at half the rate it ends with the compute, and the other,
    # which sends all the time, has half
    found = play([job(1.0, 0.0, 0.5, 100.0), job(0.0, 1.0, 0.0, 100.0)], ONE, 6)
    assert found == [pytest.approx(1.0), pytest.approx(2.0)]


@settings(deadline=None, max_examples=15)
@given(st.lists(st.tuples(*(st.floats(0.05, 1.0) for _ in range(3)), st.floats(1.0, 100.0)), min_size=2, max_size=3),
       st.integers(0, 99))  # fmt: skip
def test_nobody_is_faster_than_alone_and_a_seed_repeats(parts: list[tuple[float, ...]], seed: int) -> None:
    each = [job(*part) for part in parts]
    found = play(each, ONE, 3, seed)
    assert found == play(each, ONE, 3, seed)
    for one, together in zip(each, found, strict=True):
        assert together >= play([one], ONE, 3, seed)[0] * (1 - 1e-9)


BASE = clusters.load("dgx-h100:8")
CLUSTER = replace(BASE, fabric=rails(8, leaf_nodes=4, oversubscription=8.0))
MODEL = load("llama-3-8b")[0]
WORK = Workload(2048, 64, framework="fsdp2")
JOB = on.Request("a", MODEL, WORK, Layout(dp=32, zero_stage=3))


def test_jobs_on_leaves_of_their_own_leave_each_other_alone() -> None:
    two = (JOB, replace(JOB, name="b"))
    apart = on.own_leaves(two, CLUSTER)
    assert [have.nodes for have in apart] == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert on.in_turn(two, CLUSTER) == apart
    mixed = (Allocation((0, 2, 4, 6)), Allocation((1, 3, 5, 7)))
    seats = [on.seat(r, CLUSTER, have, chosen=False) for r, have in zip(two, mixed, strict=True)]
    now = on.side_by_side(seats, CLUSTER, 4, 0)
    # each gathers and scatters over both leaves; alone it has all uplinks, beside the other half of them
    assert set(now.contended()) == {"leaf 0 uplinks", "leaf 1 uplinks"}
    assert min(now.slowdown) > 1.05
    found = on.better(two, CLUSTER, now, 4, 0)
    assert found is not None and found.contended() == {}
    assert [s.allocation.nodes for s in found.seats] == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert max(found.together_s) < min(now.alone_s)
    assert on.better(two, CLUSTER, found, 4, 0) is None


def test_a_job_alone_takes_its_predicted_step() -> None:
    have = Allocation((0, 1, 2, 3))
    seat = on.seat(JOB, CLUSTER, have, chosen=False)
    step = predict(MODEL, CLUSTER, WORK, seat.layout)
    assert seat.job.step_s == pytest.approx(step.step_s.mid)
    assert on.side_by_side([seat], CLUSTER, 2, 0).together_s[0] == pytest.approx(step.step_s.mid)


def test_a_large_job_takes_whole_leaves_and_a_small_one_what_is_left() -> None:
    small = replace(JOB, name="s", layout=Layout(dp=8, zero_stage=3))
    large = replace(JOB, layout=Layout(dp=40, zero_stage=3))
    found = on.own_leaves((small, small, large), CLUSTER)
    assert [have.nodes for have in found] == [(5,), (6,), (0, 1, 2, 3, 4)]


def test_nodes_of_two_jobs_and_too_many_jobs_are_refused() -> None:
    two = (JOB, replace(JOB, name="b"))
    with pytest.raises(InputError) as error:
        on.check_nodes(two, (Allocation((0, 1, 2, 3)), Allocation((3, 4, 5))), CLUSTER)
    assert [f.what for f in error.value.faults] == ["b has 3 nodes and needs 4", "node 3 belongs to a and to b"]
    with pytest.raises(InfeasibleError, match="need 12 nodes"):
        on.check_nodes((*two, JOB), on.in_turn(two, CLUSTER), CLUSTER)
