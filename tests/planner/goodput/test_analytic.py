"""Intervals and shares of the time, worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import lambertw

from hwmodels.errors import InputError
from hwmodels.reliability import Component
from planner.goodput.analytic import (
    best_interval,
    daly_interval,
    repair_wait_s,
    shares,
    spares_for,
    stretch,
    young_interval,
)
from planner.goodput.job import LOSSES, Job


def job(mtbf_s: float = 1000.0, blocked: Any = 100.0, lag: Any = 0.0, restart: Any = 0.0, **more: Any) -> Job:
    parts = (Component("gpu", 10, 10 * mtbf_s, True, "test"),) if math.isfinite(mtbf_s) else ()
    given_ = {"detect_s": 0.0, "reschedule_s": 0.0, "components": parts, "nodes": 10, **more}
    return Job(np.asarray(blocked), np.asarray(lag), np.asarray(restart), **given_)


def test_young_by_hand() -> None:
    assert float(young_interval(60.0, 10800.0)) == pytest.approx(math.sqrt(1_296_000))  # 2 x 60 x 10,800


def test_daly_by_hand() -> None:
    # sqrt(2 d M) = 1138.41996, d / 2M = 1/360, its root 0.0527046: 1138.41996 (1 + 0.0175682 + 0.0003086) - 60
    assert float(daly_interval(60.0, 10800.0)) == pytest.approx(1098.7713, abs=1e-3)
    assert float(daly_interval(30.0, 10.0)) == 10.0  # the checkpoint takes longer than 2 M: the mean itself


@pytest.mark.parametrize(("blocked", "mtbf"), [(100.0, 1000.0), (1.0, 3e5), (3600.0, 1800.0)])
def test_the_best_interval_is_that_of_lamberts_function(blocked: float, mtbf: float) -> None:
    found = float(best_interval(job(mtbf, blocked)))
    assert found == pytest.approx(mtbf * (1.0 + lambertw(-math.exp(-1.0 - blocked / mtbf)).real), rel=1e-5, abs=1e-6)


def test_daly_is_near_the_best_where_checkpoints_are_short() -> None:
    assert float(best_interval(job(10800.0, 60.0))) == pytest.approx(1098.7763, abs=1e-3)


def test_shares_by_hand() -> None:
    # 900 s of training and 100 s of checkpoint, a failure every 1000 s: E = 1000 (e - 1)
    plain = shares(job(), 900.0)
    assert float(plain["goodput"]) == pytest.approx(900.0 / (1000.0 * (math.e - 1.0)))
    assert float(plain["rework"]) == pytest.approx((1000.0 * (math.e - 1.0) - 1000.0) / (1000.0 * (math.e - 1.0)))
    # a restart of ln 2 x 1000 s doubles it, 1000 s of nothing after each of the 2 (e - 1) failures doubles it again
    found = shares(job(restart=1000.0 * math.log(2.0), detect_s=600.0, reschedule_s=400.0), 900.0)
    total = 4000.0 * (math.e - 1.0)
    assert float(found["goodput"]) == pytest.approx(900.0 / total)
    assert float(found["detection"]) == pytest.approx(0.5)
    assert float(found["restart"]) == pytest.approx(0.25)
    assert float(found["checkpoint"]) == pytest.approx(100.0 / total)


def test_a_checkpoint_on_its_way_by_hand() -> None:
    # a lag of ln 2 x 1000 s doubles the time of a cycle
    slow, fast = shares(job(lag=1000.0 * math.log(2.0)), 900.0), shares(job(), 900.0)
    assert float(slow["goodput"]) == pytest.approx(float(fast["goodput"]) / 2.0)
    # and where it is longer than the training between two copies, the next copy waits for it
    held = shares(job(math.inf, 100.0, lag=400.0), 300.0)
    assert float(held["goodput"]) == pytest.approx(300.0 / 500.0)
    assert float(held["checkpoint"]) == pytest.approx(200.0 / 500.0)


def test_no_interval_below_the_lag_pays() -> None:
    assert float(best_interval(job(blocked=1.0, lag=500.0))) == 500.0


def test_waiting_for_repairs_by_hand() -> None:
    # Without a spare every failure waits for a whole repair. With one, and repairs as long as the time between
    # failures: Erlang's B(2, 1) = 1/5, and 1/4 of the time that the job does not wait.
    assert repair_wait_s(job(repair_s=1000.0, spares=0)) == pytest.approx(1000.0)
    assert repair_wait_s(job(repair_s=1000.0, spares=1)) == pytest.approx(250.0)
    assert repair_wait_s(job(repair_s=1000.0, spares=None)) == 0.0
    found = shares(job(repair_s=1000.0, spares=0), 900.0)
    assert float(found["repair"]) == pytest.approx(0.5)


def test_spares_by_hand() -> None:
    # B(n, 1) = 1/2, 1/5, 1/16, 1/65, 1/326, 1/1957 for n = spares + 1
    assert [spares_for(job(repair_s=1000.0), share) for share in (0.5, 0.2, 0.01, 0.001)] == [0, 1, 4, 5]


def test_fewer_replicas_by_hand() -> None:
    # Two replicas of one node, no spare, repairs as long as 1000 s: 0, 1 or 2 nodes away with weights 1, 1, 1/2.
    found = job(repair_s=1000.0, spares=0, nodes=2, dp=2)
    assert stretch(found) == pytest.approx(2.0 / ((2.0 + 1.0) / 2.0))
    # both away: a fifth of the time, a quarter of the rest, over failures every 1000 s
    assert repair_wait_s(found) == pytest.approx(250.0)
    assert float(shares(found, 900.0)["shrunk"]) > 0.0


def test_stragglers_by_hand() -> None:
    # one every 1000 s for 693.1 s: half of the time is slowed to half, so training takes 4/3 of the time; each
    # exchange takes a checkpoint of 100 s, 50 s and a restart of 50 s: 0.2 of the time more
    found = shares(
        job(math.inf, restart=50.0, reschedule_s=50.0, straggler_rate=1e-3, straggler_factor=2.0,
            straggler_detect_s=1000.0 * math.log(2.0)), 900.0,
    )  # fmt: skip
    assert float(found["goodput"]) == pytest.approx(900.0 / (1300.0 * 1.2))
    assert float(found["straggler"]) == pytest.approx((300.0 + 0.2 * 1300.0) / (1300.0 * 1.2))


def test_a_hopeless_run_loses_everything() -> None:
    found = shares(job(1.0), 1e5)
    assert float(found["goodput"]) == 0.0 and float(found["rework"]) == 1.0


def test_nothing_fails() -> None:
    found = job(math.inf)
    assert math.isinf(float(best_interval(found)))
    assert float(shares(found, 1e9)["goodput"]) == pytest.approx(1.0, abs=1e-6)


TIMES = st.floats(1.0, 1e4)


@settings(max_examples=60, deadline=None)
@given(
    mtbf=st.floats(1e3, 1e8), blocked=TIMES, lag=st.floats(0.0, 1e4), restart=TIMES, detect=TIMES,
    repair=st.floats(0.0, 1e5), spares=st.one_of(st.none(), st.integers(0, 5)), factor=st.floats(0.2, 5.0),
)  # fmt: skip
def test_shares_sum_to_one_and_the_best_is_best(
    mtbf: float, blocked: float, lag: float, restart: float, detect: float, repair: float, spares: int | None,
    factor: float,
) -> None:  # fmt: skip
    found = job(mtbf, blocked, lag, restart, detect_s=detect, repair_s=repair, spares=spares)
    best = float(best_interval(found))
    at_best = {name: float(value) for name, value in shares(found, best).items()}
    assert set(at_best) == {"goodput", *LOSSES}
    assert all(-1e-9 <= value <= 1.0 + 1e-9 for value in at_best.values())
    assert sum(at_best.values()) == pytest.approx(1.0)
    assert float(shares(found, best * factor)["goodput"]) <= at_best["goodput"] * (1.0 + 1e-9)
    # rarer failures and shorter checkpoints are never worse
    for better in (
        job(mtbf * 2.0, blocked, lag, restart, detect_s=detect, repair_s=repair, spares=spares),
        replace(found, blocked_s=np.asarray(blocked / 2.0)),
        replace(found, lag_s=np.asarray(lag / 2.0)),
    ):
        assert float(shares(better, best_interval(better))["goodput"]) >= at_best["goodput"] * (1.0 - 1e-9)


def test_many_layouts_are_many_single_ones() -> None:
    blocked, lag = np.asarray([1.0, 10.0, 100.0]), np.asarray([0.0, 50.0, 3000.0])
    many = job(1e4, blocked, lag, np.full(3, 60.0))
    each = [job(1e4, b, u, 60.0) for b, u in zip(blocked, lag, strict=True)]
    assert best_interval(many) == pytest.approx([float(best_interval(j)) for j in each], rel=1e-12)
    assert shares(many, 500.0)["goodput"] == pytest.approx([float(shares(j, 500.0)["goodput"]) for j in each])


def test_a_job_is_checked() -> None:
    with pytest.raises(InputError, match="blocked_s is"):
        job(blocked=-1.0)
    with pytest.raises(InputError, match="0 nodes"):
        job(nodes=0)
