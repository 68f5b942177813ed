"""Timelines and the split of the step time, against examples worked by hand and by property."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulate_cases import chunks_of, costs_of, runs

from planner.results import PHASES, TimelineEvent
from planner.simulate.costs import CommPlan, StageCosts
from planner.simulate.dag import Dag, build_dag, durations
from planner.simulate.events import simulate_events
from planner.simulate.maxplus import simulate
from planner.simulate.timeline import bubble_fraction, busy_seconds, critical_rank, events, hidden_seconds, phases
from planner.simulate.timing import Timing


def timed(args: tuple[str, int, int, int], plan: CommPlan, **given_s: float) -> tuple[Dag, Timing]:
    dag = build_dag(*args, plan)
    return dag, simulate(dag, durations(dag, costs_of(args[1], chunks_of(args), plan.buckets, **given_s)))


def _split(**seconds: float) -> dict[str, float]:
    zero = dict.fromkeys(("forward", "backward", "pp_comm", "dp_comm", "optimizer", "host", "bubble"), 0.0)
    return zero | seconds


PIPELINE = {
    "forward_s": 1.0, "backward_input_s": 2.0, "send_forward_s": 0.5, "send_backward_s": 0.5, "optimizer_s": 1.0,
}


def test_pipeline_by_hand() -> None:
    """1F1B, pp=2, M=2, blocking sends of 0.5 (times in test_events): step 11.5.

    Rank 0: its sends 2*0.5; before B0 idle 3-5, of which the transfer 4.5-5; before B1 7-8.5, transfer 8-8.5:
    pp_comm 2, bubble 1.5 + 1. Rank 1: idle 0-1.5, transfer 1-1.5; sends 2*0.5; waits for rank 0 8.5-10.5.
    """
    dag, timing = timed(("1f1b", 2, 2, 1), CommPlan(), **PIPELINE)
    assert phases(dag, timing) == [
        _split(forward=2.0, backward=4.0, pp_comm=2.0, optimizer=1.0, bubble=2.5),
        _split(forward=2.0, backward=4.0, pp_comm=1.5, optimizer=1.0, bubble=3.0),
    ]
    # Busy: 6 s of actions, 1 s of sends, 1 s of optimizer on each rank.
    assert busy_seconds(dag, timing).tolist() == [[8.0, 0.0, 0.0, 0.0]] * 2
    assert bubble_fraction(dag, timing) == pytest.approx(1 - 8 / 11.5)


def test_free_sends_hide_behind_compute() -> None:
    """The same with sends on their own stream (step 11).

    Rank 0 sends F0 1-1.5 while F1 runs 1-2; the send of F1 2-2.5 does not hide.
    Rank 1 sends B0 4.5-5 while F1 runs 4.5-5.5; the send of B1 7.5-8 does not hide.
    """
    dag, timing = timed(("1f1b", 2, 2, 1), CommPlan(p2p_blocking=False), **PIPELINE)
    assert hidden_seconds(dag, timing) == [{"pp_comm": 0.5, "dp_comm": 0.0}] * 2
    assert busy_seconds(dag, timing)[:, 1].tolist() == [1.0, 1.0]


def test_fsdp_by_hand() -> None:
    """The example of test_maxplus (step 19): gaps 0-3, 5-6, 8-9 for gathers, 18-19 for the last reduction.

    Gathers 3-6, 6-9, 9-12 hide 2, 2 and 3 seconds, the first reduction hides whole: 8 of 14 seconds.
    """
    dag, timing = timed(
        ("1f1b", 1, 1, 1), CommPlan(2, "each", 1, "bucketed"),
        forward_s=2.0, backward_input_s=4.0, unshard_s=3.0, reduce_s=1.0, backward_sync_extra_s=0.5,
    )
    assert phases(dag, timing) == [_split(forward=4.0, backward=9.0, dp_comm=6.0)]
    assert hidden_seconds(dag, timing) == [{"pp_comm": 0.0, "dp_comm": 8.0}]


def test_the_end_of_the_step_by_hand() -> None:
    """The example of test_maxplus (step 34.5). Rank 1 acts until 16, rank 0 until 18, both wait until 22.

    Rank 1: 16-18 its own reduction runs, 18-22 only reductions are left. Then tied 5, sync 0.5, gather 4.
    """
    plan = CommPlan(2, reduce="end", gather_after_step=True, tied_embedding=True)
    dag, timing = timed(
        ("1f1b", 2, 1, 1), plan, forward_s=1.0, backward_input_s=1.0, reduce_s=2.0, tied_s=5.0, sync_s=0.5,
        optimizer_s=3.0, gather_s=4.0, step_s=10.0,
    )
    assert phases(dag, timing) == [
        _split(host=10.0, forward=2.0, backward=2.0, dp_comm=4 + 5 + 0.5 + 4, optimizer=3.0, bubble=4.0),
        _split(host=10.0, forward=2.0, backward=2.0, dp_comm=6 + 5 + 0.5 + 4, optimizer=3.0, bubble=2.0),
    ]


def test_bars() -> None:
    plan = CommPlan(2, reduce="bucketed")
    dag, timing = timed(("1f1b", 2, 1, 1), plan, forward_s=1.0, backward_input_s=1.0, reduce_s=1.0)
    bars = events(dag, timing)
    # F 0-2 on rank 0 (two buckets in one node), B bucket 1 6-7 and 0 7-8; reductions 7-8, 8-9.
    assert [bar for bar in bars if bar.rank == 0] == [
        TimelineEvent(0, "compute", "0F0", "F", 0.0, 2.0, {"stage": 0, "microbatch": 0}),
        TimelineEvent(0, "compute", "0B0", "B", 6.0, 7.0, {"stage": 0, "microbatch": 0, "bucket": 1}),
        TimelineEvent(0, "compute", "0B0", "B", 7.0, 8.0, {"stage": 0, "microbatch": 0, "bucket": 0}),
        TimelineEvent(0, "dp_rs", "0REDUCE_GRAD", "REDUCE_GRAD", 7.0, 8.0, {"stage": 0, "bucket": 1}),
        TimelineEvent(0, "dp_rs", "0REDUCE_GRAD", "REDUCE_GRAD", 8.0, 9.0, {"stage": 0, "bucket": 0}),
    ]
    assert {bar.kind for bar in events(dag, timing, markers=True)} >= {"RECV_F", "RECV_B", "STEP", "SYNC", "OPTIMIZER"}
    assert len(events(dag, timing, markers=True)) == dag.n


def _check_split(dag: Dag, timing: Timing, candidate: int) -> None:
    step = float(timing.step_s[candidate])
    for share in phases(dag, timing, candidate):
        assert set(share) <= set(PHASES)
        assert sum(share.values()) == pytest.approx(step, rel=1e-9, abs=1e-12)
        assert all(value >= -1e-9 for value in share.values())


@given(runs(), st.booleans())
@settings(deadline=None, max_examples=80)
def test_phases_sum_to_the_step(run: tuple[Dag, StageCosts], contention: bool) -> None:
    dag, costs = run
    seconds = durations(dag, costs)
    timing = simulate(dag, seconds)
    for candidate in (0, 1):
        _check_split(dag, timing, candidate)
        assert 0 <= critical_rank(dag, timing, candidate) < dag.pp
    _check_split(dag, simulate_events(dag, seconds[0], contention=contention, jitter=0.1, seed=1), 0)


@given(runs())
@settings(deadline=None, max_examples=40)
def test_hidden_is_part_of_what_ran(run: tuple[Dag, StageCosts]) -> None:
    dag, costs = run
    timing = simulate(dag, durations(dag, costs))
    busy = busy_seconds(dag, timing, 1)
    for rank, hidden in enumerate(hidden_seconds(dag, timing, 1)):
        assert -1e-9 <= hidden["pp_comm"] <= busy[rank, 1] + 1e-9
        assert -1e-9 <= hidden["dp_comm"] <= busy[rank, 2:].sum() + 1e-9
    for bar in events(dag, timing, 1):
        assert 0 <= bar.start_s < bar.end_s <= timing.step_s[1]
