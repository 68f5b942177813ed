"""`predict` against an independent reference in plain floats: step time, memory and FLOPs to 1e-9.

The reference imitates the known `DIFFERENCES`, so that all the rest is compared to the last digit. Each
difference is then shown alone, as a strict expected failure: it passes, and so fails the suite, as soon as the product
follows the source; its name then leaves `DIFFERENCES` and `SHOWN`, and its branch the reference.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings

from planner.results import Step
from tests.reference.cases import CASES, Case, cases, found, wanted
from tests.reference.step import DIFFERENCES, Reference, reference

EXACT = 1e-9
MICROBATCH_PHASES = ("forward", "backward", "recompute", "tp_comm", "cp_comm", "ep_comm", "host")
BY_NAME = {case.name: case for case in CASES}


def same_memory(step: Step, expectation: Reference) -> None:
    """Every category of every pipeline rank, to the byte that truncation leaves open."""
    assert len(step.memory) == len(expectation.memory)
    for stage, expected in zip(step.memory, expectation.memory, strict=True):
        assert set(stage.by_category) == set(expected)
        for category, nbytes in expected.items():
            assert stage.by_category[category] == pytest.approx(nbytes, rel=EXACT, abs=1.0), (stage.stage, category)


def same(case: Case) -> None:
    """Everything that both know of one prediction."""
    step, expected = found(case), wanted(case)
    assert step.step_s.mid == pytest.approx(expected.step_s, rel=EXACT)
    same_memory(step, expected)
    assert step.model_flops == pytest.approx(expected.model_flops, rel=EXACT)
    # A rank's micro-batches take what its virtual stages take, forward and backward.
    lay, count = case.layout, case.layout.microbatches(case.workload.gbs)
    for rank, phases in enumerate(step.phases):
        own = range(rank, lay.pp * lay.vpp, lay.pp)
        seconds = count * sum(expected.forward_s[s] + expected.backward_s[s] for s in own) + expected.took.step
        assert sum(phases[name] for name in MICROBATCH_PHASES) == pytest.approx(seconds, rel=EXACT)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_one_of_each_strategy(case: Case) -> None:
    same(case)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(case=cases())
def test_random_legal_layouts(case: Case) -> None:
    same(case)


SHOWN = {
    "recompute-head": "zero-3 generic",
    "cp-last-chunk": "cp",
    "accumulates-sharded": "zero-2 once a step",
    "zero-gather-exposed": "zero-1",
    "expert-shard-traffic": "moe hsdp",
    "edp-without-dp": "moe tp alone",
    "mean-chunk": "interleaved",
    "gradient-of-every-logit": "gpipe",
    "rebuilt-anywhere": "moe pipeline",
    "etp-gathers-copies": "moe etp within tp",
    "qk-norm-input": "qk norm",
    "parallel-input-twice": "parallel block",
}
"""Difference -> a case that it changes."""


@pytest.mark.parametrize("name", sorted(DIFFERENCES))
def test_every_difference_has_a_case_that_it_changes(name: str) -> None:
    case = BY_NAME[SHOWN[name]]
    imitated = wanted(case)
    right = reference(*case.parts, set(DIFFERENCES) - {name})
    assert (imitated.step_s, imitated.memory) != (right.step_s, right.memory)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.xfail(strict=True, reason=t)) for n, t in sorted(DIFFERENCES.items())]
)
def test_the_product_follows_the_source(name: str) -> None:
    case = BY_NAME[SHOWN[name]]
    right, step = reference(*case.parts, set(DIFFERENCES) - {name}), found(case)
    assert step.step_s.mid == pytest.approx(right.step_s, rel=EXACT)
    same_memory(step, right)
