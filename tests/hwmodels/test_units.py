"""Units: known conversions, refusal of what is ambiguous, and that printing keeps the value."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hwmodels import units
from hwmodels.errors import InputError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("80GiB", 80 * 1024**3),
        ("80 GB", 80e9),
        ("512kB", 512e3),
        ("1.5MiB", 1.5 * 1048576),
        ("0B", 0.0),
        ("1e3B", 1000.0),
    ],
)
def test_bytes(text: str, expected: float) -> None:
    assert units.parse_bytes(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("400Gb/s", 50e9),  # 400e9 bits / 8
        ("400Gbps", 50e9),
        ("400Gbit/s", 50e9),
        ("3.35TB/s", 3.35e12),
        ("450GBps", 450e9),
        ("1GiB/s", 2.0**30),
    ],
)
def test_bandwidth(text: str, expected: float) -> None:
    assert units.parse_bandwidth(text) == pytest.approx(expected, rel=1e-15)


@pytest.mark.parametrize(
    ("text", "expected"), [("5us", 5e-6), ("3µs", 3e-6), ("1.5 ms", 1.5e-3), ("90min", 5400.0), ("2h", 7200.0)]
)
def test_duration(text: str, expected: float) -> None:
    assert units.parse_duration(text) == expected


def test_flops_and_power() -> None:
    assert units.parse_flops("312TFLOP/s") == 312e12
    assert units.parse_flops("1979 TOPS") == 1979e12
    assert units.parse_power("1.2kW") == 1200.0


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (units.parse_bytes, "80"),
        (units.parse_bytes, 80),
        (units.parse_bytes, "80Gb"),
        (units.parse_bytes, "-1GiB"),
        (units.parse_bytes, "eight GiB"),
        (units.parse_bytes, True),
        (units.parse_bytes, None),
        (units.parse_bandwidth, "400G"),
        (units.parse_bandwidth, "400GB"),
        (units.parse_bandwidth, 4e11),
        (units.parse_duration, "5"),
        (units.parse_duration, "5 fortnights"),
        (units.parse_flops, "312T"),
        (units.parse_flops, "312TFLOP"),
        (units.parse_power, "700"),
    ],
)
def test_refused_with_what_would_work(parse: object, text: object) -> None:
    with pytest.raises(InputError) as error:
        parse(text)  # type: ignore[operator]
    assert "Try:" in str(error.value)


@settings(deadline=None, max_examples=60)
@given(st.floats(1e-3, 1e17))
def test_printed_bytes_can_be_read_back(nbytes: float) -> None:
    # Three significant digits are printed, except below one byte, where two decimals are.
    again = units.parse_bytes(units.format_bytes(nbytes))
    assert math.isclose(again, nbytes, rel_tol=6e-3, abs_tol=6e-3)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (units.format_bytes(80 * 1024**3), "80.0 GiB"),
        (units.format_bytes(1023.9), "1.00 KiB"),
        (units.format_seconds(0.0125), "12.5 ms"),
        (units.format_seconds(0.0), "0 ns"),
        (units.format_seconds(99.97), "100 s"),
        (units.format_bandwidth(450e9), "450 GB/s"),
        (units.format_flops(989.4e12), "989 TFLOP/s"),
        (units.format_percent(0.4251), "42.5%"),
        (units.format_usd(12345.6), "$12,346"),
        (units.format_usd(0.01234), "$0.0123"),
        (units.format_usd(2.5), "$2.50"),
    ],
)
def test_formats(text: str, expected: str) -> None:
    assert text == expected
