"""kept_tokens_per_s: tokens that all ranks train on in a second and that no failure takes back."""

from __future__ import annotations

from planner.goodput.ranking import effective_seconds
from planner.search.objectives.base import Figures, FloatArray, Objective


class KeptTokensPerS(Objective):
    """Tokens of a step over the seconds of a run for each step that it keeps."""

    name = "kept_tokens_per_s"
    title = "tokens a second that failures leave"
    sense = "max"

    def value(self, figures: Figures) -> FloatArray:
        """Tokens a second of all ranks: ndarray (n,)."""
        asked = figures.question
        seconds = effective_seconds(figures.step_s, asked.model, asked.workload, asked.cluster, figures.layouts)
        return asked.step_tokens / seconds

    def loose(self, figures: Figures) -> FloatArray:
        """Tokens a second without failures: ndarray (n,)."""
        return figures.question.step_tokens / figures.step_s
