"""The only place where units are parsed or printed.

Inside the code everything is in SI base units: seconds, bytes, FLOP/s, bytes/s. Text at the
edges carries its unit; a bare number is ambiguous and is refused.
"""

from __future__ import annotations

import math
import re

from hwmodels.errors import Fault, InputError

_DECIMAL = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50}
_PREFIX = {**_DECIMAL, **_BINARY}
_TIME = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
# Divided by, because 5 / 1e6 is the float nearest to 5e-6, which 5 * 1e-6 is not.
_TIME_PARTS = {"ns": 1e9, "us": 1e6, "µs": 1e6, "μs": 1e6, "ms": 1e3}
_NUMBER = re.compile(r"^\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(.*?)\s*$")


def _split(text: object, what: str, example: str) -> tuple[float, str]:
    """Number and unit of `text`; InputError for anything without both."""
    if isinstance(text, bool) or not isinstance(text, str):
        raise InputError(Fault(f"{what} {text!r} has no unit", why="a bare number is ambiguous", fix=example))
    match = _NUMBER.match(text)
    if match is None:
        raise InputError(Fault(f"{what} {text!r} is not a number with a unit", fix=example))
    value, unit = float(match.group(1)), match.group(2)
    if not unit:
        raise InputError(Fault(f"{what} {text!r} has no unit", why="a bare number is ambiguous", fix=example))
    if not math.isfinite(value) or value < 0:
        raise InputError(Fault(f"{what} {text!r} is not a finite number >= 0", fix=example))
    return value, unit


def _unknown(text: object, what: str, unit: str, example: str) -> InputError:
    return InputError(Fault(f"unknown unit {unit!r} in {what} {text!r}", fix=example))


def parse_bytes(text: object) -> float:
    """Bytes of a size such as ``"80GiB"``, ``"512 MB"`` or ``"0B"``.

    Raises
    ------
    InputError
        For a bare number, an unknown unit, a negative or infinite value, or bits (``Gb``).
    """
    value, unit = _split(text, "size", "80GiB")
    if unit.endswith("B") and unit[:-1] in _PREFIX:
        return value * _PREFIX[unit[:-1]]
    raise _unknown(text, "size", unit, "80GiB (sizes are in bytes: B, kB, MiB, GiB, ...)")


def parse_bandwidth(text: object) -> float:
    """Bytes per second of ``"400Gb/s"`` (bits), ``"3.35TB/s"`` (bytes), ``"400Gbps"`` or ``"450GBps"``.

    Raises
    ------
    InputError
        For a bare number, an unknown unit, or a negative or infinite value.
    """
    value, unit = _split(text, "bandwidth", "400Gb/s or 50GB/s")
    stem = unit[:-2] if unit.endswith("/s") else unit[:-2] if unit.endswith("ps") else ""
    if stem.endswith("bit"):
        stem = stem[:-2]
    if stem.endswith("B") and stem[:-1] in _PREFIX:
        return value * _PREFIX[stem[:-1]]
    if stem.endswith("b") and stem[:-1] in _PREFIX:
        return value * _PREFIX[stem[:-1]] / 8.0
    raise _unknown(text, "bandwidth", unit, "400Gb/s (bits) or 50GB/s (bytes)")


def parse_duration(text: object) -> float:
    """Seconds of ``"5us"``, ``"1.5 ms"``, ``"90min"`` or ``"2h"``.

    Raises
    ------
    InputError
        For a bare number, an unknown unit, or a negative or infinite value.
    """
    value, unit = _split(text, "duration", "5us")
    if unit in _TIME_PARTS:
        return value / _TIME_PARTS[unit]
    if unit in _TIME:
        return value * _TIME[unit]
    raise _unknown(text, "duration", unit, "5us (ns, us, ms, s, min, h, d)")


def parse_flops(text: object) -> float:
    """FLOP per second of ``"312TFLOP/s"`` (also ``TFLOPS`` and ``TOP/s`` for integer peaks).

    Raises
    ------
    InputError
        For a bare number, an unknown unit, or a negative or infinite value.
    """
    value, unit = _split(text, "compute rate", "312TFLOP/s")
    for ending in ("FLOP/s", "FLOPS", "FLOPs/s", "OP/s", "OPS"):
        if unit.endswith(ending) and unit[: -len(ending)] in _DECIMAL:
            return value * _DECIMAL[unit[: -len(ending)]]
    raise _unknown(text, "compute rate", unit, "312TFLOP/s")


def parse_power(text: object) -> float:
    """Watts of ``"700W"`` or ``"1.2kW"``.

    Raises
    ------
    InputError
        For a bare number, an unknown unit, or a negative or infinite value.
    """
    value, unit = _split(text, "power", "700W")
    if unit.endswith("W") and unit[:-1] in _DECIMAL:
        return value * _DECIMAL[unit[:-1]]
    raise _unknown(text, "power", unit, "700W")


_COUNTS = {"": 1.0, "K": 1e3, "k": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12}
_COUNT = re.compile(r"^\s*(\d+\.?\d*(?:[eE][+-]?\d+)?)\s*([A-Za-z]*)\s*$")
_GRID = re.compile(r"^\s*(\d+\.?\d*(?:[eE][+-]?\d+)?)\s*(kg|g)(?:\s*CO2)?\s*/\s*kWh\s*$")


def parse_count(text: object, what: str = "number") -> float:
    """A count such as ``"15T"``, ``"300B"``, ``"1.5e12"`` or a bare number, which is not ambiguous here.

    Raises
    ------
    InputError
        For anything else, and for nothing to count.
    """
    match = _COUNT.match(str(text)) if not isinstance(text, bool) else None
    if match is None or match[2] not in _COUNTS or not 0 < float(match[1]) < math.inf:
        raise InputError(Fault(f"{what} {text!r} is no count above 0", fix="15T, 300B, 20M or 1.5e12"))
    return float(match[1]) * _COUNTS[match[2]]


def parse_grid(text: object) -> float:
    """Kilograms of CO2 for a kilowatt-hour: ``"0.2kg/kWh"`` or ``"200g/kWh"``.

    Raises
    ------
    InputError
        For a bare number, which may be either, or an unknown unit.
    """
    match = _GRID.match(text) if isinstance(text, str) else None
    if match is None:
        why = "a bare number may be grams or kilograms" if str(text).replace(".", "", 1).isdigit() else ""
        raise InputError(Fault(f"{text!r} is no CO2 of a kilowatt-hour", why=why, fix="0.2kg/kWh or 200g/kWh"))
    return float(match[1]) * (1e-3 if match[2] == "g" else 1.0)


def _scaled(value: float, steps: list[tuple[float, str]]) -> str:
    """`value` in the largest step that it reaches, with three significant digits or more."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g} {steps[-1][1]}"
    size = abs(value)
    # 0.9995 of a step prints as 1.00 of it, never as 1000 of the step below.
    scale, unit = next((step for step in steps if size >= step[0] * 0.9995), steps[-1])
    number = value / scale
    digits = 0 if abs(number) >= 99.95 else 1 if abs(number) >= 9.995 else 2
    return f"{number:.{digits}f} {unit}"


def format_bytes(nbytes: float) -> str:
    """Binary units: ``"79.2 GiB"``."""
    return _scaled(float(nbytes), [(2.0**40, "TiB"), (2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "B")])


def format_seconds(seconds: float) -> str:
    """``"3.21 s"``, ``"12.5 ms"``, ``"4.70 us"``."""
    return _scaled(float(seconds), [(1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns")])


def format_duration(seconds: float) -> str:
    """As `format_seconds`, with minutes, hours and days above: ``"29.4 d"``."""
    return _scaled(float(seconds), [(86400.0, "d"), (7200.0, "h")]) if seconds >= 86400.0 else (
        _scaled(float(seconds), [(3600.0, "h")]) if seconds >= 7200.0 else format_seconds(seconds)
    )  # fmt: skip


def format_bandwidth(bytes_per_s: float) -> str:
    """Decimal bytes: ``"450 GB/s"``."""
    return _scaled(float(bytes_per_s), [(1e12, "TB/s"), (1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"), (1.0, "B/s")])


def format_flops(flop_per_s: float) -> str:
    """``"312 TFLOP/s"``."""
    steps = [
        (1e18, "EFLOP/s"),
        (1e15, "PFLOP/s"),
        (1e12, "TFLOP/s"),
        (1e9, "GFLOP/s"),
        (1e6, "MFLOP/s"),
        (1.0, "FLOP/s"),
    ]
    return _scaled(float(flop_per_s), steps)


def format_percent(share: float) -> str:
    """A share of one as per cent: ``0.4251 -> "42.5%"``."""
    return f"{100.0 * float(share):.1f}%"


def format_usd(usd: float) -> str:
    """``"$1,234"``, ``"$12.34"``, ``"$0.0123"``."""
    value = float(usd)
    if abs(value) >= 1000:
        return f"${value:,.0f}"
    if abs(value) >= 1 or value == 0:
        return f"${value:.2f}"
    return f"${value:.3g}"
