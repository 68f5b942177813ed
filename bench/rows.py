"""What ``make bench`` measures and the targets it holds the figures against.

A row is one command, run as a whole process. Its figure is the wall clock of that process, or a number that the
process prints of itself (layouts a second, milliseconds a candidate).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

GIB = 2**30
NOT_OF_FORM = ("memory", "bound")
"""What drops a layout for its size, or for a bound above the answer, and not for its form: such a layout is legal."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table.

    Attributes
    ----------
    name : str
    arguments : tuple of str
        What follows ``python``.
    target : float
        The figure must not be above it, or not below it where `at_least`; infinite for no target.
    figure : callable or None
        Output of the process -> the figure; None: the wall seconds.
    unit : str
    at_least : bool
    peak_bytes : float
        Most resident memory.
    counts : mapping of str to int
        Least values of what the JSON output counts: ``considered``, ``legal``.
    """

    name: str
    arguments: tuple[str, ...]
    target: float = float("inf")
    figure: Callable[[str], float] | None = None
    unit: str = "s"
    at_least: bool = False
    peak_bytes: float = float("inf")
    counts: dict[str, int] = field(default_factory=dict)

    def absent(self, root: Path) -> str:
        """The script or scenario that the command needs and the checkout lacks; empty if there is none."""
        files = [word for word in self.arguments if word.endswith((".yaml", ".py"))]
        return next((name for name in files if not (root / name).exists()), "")

    def holds(self, value: float) -> bool:
        """Whether a figure keeps the target."""
        return value >= self.target if self.at_least else value <= self.target


def counted(out: str) -> dict[str, int]:
    """``considered`` and ``legal`` of a search's JSON.

    Legal is what no rule of form dropped: what memory or a bound alone ruled out counts.
    """
    found = json.loads(out)
    dropped = {rule: count for rule, count in found["dropped"].items() if not rule.startswith(NOT_OF_FORM)}
    return {"considered": found["considered"], "legal": found["considered"] - sum(dropped.values())}


def number(pattern: str) -> Callable[[str], float]:
    """The first number that `pattern` finds, thousands separated by commas."""

    def figure(out: str) -> float:
        found = re.search(pattern, out)
        if found is None:
            raise ValueError(f"no {pattern!r} in {out[:200]!r}")
        return float(found[1].replace(",", ""))

    return figure


def search(scenario: str, *options: str) -> tuple[str, ...]:
    """The command of a search as a user types it."""
    return ("-m", "planner", "search", f"scenarios/{scenario}.yaml", *options, "--json")


ENGINES = ("bench/engines.py", "1")
BASE: tuple[Row, ...] = (
    Row("python", ("-c", "pass")),
    Row("numpy", ("-c", "import numpy")),
    Row("numpy_loop", ("bench/numpy_loop.py",)),
)
"""Measured beside every other row, so that figures of different machines and hours can be told apart."""
ROWS: tuple[Row, ...] = (
    Row("help", ("-m", "planner", "--help"), 0.5),
    Row("gpt3-175b-4096xa100", search("gpt3-175b-4096xa100"), 1.0, peak_bytes=GIB, counts={"legal": 100_000}),
    Row("gpt3-175b-4096xa100-open", search("gpt3-175b-4096xa100-open"), 10.0, counts={"considered": 7_000_000}),
    Row("llama3.1-405b-16384xh100", search("llama3.1-405b-16384xh100"), 2.0),
    Row("deepseek-v3-2048xh100", search("deepseek-v3-2048xh100"), 2.0),
    Row("moe-2t-131072xgb200", search("moe-2t-131072xgb200"), 5.0),
    Row("llama3-70b-128xh100", search("llama3-70b-128xh100"), 5.0),
    Row("layouts a second", ("bench/layouts.py",), 300_000, number(r"([\d,]+) layouts priced"), "/s", at_least=True),
    Row("batch against singles", ("bench/batch.py",), 200, number(r"([\d,.]+)x"), "x", at_least=True),
    Row("simpy 16x256x4", ENGINES, 3.0, number(r"SimPy ([\d.]+) s without")),
    Row("simpy, contention", ENGINES, 3.0, number(r"SimPy ([\d.]+) s with ")),
    Row("max-plus, 64 at once", ENGINES, 20.0, number(r"max-plus ([\d.]+) ms"), "ms"),
    Row("graph 16x256x4", ENGINES, 1.0, number(r"build ([\d.]+) s")),
    Row("gemm_prices_2m", ("bench/gemm_prices.py", "1"), 1.6),
)
GROWTH = ("moe-2t-131072xgb200", ("--mbs", "1"), ())
"""A scenario, and the options of a small and of the full space: time must not grow faster than layouts."""
GROWTH_SLACK = 1.15
"""Two wall clocks in the same minute differ by this much on a machine that others use as well."""


def chosen(names: Sequence[str]) -> list[Row]:
    """The rows of these names, or all of them.

    Raises
    ------
    SystemExit
        For a name that no row has.
    """
    unknown = set(names) - {row.name for row in ROWS}
    if unknown:
        raise SystemExit(f"no row {', '.join(sorted(unknown))}. Try: {', '.join(row.name for row in ROWS)}")
    return [row for row in ROWS if not names or row.name in names]
