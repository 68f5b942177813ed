"""The max-plus engine against hand calculation, an engine without a DAG, and its lower bound."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulate_cases import chunks_of, costs_of, degrees, plans

from hwmodels.errors import InputError
from planner.schedule import Action, Kind, get
from planner.simulate.costs import CommPlan, StageCosts
from planner.simulate.dag import NodeKind, build_dag, durations
from planner.simulate.maxplus import lower_bound, simulate, step_seconds


def reference_step(name: str, pp: int, microbatches: int, vpp: int, plan: CommPlan, costs: StageCosts) -> float:
    """Step time of candidate 0 from the words of costs.py alone: named tasks, queues, no arrays, no DAG."""
    schedule = get(name)
    stages, of_copy = range(schedule.n_stages(pp, vpp)), pp * vpp
    place = {s: (schedule.rank_of(s, pp), schedule.chunk_of(s, pp)) for s in stages}
    queues: dict[tuple[int, str], list[tuple]] = {(r, q): [] for r in range(pp) for q in ("c", "p", "g", "r")}
    needs: dict[tuple, list[tuple]] = {}
    length: dict[tuple, float] = {}

    def put(rank: int, queue: str, task: tuple, seconds: float, after: list[tuple]) -> None:
        queues[rank, queue].append(task)
        needs[task], length[task] = after, float(seconds)

    def neighbour(stage: int, step: int) -> int:
        """The stage before or after in the same copy of the pipeline; -1 for none."""
        there = stage + step
        return there if there // of_copy == stage // of_copy else -1

    lists = schedule.actions(pp, microbatches, vpp)
    for r, order in enumerate(lists):
        put(r, "c", ("step", r), costs.step_s[0], [])
        grads = [a for a in order if a.kind in (Kind.BACKWARD, Kind.BACKWARD_WEIGHT)]
        final = {a.stage: a for a in grads}
        gathers: list[tuple[tuple, tuple]] = []  # (gather, what is before its compute on the compute stream)
        gathered: set[tuple] = set()
        late: list[tuple] = []
        for a in order:
            rr, c = place[a.stage]
            assert rr == r
            is_forward = a.kind is Kind.FORWARD
            grad = a in grads
            synced = grad and (plan.reduce == "each" or (plan.reduce == "bucketed" and final[a.stage] == a))
            ks = range(plan.buckets) if is_forward else range(plan.buckets - 1, -1, -1)
            seconds = {
                Kind.FORWARD: costs.forward_s,
                Kind.BACKWARD: costs.backward_input_s + costs.backward_weight_s,
                Kind.BACKWARD_INPUT: costs.backward_input_s,
                Kind.BACKWARD_WEIGHT: costs.backward_weight_s,
            }[a.kind][0, r, c]
            source = neighbour(a.stage, -1 if is_forward else 1)
            for i, k in enumerate(ks):
                task = (str(a), k)
                after: list[tuple] = []
                if i == 0 and a.kind is not Kind.BACKWARD_WEIGHT and source in place and place[source][0] != r:
                    after += [("send", source, is_forward, a.microbatch)]
                use = (a.stage, k) if plan.unshard == "once" else (str(a), k)
                wanted = is_forward or plan.unshard != "forward"
                if plan.unshard != "none" and wanted and a.kind is not Kind.BACKWARD_WEIGHT and use not in gathered:
                    gathered.add(use)
                    gather = ("gather", *use)
                    gathers.append((gather, queues[r, "c"][-1]))
                    i_ready = len(gathers) - 1 - plan.prefetch
                    reached = gathers[i_ready][1] if i_ready >= 0 else ("step", r)
                    put(r, "g", gather, costs.unshard_s[0, r, c, k], [reached])
                    after.append(gather)
                put(r, "c", task, seconds[k] + (costs.backward_sync_extra_s[0, r, c, k] if synced else 0.0), after)
                if synced:
                    put(r, "r", ("reduce", *task), costs.reduce_s[0, r, c, k], [task])
            if plan.reduce == "end" and grad and final[a.stage] == a:
                late += [("reduce", str(a), k) for k in ks]
                length |= {("reduce", str(a), k): float(costs.reduce_s[0, r, c, k]) for k in ks}
            target = neighbour(a.stage, 1 if is_forward else -1)
            if a.kind is not Kind.BACKWARD_WEIGHT and target in place and place[target][0] != r:
                send = costs.send_forward_s if is_forward else costs.send_backward_s
                last = queues[r, "c"][-1]
                sent = ("send", a.stage, is_forward, a.microbatch)
                put(r, "c" if plan.p2p_blocking else "p", sent, send[0, r, c], [last])
        last_compute = [t for t in queues[r, "c"] if t[0] not in ("send", "step")][-1]
        for task in late:
            put(r, "r", task, length[task], [last_compute])
    own = {r: [*queues[r, "c"][-1:], *queues[r, "r"][-1:]] for r in range(pp)}
    first, last_rank = place[0][0], place[stages[-1]][0]
    everything = [t for tasks in own.values() for t in tasks]
    if schedule.directions > 1:
        for r in range(pp):
            put(r, "c", ("mirror", r), costs.mirror_s[0, r], own[r] + own[pp - 1 - r])
            everything.append(("mirror", r))
    if plan.tied_embedding and first != last_rank:
        for r in (first, last_rank):
            put(r, "c", ("tied", r), costs.tied_s[0], own[first] + own[last_rank])
            everything.append(("tied", r))
    for r in range(pp):
        put(r, "c", ("sync", r), costs.sync_s[0], everything)
        put(r, "c", ("opt", r), costs.optimizer_s[0, r], [])
        if plan.gather_after_step:
            put(r, "g", ("gather after", r), costs.gather_s[0, r], [("opt", r)])
    end: dict[tuple, float] = {}
    free = dict.fromkeys(queues, 0.0)
    while len(end) < len(needs):
        before = len(end)
        for key, queue in queues.items():
            while queue and all(t in end for t in needs[queue[0]]):
                task = queue.pop(0)
                free[key] = end[task] = max([free[key], *(end[t] for t in needs[task])]) + length[task]
        assert len(end) > before, "deadlock"
    return max(end.values())


@given(degrees(), plans, st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=120)
def test_equals_an_engine_without_a_dag(case: tuple[str, int, int, int], plan: CommPlan, seed: int) -> None:
    name, pp, microbatches, vpp = case
    costs = costs_of(pp, chunks_of(case), plan.buckets, 2, seed=seed)
    dag = build_dag(name, pp, microbatches, vpp, plan)
    timing = simulate(dag, durations(dag, costs))
    for b in range(2):
        expected = reference_step(name, pp, microbatches, vpp, plan, costs.take(np.array([b])))
        assert timing.step_s[b] == pytest.approx(expected, rel=1e-12, abs=1e-15)
    assert np.array_equal(step_seconds(dag, durations(dag, costs)), timing.step_s)


@given(degrees(), plans, st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=150)
def test_bound_is_below_the_exact_time(case: tuple[str, int, int, int], plan: CommPlan, seed: int) -> None:
    name, pp, microbatches, vpp = case
    costs = costs_of(pp, chunks_of(case), plan.buckets, 4, seed=seed)
    dag = build_dag(name, pp, microbatches, vpp, plan)
    exact = step_seconds(dag, durations(dag, costs))
    bound = lower_bound(name, pp, np.full(4, microbatches), vpp, costs, plan)
    assert bound.shape == (4,)
    assert np.all(bound <= exact * (1 + 1e-12) + 1e-15)


# Uniform stages, no communication: GPipe and 1F1B take (M + pp - 1)(f + b): 1F1B with pp=4, M=8, f=1, b=2
# takes 11 * 3 = 33. Interleaved, f and b of one virtual stage: M*vpp*(f+b) + (pp-1)(f+b), so the bubble is
# (pp-1)/vpp of a whole stage's f+b: pp=4, M=8, vpp=2, f=0.5, b=1: 16*1.5 + 3*1.5 = 28.5.
@pytest.mark.parametrize(("pp", "rounds"), list(product([1, 2, 4, 7], [1, 2, 5])))
@pytest.mark.parametrize("name", ["gpipe", "1f1b", "interleaved-1f1b"])
def test_closed_forms_and_bound_of_uniform_stages(name: str, pp: int, rounds: int) -> None:
    microbatches = pp * rounds
    for vpp in (2, 3) if get(name).interleaved else (1,):
        f, w, i = 1.0 / vpp, 0.75 / vpp, 1.25 / vpp
        costs = costs_of(pp, vpp, forward_s=f, backward_input_s=i, backward_weight_s=w)
        dag = build_dag(name, pp, microbatches, vpp, CommPlan())
        expected = (microbatches * vpp + pp - 1) * (f + i + w)
        assert step_seconds(dag, durations(dag, costs))[0] == pytest.approx(expected, rel=1e-12)
        assert lower_bound(name, pp, microbatches, vpp, costs, CommPlan())[0] == pytest.approx(expected, rel=1e-12)


def test_the_numbers_of_the_comment_above() -> None:
    dag = build_dag("1f1b", 4, 8, 1, CommPlan())
    assert step_seconds(dag, durations(dag, costs_of(4, forward_s=1.0, backward_input_s=2.0)))[0] == 33.0
    dag = build_dag("interleaved-1f1b", 4, 8, 2, CommPlan())
    assert step_seconds(dag, durations(dag, costs_of(4, 2, forward_s=0.5, backward_input_s=1.0)))[0] == 28.5


Spans = dict[tuple[str, int, int], tuple[float, float]]


def _ends(dag_args: tuple, plan: CommPlan, costs: StageCosts) -> tuple[Spans, float]:
    dag = build_dag(*dag_args, plan)
    timing = simulate(dag, durations(dag, costs))
    at = {
        (dag.label(v), int(dag.rank[v]), int(dag.bucket[v])): (float(timing.start[0, v]), float(timing.end[0, v]))
        for v in range(dag.n)
    }
    return at, float(timing.step_s[0])


def test_blocking_and_free_sends() -> None:
    """pp=2, M=2, f=1, b=2, send 0.5, 1F1B.

    Blocking: rank 0 runs F0 0-1, send 1-1.5, F1 1.5-2.5, send 2.5-3; rank 1 runs F0 1.5-2.5, B0 2.5-4.5,
    send 4.5-5, F1 5-6, B1 6-8, send 8-8.5; rank 0 runs B0 5-7 and B1 8.5-10.5.
    On its own stream: rank 0 runs F1 1-2 and its send 2-2.5; rank 1 runs F0 1.5-2.5, B0 2.5-4.5, F1 4.5-5.5,
    B1 5.5-7.5, send 7.5-8; rank 0 runs B0 5-7 and B1 8-10.
    """
    costs = costs_of(2, forward_s=1.0, backward_input_s=2.0, send_forward_s=0.5, send_backward_s=0.5)
    at, step = _ends(("1f1b", 2, 2, 1), CommPlan(), costs)
    assert at["0SEND_F1", 0, -1] == (2.5, 3.0)
    assert at["1F1", 1, -1] == (5.0, 6.0)
    assert at["0B1", 0, -1] == (8.5, 10.5)
    assert step == 10.5
    at, step = _ends(("1f1b", 2, 2, 1), CommPlan(p2p_blocking=False), costs)
    assert at["0F1", 0, -1] == (1.0, 2.0)
    assert at["0SEND_F1", 0, -1] == (2.0, 2.5)
    assert at["1RECV_F1", 1, -1] == (4.5, 4.5)  # received long ago, taken when the stream gets there
    assert at["1B1", 1, -1] == (5.5, 7.5)
    assert step == 10.0


def test_fsdp_gathers_ahead() -> None:
    """One rank, one micro-batch, two buckets, f=2, b=4, gather 3, reduce 1.

    Prefetch 1: gathers 0-3 and (when compute gets to bucket 0: at 0) 3-6; F bucket 0 3-5; gather for B bucket 1
    may start when compute has reached F bucket 1 (at 5), the stream is free at 6: 6-9; F bucket 1 6-8;
    gather for B bucket 0 when compute reaches B bucket 1 (at 8), stream free at 9: 9-12; B bucket 1 9-13 + 0.5,
    reduce 13.5-14.5; B bucket 0 13.5-18, reduce 18-19.
    Prefetch 0: everything in turn: 2*(3+2) + 2*(3+4.5) = 25, then the last reduction: 26.
    """
    costs = costs_of(
        1, 1, 2, forward_s=2.0, backward_input_s=4.0, unshard_s=3.0, reduce_s=1.0, backward_sync_extra_s=0.5
    )
    at, step = _ends(("1f1b", 1, 1, 1), CommPlan(2, "each", 1, "bucketed"), costs)
    assert at["0F0", 0, 1] == (6.0, 8.0)
    assert at["0B0", 0, 1] == (9.0, 13.5)
    assert at["0REDUCE_GRAD", 0, 1] == (13.5, 14.5)
    assert at["0REDUCE_GRAD", 0, 0] == (18.0, 19.0)
    assert at["0RESHARD0", 0, 0][1] in (5.0, 18.0)
    assert step == 19.0
    assert _ends(("1f1b", 1, 1, 1), CommPlan(2, "each", 0, "bucketed"), costs)[1] == 26.0


def test_the_end_of_the_step() -> None:
    """pp=2, M=1, f=b=1, two buckets of reduction 2 each; tied 5, sync 0.5, optimizer 3, gather 4, host 10.

    Rank 0: host 0-10, F 10-12 (two buckets), B 16-18; rank 1: F 12-14, B 14-16.
    Reductions at the end: rank 1 16-20, rank 0 18-22; tied 22-27; sync 27-27.5; optimizer to 30.5; gather to 34.5.
    Overlapped: bucket 1 of rank 0 at 17-19, bucket 0 19-21: everything one second earlier.
    """
    given_s = {
        "forward_s": 1.0,
        "backward_input_s": 1.0,
        "reduce_s": 2.0,
        "tied_s": 5.0,
        "sync_s": 0.5,
        "optimizer_s": 3.0,
        "gather_s": 4.0,
        "step_s": 10.0,
    }
    costs = costs_of(2, 1, 2, **given_s)
    plan = CommPlan(2, reduce="end", gather_after_step=True, tied_embedding=True)
    at, step = _ends(("1f1b", 2, 1, 1), plan, costs)
    assert at["TIED", 0, -1] == at["TIED", 1, -1] == (22.0, 27.0)
    assert at["SYNC", 1, -1] == (27.0, 27.5)
    assert at["GATHER", 0, -1] == (30.5, 34.5)
    assert step == 34.5
    assert _ends(("1f1b", 2, 1, 1), replace(plan, reduce="bucketed"), costs)[1] == 33.5


def test_mirror_ranks_reduce_before_the_optimizer() -> None:
    """DualPipe, pp=2, M=4, F=I=W=1: neither rank waits, 4 micro-batches of 3 units, then the mirror reduction 5.

    With reductions of 2 after the last weight gradient of each stage: rank 0 ends with 3B3 (at 10) 0I1 (11)
    0W1 (12), so stage 3 is reduced 10-12 and stage 0 12-14; rank 1 is its mirror image.
    """
    times = {"forward_s": 1.0, "backward_input_s": 1.0, "backward_weight_s": 1.0, "mirror_s": 5.0, "sync_s": 0.5}
    at, step = _ends(("dualpipe", 2, 4, 1), CommPlan(), costs_of(2, 2, **times))
    assert at["MIRROR", 0, -1] == at["MIRROR", 1, -1] == (12.0, 17.0)
    assert step == 17.5
    at, step = _ends(("dualpipe", 2, 4, 1), CommPlan(reduce="bucketed"), costs_of(2, 2, reduce_s=2.0, **times))
    assert at["MIRROR", 0, -1] == at["MIRROR", 1, -1] == (14.0, 19.0)
    assert step == 19.5


def test_gather_once_and_reduce_each_count() -> None:
    """Two stages a rank, 4 micro-batches, 3 buckets: 2*3 gathers once, 2*3*(4+4) each; 2*3*4 reductions each."""
    once = build_dag("interleaved-1f1b", 2, 4, 2, CommPlan(3, "once", 1, "each"))
    each = build_dag("interleaved-1f1b", 2, 4, 2, CommPlan(3, "each", 1, "end"))
    for dag, gathers, reductions in ((once, 6, 24), (each, 48, 6)):
        for rank in range(2):
            kinds = dag.kind[dag.rank == rank]
            assert (kinds == NodeKind.UNSHARD).sum() == gathers
            assert (kinds == NodeKind.REDUCE_GRAD).sum() == reductions


def test_only_the_last_backward_is_cut_for_ddp_buckets() -> None:
    dag = build_dag("1f1b", 2, 5, 1, CommPlan(4, reduce="bucketed"))
    assert (dag.kind == NodeKind.F).sum() == 2 * 5
    assert (dag.kind == NodeKind.B).sum() == 2 * (4 + 4)


@given(degrees(), plans)
@settings(deadline=None, max_examples=40)
def test_levels_and_orders_are_sound(case: tuple[str, int, int, int], plan: CommPlan) -> None:
    dag = build_dag(*case, plan)
    level = np.repeat(np.arange(len(dag.level_ptr) - 1), np.diff(dag.level_ptr))
    assert len(level) == dag.n_core
    target = np.repeat(np.arange(dag.n), np.diff(dag.pred_ptr))
    core = target < dag.n_core
    assert np.all(level[dag.pred[core]] < level[target[core]])
    assert dag.pred.max(initial=0) < dag.n_core
    assert sorted(dag.order.tolist()) == list(range(dag.n))
    for rank, stream in product(range(dag.pp), range(4)):
        nodes = dag.stream_nodes(rank, stream)
        assert np.all(dag.rank[nodes] == rank)
        assert np.all(dag.stream[nodes] == stream)


def test_candidates_do_not_mix() -> None:
    plan = CommPlan(2, "once", 1, "bucketed", p2p_blocking=False)
    costs = costs_of(3, 1, 2, 6, seed=5)
    dag = build_dag("1f1b", 3, 7, 1, plan)
    together = step_seconds(dag, durations(dag, costs))
    alone = [step_seconds(dag, durations(dag, costs.take(np.array([b]))))[0] for b in range(6)]
    assert together.tolist() == alone


def test_wrong_shapes_and_plans_are_all_named() -> None:
    dag = build_dag("1f1b", 2, 2, 1, CommPlan(2, reduce="end"))
    with pytest.raises(InputError) as caught:
        durations(dag, costs_of(3, 1, 2))
    assert len(caught.value.faults) == 11  # all but the three of shape (B,)
    with pytest.raises(InputError) as caught:
        build_dag("1f1b", 2, 2, 1, CommPlan(0, "sometimes", -1, "never"))  # type: ignore[arg-type]
    assert len(caught.value.faults) == 4
    with pytest.raises(InputError, match="schedule-microbatches"):
        build_dag("interleaved-1f1b", 4, 3, 2, CommPlan())


@pytest.mark.parametrize(
    "lists",
    [
        ["0B0 0F0 0F1 0B1", "1F0 1B0 1F1 1B1"],  # a backward before its own forward
        ["0F0 0B1 0F1 0B0", "1F0 1B0 1F1 1B1"],
        ["0F0 0B0 0F1 0B1", "1F1 1F0 1B0 1B1"],  # rank 0 waits for B0, rank 1 for F1
        ["0F0 0F1 0B0 0B1", "1F0 1B0"],  # nobody runs 1B1
    ],
)
def test_a_schedule_that_deadlocks_is_refused(monkeypatch: pytest.MonkeyPatch, lists: list[str]) -> None:
    orders = [[Action.parse(text) for text in line.split()] for line in lists]
    monkeypatch.setattr(type(get("gpipe")), "actions", lambda *_: orders)
    build_dag.cache_clear()
    with pytest.raises(InputError, match="deadlocks"):
        build_dag("gpipe", 2, 2, 1, CommPlan())


@pytest.mark.slow
def test_large_dags_are_fast() -> None:
    """16 ranks, 256 micro-batches, 4 virtual stages, 64 candidates: limits with room for a busy machine."""
    build_dag.cache_clear()
    begun = time.perf_counter()
    dag = build_dag("interleaved-1f1b", 16, 256, 4, CommPlan())
    assert time.perf_counter() - begun < 2.0
    # 2*256*64 actions, 2*256*63 sends and receives, 3 nodes a rank.
    assert dag.n == 2 * 256 * 64 + 2 * (2 * 256 * 63) + 3 * 16
    seconds = durations(dag, costs_of(16, 4, 1, 64, seed=1))
    took = []
    for _ in range(3):
        begun = time.perf_counter()
        simulate(dag, seconds)
        took.append(time.perf_counter() - begun)
    assert min(took) < 64 * 0.020
