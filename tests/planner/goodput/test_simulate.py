"""Runs by hand, event by event; and many of them against the closed form."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hwmodels.errors import InputError
from hwmodels.reliability import Component
from planner.goodput.analytic import best_interval, shares
from planner.goodput.job import Job
from planner.goodput.ledger import Ledger
from planner.goodput.simulate import _Run, simulate, student

DAY = 86400.0


def job(blocked: float = 1.0, lag: float = 0.0, restart: float = 2.0, **more: Any) -> Job:
    parts = (Component("gpu", 1, 1000.0, True, "test"),)
    given_ = {"detect_s": 3.0, "reschedule_s": 4.0, "components": parts, "nodes": 2, "repair_s": 50.0, **more}
    return Job(np.asarray(blocked), np.asarray(lag), np.asarray(restart), **given_)


class Drawn:
    """Stands in for a random generator: exponential times in the given order, then none for long."""

    def __init__(self, *times: float) -> None:
        self.times = list(times)

    def exponential(self, _: float) -> float:
        return self.times.pop(0) if self.times else 1e9

    def random(self) -> float:
        return 0.5


def played(of: Job, horizon: float, *times: float) -> dict[str, float]:
    random: Any = Drawn(*times)
    found = _Run(of, 10.0, horizon, random).play().seconds
    assert sum(found.values()) == pytest.approx(horizon)
    return {name: value for name, value in found.items() if abs(value) > 1e-9}


def test_a_failure_by_hand() -> None:
    # Cycles end at 11 and 22; the failure at 25 undoes 3 s; 3 + 4 s of nothing, 2 s of restart; from 34 one more cycle.
    assert played(job(), 45.0, 25.0) == pytest.approx(
        {"goodput": 30.0, "checkpoint": 3.0, "rework": 3.0, "detection": 7.0, "restart": 2.0}
    )


def test_a_failure_during_the_restart_by_hand() -> None:
    # After the failure at 25 the next one comes 1 s into the restart, at 33: 7 s and 2 s again, training from 42.
    assert played(job(), 53.0, 25.0, 1.0) == pytest.approx(
        {"goodput": 30.0, "checkpoint": 3.0, "rework": 3.0, "detection": 14.0, "restart": 3.0}
    )


def test_a_checkpoint_on_its_way_is_lost_with_its_cycle() -> None:
    # The copy of 11 is in storage at 16, that of 22 would be at 27: the failure at 25 undoes all since 11.
    found = played(job(lag=5.0), 45.0, 25.0)
    assert (found["rework"], found["goodput"]) == (pytest.approx(14.0), pytest.approx(20.0))


def test_a_repair_without_a_spare_by_hand() -> None:
    # The node goes at 28 and is back at 78.
    found = played(job(spares=0), 95.0, 25.0)
    assert found == pytest.approx(
        {"goodput": 30.0, "checkpoint": 3.0, "rework": 3.0, "detection": 7.0, "repair": 50.0, "restart": 2.0}
    )
    assert "repair" not in played(job(spares=1), 95.0, 25.0)


def test_software_takes_no_node() -> None:
    soft = replace(job(spares=0), components=(Component("software", 1, 1000.0, False, "test"),))
    assert "repair" not in played(soft, 95.0, 25.0)


def test_a_straggler_by_hand() -> None:
    # Slow by half from 5, so that the cycle's training ends at 15, when it is found: 1 s of checkpoint, 4 s and 2 s of
    # restart until 22, then a whole cycle.
    slow = job(straggler_rate=1e-3, straggler_factor=2.0, straggler_detect_s=10.0)
    assert played(slow, 33.0, 1000.0, 5.0) == pytest.approx({"goodput": 20.0, "checkpoint": 1.0, "straggler": 12.0})


def test_fewer_replicas_by_hand() -> None:
    # One of two replicas from 34 on: cycles of 21 s, two until 76 and half of 2 s until the node is back at 78; 1 + 4 +
    # 2 s to grow again, a cycle from 85.
    found = played(job(spares=0, dp=2), 96.0, 25.0)
    assert found == pytest.approx(
        {"goodput": 51.0, "checkpoint": 5.0, "rework": 3.0, "detection": 7.0, "restart": 2.0, "shrunk": 28.0}
    )


MTBF = 3.0 * 3600.0


def fails(**more: Any) -> Job:
    parts = (Component("gpu", 100, 100 * MTBF, True, "test"), Component("software", 1, 10 * MTBF, False, "test"))
    given_ = {"blocked": 60.0, "restart": 200.0, "detect_s": 600.0, "reschedule_s": 120.0, "nodes": 100,
              "components": parts, **more}  # fmt: skip
    return job(**given_)


@pytest.mark.parametrize(
    "changes",
    [{}, {"blocked": 5.0, "lag": 300.0}, {"blocked": 5.0, "lag": 3000.0}, {"restart": 4000.0}],
    ids=["sync", "async", "lag", "restart"],
)
@pytest.mark.parametrize("factor", [0.5, 1.0, 2.0])
def test_the_closed_form_lies_in_the_confidence_interval(changes: dict[str, float], factor: float) -> None:
    of = fails(**changes)
    tau = float(best_interval(of)) * factor
    found, exact = simulate(of, tau, days=20.0, replications=30, seed=7), shares(of, tau)
    # one of twelve 95% intervals may miss: twice the half width is one in ten thousand
    assert abs(found.goodput - float(exact["goodput"])) < 2.0 * found.half_width
    for name, value in found.losses.items():
        assert value == pytest.approx(float(exact[name]), abs=6.0 * found.half_width + 1e-6), name
    assert found.goodput + sum(found.losses.values()) == pytest.approx(1.0)


def test_repairs_replicas_and_stragglers_come_near_the_closed_form() -> None:
    for changes in (
        {"spares": 1, "repair_s": 6 * 3600.0},
        {"spares": 1, "repair_s": DAY, "dp": 20, "nodes_per_replica": 5.0},
        {"straggler_rate": 1 / 36000.0, "straggler_factor": 1.5, "straggler_detect_s": 3600.0},
    ):
        of = fails(**changes)
        tau = float(best_interval(of))
        found = simulate(of, tau, days=20.0, replications=12, seed=3)
        assert found.goodput == pytest.approx(float(shares(of, tau)["goodput"]), abs=0.02), changes


def test_the_best_interval_of_a_simulation_lies_inside() -> None:
    of = fails()
    best = float(best_interval(of))
    runs = [simulate(of, best * f, days=20.0, replications=8, seed=1).goodput for f in (0.1, 0.5, 1.0, 2.0, 10.0)]
    assert 0 < int(np.argmax(runs)) < 4


def test_equal_seeds_give_equal_bytes() -> None:
    words = [json.dumps(asdict(simulate(fails(), 1000.0, days=5.0, replications=5, seed=s))) for s in (3, 3, 4)]
    assert words[0] == words[1] != words[2]


def test_nothing_fails() -> None:
    found = simulate(replace(job(), components=()), 99.0, days=1.0, replications=2)
    assert (found.goodput, found.half_width, found.failures) == (pytest.approx(0.99, abs=1e-4), 0.0, 0.0)
    assert simulate(replace(job(), components=()), math.inf, days=1.0, replications=2).goodput == 1.0


def test_new_components_that_wear_out_fail_late() -> None:
    early, late = (
        simulate(fails(weibull_shape=shape), 1000.0, days=20.0, replications=5, seed=1).failures for shape in (0.7, 2.0)
    )
    usual = simulate(fails(), 1000.0, days=20.0, replications=5, seed=1).failures
    assert early > 1.15 * usual and late < 0.9 * usual


def test_students_points() -> None:
    # printed tables
    for freedom, value in ((1, 12.706), (2, 4.303), (4, 2.776), (9, 2.262), (19, 2.093), (60, 2.000)):
        assert student(freedom) == pytest.approx(value, rel=5e-3)


def test_faults_are_told_together() -> None:
    many = replace(job(), blocked_s=np.ones(2))
    with pytest.raises(InputError) as error:
        simulate(many, 0.0, days=0.0, replications=1, seed=-1)
    assert len(error.value.faults) == 5


def test_a_ledger_by_hand() -> None:
    seconds = dict.fromkeys(("goodput", "checkpoint", "rework", "straggler", "shrunk"), 0.0)
    ledger = Ledger(10.0, 1.0, 3.0, seconds)
    ledger.advance(12.0)  # 10 of training, the copy, 1 of the next: the copy is not in storage
    ledger.lose()
    assert seconds == {"goodput": 0.0, "checkpoint": 0.0, "rework": 12.0, "straggler": 0.0, "shrunk": 0.0}
    ledger.advance(15.0)  # now it is
    ledger.lose()
    assert (seconds["goodput"], seconds["checkpoint"], seconds["rework"]) == (10.0, 1.0, 16.0)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.floats(0.01, 80.0), min_size=1, max_size=8), st.floats(0.0, 5.0), st.floats(0.0, 30.0),
    st.floats(1.0, 3.0),
)  # fmt: skip
def test_time_in_pieces_is_the_time_in_one(pieces: list[float], blocked: float, lag: float, slow: float) -> None:
    found = []
    for parts in (pieces, [sum(pieces)]):
        seconds = dict.fromkeys(("goodput", "checkpoint", "rework", "straggler", "shrunk"), 0.0)
        ledger = Ledger(10.0, blocked, lag, seconds)
        ledger.pace(slow, 1.25)
        for part in parts:
            ledger.advance(part)
        ledger.commit()
        assert sum(seconds.values()) == pytest.approx(sum(pieces))
        found.append(seconds)
    assert found[0] == pytest.approx(found[1], abs=1e-6)


def test_rarer_failures_and_shorter_checkpoints_are_better() -> None:
    def good(scale: float, **changes: float) -> float:
        parts = (Component("gpu", 100, 100 * MTBF * scale, True, "test"),)
        of = replace(fails(**changes), components=parts)
        return simulate(of, float(best_interval(of)), days=20.0, replications=8, seed=5).goodput

    by_mtbf = [good(scale) for scale in (0.25, 1.0, 4.0, 1000.0)]
    assert by_mtbf == sorted(by_mtbf) and by_mtbf[-1] > 0.99
    by_checkpoint = [good(1.0, blocked=seconds) for seconds in (600.0, 60.0, 6.0)]
    assert by_checkpoint == sorted(by_checkpoint) and by_checkpoint[-1] < 1.0


def test_without_checkpoints_only_a_run_without_failures_gets_anywhere() -> None:
    assert simulate(fails(), math.inf, days=20.0, replications=4, seed=5).goodput < 0.02
