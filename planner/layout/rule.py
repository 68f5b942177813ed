"""`Rule`: what a validity rule of a layout is."""

from __future__ import annotations

from collections.abc import Callable

from hwmodels.records import dataclass
from planner.layout.degrees import BoolArray, Layout, LayoutBatch
from planner.layout.remedies import RuleContext


@dataclass(frozen=True, slots=True)
class Rule:
    """A validity rule: its identifier, its sentence, its test on arrays, and its remedy.

    Attributes
    ----------
    id : str
    sentence : str
        The rule as a person would say it.
    holds : callable
        ``(layouts, context) -> bool array``, True where the rule is kept.
    explain : callable
        ``(layout, context) -> (what, why, fix)`` for one layout that breaks it.
    needs : tuple of str
        Rules that must hold for this one to be meaningful (no faults in a row for one cause).
    """

    id: str
    sentence: str
    holds: Callable[[LayoutBatch, RuleContext], BoolArray]
    explain: Callable[[Layout, RuleContext], tuple[str, str, str]]
    needs: tuple[str, ...] = ("degrees-positive",)
