"""Conformance of every registered schedule, and equality with PyTorch's own lists."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hwmodels.errors import InputError
from planner.schedule import COMPUTE_KINDS, Action, Kind, Schedule, get, names
from planner.schedule.interleaved_1f1b import round_order, round_size


@st.composite
def cases(draw: st.DrawFn) -> tuple[Schedule, int, int, int]:
    schedule = get(draw(st.sampled_from(names())))
    pp = schedule.pp_multiple * draw(st.integers(1, 9 // schedule.pp_multiple))
    vpp = schedule.vpp_only or (draw(st.integers(2, 4)) if schedule.interleaved else 1)
    multiple = schedule.microbatch_multiple(pp)
    least = -(-schedule.least_microbatches(pp) // multiple)
    return schedule, pp, multiple * draw(st.integers(least, max(least + 3, 24 // multiple))), vpp


@given(cases())
@settings(deadline=None, max_examples=60)
def test_arrays_are_the_lists(case: tuple[Schedule, int, int, int]) -> None:
    schedule, pp, microbatches, vpp = case
    found = schedule.arrays(pp, microbatches, vpp)
    columns = zip(found.rank, found.stage, found.kind, found.microbatch, strict=True)
    assert [(r, Action(int(s), COMPUTE_KINDS[k], int(m))) for r, s, k, m in columns] == [
        (rank, action) for rank, order in enumerate(schedule.actions(pp, microbatches, vpp)) for action in order
    ]


def test_arrays_of_what_cannot_run_are_refused() -> None:
    for schedule, vpp in ((get("1f1b"), 2), (get("interleaved-1f1b"), 1)):
        with pytest.raises(InputError, match="vpp"):
            schedule.arrays(2, 4, vpp)


def test_the_three_first_schedules_are_registered() -> None:
    assert {"gpipe", "1f1b", "interleaved-1f1b"} <= set(names())


def test_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(InputError, match="1f1b"):
        get("2f2b")


@given(cases())
@settings(deadline=None, max_examples=60)
def test_each_microbatch_once_per_stage_on_the_right_rank(case: tuple[Schedule, int, int, int]) -> None:
    schedule, pp, microbatches, vpp = case
    lists = schedule.actions(pp, microbatches, vpp)
    assert len(lists) == pp
    seen = [action for order in lists for action in order]
    assert len(seen) == len(set(seen))
    by_place: dict[tuple[int, int | None], set[Kind]] = {}
    for action in seen:
        by_place.setdefault((action.stage, action.microbatch), set()).add(action.kind)
    whole, split = {Kind.FORWARD, Kind.BACKWARD}, {Kind.FORWARD, Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT}
    assert all(kinds in ([whole, split] if schedule.split_backward else [whole]) for kinds in by_place.values())
    # Each position in the model sees every micro-batch once, whichever copy of the pipeline runs it.
    ran = sorted((schedule.layers_of(stage, pp, vpp), m) for stage, m in by_place)
    assert ran == [(s, m) for s in range(pp * vpp) for m in range(microbatches)]
    for stage in range(schedule.n_stages(pp, vpp)):
        assert [m for s, m in sorted(by_place) if s == stage] == list(
            schedule.microbatches_of(stage, pp, microbatches, vpp)
        )
    for rank, order in enumerate(lists):
        assert all(schedule.rank_of(action.stage, pp) == rank for action in order)
        chunks = {schedule.chunk_of(action.stage, pp) for action in order}
        assert chunks == set(range(schedule.chunks(vpp)))


def _inputs(action: Action, length: int) -> list[tuple[int, str, int | None]]:
    """What must have run before an action, from the meaning of forward and backward alone; I and B both make ``I``."""
    s, m = action.stage, action.microbatch
    if action.kind is Kind.FORWARD:
        return [(s - 1, "F", m)] if s % length else []
    if action.kind is Kind.BACKWARD_WEIGHT:
        return [(s, "I", m)]
    before = [(s, "F", m)]
    if s % length < length - 1:
        before.append((s + 1, "I", m))
    return before


@given(cases())
@settings(deadline=None, max_examples=60)
def test_no_deadlock(case: tuple[Schedule, int, int, int]) -> None:
    schedule, pp, microbatches, vpp = case
    lists = schedule.actions(pp, microbatches, vpp)
    at, done = [0] * pp, set[tuple[int, str, int | None]]()
    makes = {Kind.FORWARD: "F", Kind.BACKWARD: "I", Kind.BACKWARD_INPUT: "I", Kind.BACKWARD_WEIGHT: "W"}
    moved = True
    while moved:
        moved = False
        for rank, order in enumerate(lists):
            while at[rank] < len(order) and all(x in done for x in _inputs(order[at[rank]], pp * vpp)):
                action = order[at[rank]]
                done.add((action.stage, makes[action.kind], action.microbatch))
                at[rank] += 1
                moved = True
    assert at == [len(order) for order in lists]


@given(cases())
@settings(deadline=None, max_examples=60)
def test_in_flight_equals_the_count(case: tuple[Schedule, int, int, int]) -> None:
    schedule, pp, microbatches, vpp = case
    counted, losses = [], []
    for order in schedule.actions(pp, microbatches, vpp):
        held = peak = loss = most = 0
        for action in order:
            held += (action.kind is Kind.FORWARD) - (action.kind in (Kind.BACKWARD, Kind.BACKWARD_WEIGHT))
            peak = max(peak, held)
            if action.stage % (pp * vpp) == pp * vpp - 1 and action.kind is not Kind.BACKWARD_WEIGHT:
                loss += 1 if action.kind is Kind.FORWARD else -1
                most = max(most, loss)
        counted.append(peak)
        losses.append(most)
    assert schedule.in_flight(pp, microbatches, vpp) == counted
    assert schedule.at_loss(pp, microbatches, vpp) == losses


@given(cases(), st.lists(st.integers(1, 9), min_size=64, max_size=64))
@settings(deadline=None, max_examples=60)
def test_held_gives_the_peak_whatever_a_stage_saves(case: tuple[Schedule, int, int, int], weights: list[int]) -> None:
    """`weights` are bytes of an activation, then what is left of it between I and W (which may be more)."""
    schedule, pp, microbatches, vpp = case
    moments = schedule.held(pp, microbatches, vpp)
    chunks = schedule.chunks(vpp)
    for rank, order in enumerate(schedule.actions(pp, microbatches, vpp)):
        saved = [weights[(rank * vpp + i) % len(weights)] for i in range(2 * chunks)]
        held = peak = 0
        for action in order:
            chunk = schedule.chunk_of(action.stage, pp)
            if action.kind is Kind.FORWARD:
                held += saved[chunk]
            elif action.kind is Kind.BACKWARD_WEIGHT:
                held -= saved[chunks + chunk]
            else:
                held -= saved[chunk]
                held += saved[chunks + chunk] if action.kind is Kind.BACKWARD_INPUT else 0
            peak = max(peak, held)
        assert max(sum(n * s for n, s in zip(m, saved, strict=False)) for m in moments[rank]) == peak


@given(cases())
@settings(deadline=None, max_examples=20)
def test_text_round_trip(case: tuple[Schedule, int, int, int]) -> None:
    schedule, pp, microbatches, vpp = case
    for order in schedule.actions(pp, microbatches, vpp):
        assert [Action.parse(str(action)) for action in order] == order


@pytest.mark.parametrize("kind", list(Kind))
def test_text_round_trip_of_every_kind(kind: Kind) -> None:
    action = Action(12, kind, 7 if kind in COMPUTE_KINDS or kind.value[-2:] in ("_F", "_B") else None)
    assert Action.parse(str(action)) == action


@pytest.mark.parametrize("text", ["", "F3", "0Q1", "0F1 ", "-1F0", "0FF0"])
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not an action"):
        Action.parse(text)


# Written by hand from figure 4 of arXiv:2104.04473 (pp=2): the last rank alternates at once, the first
# runs one forward ahead.
def test_1f1b_two_ranks_three_microbatches() -> None:
    lists = [" ".join(map(str, order)) for order in get("1f1b").actions(2, 3)]
    assert lists == ["0F0 0F1 0B0 0F2 0B1 0B2", "1F0 1B0 1F1 1B1 1F2 1B2"]


# pp=2, vpp=2, M=2: warm-up of rank 0 is (2-1)*2 + 2*1 = 4 = all forwards, of rank 1 it is 2.
def test_interleaved_two_ranks_two_chunks() -> None:
    lists = [" ".join(map(str, order)) for order in get("interleaved-1f1b").actions(2, 2, 2)]
    assert lists == ["0F0 0F1 2F0 2F1 2B0 2B1 0B0 0B1", "1F0 1F1 3F0 3B0 3F1 3B1 1B0 1B1"]


# Megatron-Core, ModelParallelConfig.microbatch_group_size_per_vp_stage: for PP=2 VP=2, groups of 3 and 5 micro-batches
# a rank's forwards take the micro-batches 0 1 2 0 1 2 3 4 3 4.
def test_rounds_that_pp_does_not_divide() -> None:
    assert [m for _, m in round_order(5, 3, 2)] == [0, 1, 2, 0, 1, 2, 3, 4, 3, 4]
    # 5 = 3 + 2: rounds of 2 would leave one micro-batch for the last
    assert round_size(2, 5) == 3 and round_size(2, 4) == 2
    # the functional tests of Megatron-Core run 5 and 10 micro-batches on four ranks in groups of 5
    assert round_size(4, 5) == 5 and round_size(4, 10) == 5
    # 11 on four: 4 leaves 3, 5 leaves 1, 6 leaves 5
    assert round_size(4, 11) == 6
    # rank 1 of 2 warms up with (2-1)*3 forwards of rounds of 3
    last = " ".join(map(str, get("interleaved-1f1b").actions(2, 5, 2)[1]))
    assert last.startswith("1F0 1F1 1F2 3F0 3B0 3F1 3B1 3F2 3B2 1F3 1B0")


@pytest.mark.parametrize(
    ("name", "degrees", "words"),
    [
        ("1f1b", (2, 4, 2), ["vpp=2"]),
        ("gpipe", (0, -1, 1), ["pp is 0", "micro-batches is -1"]),
        ("interleaved-1f1b", (4, 3, 1), ["vpp=1", "3 micro-batches with pp=4", "schedule-microbatches"]),
    ],
)
def test_all_faults_at_once(name: str, degrees: tuple[int, int, int], words: list[str]) -> None:
    for call in (get(name).actions, get(name).in_flight):
        with pytest.raises(InputError) as caught:
            call(*degrees)
        assert all(word in str(caught.value) for word in words)


def test_microbatch_multiple_is_what_check_accepts() -> None:
    for name in names():
        schedule = get(name)
        for pp in range(1, 6):
            vpp = 2 if schedule.interleaved else 1
            accepted = [m for m in range(1, 25) if not schedule.check(pp, m, vpp)]
            multiple, least = schedule.microbatch_multiple(pp), schedule.least_microbatches(pp)
            legal = [m for m in range(least, 25) if m % multiple == 0]
            assert accepted == (legal if pp % schedule.pp_multiple == 0 else [])


class _Recorder:
    """A pipeline stage that communicates and computes nothing, but writes down what it was told to run."""

    def __init__(self, rank: int, pp: int) -> None:
        self.stage_index, self.num_stages, self.is_last = rank, pp, rank == pp - 1
        self.ran: list[str] = []

    def forward_one_chunk(self, m: int, *_: Any, **__: Any) -> None:
        self.ran.append(f"{self.stage_index}F{m}")

    def backward_one_chunk(self, m: int, **__: Any) -> None:
        self.ran.append(f"{self.stage_index}B{m}")

    def perform_reduce_grad(self, *_: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        if name.startswith("get_"):
            return lambda *_: []
        raise AttributeError(name)


@pytest.mark.parametrize("name", [n for n in names() if n in ("gpipe", "1f1b")])
def test_runs_what_pytorch_runs(name: str) -> None:
    """The loops of ScheduleGPipe and Schedule1F1B themselves, on a stage that records.

    Not their ``pipeline_order``: that of Schedule1F1B in 2.13 starts the last rank with micro-batch 1.
    """
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    torch_class = getattr(schedules, get(name).torch_class)
    for pp, microbatches in [(1, 3), (2, 2), (2, 5), (4, 4), (4, 11), (8, 16)]:
        ours = get(name).actions(pp, microbatches)
        for rank in range(pp):
            stage = _Recorder(rank, pp)
            theirs = torch_class(stage, microbatches)
            theirs._initialize_stage = lambda *_: None
            theirs._step_microbatches([()] * microbatches, [{}] * microbatches)
            assert [str(action) for action in ours[rank]] == stage.ran


@pytest.mark.parametrize("name", ["interleaved-1f1b"])
def test_interleaved_equals_pytorchs_pipeline_order(name: str) -> None:
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    torch_class = getattr(schedules, get(name).torch_class)
    whole = [(2, 2, 2), (2, 8, 3), (4, 4, 2), (4, 16, 4), (8, 16, 2), (3, 9, 5)]
    for pp, microbatches, vpp in [*whole, (2, 3, 2), (4, 5, 3), (4, 10, 3)]:
        stages = [
            SimpleNamespace(num_stages=pp * vpp, group_size=pp, group_rank=0, stage_index=chunk * pp, is_last=False)
            for chunk in range(vpp)
        ]
        theirs = torch_class(stages, microbatches)
        ours = get(name).actions(pp, microbatches, vpp)
        assert set(theirs.pipeline_order) == set(range(pp))
        for rank in range(pp):
            assert [str(a) for a in ours[rank]] == [str(a) for a in theirs.pipeline_order[rank] if a is not None]
