"""Results as what the page shows: widths in per cent, text with units, classes of colours.

The colours are those of Okabe and Ito (2008), told apart with any colour vision; where there are
more kinds than colours, a hatched one is added, so that no two neighbours differ by hue alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hwmodels.units import format_bytes, format_percent, format_seconds
from planner.results import MEMORY_CATEGORIES, PHASES, Comparison, Step
from reports.text import is_number, label, value

PHASE_CLASS: dict[str, str] = {
    "forward": "c0",
    "backward": "c1",
    "recompute": "h0",
    "tp_comm": "c2",
    "cp_comm": "c3",
    "ep_comm": "h2",
    "pp_comm": "c4",
    "dp_comm": "c5",
    "optimizer": "c6",
    "host": "c7",
    "bubble": "h7",
}
MEMORY_CLASS: dict[str, str] = {
    "parameters": "c0",
    "gradients": "c1",
    "optimizer": "c6",
    "activations": "c2",
    "logits": "c3",
    "comm_buffers": "c4",
    "context": "c7",
}
OTHER_CLASS = "c7"


def _words(name: str) -> str:
    return name.replace("_", " ")


def _width(part: float, whole: float) -> str:
    return f"{100.0 * part / whole:.3f}" if whole > 0 else "0"


def table(rows: Sequence[Mapping[str, Any]], *, ranked: bool = False) -> dict[str, Any] | None:
    """Columns and cells of rows with plain values; None where there are no rows."""
    if not rows:
        return None
    keys = list(dict.fromkeys(key for row in rows for key in row))
    numeric = {key: any(is_number(row.get(key)) for row in rows) for key in keys}
    columns = [{"label": label(key), "number": numeric[key]} for key in keys]
    cells = [[_cell(key, row.get(key), numeric[key]) for key in keys] for row in rows]
    if ranked:
        columns.insert(0, {"label": "#", "number": True})
        for place, row in enumerate(cells, start=1):
            row.insert(0, {"text": str(place), "sort": str(place), "number": True})
    return {"columns": columns, "rows": cells}


def _cell(key: str, item: Any, number: bool) -> dict[str, Any]:
    text = value(key, item)
    return {
        "text": text,
        "sort": repr(float(item)) if is_number(item) else ("" if item is None else text),
        "number": number,
    }


def tiles(step: Step) -> list[dict[str, str]]:
    """The figures of the chosen plan, at the top of the page."""
    tone = {"fits": "good", "at risk": "warn", "out of memory": "bad"}.get(step.verdict, "")
    peak = max(step.memory, key=lambda s: s.peak_bytes, default=None)
    span = f"{format_seconds(step.step_s.low)} to {format_seconds(step.step_s.high)}"
    bounds = f"perfect overlap {format_seconds(step.lower_bound_s)}, none {format_seconds(step.upper_bound_s)}"
    found = [
        ("step time", format_seconds(step.step_s.mid), f"{span}; {bounds}", ""),
        ("throughput", f"{step.tokens_per_s_per_gpu:,.0f}", "tokens/s/GPU", ""),
        ("MFU", format_percent(step.mfu), f"HFU {format_percent(step.hfu)}", ""),
        ("bubble", format_percent(step.bubble_fraction), "of the step, mean over ranks", ""),
    ]
    if step.usd_per_mtoken is not None:
        found.append(("cost", value("usd_per_mtoken", step.usd_per_mtoken), "per 1M tokens", ""))
    if step.energy_kwh_per_mtoken is not None:
        found.append(("energy", f"{step.energy_kwh_per_mtoken:.3g} kWh", "per 1M tokens, watts assumed", ""))
    if peak is not None:
        more = f"{format_bytes(peak.peak_bytes)} of {format_bytes(peak.capacity_bytes)} on stage {peak.stage}"
        found.append(("memory", step.verdict, more, tone))
    return [dict(zip(("name", "value", "more", "tone"), item, strict=True)) for item in found]


def reasons(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Why the first plan won: how far the next ones of the table are behind."""
    times: list[tuple[str, float]] = []
    for place, row in enumerate(rows[:4], start=1):
        seconds = row.get("step_s")
        if not isinstance(seconds, int | float) or not seconds > 0:
            return []
        name = row.get("layout") or row.get("plan") or row.get("name") or f"number {place}"
        times.append((str(name), float(seconds)))
    if len(times) < 2 or times[0][1] > min(t for _, t in times):
        return []
    best = times[0][1]
    behind = [f"{name} takes {100.0 * (t / best - 1.0):.1f}% longer" for name, t in times[1:]]
    return [f"It has the shortest predicted step, {format_seconds(best)}: " + "; ".join(behind) + "."]


def _used(known: Iterable[str], present: Iterable[str]) -> list[str]:
    """Names that occur, the known ones first and in their order."""
    found = set(present)
    return [name for name in known if name in found] + sorted(found - set(known))


def time_view(step: Step) -> dict[str, Any] | None:
    """Stacked bars of exposed time, one a pipeline rank."""
    if not step.phases:
        return None
    names = _used(PHASES, (k for rank in step.phases for k, v in rank.items() if v > 0))
    longest = max((sum(rank.values()) for rank in step.phases), default=0.0)
    bars, rows = [], []
    for n, rank in enumerate(step.phases):
        total = sum(rank.values())
        parts = [
            {
                "css": PHASE_CLASS.get(name, OTHER_CLASS),
                "width": _width(rank[name], longest),
                "title": f"{_words(name)}: {format_seconds(rank[name])} ({format_percent(rank[name] / total)})",
            }
            for name in names
            if rank.get(name, 0.0) > 0
        ]
        bars.append({"name": f"rank {n}", "parts": parts, "text": format_seconds(total)})
        rows.append([f"rank {n}", *(format_seconds(rank.get(name, 0.0)) for name in names), format_seconds(total)])
    hidden = ", ".join(f"{_words(k)} {format_seconds(v)}" for k, v in step.hidden_comm_s.items() if v > 0)
    return {
        "legend": [(_words(name), PHASE_CLASS.get(name, OTHER_CLASS)) for name in names],
        "bars": bars,
        "rows": rows,
        "head": ["rank", *(_words(name) for name in names), "step"],
        "hidden": hidden,
    }


def memory_view(step: Step) -> dict[str, Any] | None:
    """Stacked bars of peak bytes against the capacity, one a stage."""
    if not step.memory:
        return None
    names = _used(MEMORY_CATEGORIES, (k for s in step.memory for k, v in s.by_category.items() if v > 0))
    scale = max(max(s.peak_bytes, s.capacity_bytes) for s in step.memory) * 1.02
    bars, rows = [], []
    for stage in step.memory:
        sizes = {name: stage.by_category.get(name, 0) for name in names}
        share = stage.peak_bytes / stage.capacity_bytes if stage.capacity_bytes else 0.0
        bars.append(
            {
                "name": f"stage {stage.stage}",
                "parts": [
                    {
                        "css": MEMORY_CLASS.get(name, OTHER_CLASS),
                        "width": _width(size, scale),
                        "title": f"{_words(name)}: {format_bytes(size)}",
                    }
                    for name, size in sizes.items()
                    if size > 0
                ],
                "mark": _width(stage.capacity_bytes, scale),
                "tone": "bad" if share > 1.0 else "warn" if share > 0.95 else "",
                "text": f"{format_bytes(stage.peak_bytes)} ({format_percent(share)})",
            }
        )
        rows.append(
            [
                f"stage {stage.stage}",
                *(format_bytes(size) for size in sizes.values()),
                format_bytes(stage.peak_bytes),
                format_bytes(stage.capacity_bytes),
            ]
        )
    return {
        "legend": [(_words(name), MEMORY_CLASS.get(name, OTHER_CLASS)) for name in names],
        "bars": bars,
        "rows": rows,
        "head": ["stage", *(_words(name) for name in names), "peak", "capacity"],
    }


def _error_bar(error_pct: float | None) -> dict[str, str] | None:
    """A bar from the middle; 50 % and more fill a half."""
    if error_pct is None:
        return None
    size = min(abs(error_pct), 50.0)
    left = 50.0 if error_pct >= 0 else 50.0 - size
    return {"css": "over" if error_pct >= 0 else "under", "left": f"{left:.2f}", "width": f"{size:.2f}"}


def comparison_view(found: Comparison) -> dict[str, Any]:
    """Text and bars of one comparison."""
    error = f"{found.error_pct:+.1f}%" if found.comparable else "not comparable"
    phases = [
        {
            "name": _words(p.phase),
            "predicted": format_seconds(p.predicted_s),
            "measured": format_seconds(p.measured_s),
            "error": "–" if p.error_pct is None else f"{p.error_pct:+.1f}%",
            "share": f"{p.share_of_step_pct:.1f}%",
            "bar": _error_bar(p.error_pct),
        }
        for p in found.phases
    ]
    memory = ""
    if found.memory_predicted_bytes and found.memory_measured_bytes:
        predicted, measured = max(found.memory_predicted_bytes), max(found.memory_measured_bytes)
        memory = (
            f"Peak memory of the largest rank: predicted {format_bytes(predicted)}, measured {format_bytes(measured)}"
        )
        memory += f" ({(predicted / measured - 1.0) * 100.0:+.1f}%)." if measured else "."
    return {
        "plan": found.plan,
        "predicted": format_seconds(found.predicted_s),
        "measured": format_seconds(found.measured_s),
        "error": error,
        "bar": _error_bar(found.error_pct) if found.comparable else None,
        "within": "inside" if found.within_interval else "outside",
        "phases": phases,
        "memory": memory,
        "notes": found.notes,
    }
