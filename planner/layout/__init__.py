"""`Layout`: the degrees of parallelism (`degrees`) and every validity rule (`rules`)."""

from planner.layout.degrees import (
    AXES,
    DEGREES,
    RECOMPUTE,
    SCHEDULES,
    Layout,
    LayoutBatch,
    divisors,
    split_layers,
    with_defaults,
)
from planner.layout.remedies import RuleContext
from planner.layout.rules import RULES, Rule, check, faults, validate

__all__ = [
    "AXES",
    "DEGREES",
    "RECOMPUTE",
    "RULES",
    "SCHEDULES",
    "Layout",
    "LayoutBatch",
    "Rule",
    "RuleContext",
    "check",
    "divisors",
    "faults",
    "split_layers",
    "validate",
    "with_defaults",
]
