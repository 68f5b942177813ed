"""train_time: seconds that a run takes, step after step, without failures."""

from __future__ import annotations

from hwmodels.errors import Fault
from planner.search.objectives.base import Figures, FloatArray, Objective, no_tokens
from planner.search.question import Question


class TrainTime(Objective):
    """Whole steps of the run times the seconds of one."""

    name = "train_time"
    title = "time to train"
    dimension = "seconds"

    def value(self, figures: Figures) -> FloatArray:
        """Seconds: ndarray (n,)."""
        return figures.question.steps * figures.step_s

    def faults(self, question: Question) -> list[Fault]:
        """A run is needed."""
        return no_tokens(self.name, question)
