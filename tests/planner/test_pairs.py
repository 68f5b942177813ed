"""Forwards that find a backward to run beside, counted by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.pairs import unpaired, unpaired_shares


def test_without_a_pipeline_the_first_forward_and_the_last_backward_run_alone() -> None:
    # 0F0 0B0 0F1 0B1 ... : B0 with F1, B1 with F2, B2 with F3; 1 of 4 forwards is alone.
    assert unpaired("1f1b", 1, 4, 1) == (0.25,)
    assert unpaired("1f1b", 1, 1, 1) == (1.0,)


def test_gpipe_pairs_one() -> None:
    # All forwards, then all backwards: the last F and the first B touch, and are other micro-batches where m > 1.
    assert unpaired("gpipe", 2, 4, 1)[0] in (0.75, 1.0)


def test_1f1b_pairs_all_but_the_warm_up() -> None:
    # Rank 0 of 4 with 8 micro-batches: 3 warm-up forwards; of the other 5 each has a backward next to it.
    # F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 F7 B4 B5 B6 B7
    assert unpaired("1f1b", 4, 8, 1)[0] == pytest.approx(3 / 8)
    # The last rank: F0 B0 F1 B1 ...: each F after the first with the B before it.
    assert unpaired("1f1b", 4, 8, 1)[3] == pytest.approx(1 / 8)


@given(st.sampled_from(["1f1b", "interleaved-1f1b", "dualpipe", "gpipe"]), st.sampled_from([2, 4]), st.integers(2, 4))
def test_shares_are_shares_and_more_micro_batches_hide_more(schedule: str, pp: int, rounds: int) -> None:
    vpp = 2 if schedule.startswith("interleaved") else 1
    few, many = unpaired(schedule, pp, 2 * pp, vpp), unpaired(schedule, pp, 2 * pp * rounds, vpp)
    for a, b in zip(few, many, strict=True):
        assert 0.0 <= b <= 1.0
        assert b <= a + 1e-12 or schedule == "gpipe"


def test_a_batch_is_its_rows() -> None:
    import numpy as np

    found = unpaired_shares("1f1b", 2, np.asarray([4, 8]), 1)
    assert found.shape == (2, 2)
    assert tuple(found[1]) == unpaired("1f1b", 2, 8, 1)
