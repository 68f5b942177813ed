"""train_usd: dollars that a run costs, step after step, without failures."""

from __future__ import annotations

import numpy as np

from hwmodels.errors import Fault
from planner.search.objectives.base import Figures, FloatArray, Objective, no_price, no_tokens, usd_per_second
from planner.search.question import Question


class TrainUsd(Objective):
    """Price of the ranks over the seconds of the run."""

    name = "train_usd"
    title = "dollars to train"
    dimension = "usd"

    def value(self, figures: Figures) -> FloatArray:
        """Dollars: ndarray (n,)."""
        return np.asarray(usd_per_second(figures) * figures.question.steps * figures.step_s)

    def faults(self, question: Question) -> list[Fault]:
        """A run and a price are needed."""
        return [*no_tokens(self.name, question), *no_price(self.name, question)]
