"""Results as rich tables for the console."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hwmodels.units import format_bytes, format_percent, format_seconds
from planner.results import MEMORY_CATEGORIES, PHASES, Comparison, Step
from reports.text import is_number, label, value

if TYPE_CHECKING:
    from rich.table import Table


def _table(title: str, columns: Sequence[tuple[str, bool]], caption: str = "") -> Table:
    """An empty table; a column is (heading, aligned right)."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=escape(title) or None, caption=escape(caption) or None, title_justify="left", pad_edge=False)
    for heading, right in columns:
        table.add_column(escape(heading), justify="right" if right else "left", overflow="fold")
    return table


def _add(table: Table, cells: Sequence[str]) -> None:
    """A row of text that is shown as it is: a model may be called ``[bold]``."""
    from rich.markup import escape

    table.add_row(*(escape(cell) for cell in cells))


def ranked(rows: Sequence[Mapping[str, Any]], title: str = "plans", most: int = 20) -> Table:
    """Search results, best first; the columns are the keys of the rows.

    Parameters
    ----------
    rows : sequence of mapping
        Plain values; the ending of a key says its unit (``step_s``, ``peak_bytes``, ``mfu``).
    most : int
        Rows shown; the caption says how many are left out.
    """
    keys = list(dict.fromkeys(key for row in rows for key in row))
    right = [any(is_number(row.get(key)) for row in rows) for key in keys]
    left_out = f"{len(rows) - most} more" if len(rows) > most else ""
    table = _table(title, [("#", True), *((label(k), r) for k, r in zip(keys, right, strict=True))], left_out)
    for place, row in enumerate(rows[:most], start=1):
        _add(table, [str(place), *(value(key, row.get(key)) for key in keys)])
    return table


def breakdown(step: Step, title: str = "time of a step") -> Table:
    """Exposed time of each phase: mean over the ranks, share of the step, what is hidden, what a GPU sends by link."""
    links = [("sent in node", True), ("sent between nodes", True)] if step.traffic else []
    columns = [("phase", False), ("mean", True), ("share", True), ("worst rank", True), ("hidden", True), *links]
    table = _table(title, columns)
    for phase in PHASES:
        times = [rank.get(phase, 0.0) for rank in step.phases]
        hidden = step.hidden_comm_s.get(phase, 0.0)
        if not any(times) and not hidden:
            continue
        mean = sum(times) / len(times) if times else 0.0
        share = format_percent(mean / step.step_s.mid) if step.step_s.mid else "–"
        worst = max(times, default=0.0)
        cells = [phase, format_seconds(mean), share, format_seconds(worst), format_seconds(hidden) if hidden else ""]
        sent = step.traffic.get(phase)
        each = (sent.intra_node, sent.inter_node) if sent is not None else (0.0, 0.0)
        cells += [format_bytes(nbytes) if nbytes else "" for nbytes in each] if links else []
        _add(table, cells)
    span = f"{format_seconds(step.step_s.low)} to {format_seconds(step.step_s.high)}"
    _add(table, ["step", format_seconds(step.step_s.mid), "100.0%", "", span, *("" for _ in links)])
    return table


def memory(step: Step, title: str = "peak memory by stage") -> Table:
    """Bytes of each stage by category at its peak, what sets it, and the interval against the capacity."""
    used = [c for c in MEMORY_CATEGORIES if any(s.by_category.get(c) for s in step.memory)]
    heads = ["peak", "capacity", "free"]
    moments = any(s.moment for s in step.memory)
    table = _table(title, [("stage", True), *((c, True) for c in [*used, *heads]), *[("at", False)] * moments])
    for stage in step.memory:
        free = format_percent(1.0 - stage.peak_bytes / stage.capacity_bytes) if stage.capacity_bytes else "–"
        sizes = [format_bytes(stage.by_category.get(c, 0)) for c in used]
        figures = [format_bytes(stage.peak_bytes), format_bytes(stage.capacity_bytes), free]
        _add(table, [str(stage.stage), *sizes, *figures, *[stage.moment] * moments])
    return table


def memory_peak(step: Step) -> str:
    """What sets the peak, in a sentence: stage, moment, category, the interval and the three figures of it."""
    known = [s for s in step.memory if s.interval is not None]
    if not known:
        return step.verdict
    worst = max(known, key=lambda s: s.interval.high if s.interval else 0.0)
    span = worst.interval
    low, high = (format_bytes(v) for v in (span.low, span.high)) if span else ("", "")
    allocated, reserved, device, capacity = (
        format_bytes(v)
        for v in (worst.allocated_bytes, worst.reserved_bytes, worst.peak_bytes, worst.capacity_bytes)
    )
    return (
        f"{step.verdict}: {device} ({low} .. {high}) of {capacity} on stage {worst.stage} at {worst.moment}, "
        f"most of it {worst.category}; {allocated} allocated, {reserved} reserved"
    )


def comparison(found: Comparison) -> Table:
    """Measured against predicted, phase by phase, with signed error."""
    within = "within" if found.within_interval else "outside"
    verdict = f"{found.error_pct:+.1f}% ({within} the interval)" if found.comparable else "not comparable"
    head = f"{found.plan}: {verdict}"
    table = _table(
        head,
        [("phase", False), ("predicted", True), ("measured", True), ("error", True), ("of step", True)],
        "; ".join(found.notes),
    )
    for phase in found.phases:
        error = f"{phase.error_pct:+.1f}%" if phase.error_pct is not None else "–"
        _add(
            table,
            [
                phase.phase,
                format_seconds(phase.predicted_s),
                format_seconds(phase.measured_s),
                error,
                f"{phase.share_of_step_pct:.1f}%",
            ],
        )
    _add(
        table,
        [
            "step",
            format_seconds(found.predicted_s),
            format_seconds(found.measured_s),
            f"{found.error_pct:+.1f}%",
            "100.0%",
        ],
    )
    return table


def validation(content: Mapping[str, Any], title: str = "error of the predictions") -> Table:
    """The groups of ``validate --json`` (per cent), each beside the best single MFU of that group."""
    keys = (
        "n",
        "mean_abs_pct",
        "median_abs_pct",
        "p90_abs_pct",
        "max_abs_pct",
        "bias_pct",
        "kendall_tau",
        "regret_pct",
        "baseline_mean_abs_pct",
    )
    heads = ("n", "mean %", "median %", "p90 %", "max %", "bias %", "τ", "regret %", "one MFU %")
    table = _table(
        title,
        [("group", False), ("metric", False), *((h, True) for h in heads)],
        f"{content['predicted']} of {content['rows']} rows predicted",
    )
    for group in content["groups"]:
        cells = ["–" if group.get(key) is None else _figure(key, group[key]) for key in keys]
        _add(table, [str(group["group"]), str(group["metric"]), *cells])
    return table


def host_fit(presets: Sequence[Mapping[str, Any]], title: str = "host constants") -> Table:
    """The presets of ``fit --json``: a row for each group that was fitted, constants on the first of a preset."""
    heads = ("kernel", "micro-batch", "step", "rows", "group", "without %", "fitted %", "left out %")
    table = _table(title, [("preset", False), *((h, h != "group") for h in heads)])
    for found in presets:
        first = [str(found["preset"]), *(format_seconds(v) for v in found["constants"].values()), str(found["rows"])]
        for group, before in found["before_pct"].items():
            left = found["left_out_pct"].get(group)
            last = "–" if left is None else f"{left:.1f}"
            _add(table, [*first, str(group), f"{before:.1f}", f"{found['after_pct'][group]:.1f}", last])
            first = [""] * len(first)
    return table


def scan_fit(found: Mapping[str, Any]) -> Table:
    """A number of ``fit --json``'s `shared`: a row a group, its error at each value, and left out."""
    values = [*found["errors_pct"]]
    heads = ("rows", *values, "left out at", "left out %")
    title = f"{found['name']}: {found['value']:g}"
    table = _table(title, [("group", False), *((h, True) for h in heads)])
    for group, rows in found["rows"].items():
        errors = [f"{found['errors_pct'][value][group]:.1f}" for value in values]
        left = found["left_out"].get(group)
        last = ["–", "–"] if left is None else [f"{left:g}", f"{found['left_out_pct'][group]:.1f}"]
        _add(table, [str(group), str(rows), *errors, *last])
    return table


def _figure(key: str, number: float) -> str:
    if key == "n":
        return str(number)
    if key == "kendall_tau":
        return f"{number:.2f}"
    return f"{number:+.1f}" if key == "bias_pct" else f"{number:.1f}"
