"""measured.json and the plain dicts of steps and comparisons survive the trip and refuse nonsense."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hwmodels.errors import InputError, RunError
from planner.results import (
    PHASES,
    Comparison,
    Interval,
    Measurement,
    OpRecord,
    PhaseComparison,
    StageMemory,
    Step,
    TimelineEvent,
)
from planner.results_io import (
    comparison_from_dict,
    comparison_to_dict,
    load_measurement,
    measurement_from_dict,
    measurement_to_dict,
    save_measurement,
    step_from_dict,
    step_to_dict,
)

seconds = st.floats(1e-9, 1e6)
phases = st.dictionaries(st.sampled_from(PHASES), seconds, max_size=4)
events = st.builds(
    TimelineEvent,
    st.integers(0, 9),
    st.just("compute"),
    st.just("0F0"),
    st.just("F"),
    seconds,
    seconds,
    st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=3), max_size=2),
)


@st.composite
def measurements(draw: st.DrawFn) -> Measurement:
    steps = draw(st.lists(seconds, min_size=1, max_size=5))
    ranks = draw(st.integers(1, 3))
    record = st.builds(
        OpRecord,
        st.integers(0, ranks - 1),
        st.sampled_from(PHASES),
        st.just("all_reduce"),
        st.just("dp"),
        st.text(max_size=4),
        st.integers(1, 9),
        st.integers(0, 2**40),
        seconds,
        seconds,
        seconds,
    )
    return Measurement(
        1,
        "p",
        "0" * 16,
        {"torch": "2.13.0", "cores": 2},
        steps,
        median(steps),
        draw(seconds),
        draw(st.floats(-1, 1)),
        draw(st.booleans()),
        draw(st.lists(record, max_size=3)),
        [draw(phases) for _ in range(ranks)],
        [draw(st.integers(0, 2**40)) for _ in range(ranks)],
        {"passed": True},
        draw(st.lists(seconds, max_size=3)),
        draw(st.lists(events, max_size=2)),
    )


@settings(deadline=None, max_examples=60)
@given(measurements())
def test_a_measurement_survives_its_file(tmp_path_factory: pytest.TempPathFactory, measured: Measurement) -> None:
    path = save_measurement(measured, tmp_path_factory.mktemp("m") / "deep" / "measured.json")
    assert load_measurement(path) == measured


steps = st.builds(
    Step,
    st.builds(Interval, seconds, seconds, seconds),
    seconds,
    seconds,
    st.lists(phases, max_size=2),
    phases,
    st.floats(0, 1),
    st.lists(
        st.builds(StageMemory, st.integers(0, 9), st.dictionaries(st.just("logits"), st.integers(0)), st.integers(0)),
        max_size=2,
    ),
    seconds,
    seconds,
    seconds,
    seconds,
    seconds,
    st.none() | seconds,
    st.just("fits"),
    st.lists(events, max_size=2),
    st.lists(st.text(max_size=5), max_size=2),
    st.just([{"term": "gemm", "value": 1.5, "of": {"x": [1, 2]}}]),
)


@settings(deadline=None, max_examples=40)
@given(steps)
def test_a_step_survives_json(step: Step) -> None:
    assert step_from_dict(json.loads(json.dumps(step_to_dict(step)))) == step


@settings(deadline=None, max_examples=30)
@given(
    st.builds(
        Comparison,
        st.text(max_size=5),
        seconds,
        seconds,
        st.floats(-99, 99),
        st.booleans(),
        st.lists(
            st.builds(
                PhaseComparison, st.sampled_from(PHASES), seconds, seconds, st.none() | st.floats(-99, 99), seconds
            ),
            max_size=3,
        ),
        st.lists(st.integers(0)),
        st.lists(st.integers(0)),
        st.booleans(),
        st.lists(st.text(max_size=5)),
    )
)
def test_a_comparison_survives_json(comparison: Comparison) -> None:
    assert comparison_from_dict(json.loads(json.dumps(comparison_to_dict(comparison)))) == comparison


GOOD = Measurement(1, "p", "h", {}, [1.0, 2.0, 3.0], 2.0, 0.1, 0.0, True, [], [{"forward": 1.0}], [5], {}, [])


def refused(content: Any, *expected: str) -> None:
    with pytest.raises(InputError) as error:
        measurement_from_dict(content, "measured.json")
    for text in expected:
        assert text in str(error.value)
    assert len(error.value.faults) == len(expected)


def test_contradictions_come_at_once() -> None:
    record = OpRecord(1, "thinking", "all_reduce", "dp", "", 1, 8, 0.1, 0.1, 0.1)
    bad = replace(
        GOOD, step_s=[-1.0, 2.0], median_step_s=9.0, phases=[{"forwards": 1.0}], peak_bytes=[1, 2], records=[record]
    )
    refused(
        measurement_to_dict(bad),
        "step_s[0]: is -1.0",
        "median_step_s: is 9.0",
        "peak_bytes: has 2 entries",
        "phases[0].forwards: is not a known phase",
        "records[0].phase: is 'thinking'",
        "records[0].rank: is 1",
    )


def test_types_are_strict() -> None:
    content = measurement_to_dict(GOOD)
    refused(
        {**content, "stable": "yes", "peak_bytes": [1.5], "cv": True, "colour": 1},
        "stable: is 'yes'",
        "peak_bytes[0]: is 1.5",
        "cv: is true",
        "colour: is not a known key",
    )
    refused({**content, "schema": 7}, "schema: is 7")
    refused({**content, "step_s": []}, "step_s: is empty")


def test_a_value_that_json_cannot_say_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="cannot be said in JSON"):
        save_measurement(replace(GOOD, cv=float("nan")), tmp_path / "measured.json")
    assert list(tmp_path.iterdir()) == []
