"""Zero-bubble and dual schedules: PyTorch's own lists, the papers' closed forms, tables worked by hand."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from hwmodels.errors import InputError
from planner.schedule import Action, Kind, get

F, B, I, W = Kind.FORWARD, Kind.BACKWARD, Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT  # noqa: E741


def lines(name: str, *degrees: int) -> list[str]:
    return [" ".join(map(str, order)) for order in get(name).actions(*degrees)]


class Played:
    """A schedule with given times, F and B of a pair run as one where `pair` is given; sends take nothing."""

    def __init__(self, name: str, pp: int, microbatches: int, vpp: int, times: dict[Kind, float], pair: float = 0.0):
        self.length = pp * vpp
        lists = [list(_items(order, pair > 0)) for order in get(name).actions(pp, microbatches, vpp)]
        ends: dict[tuple[int, str, int | None], float] = {}
        at, clock, self.busy = [0] * pp, [0.0] * pp, [0.0] * pp
        self.first = [-1.0] * pp
        moved = True
        while moved:
            moved = False
            for rank, order in enumerate(lists):
                while at[rank] < len(order):
                    item = order[at[rank]]
                    needs = [need for action in item for need in self.needs(action)]
                    if any(need not in ends for need in needs):
                        break
                    begun = max([clock[rank], *(ends[need] for need in needs)])
                    self.first[rank] = begun if self.first[rank] < 0 else self.first[rank]
                    took = pair if len(item) == 2 else times[item[0].kind]
                    clock[rank] = begun + took
                    self.busy[rank] += took
                    for action in item:
                        key = {F: "F", B: "I", I: "I", W: "W"}[action.kind]
                        ends[action.stage, key, action.microbatch] = clock[rank]
                    at[rank] += 1
                    moved = True
        assert at == [len(order) for order in lists]
        self.step = max(clock)
        self.idle = [self.step - busy for busy in self.busy]
        self.waits = [end - first - busy for end, first, busy in zip(clock, self.first, self.busy, strict=True)]

    def needs(self, action: Action) -> list[tuple[int, str, int | None]]:
        s, m = action.stage, action.microbatch
        if action.kind is F:
            return [(s - 1, "F", m)] if s % self.length else []
        if action.kind is W:
            return [(s, "I", m)]
        return [(s, "F", m), *([(s + 1, "I", m)] if (s + 1) % self.length else [])]


def _items(order: list[Action], paired: bool) -> Iterator[tuple[Action, ...]]:
    i = 0
    while i < len(order):
        together = paired and order[i].kind is F and i + 1 < len(order) and order[i + 1].kind is B
        yield tuple(order[i : i + 2]) if together else (order[i],)
        i += 2 if together else 1


UNIT = {F: 1.0, B: 2.0, I: 1.0, W: 1.0}


def times(f: float, i: float, w: float) -> dict[Kind, float]:
    return {F: f, B: i + w, I: i, W: w}


# pp=2, M=3, unit times. Rank 1 (delay 1) runs its W one micro-batch late:
#   t       0  1  2  3  4  5  6  7  8  9
#   rank 0  F0 F1 .  I0 W0 F2 I1 W1 I2 W2     I0 needs 1I0 (ends 3), I1 needs 1I1 (ends 5), I2 needs 1I2 (ends 8)
#   rank 1  .  F0 I0 F1 I1 W0 F2 I2 W1 W2     F2 needs 0F2 (ends 6)
def test_zb_h1_two_ranks_three_microbatches() -> None:
    assert lines("zb-h1", 2, 3) == ["0F0 0F1 0I0 0W0 0F2 0I1 0W1 0I2 0W2", "1F0 1I0 1F1 1I1 1W0 1F2 1I2 1W1 1W2"]
    played = Played("zb-h1", 2, 3, 1, UNIT)
    assert played.step == 10.0
    assert played.idle == [1.0, 1.0]


# pp=2, M=3 = 2pp-1. Rank 0: 3 F of stage 0, then F I W of stage 3 as its micro-batches come back, and so on.
def test_zb_v_two_ranks_three_microbatches() -> None:
    assert lines("zb-v", 2, 3, 2) == [
        "0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 3W1 0I0 0W0 3F2 3I2 3W2 0I1 0W1 0I2 0W2",
        "1F0 2F0 1F1 2F1 2I0 2W0 1F2 1I0 1W0 2F2 2I1 2W1 1I1 2I2 1I2 1W1 2W2 1W2",
    ]
    played = Played("zb-v", 2, 3, 2, UNIT)
    # 18 units of work a rank, one unit until rank 1 has something to do, nobody waits after that.
    assert (played.step, played.waits) == (19.0, [0.0, 0.0])


# pp=2: half=1, so no rank has anything but steps 2, 4, 6 and 8: F F, (F B F B) x (M/2 - 1), I I, W W.
def test_dualpipe_two_ranks_four_microbatches() -> None:
    assert lines("dualpipe", 2, 4) == [
        "0F0 3F2 0F1 3B2 3F3 0B0 3B3 0I1 0W1",
        "2F2 1F0 2F3 1B0 1F1 2B2 1B1 2I3 2W3",
    ]
    assert Played("dualpipe", 2, 4, 1, UNIT).idle == [0.0, 0.0]


@pytest.mark.parametrize(("pp", "microbatches"), [(2, 2), (2, 7), (3, 8), (4, 8), (8, 20)])
@pytest.mark.parametrize("unit", [(1.0, 1.0, 1.0), (2.0, 3.0, 2.0), (4.0, 5.0, 3.0)])
def test_zb_h1_has_the_bubble_and_the_memory_of_the_paper(
    pp: int, microbatches: int, unit: tuple[float, float, float]
) -> None:
    f, i, w = unit
    played = Played("zb-h1", pp, microbatches, 1, times(f, i, w))
    # Table 2 of arXiv:2401.10241: (p-1)(TF+TB-TW); with B = I + W, (p-1)(F+B-2W). 1F1B: (p-1)(F+B).
    if microbatches >= pp:
        assert played.idle == [(pp - 1) * (f + i - w)] * pp
    assert Played("1f1b", pp, microbatches, 1, times(f, i, w)).step > played.step
    # No rank holds more than the first one of 1F1B.
    assert max(get("zb-h1").in_flight(pp, microbatches)) == get("1f1b").in_flight(pp, microbatches)[0]


@pytest.mark.parametrize("vpp", [2, 3])
@pytest.mark.parametrize(("pp", "rounds"), [(2, 2), (4, 1), (4, 4)])
def test_interleaved_zb_has_the_bubble_of_zb_h1_over_vpp(pp: int, rounds: int, vpp: int) -> None:
    f, i, w = 4.0, 5.0, 3.0
    whole = Played("zb-h1", pp, pp * rounds, 1, times(f, i, w)).idle
    parts = Played("interleaved-zb", pp, pp * rounds, vpp, times(f / vpp, i / vpp, w / vpp)).idle
    assert parts == pytest.approx([idle / vpp for idle in whole])


@pytest.mark.parametrize(("pp", "microbatches"), [(2, 3), (2, 8), (4, 7), (4, 8), (8, 24)])
def test_zb_v_has_no_bubble_at_equal_times(pp: int, microbatches: int) -> None:
    played = Played("zb-v", pp, microbatches, 2, UNIT)
    assert played.waits == [0.0] * pp
    assert played.step == 6 * microbatches + pp - 1
    # 2p halves of an activation, as many bytes as p whole ones of 1F1B's first rank.
    assert get("zb-v").in_flight(pp, microbatches, 2) == [2 * pp] * pp


@pytest.mark.parametrize(
    ("f", "i", "w", "pair"), [(1.0, 1.0, 1.0, 3.0), (2.0, 3.0, 2.0, 7.0), (2.0, 3.0, 1.0, 6.0), (4.0, 5.0, 3.0, 12.0)]
)
def test_dual_schedules_have_the_bubble_of_the_report(f: float, i: float, w: float, pair: float) -> None:
    """Table 2 of arXiv:2412.19437: (PP/2-1)(F&B + B - 3W) for PP stages; DualPipeV has half the ranks.

    With F&B as one action. As two actions in turn the output of F leaves before B has ended, so the
    bubble is no larger.
    """
    bubble = pair + (i + w) - 3 * w
    for pp, microbatches in [(2, 4), (4, 8), (8, 20), (8, 32)]:
        played = Played("dualpipe", pp, microbatches, 1, times(f, i, w), pair)
        assert max(played.idle) == pytest.approx((pp / 2 - 1) * bubble)
        assert Played("dualpipe", pp, microbatches, 1, times(f, i, w)).step <= played.step
        assert get("dualpipe").in_flight(pp, microbatches) == [pp + 1] * pp
    for pp, microbatches in [(2, 4), (4, 8), (4, 20)]:
        played = Played("dualpipe-v", pp, microbatches, 2, times(f, i, w), pair)
        assert max(played.idle) == pytest.approx((pp - 1) * bubble)
        assert get("dualpipe-v").in_flight(pp, microbatches, 2) == [2 * pp + 1] * pp


def test_dualpipe_v_is_dualpipe_cut_in_half() -> None:
    """A rank of DualPipeV runs what the rank of a DualPipe over twice the ranks runs, with as many micro-batches."""
    for pp, microbatches in [(2, 4), (4, 9)]:
        half = get("dualpipe-v").actions(pp, microbatches, 2)
        whole = get("dualpipe").actions(2 * pp, 2 * microbatches)
        for rank in range(pp):
            shape = [(a.stage == rank, a.kind, a.microbatch) for a in half[rank]]
            assert shape == [(a.stage == rank, a.kind, (a.microbatch or 0) % microbatches) for a in whole[rank]]


def _stages(pp: int, indices: list[int], total: int) -> list[Any]:
    return [
        SimpleNamespace(
            num_stages=total, group_size=pp, group_rank=0, stage_index=s, is_last=False, is_first=False, submod=None
        )
        for s in indices
    ]


def _text(actions: list[Any]) -> list[str]:
    """PyTorch's list without bubbles; its OVERLAP_F_B runs its parts one after the other."""
    found = []
    for action in actions:
        if action is not None:
            found += [str(part) for part in action.sub_actions or (action,)]
    return found


@pytest.mark.parametrize(
    ("name", "pp", "microbatches", "vpp"),
    [
        ("zb-h1", 2, 2, 1), ("zb-h1", 4, 12, 1), ("zb-h1", 3, 9, 1), ("zb-h1", 8, 8, 1),
        ("interleaved-zb", 2, 2, 2), ("interleaved-zb", 4, 16, 3), ("interleaved-zb", 8, 8, 2),
        ("zb-v", 2, 1, 2), ("zb-v", 2, 3, 2), ("zb-v", 4, 5, 2), ("zb-v", 4, 16, 2), ("zb-v", 8, 24, 2),
        ("dualpipe-v", 2, 4, 2), ("dualpipe-v", 4, 8, 2), ("dualpipe-v", 4, 17, 2), ("dualpipe-v", 8, 16, 2),
    ],
)  # fmt: skip
def test_equals_the_list_that_pytorch_makes(name: str, pp: int, microbatches: int, vpp: int) -> None:
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    schedule = get(name)
    total = pp * vpp
    own = [s for s in range(total) if schedule.rank_of(s, pp) == 0]
    theirs = getattr(schedules, schedule.torch_class)(_stages(pp, own, total), microbatches)
    ours = schedule.actions(pp, microbatches, vpp)
    for rank in range(pp):
        assert [str(a) for a in ours[rank]] == _text(theirs.pipeline_order[rank])
        assert all(theirs.stage_index_to_group_rank[a.stage] == rank for a in ours[rank])


@pytest.mark.parametrize(
    ("name", "degrees", "words"),
    [
        ("zb-v", (4, 8, 3), ["vpp=3", "vpp=2"]),
        ("dualpipe", (3, 12, 1), ["pp=3", "schedule-pp"]),
        ("dualpipe", (4, 6, 1), ["6 micro-batches", "8 micro-batches", "schedule-microbatches"]),
        ("dualpipe", (2, 5, 1), ["5 micro-batches", "half of the micro-batches"]),
        ("dualpipe-v", (4, 7, 2), ["7 micro-batches", "8 micro-batches"]),
        ("interleaved-zb", (4, 3, 1), ["vpp=1", "schedule-microbatches"]),
    ],
)
def test_faults_name_a_way_out(name: str, degrees: tuple[int, int, int], words: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        get(name).actions(*degrees)
    assert all(word in str(caught.value) for word in words)
