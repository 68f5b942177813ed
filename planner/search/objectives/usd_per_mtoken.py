"""usd_per_mtoken: dollars for a million tokens."""

from __future__ import annotations

import numpy as np

from hwmodels.errors import Fault
from planner.search.objectives.base import Figures, FloatArray, Objective, no_price, usd_per_second
from planner.search.question import Question


class UsdPerMtoken(Objective):
    """Price of the ranks over what they train on."""

    name = "usd_per_mtoken"
    title = "dollars a million tokens"
    dimension = "usd"

    def value(self, figures: Figures) -> FloatArray:
        """Dollars: ndarray (n,)."""
        return np.asarray(usd_per_second(figures) * figures.step_s / figures.question.step_tokens * 1e6)

    def faults(self, question: Question) -> list[Fault]:
        """A price is needed."""
        return no_price(self.name, question)
