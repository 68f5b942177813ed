"""Conditions over arrays, with numbers that are known, bounded or unknown.

Every number is a `Span`, two ends between which it lies (R. E. Moore, Interval Analysis, 1966): equal ends where it
is known. A condition then has two answers for each layout: whether it *must* hold, whatever the numbers turn out to
be, and whether it *may*. Where all numbers are known the two are the same array.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwmodels.records import dataclass
from planner.search.constraints.tree import (
    Arithmetic,
    Compare,
    Condition,
    Every,
    Literal,
    Member,
    Named,
    Not,
    Number,
    Some,
)

BoolArray = NDArray[np.bool_]
Array = NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class Span:
    """Numbers between two ends, both included.

    Attributes
    ----------
    low, high : ndarray
        The same object where the numbers are known.
    """

    low: Array
    high: Array

    @property
    def exact(self) -> bool:
        """Whether the numbers are known."""
        return self.high is self.low

    @classmethod
    def of(cls, value: Any) -> Span:
        """Known numbers."""
        array = np.asarray(value)
        return cls(array, array)


UNKNOWN = Span(np.asarray(-np.inf), np.asarray(np.inf))
Values = Callable[[str], Span]


def decide(tree: Condition, values: Values) -> tuple[BoolArray, BoolArray]:
    """Whether a condition must hold, and whether it may: two arrays of the shape that its numbers broadcast to.

    Parameters
    ----------
    tree : Condition
    values : callable
        Name -> `Span`.
    """
    match tree:
        case Compare(sign, left, right):
            return _compared(sign, number(left, values), number(right, values))
        case Member(left, choices):
            span = number(left, values)
            each = [_chosen(span, choice, values) for choice in choices]
            return _merged(each, np.logical_or)
        case Every(parts):
            return _merged([decide(part, values) for part in parts], np.logical_and)
        case Some(parts):
            return _merged([decide(part, values) for part in parts], np.logical_or)
        case Not(part):
            must, may = decide(part, values)
            if must is may:
                found = ~must
                return found, found
            return ~may, ~must


def _merged(each: list[tuple[BoolArray, BoolArray]], join: np.ufunc) -> tuple[BoolArray, BoolArray]:
    must, may = each[0]
    for other_must, other_may in each[1:]:
        known = must is may and other_must is other_may
        must = join(must, other_must)
        may = must if known else join(may, other_may)
    return must, may


def _chosen(span: Span, choice: Number | tuple[Number, Number], values: Values) -> tuple[BoolArray, BoolArray]:
    if not isinstance(choice, tuple):
        return _compared("==", span, number(choice, values))
    low, high = (number(end, values) for end in choice)
    return _merged([_compared(">=", span, low), _compared("<=", span, high)], np.logical_and)


def _compared(sign: str, a: Span, b: Span) -> tuple[BoolArray, BoolArray]:
    known = a.exact and b.exact
    must: Array
    may: Array
    match sign:
        case "<=":
            must, may = a.high <= b.low, a.low <= b.high
        case "<":
            must, may = a.high < b.low, a.low < b.high
        case ">=":
            must, may = a.low >= b.high, a.high >= b.low
        case ">":
            must, may = a.low > b.high, a.high > b.low
        case "==":
            must = (a.low == b.low) & (a.high == b.high) & (a.low == a.high)
            may = (a.low <= b.high) & (b.low <= a.high)
        case _:
            must = (a.low > b.high) | (b.low > a.high)
            may = ~((a.low == b.low) & (a.high == b.high) & (a.low == a.high))
    found = np.asarray(must)
    return found, found if known else np.asarray(may)


def number(tree: Number, values: Values) -> Span:
    """The numbers of an expression."""
    match tree:
        case Literal(value, _, _):
            return Span.of(value)
        case Named(name):
            return values(name)
        case Arithmetic(sign, left, right):
            return _joined(sign, number(left, values), number(right, values))


def _joined(sign: str, a: Span, b: Span) -> Span:
    with np.errstate(divide="ignore", invalid="ignore"):
        if a.exact and b.exact:
            return Span.of(_calculated(sign, a.low, b.low))
        match sign:
            case "+":
                return Span(a.low + b.low, a.high + b.high)
            case "-":
                return Span(a.low - b.high, a.high - b.low)
            case "*":
                return _hull(sign, a, b)
            case _:
                crosses = (b.low <= 0) & (b.high >= 0)
                hull = _hull(sign, a, b)
                return Span(np.where(crosses, -np.inf, hull.low), np.where(crosses, np.inf, hull.high))


def _hull(sign: str, a: Span, b: Span) -> Span:
    """The least and the most of the ends joined; 0 times infinity is 0, infinity over infinity anything above 0."""
    ends = [np.asarray(_calculated(sign, x, y), dtype=np.float64) for x in (a.low, a.high) for y in (b.low, b.high)]
    each = np.stack(np.broadcast_arrays(*(np.nan_to_num(end, nan=0.0, posinf=np.inf, neginf=-np.inf) for end in ends)))
    return Span(each.min(axis=0), each.max(axis=0))


def _calculated(sign: str, a: Array, b: Array) -> Array:
    match sign:
        case "+":
            return np.asarray(a + b)
        case "-":
            return np.asarray(a - b)
        case "*":
            return np.asarray(a * b)
        case "/":
            return np.asarray(np.divide(a, b))
        case _:  # of whole numbers; nothing over 0 is a number, and no comparison holds for it
            join = np.floor_divide if sign == "//" else np.mod
            some = np.asarray(join(a, np.where(b == 0, 1, b)))
            return np.where(b == 0, np.nan, some) if np.any(b == 0) else some
