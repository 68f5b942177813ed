"""Scores against values worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.compare.rows import Row
from planner.compare.scoring import (
    RowResult,
    baseline_mean_abs_pct,
    families,
    kendall_tau,
    memory_kind,
    oom_counts,
    ranking,
    regret_pct,
    score,
)
from planner.layout import Layout
from planner.results import Interval


def result(name, measured, predicted, layout=None, *, group="g", mfu=None, flags="", **more):
    row = Row(id=name, group=group, source="s", model="m", gpu="A100", other_flags=flags, step_time_s=measured, **more)
    step = None if predicted is None else Interval(predicted, predicted, predicted)
    return RowResult(row, True, layout=layout, step_s=step, mfu=mfu, verdict="fits")


def test_group_errors():
    # errors: 110/100-1 = +10 %, 90/100-1 = -10 %, 150/100-1 = +50 %, 100/100-1 = 0 %
    # mean |e| = 70/4 = 17.5; median of (0, 10, 10, 50) = 10; bias = 50/4 = 12.5
    # p90 linear: position 0.9*3 = 2.7 between 10 and 50: 10 + 0.7*40 = 38
    found = score([result(str(i), 100.0, p) for i, p in enumerate((110.0, 90.0, 150.0, 100.0))])
    assert len(found) == 1
    g = found[0]
    assert (g.group, g.metric, g.n) == ("g", "step_time", 4)
    assert g.mean_abs_pct == pytest.approx(17.5)
    assert g.median_abs_pct == pytest.approx(10.0)
    assert g.p90_abs_pct == pytest.approx(38.0)
    assert g.max_abs_pct == pytest.approx(50.0)
    assert g.bias_pct == pytest.approx(12.5)
    assert g.kendall_tau is None and g.regret_pct is None and g.baseline_mean_abs_pct is None


def test_rates_are_scored_as_rates_and_apart_from_times():
    rate = RowResult(
        Row(id="r", group="g", source="s", model="m", gpu="A100", tokens_per_s_per_gpu=200.0, step_time_s_derived=9.0),
        True,
        layout=Layout(),
        step_s=Interval(1, 1, 1),
        tokens_per_s_per_gpu=220.0,
    )
    by_metric = {g.metric: g for g in score([rate, result("t", 10.0, 9.0)])}
    assert by_metric["tokens_per_s"].bias_pct == pytest.approx(10.0)  # 220/200 - 1
    assert by_metric["step_time"].bias_pct == pytest.approx(-10.0)


def test_kendall_leaves_out_pairs_within_four_per_cent():
    # measured 100, 103, 120, 150: the pair (100, 103) is 3 % apart and does not count, 5 pairs do.
    # predicted 1, 2, 4, 3: of those only (120, 150) is discordant: C = 4, D = 1, no ties.
    # tau-b = (4 - 1) / sqrt(5 * 5) = 0.6
    tau, pairs = kendall_tau([100.0, 103.0, 120.0, 150.0], [1.0, 2.0, 4.0, 3.0])
    assert pairs == 5
    assert tau == pytest.approx(0.6)


def test_kendall_counts_predicted_ties():
    # three pairs, one tied in the prediction: C = 2, Tx = 1: tau-b = 2 / sqrt(3 * 2)
    tau, pairs = kendall_tau([1.0, 2.0, 3.0], [1.0, 1.0, 2.0])
    assert pairs == 3
    assert tau == pytest.approx(2 / math.sqrt(6))
    assert kendall_tau([1.0, 2.0], [5.0, 5.0]) == (0.0, 1)
    assert kendall_tau([1.0, 1.01], [5.0, 6.0]) == (None, 0)


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=2, max_size=12))
@settings(deadline=None, max_examples=60)
def test_kendall_equals_scipy_where_no_pair_is_left_out(points):
    stats = pytest.importorskip("scipy.stats", reason="scipy is a development dependency")
    # whole powers of 1.05 differ by more than 4 %, and equal ones are ties on the measured side
    measured = [1.05**a for a, _ in points]
    predicted = [float(b) for _, b in points]
    tau, pairs = kendall_tau(measured, predicted)
    distinct = len(set(measured)) == len(measured)
    if not distinct or len(set(predicted)) == 1:
        return
    assert pairs == len(points) * (len(points) - 1) // 2
    assert tau == pytest.approx(stats.kendalltau(measured, predicted).statistic)


def test_regret():
    # the predicted best measured 110 against a best of 100: 10 %
    assert regret_pct([100.0, 110.0, 130.0], [2.0, 1.0, 3.0]) == pytest.approx(10.0)
    assert regret_pct([100.0, 110.0], [1.0, 1.0]) == pytest.approx(5.0)  # tie: mean of both
    assert regret_pct([100.0, 110.0], [1.0, 2.0]) == 0.0


def test_baseline_is_the_best_single_constant():
    # unit 1, 1, 1 against measured 1, 1, 2: r = 1, 1, 0.5; candidates c = 1 (weights 1+1) and 2 (0.5):
    # weighted median c = 1: errors 0, 0, |0.5 - 1| = 0.5 -> 16.67 %
    assert baseline_mean_abs_pct([1.0, 1.0, 1.0], [1.0, 1.0, 2.0]) == pytest.approx(50.0 / 3)


@given(st.lists(st.tuples(st.floats(0.1, 10), st.floats(0.1, 10)), min_size=1, max_size=8))
@settings(deadline=None, max_examples=60)
def test_no_constant_beats_the_baseline(points):
    unit, measured = np.asarray(points).T
    best = baseline_mean_abs_pct(unit, measured)
    for c in np.geomspace(0.005, 200, 400):
        assert best <= np.mean(np.abs(c * unit / measured - 1)) * 100 + 1e-9


def test_baseline_of_a_group_uses_the_mfu():
    # times at MFU 1: 10*0.5 = 5, 20*0.25 = 5, measured 10 and 20: ratios r = 0.5, 0.25;
    # weighted median of 1/r = (2, 4) with weights (0.5, 0.25) is 2: errors 0 and |2*0.25 - 1| = 0.5 -> 25 %
    found = score([result("a", 10.0, 10.0, mfu=0.5), result("b", 20.0, 20.0, mfu=0.25)])[0]
    assert found.mean_abs_pct == 0.0
    assert found.baseline_mean_abs_pct == pytest.approx(25.0)


LAYOUTS = [Layout(tp=8), Layout(tp=4, dp=2), Layout(tp=2, dp=4), Layout(dp=8), Layout(tp=2, pp=4)]


def test_families_need_four_distinct_layouts_and_equal_software():
    members = [result(str(i), 1.0 + i, 1.0 + i, lay) for i, lay in enumerate(LAYOUTS[:4])]
    assert len(families(members)) == 1
    assert families(members[:3]) == []
    assert families([*members[:3], result("again", 9.0, 9.0, LAYOUTS[0])]) == []
    assert families([*members[:3], result("other", 9.0, 9.0, LAYOUTS[3], flags="no flash")]) == []
    # what restates the layout is no software flag
    assert len(families([*members[:3], result("acc", 9.0, 9.0, LAYOUTS[3], flags="grad_accum=4")])) == 1


def test_ranking_is_weighted_by_pairs():
    right = [result(f"a{i}", 1.0 + i, 1.0 + i, lay) for i, lay in enumerate(LAYOUTS)]  # 10 pairs, tau 1
    wrong = [result(f"b{i}", 1.0 + i, 9.0 - i, lay, flags="x") for i, lay in enumerate(LAYOUTS[:4])]  # 6 pairs, tau -1
    tau, regret, n = ranking(right + wrong)
    assert n == 2
    assert tau == pytest.approx((10 - 6) / 16)
    # regret: 0 in the first; predicted best of the second measured 4 against 1: 300 %
    assert regret == pytest.approx(150.0)


def test_memory_kinds_are_never_mixed():
    def memory(name, kind, measured_gib, predicted_gib):
        row = Row(id=name, group="g", source="s", model="m", gpu="A100", peak_mem_gib=measured_gib, mem_kind=kind)
        return RowResult(row, True, layout=Layout(), peak_bytes=predicted_gib * 2**30, verdict="fits")

    found = score(
        [memory("a", "torch max_memory_allocated (reserved 70.88 GiB)", 10, 11), memory("b", "printed as GB", 10, 8)]
    )
    assert {g.metric: round(g.bias_pct, 6) for g in found} == {
        "peak_memory:allocated": 10.0,
        "peak_memory:unstated": -20.0,
    }
    assert (
        memory_kind(Row(id="a", group="g", source="", model="", gpu="", mem_kind="torch peak reserved")) == "reserved"
    )


def test_oom_counts():
    def case(oom, verdict):
        return RowResult(Row(id=verdict, group="g", source="", model="", gpu="", oom=oom), True, verdict=verdict)

    results = [
        case(True, "out of memory"),
        case(True, "at risk"),
        case(True, "fits"),
        case(False, "out of memory"),
        case(False, "at risk"),
        case(False, "fits"),
        case(True, ""),
    ]
    assert oom_counts(results) == {
        "true_oom": 3,
        "called_oom": 1,
        "called_at_risk": 1,
        "false_oom": 1,
        "at_risk_of_worked": 1,
    }


def test_oom_rows_have_no_time_error():
    assert score([result("a", 10.0, 12.0, oom=True)]) == []
