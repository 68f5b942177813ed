"""Constraints on layouts: a small language (`grammar`), what its names mean (`names`), and when two clash (`clash`).

A constraint is a comparison such as ``tp <= 8``, ``pp in [1, 2, 4]`` or ``microbatches >= 4*pp``, or several of them
joined by ``and``, ``or`` and ``not``. It is evaluated over arrays of layouts by interval arithmetic
(`planner.search.constraints.evaluate`): what is not known yet lies between two ends, and a layout is dropped as soon
as no value in between would satisfy the constraint.
"""

from planner.search.constraints.clash import Clash, find_clash
from planner.search.constraints.evaluate import Span, decide
from planner.search.constraints.grammar import Constraint, parse, parse_all
from planner.search.constraints.masks import Known, layout_mask

__all__ = [
    "Clash",
    "Constraint",
    "Known",
    "Span",
    "decide",
    "find_clash",
    "layout_mask",
    "parse",
    "parse_all",
]
