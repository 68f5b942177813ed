"""tokens_per_s: tokens that all ranks together train on in a second."""

from __future__ import annotations

from planner.search.objectives.base import Figures, FloatArray, Objective


class TokensPerS(Objective):
    """Tokens of a step over its seconds."""

    name = "tokens_per_s"
    title = "tokens a second"
    sense = "max"

    def value(self, figures: Figures) -> FloatArray:
        """Tokens a second of all ranks: ndarray (n,)."""
        return figures.question.step_tokens / figures.step_s
