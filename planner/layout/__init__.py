"""`Layout`: the degrees of parallelism (`degrees`) and every validity rule (`rules`)."""

from planner.frameworks.orders import ORDERS
from planner.layout.axes import AXES
from planner.layout.degrees import (
    DEGREES,
    OPEN_CP_KINDS,
    RESHARDS,
    SCHEDULES,
    Layout,
    LayoutBatch,
    divisors,
    with_defaults,
)
from planner.layout.grids import both_grids, grid_texts
from planner.layout.known import KNOWN
from planner.layout.recompute import RECOMPUTE
from planner.layout.remedies import RuleContext
from planner.layout.rule import Rule
from planner.layout.rules import RULES, check, faults, validate
from planner.layout.splits import is_even, parse_split, split_faults, split_id, split_layers, split_of, split_text

__all__ = [
    "AXES",
    "DEGREES",
    "KNOWN",
    "OPEN_CP_KINDS",
    "ORDERS",
    "RESHARDS",
    "RECOMPUTE",
    "RULES",
    "SCHEDULES",
    "Layout",
    "LayoutBatch",
    "Rule",
    "RuleContext",
    "both_grids",
    "check",
    "divisors",
    "faults",
    "grid_texts",
    "is_even",
    "parse_split",
    "split_faults",
    "split_id",
    "split_layers",
    "split_of",
    "split_text",
    "validate",
    "with_defaults",
]
