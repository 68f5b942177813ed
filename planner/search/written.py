"""How a figure is written by its dimension."""

from __future__ import annotations

from hwmodels.units import format_bytes, format_duration, format_percent, format_usd

_WRITTEN = {"seconds": format_duration, "bytes": format_bytes, "share": format_percent, "usd": format_usd}


def with_unit(dimension: str, value: float) -> str:
    """A figure with the unit of its dimension; empty where it has none of its own (counts, kWh, kg)."""
    return _WRITTEN[dimension](value) if dimension in _WRITTEN else ""
