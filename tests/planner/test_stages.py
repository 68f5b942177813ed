"""Sums over stages by kind are the sums over all stages, and distinct layouts stand for their likes."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.layout import Layout, LayoutBatch, split_id
from planner.model import load
from planner.stages import StageSums, assignment, over_stages

MODEL, _ = load("llama-2-7b")  # 32 equal layers


def sums(pp: int, vpp: int, schedule: str, splits: list[int]) -> StageSums:
    return StageSums.of(MODEL, pp, vpp, schedule, np.asarray(splits))


def test_a_deep_pipeline_has_a_first_a_last_and_equal_stages_between() -> None:
    found = sums(8, 2, "interleaved-1f1b", [0, 0])
    assert found.tables.blocks.shape == (1, 3, 3)  # one kind of layer, embedding and head; three kinds of stage
    # 32 layers on 16 stages: 2 layers each, the embedding on the first, the head on the last
    values = [np.array([5.0, 1.0]), np.array([100.0, 0.0]), np.array([1000.0, 7.0])]
    whole = found.whole(found.sum(values))
    assert whole[0, 0, 0] == 2 * 5 + 100
    assert whole[0, 7, 1] == 2 * 5 + 1000
    assert np.all(whole[0].ravel()[[1, 2, 13, 14]] == 10)
    # rank 0 holds the first stage and one in the middle
    assert found.by_rank(found.sum(values))[0, 0] == 2 * 10 + 100
    assert found.kinds.of_whole(whole).shape == (2, 3)


@settings(deadline=None, max_examples=25)
@given(
    shape=st.sampled_from([(2, 1, "1f1b"), (4, 2, "interleaved-1f1b"), (4, 2, "zb-v"), (4, 1, "dualpipe")]),
    uneven=st.booleans(),
    numbers=st.lists(st.integers(0, 50), min_size=6, max_size=6),
)
def test_sums_by_kind_are_the_sums_over_all_stages(
    shape: tuple[int, int, str], uneven: bool, numbers: list[int]
) -> None:
    pp, vpp, schedule = shape
    stages = pp * vpp
    first = 32 // stages - 1
    other = split_id((first, *(32 // stages,) * (stages - 2), 32 // stages + 1))
    splits = np.asarray([0, other if uneven else 0])
    layer, embedding, head = (np.asarray(numbers[i : i + 2], dtype=float) for i in (0, 2, 4))
    found = StageSums.of(MODEL, pp, vpp, schedule, splits)
    whole = over_stages(MODEL, pp, vpp, schedule, splits, [layer], embedding, head)
    for row, split in enumerate(splits):  # one stage at a time, from what it holds
        held = assignment(MODEL, pp, vpp, schedule, int(split))
        assert np.array_equal(whole[row], held[0] * layer[row] + held[1] * embedding[row] + held[2] * head[row])
    kinds = found.sum([layer, embedding, head])
    assert np.array_equal(found.whole(kinds), whole)
    assert np.allclose(found.by_rank(kinds), whole.sum(axis=2))
    assert np.array_equal(found.whole(found.kinds.of_whole(whole)), whole)


def test_layouts_that_agree_in_the_named_fields_share_a_number() -> None:
    batch = LayoutBatch.of([Layout(tp=2, dp=4), Layout(tp=2, dp=8), Layout(tp=1, dp=8), Layout(tp=2, dp=4, mbs=2)])
    first, same = batch.distinct(("tp", "dp"))
    assert len(first) == 3
    assert same[0] == same[3]
    assert len(set(same[:3])) == 3
    assert [int(batch.tp[first[i]]) for i in same] == [2, 2, 1, 2]
    most = 2**30
    wide = LayoutBatch.of([Layout(tp=most, dp=most, mbs=most), Layout(dp=most), Layout(tp=most, mbs=most)])
    assert len(wide.distinct(("tp", "dp", "mbs"))[0]) == 3  # too large for one number
