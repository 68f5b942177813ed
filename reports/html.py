"""One self-contained HTML page: style, drawing and script inside, nothing loaded from anywhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from planner.files import write_text
from planner.results import Comparison, Step, TimelineEvent
from reports import views
from reports.gantt import gantt
from reports.text import label, value


def _template(name: str) -> str:
    return (files("reports") / "templates" / name).read_text(encoding="utf-8")


def _error_bar(bar: Mapping[str, str] | None) -> Any:
    """Markup of a bar; its only values are numbers and class names of `views`."""
    from markupsafe import Markup

    if bar is None:
        return ""
    style = Markup(
        '<span class="err" aria-hidden="true"><i class="{css}" style="left:{left}%;width:{width}%"></i></span>'
    )
    return style.format(**bar)


def _sections(context: Mapping[str, Any]) -> list[tuple[str, str]]:
    found = [("plan", "Plan")]
    for key, ident, name in (("table", "ranked", "Ranked plans"), ("time", "time", "Time")):
        if context[key]:
            found.append((ident, name))
    found += [(g["id"], g["title"]) for g in context["gantts"]]
    for key, ident, name in (("memory", "memory", "Memory"), ("comparisons", "measured", "Measured")):
        if context[key]:
            found.append((ident, name))
    return [*found, ("notes", "Assumptions")]


def render(
    *,
    title: str,
    inputs: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]] = (),
    step: Step | None = None,
    comparisons: Sequence[Comparison] = (),
    notes: Sequence[str] = (),
    timeline: Sequence[TimelineEvent] | None = None,
    measured_timeline: Sequence[TimelineEvent] = (),
    chosen: str = "",
    why: Sequence[str] = (),
    dropped: Mapping[str, int] | None = None,
    trace: str = "",
) -> str:
    """The page as text; parameters as for `write_report`."""
    from jinja2 import Environment, StrictUndefined

    predicted = step.timeline if timeline is None and step is not None else (timeline or ())
    found = [
        gantt(predicted, "pipeline", "Predicted timeline"),
        gantt(measured_timeline, "measured-timeline", "Measured timeline"),
    ]
    first = rows[0] if rows else {}
    context: dict[str, Any] = {
        "title": title,
        "chosen": chosen or str(first.get("plan") or first.get("name") or first.get("layout") or ""),
        "tiles": views.tiles(step) if step is not None else [],
        "why": list(why) or views.reasons(rows),
        "inputs": [(label(str(k)), value(str(k), v)) for k, v in inputs.items()],
        "table": views.table(rows, ranked=True),
        "dropped": sorted((dropped or {}).items(), key=lambda item: (-item[1], item[0])),
        "time": views.time_view(step) if step is not None else None,
        "gantts": [g for g in found if g is not None],
        "memory": views.memory_view(step) if step is not None else None,
        "comparisons": [views.comparison_view(c) for c in comparisons],
        "notes": list(dict.fromkeys([*(step.notes if step is not None else []), *notes])),
        "explain": views.table(step.explain) if step is not None else None,
        "trace": trace,
        "css": _template("report.css"),
        "js": _template("report.js"),
        "error_bar": _error_bar,
    }
    context["sections"] = _sections(context)
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(_template("report.html.j2")).render(context)


def write_report(
    path: str | Path,
    *,
    title: str,
    inputs: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]] = (),
    step: Step | None = None,
    comparisons: Sequence[Comparison] = (),
    notes: Sequence[str] = (),
    timeline: Sequence[TimelineEvent] | None = None,
    measured_timeline: Sequence[TimelineEvent] = (),
    chosen: str = "",
    why: Sequence[str] = (),
    dropped: Mapping[str, int] | None = None,
    trace: str = "",
) -> Path:
    """Write one HTML page that loads nothing and opens from a file; whole or not at all.

    Parameters
    ----------
    path : str or Path
        The page.
    title : str
    inputs : mapping
        What was asked: model, cluster, workload, options. The ending of a key says the unit of
        its value (``peak_bytes``, ``step_s``).
    rows : sequence of mapping
        Ranked plans, best first, plain values; the keys are the columns, in order of appearance.
        A key ``layout``, ``plan`` or ``name`` names a plan, ``step_s`` is its predicted time.
    step : Step, optional
        The chosen plan in full: figures, time by phase, memory by stage, notes, chain.
    comparisons : sequence of Comparison
        Measured against predicted, one a plan that ran.
    notes : sequence of str
        Assumptions and sources beside those of the step.
    timeline : sequence of TimelineEvent, optional
        Predicted timeline; that of the step when left out.
    measured_timeline : sequence of TimelineEvent
        Timeline of a real run.
    chosen : str
        Name of the chosen plan; that of the first row when left out.
    why : sequence of str
        Why it won; told from the rows when left out.
    dropped : mapping of str to int, optional
        Rule -> layouts that it dropped.
    trace : str
        File name of the trace that was written beside the page.

    Returns
    -------
    Path
        The page.

    Raises
    ------
    hwmodels.errors.RunError
        Where the file cannot be written.
    """
    page = render(
        title=title,
        inputs=inputs,
        rows=rows,
        step=step,
        comparisons=comparisons,
        notes=notes,
        timeline=timeline,
        measured_timeline=measured_timeline,
        chosen=chosen,
        why=why,
        dropped=dropped,
        trace=trace,
    )
    return write_text(path, page)
