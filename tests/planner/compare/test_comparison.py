"""Measured against predicted with figures that can be checked in the head."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hwmodels.errors import InputError
from planner.compare import compare, compare_many
from planner.layout import Layout
from planner.plan import Plan, Prediction, Workload
from planner.results import Measurement


def plan(name="pp2", step_s=1.1, **layout):
    degrees = {"pp": 2, "dp": 2} | layout
    predicted = Prediction(
        step_s,
        step_s * 0.8,
        step_s * 1.2,
        [{"forward": 0.4, "bubble": 0.1}, {"forward": 0.2, "bubble": 0.3}],
        [100, 200],
        [],
        0.5,
        1.0,
        None,
        "fits",
    )
    return Plan(name, {}, "m", "c", Workload(16, 4), Layout(**degrees), (), (2, 2), (), (), (), (), predicted)


def measurement(of, step_s=1.0, **more):
    values = {
        "schema": 1,
        "plan_name": of.name,
        "plan_hash": of.digest(),
        "environment": {},
        "step_s": [step_s] * 3,
        "median_step_s": step_s,
        "cv": 0.01,
        "drift": 0.0,
        "stable": True,
        "records": [],
        "phases": [{"forward": 0.2, "host": 0.1}, {"forward": 0.2}, {"forward": 0.3}, {"forward": 0.3, "host": 0.3}],
        "peak_bytes": [90, 90, 210, 210],
        "correctness": {"passed": True},
        "losses": [],
    }
    return Measurement(**(values | more))


def test_signed_error_interval_and_memory():
    p = plan()
    found = compare(p, measurement(p))
    assert found.error_pct == pytest.approx(10.0)  # 1.1 against 1.0
    assert found.within_interval and found.comparable and found.notes == []  # 0.88 <= 1.0 <= 1.32
    # ranks 0, 1 are pipeline rank 0 (dp 2), ranks 2, 3 are pipeline rank 1
    assert found.memory_predicted_bytes == [100, 100, 200, 200]
    assert found.memory_measured_bytes == [90, 90, 210, 210]


def test_phases_are_means_over_ranks():
    p = plan()
    phases = {ph.phase: ph for ph in compare(p, measurement(p)).phases}
    assert list(phases) == ["forward", "host", "bubble"]  # the order of PHASES
    # predicted (0.4 + 0.2)/2 = 0.3; measured (0.2 + 0.2 + 0.3 + 0.3)/4 = 0.25: +20 %, 25 % of the 1 s step
    assert phases["forward"].predicted_s == pytest.approx(0.3)
    assert phases["forward"].error_pct == pytest.approx(20.0)
    assert phases["forward"].share_of_step_pct == pytest.approx(25.0)
    assert phases["host"].predicted_s == 0.0
    assert phases["host"].error_pct == pytest.approx(-100.0)  # measured (0.1 + 0.3)/4
    assert phases["bubble"].error_pct is None  # nothing measured


def test_what_is_not_comparable_says_why():
    p = plan()
    unstable = compare(p, measurement(p, stable=False, drift=0.2))
    assert not unstable.comparable and "drifted by +20.0 %" in unstable.notes[0]
    wrong = compare(p, measurement(p, correctness={"passed": False, "grad_rel_err": 0.5}))
    assert not wrong.comparable and "gradient error 0.5" in wrong.notes[0]
    outside = compare(p, measurement(p, step_s=2.0))
    assert outside.comparable and not outside.within_interval


def test_wrong_inputs():
    p = plan()
    with pytest.raises(InputError, match=r"measured\.json is of another plan"):
        compare(p, measurement(plan(step_s=1.1, dp=4)))
    with pytest.raises(InputError, match="carries no prediction"):
        compare(replace(p, predicted=None), measurement(p))
    with pytest.raises(InputError, match="median_step_s is 0"):
        compare(p, measurement(p, median_step_s=0.0))


def trio(**measured):
    """Plans a, b, c predicted at 1, 2, 3 s with the measured times given."""
    plans = {name: plan(name, step) for name, step in (("a", 1.0), ("b", 2.0), ("c", 3.0))}
    return [(p, measurement(p, step_s=measured[name], cv=0.03)) for name, p in plans.items()]


def test_order_is_judged_above_the_noise_only():
    # noise of each run 3 %: a pair differs above sqrt(2)*3 = 4.24 %
    found = compare_many(trio(a=1.04, b=1.0, c=2.0))
    assert found.predicted_order == ("a", "b", "c")
    assert found.measured_order == ("b", "a", "c")
    pairs = {(p.faster, p.slower): p for p in found.pairs}
    assert not pairs["b", "a"].differs and pairs["b", "a"].agrees is None
    assert pairs["b", "a"].noise_pct == pytest.approx(4.2426, abs=1e-3)
    assert found.agrees is True
    assert compare_many(trio(a=1.05, b=1.0, c=2.0)).agrees is False
    assert compare_many(trio(a=1.0, b=1.0, c=1.0)).agrees is None


def test_unstable_runs_are_left_out_of_the_order():
    runs = trio(a=9.0, b=2.0, c=3.0)
    runs[0] = (runs[0][0], replace(runs[0][1], stable=False))
    found = compare_many(runs)
    assert found.measured_order == ("b", "c") and found.agrees is True
    assert len(found.comparisons) == 3


def test_names_tell_plans_apart():
    p = plan()
    with pytest.raises(InputError, match="twice: pp2"):
        compare_many([(p, measurement(p)), (p, measurement(p))])
