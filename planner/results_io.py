"""Reading and writing results: measured.json, and plain dicts of steps and comparisons."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hwmodels.errors import Fault, InputError
from planner.documents import from_dict, limited, place
from planner.files import read_json, write_json
from planner.plan_io import check_schema
from planner.results import PHASES, Comparison, Measurement, Step

SCHEMA = 1
"""Version of measured.json."""


def step_to_dict(step: Step) -> dict[str, Any]:
    """Plain content of a predicted step; `step_from_dict` reads it back."""
    return asdict(step)


def step_from_dict(content: Any, source: str = "") -> Step:
    """A predicted step from plain content; raises `InputError` with all faults."""
    return from_dict(Step, content, source)


def comparison_to_dict(comparison: Comparison) -> dict[str, Any]:
    """Plain content of a comparison; `comparison_from_dict` reads it back."""
    return asdict(comparison)


def comparison_from_dict(content: Any, source: str = "") -> Comparison:
    """A comparison from plain content; raises `InputError` with all faults."""
    return from_dict(Comparison, content, source)


def measurement_to_dict(measurement: Measurement) -> dict[str, Any]:
    """Plain content of a measurement; `measurement_from_dict` reads it back."""
    return asdict(measurement)


def measurement_from_dict(content: Any, source: str = "") -> Measurement:
    """A measurement from plain content; see `load_measurement`."""
    check_schema(content, SCHEMA, source, "measurement")
    measured = from_dict(Measurement, content, source)
    found = list(_faults(measured, source))
    if found:
        raise InputError(limited(found, source))
    return measured


def load_measurement(path: str | Path) -> Measurement:
    """Read and check a measured.json.

    Raises
    ------
    hwmodels.errors.InputError
        With all faults at once: broken JSON, another schema, unknown or mistyped keys, times that
        are not above zero, phases that are not known, lists of different numbers of ranks.
    """
    return measurement_from_dict(read_json(path), str(path))


def save_measurement(measurement: Measurement, path: str | Path) -> Path:
    """Write a measured.json beside its target and rename it; returns the path."""
    return write_json(path, measurement_to_dict(measurement))


def _faults(measured: Measurement, source: str) -> Iterator[Fault]:
    if not measured.step_s:
        yield Fault("is empty", place(source, "step_s"), "a measurement has at least one timed step", "a complete run")
    for i, seconds in enumerate(measured.step_s):
        if seconds <= 0:
            yield Fault(f"is {seconds}", place(source, f"step_s[{i}]"), "a step takes time", "a time above zero")
    if measured.step_s and not min(measured.step_s) <= measured.median_step_s <= max(measured.step_s):
        what = f"is {measured.median_step_s}"
        yield Fault(what, place(source, "median_step_s"), "it lies outside the timed steps", "the median of step_s")
    ranks = len(measured.phases)
    if len(measured.peak_bytes) != ranks:
        what, why = f"has {len(measured.peak_bytes)} entries", f"phases has {ranks} ranks"
        yield Fault(what, place(source, "peak_bytes"), why, f"{ranks} entries")
    known = " or ".join(PHASES)
    for i, phases in enumerate(measured.phases):
        for phase in phases:
            if phase not in PHASES:
                yield Fault("is not a known phase", place(source, f"phases[{i}].{phase}"), "", known)
    for i, record in enumerate(measured.records):
        if record.phase not in PHASES:
            yield Fault(f"is {record.phase!r}", place(source, f"records[{i}].phase"), "not a known phase", known)
        if not 0 <= record.rank < max(ranks, 1):
            where = place(source, f"records[{i}].rank")
            yield Fault(f"is {record.rank}", where, f"there are {ranks} ranks", f"0 to {ranks - 1}")
