"""Constraints over layouts of which more and more is known: fields, then memory and bounds, then exact times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

import numpy as np

from hwmodels.records import dataclass
from planner.layout import LayoutBatch
from planner.search.constraints.evaluate import UNKNOWN, BoolArray, Span, decide
from planner.search.constraints.grammar import Constraint
from planner.search.constraints.names import NAMES, of_layouts
from planner.search.objectives import OBJECTIVES, Figures
from planner.search.question import Question


@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """What is known of n layouts.

    Attributes
    ----------
    question : Question
    layouts : LayoutBatch
    figures : Figures or None
        Of the same layouts; None before they are priced.
    exact : bool
        Whether `figures` holds exact step times, not lower bounds.
    whole : bool
        Whether `figures` knows the layouts in every field.
    details : mapping
        Name of `planner.search.constraints.names.DETAILS` -> ndarray (n,), where layouts are predicted in full.
    rest : ndarray (n,) or float
        Share of the step that a detail is at most: what kernels leave of it.
    """

    question: Question
    layouts: LayoutBatch
    figures: Figures | None = None
    exact: bool = False
    whole: bool = True
    details: Mapping[str, np.ndarray] = field(default_factory=dict)
    rest: np.ndarray | float = 1.0

    def span(self, name: str) -> Span:
        """Between which ends the numbers of a name lie."""
        known = NAMES[name]
        if known.kind == "detail":
            return Span.of(self.details[name]) if name in self.details else Span(np.asarray(0.0), np.asarray(self.rest))
        if known.kind != "figure":
            return Span.of(of_layouts(name, self.layouts, self.question))
        if self.figures is None:
            return UNKNOWN
        objective = OBJECTIVES[name]
        if self.exact or name in _OF_MEMORY:
            return Span.of(objective.value(self.figures))
        return Span(*objective.bounds(self.figures, self.whole))

    def decide(self, constraint: Constraint) -> tuple[BoolArray, BoolArray]:
        """Whether a constraint must hold, and whether it may: ndarrays (n,) of bool."""
        must, may = decide(constraint.tree, self.span)
        # of one of its own fields: a search has laid out no others yet where it asks
        shape = np.shape(getattr(self.layouts, constraint.base[0] if constraint.base else "tp"))
        return np.broadcast_to(must, shape), np.broadcast_to(may, shape)


_OF_MEMORY = ("peak_memory", "memory_headroom")
"""Figures that do not depend on the step time."""


def layout_mask(constraint: Constraint, layouts: LayoutBatch, question: Question) -> BoolArray:
    """Which layouts may satisfy a constraint, whatever their figures will be: ndarray (n,) of bool."""
    return Known(question, layouts).decide(constraint)[1]
