"""Constraints that are limits of one name: ``step_time <= 12s`` as an interval of numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.search.constraints.grammar import Constraint
from planner.search.constraints.names import NAMES
from planner.search.constraints.tree import Arithmetic, Compare, Condition, Every, Literal, Member, Named, Number

_MIRROR = {"<=": ">=", "<": ">", ">=": "<=", ">": "<", "==": "==", "!=": "!="}


@dataclass(frozen=True, slots=True)
class Interval:
    """Numbers of one name that a constraint leaves, from `low` to `high`; `open_low`, `open_high`: without the ends."""

    name: str
    low: float = -np.inf
    high: float = np.inf
    open_low: bool = False
    open_high: bool = False

    def meets(self, other: Interval) -> bool:
        """Whether the two have a number in common."""
        low, high = max(self.low, other.low), min(self.high, other.high)
        if low != high:
            return low < high
        return not any((i.low == low and i.open_low) or (i.high == high and i.open_high) for i in (self, other))

    def within(self, other: Interval) -> Interval:
        """The numbers of both."""
        low, high = max(self.low, other.low), min(self.high, other.high)
        ends = (self, other)
        return Interval(
            self.name,
            low,
            high,
            any(i.low == low and i.open_low for i in ends),
            any(i.high == high and i.open_high for i in ends),
        )


def interval_of(constraint: Constraint) -> Interval | None:
    """The interval of the only name of a constraint, or None where it is no such limit."""
    return _interval(constraint.tree)


def _interval(tree: Condition) -> Interval | None:
    match tree:
        case Compare(sign, Named(name), side) if (value := constant(side)) is not None:
            return _half(sign, name, value)
        case Compare(sign, side, Named(name)) if (value := constant(side)) is not None:
            return _half(_MIRROR[sign], name, value)
        case Member(Named(name), (choice,)):
            ends = choice if isinstance(choice, tuple) else (choice, choice)
            low, high = constant(ends[0]), constant(ends[1])
            return None if low is None or high is None else Interval(name, low, high)
        case Every(parts):
            each = [_interval(part) for part in parts]
            first = each[0]
            for other in each[1:]:
                if first is None or other is None or other.name != first.name:
                    return None
                first = first.within(other)
            return first
        case _:
            return None


def _half(sign: str, name: str, value: float) -> Interval | None:
    match sign:
        case "<=" | "<":
            return Interval(name, high=value, open_high=sign == "<")
        case ">=" | ">":
            return Interval(name, low=value, open_low=sign == ">")
        case "==":
            return Interval(name, value, value)
        case _:
            return None


def constant(tree: Number) -> float | None:
    """The number of an expression without names, or None."""
    from planner.search.constraints.evaluate import UNKNOWN, number

    match tree:
        case Literal(value, _, _):
            return float(value)
        case Named():
            return None
        case Arithmetic(_, left, right):
            if constant(left) is None or constant(right) is None:
                return None
            return float(number(tree, lambda _: UNKNOWN).low)


def is_figure(interval: Interval) -> bool:
    """Whether the name is a figure of a step."""
    return NAMES[interval.name].kind in ("figure", "detail")
