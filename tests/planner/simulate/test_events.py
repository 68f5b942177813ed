"""The SimPy engine: agreement with max-plus, exact event lists, sharing, jitter, stragglers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulate_cases import costs_of, runs

from hwmodels.errors import InputError
from planner.simulate.costs import CommPlan, StageCosts
from planner.simulate.dag import Dag, NodeKind, build_dag, durations
from planner.simulate.events import simulate_events
from planner.simulate.maxplus import simulate


@given(runs())
@settings(deadline=None, max_examples=100)
def test_agrees_with_maxplus(run: tuple[Dag, StageCosts]) -> None:
    dag, costs = run
    seconds = durations(dag, costs.take(np.array([1])))
    exact, events = simulate(dag, seconds), simulate_events(dag, seconds)
    assert np.allclose(events.start, exact.start, rtol=1e-9, atol=1e-12)
    assert np.allclose(events.end, exact.end, rtol=1e-9, atol=1e-12)
    assert np.allclose(events.step_s, exact.step_s, rtol=1e-9, atol=1e-12)


@given(runs(), st.integers(0, 1000), st.booleans())
@settings(deadline=None, max_examples=15)
def test_a_seed_repeats_to_the_bit(run: tuple[Dag, StageCosts], seed: int, contention: bool) -> None:
    dag, costs = run
    seconds = durations(dag, costs.take(np.array([1])))
    a, b = (simulate_events(dag, seconds, contention=contention, jitter=0.1, seed=seed) for _ in range(2))
    assert a.start.tobytes() == b.start.tobytes()
    assert a.end.tobytes() == b.end.tobytes()


@given(runs())
@settings(deadline=None, max_examples=30)
def test_sharing_conserves_work(run: tuple[Dag, StageCosts]) -> None:
    """A shared link is never faster than one transfer at a time, and nobody finishes before alone."""
    dag, costs = run
    seconds = durations(dag, costs.take(np.array([1])))
    shared = simulate_events(dag, seconds, contention=True)
    took = (shared.end - shared.start)[0]
    alone = seconds[0][dag.slot]
    assert np.all(took >= alone * (1 - 1e-9) - 1e-12)
    for link in range(dag.pp):
        on = dag.link == link
        if on.any():
            assert shared.end[0, on].max() - shared.start[0, on].min() >= alone[on].sum() * (1 - 1e-9) - 1e-12


def _listed(dag: Dag, timing: object, rank: int, stream: int) -> list[tuple[str, float, float]]:
    return [(dag.label(v), timing.start[0, v], timing.end[0, v]) for v in dag.stream_nodes(rank, stream)]


def test_two_stages_by_hand() -> None:
    """1F1B, pp=2, M=2, f=1, b=2, blocking sends of 0.5, optimizer 1: worked in test_maxplus, here all of it."""
    costs = costs_of(
        2,
        1,
        1,
        forward_s=1.0,
        backward_input_s=1.5,
        backward_weight_s=0.5,
        send_forward_s=0.5,
        send_backward_s=0.5,
        optimizer_s=1.0,
    )
    dag = build_dag("1f1b", 2, 2, 1, CommPlan())
    timing = simulate_events(dag, durations(dag, costs))
    assert _listed(dag, timing, 0, 0) == [
        ("STEP", 0.0, 0.0),
        ("0F0", 0.0, 1.0),
        ("0SEND_F0", 1.0, 1.5),
        ("0F1", 1.5, 2.5),
        ("0SEND_F1", 2.5, 3.0),
        ("0RECV_B0", 5.0, 5.0),
        ("0B0", 5.0, 7.0),
        ("0RECV_B1", 8.5, 8.5),
        ("0B1", 8.5, 10.5),
        ("SYNC", 10.5, 10.5),
        ("OPTIMIZER", 10.5, 11.5),
    ]
    assert _listed(dag, timing, 1, 0) == [
        ("STEP", 0.0, 0.0),
        ("1RECV_F0", 1.5, 1.5),
        ("1F0", 1.5, 2.5),
        ("1B0", 2.5, 4.5),
        ("1SEND_B0", 4.5, 5.0),
        ("1RECV_F1", 5.0, 5.0),
        ("1F1", 5.0, 6.0),
        ("1B1", 6.0, 8.0),
        ("1SEND_B1", 8.0, 8.5),
        ("SYNC", 10.5, 10.5),
        ("OPTIMIZER", 10.5, 11.5),
    ]
    assert timing.step_s.tolist() == [11.5]


def test_two_transfers_share_a_port() -> None:
    """GPipe, pp=2, M=1, vpp=1: on rank 1 the gradient goes back (4 s) while its reduction (2 s) runs.

    Rank 0: F 0-1, send 1-2 (alone). Rank 1: F 2-3, B 3-5; from 5 both transfers at half speed: the reduction
    has its 2 s at 9, the send has 2 of its 4 s left then and ends at 11. Rank 0: B 11-13, its reduction 13-15.
    Without contention the send ends at 9 and rank 0 at 9-11, 11-13.
    """
    costs = costs_of(
        2, forward_s=1.0, backward_input_s=2.0, send_forward_s=1.0, send_backward_s=4.0, reduce_s=2.0
    )
    dag = build_dag("gpipe", 2, 1, 1, CommPlan(reduce="bucketed", p2p_blocking=False))
    seconds = durations(dag, costs)
    shared = simulate_events(dag, seconds, contention=True)
    assert _listed(dag, shared, 1, 3) == [("1REDUCE_GRAD", 5.0, 9.0)]
    assert _listed(dag, shared, 1, 1) == [("1SEND_B0", 5.0, 11.0)]
    assert shared.step_s.tolist() == [15.0]
    assert simulate_events(dag, seconds).step_s.tolist() == [13.0]


def test_a_late_comer_slows_what_already_runs() -> None:
    """Rank 0 of GPipe, M=2, f=1, free sends of 3, gathers of 3 ahead: all on the port of rank 0.

    The bucket is gathered 0-3 alone, F0 3-4, its send starts at 4; the sends are one stream, so they never share;
    the gather of F1 (allowed when compute reaches F0, at 0) would run 3-6.
    Send of F0 at 4 with the gather having 2 s left: both at half speed, the gather ends at 8 (2 s of work in 4 s);
    the send has 3 - 2 = 1 s left, alone until the gather for B0, allowed when compute reaches F1 (at 4), starts at 8
    too: half speed again, the send ends at 10.
    """
    costs = costs_of(2, forward_s=1.0, backward_input_s=1.0, send_forward_s=3.0, unshard_s=3.0)
    dag = build_dag("gpipe", 2, 2, 1, CommPlan(unshard="each", p2p_blocking=False))
    timing = simulate_events(dag, durations(dag, costs), contention=True)
    gathers = _listed(dag, timing, 0, 2)
    assert gathers[:2] == [("0UNSHARD0", 0.0, 3.0), ("0UNSHARD1", 3.0, 8.0)]
    assert _listed(dag, timing, 0, 1)[0] == ("0SEND_F0", 4.0, 10.0)


def test_straggler_slows_compute_and_optimizer_of_its_rank_only() -> None:
    """pp=2, M=1, f=1, b=2, blocking send 1, optimizer 1; rank 1 takes 1.5 times as long.

    F0 0-1, send 1-2, F 2-3.5, B 3.5-6.5, send 6.5-7.5, B 7.5-9.5, optimizer 9.5-10.5 and 9.5-11.
    """
    costs = costs_of(
        2, forward_s=1.0, backward_weight_s=2.0, send_forward_s=1.0, send_backward_s=1.0, optimizer_s=1.0
    )
    dag = build_dag("1f1b", 2, 1, 1, CommPlan())
    timing = simulate_events(dag, durations(dag, costs), stragglers={1: 1.5})
    assert timing.step_s.tolist() == [11.0]
    assert _listed(dag, timing, 0, 0)[-1] == ("OPTIMIZER", 9.5, 10.5)


def test_jitter_has_mean_one_and_collectives_share_it() -> None:
    costs = costs_of(4, forward_s=1.0, backward_input_s=1.0, sync_s=1.0)
    dag = build_dag("1f1b", 4, 64, 1, CommPlan())
    timing = simulate_events(dag, durations(dag, costs), jitter=0.2, seed=3)
    took = (timing.end - timing.start)[0]
    compute = took[(dag.kind == NodeKind.F) | (dag.kind == NodeKind.B)]
    # 512 draws of mean 1 and spread 0.2: the mean is within 5 standard errors of 1.
    assert abs(compute.mean() - 1.0) < 5 * 0.2 / np.sqrt(512)
    assert 0.15 < np.log(compute).std() < 0.25
    assert np.ptp(timing.end[0][dag.kind == NodeKind.SYNC]) == 0.0
    assert not np.array_equal(
        took, (lambda t: (t.end - t.start)[0])(simulate_events(dag, durations(dag, costs), jitter=0.2, seed=4))
    )


def test_all_faults_at_once() -> None:
    dag = build_dag("1f1b", 2, 2, 1, CommPlan())
    with pytest.raises(InputError) as caught:
        simulate_events(dag, np.zeros((2, dag.slots.size)), jitter=-1.0, stragglers={2: 0.0})
    assert len(caught.value.faults) == 4
