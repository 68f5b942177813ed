"""`predict` against an independent reference in plain floats: step time, memory and FLOPs to 1e-9.

Both follow the same sources by different ways; they agree to the last digit.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings

from planner.results import Step
from planner.schedule import get as get_schedule
from tests.reference.cases import CASES, Case, cases, found, wanted
from tests.reference.step import Reference

EXACT = 1e-9
MICROBATCH_PHASES = ("forward", "backward", "recompute", "tp_comm", "cp_comm", "ep_comm", "host")
BY_NAME = {case.name: case for case in CASES}


def same_memory(step: Step, expectation: Reference) -> None:
    """Every category of every pipeline rank, to the byte that truncation leaves open."""
    assert len(step.memory) == len(expectation.memory)
    for stage, expected in zip(step.memory, expectation.memory, strict=True):
        assert sum(expected.by_category.values()) == pytest.approx(stage.peak_bytes, rel=EXACT, abs=20.0), stage.stage
        assert set(expected.by_category) <= set(stage.by_category)
        for category, nbytes in stage.by_category.items():
            own = expected.by_category.get(category, 0.0)
            assert nbytes == pytest.approx(own, rel=EXACT, abs=1.0), (stage.stage, category, stage.moment)


def same(case: Case) -> None:
    """Everything that both know of one prediction."""
    step, expected = found(case), wanted(case)
    assert step.step_s.mid == pytest.approx(expected.step_s, rel=EXACT)
    same_memory(step, expected)
    assert step.model_flops == pytest.approx(expected.model_flops, rel=EXACT)
    # A rank's micro-batches take what its virtual stages take, forward and backward.
    lay, count = case.layout, case.layout.microbatches(case.workload.gbs)
    schedule = get_schedule(lay.schedule)
    for rank, phases in enumerate(step.phases):
        own = [s for s in range(len(expected.forward_s)) if schedule.rank_of(s, lay.pp) == rank]
        each = sum(expected.forward_s[s] + expected.backward_s[s] for s in own) / schedule.directions
        seconds = count * each + expected.took.step
        assert sum(phases[name] for name in MICROBATCH_PHASES) == pytest.approx(seconds, rel=EXACT)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_one_of_each_strategy(case: Case) -> None:
    same(case)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(case=cases())
def test_random_legal_layouts(case: Case) -> None:
    same(case)
