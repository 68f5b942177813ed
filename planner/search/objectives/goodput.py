"""goodput: share of a run that is kept between failures, checkpoints and restarts."""

from __future__ import annotations

import numpy as np

from planner.goodput.ranking import goodput_of
from planner.search.objectives.base import Figures, FloatArray, Objective


class Goodput(Objective):
    """What `planner.goodput` expects at the best checkpoint interval and its default policy."""

    name = "goodput"
    title = "share of a run that is kept"
    dimension = "share"
    sense = "max"

    def value(self, figures: Figures) -> FloatArray:
        """Share: ndarray (n,)."""
        asked = figures.question
        return goodput_of(figures.step_s, asked.model, asked.workload, asked.cluster, figures.layouts)

    def loose(self, figures: Figures) -> FloatArray:
        """All of it: ndarray (n,)."""
        return np.ones(np.shape(figures.step_s))
