"""step_time: seconds of one training step."""

from __future__ import annotations

from planner.search.objectives.base import Figures, FloatArray, Objective


class StepTime(Objective):
    """Seconds of one training step."""

    name = "step_time"
    title = "step time"
    dimension = "seconds"

    def value(self, figures: Figures) -> FloatArray:
        """Seconds: ndarray (n,)."""
        return figures.step_s
