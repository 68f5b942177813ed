"""Values as text: the unit of a figure is told by the ending of its name, as everywhere in the code."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from hwmodels.units import format_bandwidth, format_bytes, format_percent, format_seconds, format_usd

_ENDINGS: tuple[tuple[str, Callable[[float], str], str], ...] = (
    ("tokens_per_s_per_gpu", lambda v: f"{v:,.0f}", "tokens/s/GPU"),
    ("usd_per_mtoken", format_usd, "$/1M tokens"),
    ("bytes_per_s", format_bandwidth, ""),
    ("_pct", lambda v: f"{v:+.1f}%", ""),
    ("_bytes", format_bytes, ""),
    ("_usd", format_usd, ""),
    ("_s", format_seconds, ""),
)
_SHARES = ("mfu", "hfu", "bubble_fraction")


def label(key: str) -> str:
    """Heading of a column: the name without the ending that its values show as a unit."""
    for ending, _, heading in _ENDINGS:
        if key.endswith(ending):
            stem = key.removesuffix(ending).rstrip("_")
            return heading if heading and not stem else (stem or key).replace("_", " ")
    return key.upper() if key in ("mfu", "hfu") else key.replace("_", " ")


def value(key: str, item: Any) -> str:
    """A value as people read it: unit by the ending of `key`, nothing for None."""
    if item is None:
        return "–"
    if isinstance(item, bool):
        return "yes" if item else "no"
    if isinstance(item, int | float):
        if not math.isfinite(item):
            return "–"
        if key in _SHARES or key.endswith("_fraction"):
            return format_percent(item)
        for ending, form, _ in _ENDINGS:
            if key.endswith(ending):
                return form(item)
        return f"{item:,}" if isinstance(item, int) else f"{item:,.4g}"
    if isinstance(item, dict):
        return ", ".join(f"{k}={value(str(k), v)}" for k, v in item.items())
    if isinstance(item, list | tuple):
        return ", ".join(value(key, v) for v in item)
    return str(item)


def is_number(item: Any) -> bool:
    """Whether a cell holds a finite number (and is aligned and sorted as one)."""
    return isinstance(item, int | float) and not isinstance(item, bool) and math.isfinite(item)


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> list[str]:
    """Lines of a Markdown table, the first `left` columns flush left and the others right; a dash without rows."""
    rule = [":--" if i < left else "--:" for i in range(len(header))]
    body = [[cell.replace("|", "\\|") for cell in row] for row in rows] or [["–"] * len(header)]
    return ["| " + " | ".join(row) + " |" for row in (header, rule, *body)]
