"""The page and the trace that `scenario`, `report` and `simulate` write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from planner.results import Comparison, Step, TimelineEvent

MEASURED_PID = 1_000_000
"""Processes of a trace are ranks; those of the real run come after every predicted one."""


@dataclass(frozen=True, slots=True)
class Page:
    """What a page shows; fields as the arguments of `reports.html.write_report`."""

    title: str
    inputs: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]] = ()
    dropped: Mapping[str, int] | None = None
    notes: Sequence[str] = ()
    chosen: str = ""
    step: Step | None = None
    comparisons: Sequence[Comparison] = ()
    measured: Sequence[TimelineEvent] = ()


def write_page(folder: Path, page: Page) -> list[Path]:
    """Write ``report.html`` and ``trace.json``; returns both."""
    from reports.html import write_report

    predicted = page.step.timeline if page.step is not None else []
    trace = write_traces(folder / "trace.json", page.title, predicted, page.measured)
    html = write_report(
        folder / "report.html",
        title=page.title,
        inputs=page.inputs,
        rows=page.rows,
        step=page.step,
        comparisons=page.comparisons,
        notes=page.notes,
        measured_timeline=page.measured,
        chosen=page.chosen,
        dropped=page.dropped,
        trace=trace.name,
    )
    return [html, trace]


def write_traces(
    path: Path, title: str, predicted: Sequence[TimelineEvent], measured: Sequence[TimelineEvent] = ()
) -> Path:
    """One trace with the predicted timeline and, where there is one, the measured one below it."""
    import json

    from planner.files import write_text
    from reports.perfetto import trace

    content = trace(predicted, title=title)
    if measured:
        content["traceEvents"] = _named(content["traceEvents"], "predicted", 0)
        content["traceEvents"] += _named(trace(measured)["traceEvents"], "measured", MEASURED_PID)
    return write_text(path, json.dumps(content, allow_nan=False, separators=(",", ":")) + "\n")


def _named(events: Sequence[Mapping[str, Any]], word: str, shift: int) -> list[dict[str, Any]]:
    """Events with their processes named after the timeline, and numbers that clash with no other timeline's."""
    found = []
    for event in events:
        moved = {**event, "pid": event["pid"] + shift}
        if "id" in event:
            moved["id"] = event["id"] + shift
        if event["name"] == "process_name":
            moved["args"] = {"name": f"{word} {event['args']['name']}"}
        if event["name"] == "process_sort_index":
            moved["args"] = {"sort_index": event["args"]["sort_index"] + shift}
        found.append(moved)
    return found
