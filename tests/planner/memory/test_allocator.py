"""Allocated, reserved and device bytes, and the verdict."""

import pytest

from planner.memory.allocator import FRAGMENTATION, SEGMENT_BYTES, footprint, fragments, verdict


def test_fragments_are_whole_segments() -> None:
    assert float(fragments(0.0)) == 0.0
    assert float(fragments(1.0)) == SEGMENT_BYTES
    assert float(fragments(100 * 2.0**30)) % SEGMENT_BYTES == 0.0
    assert float(fragments(100 * 2.0**30)) == pytest.approx(FRAGMENTATION.value * 100 * 2.0**30, rel=1e-3)


def test_the_three_figures_of_a_device() -> None:
    found = footprint(50.0e9, 1.0e9)
    assert float(found.allocated) == 50.0e9
    assert float(found.mid) == float(found.reserved) + 1.0e9
    assert float(found.low) < float(found.allocated) + 1.0e9 < float(found.mid) < float(found.high)


def test_the_verdict_has_three_answers() -> None:
    assert verdict(40.0, 60.0, 80.0) == "fits"
    assert verdict(70.0, 90.0, 80.0) == "at risk"
    assert verdict(81.0, 90.0, 80.0) == "out of memory"
