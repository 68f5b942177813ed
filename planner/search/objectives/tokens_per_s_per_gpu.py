"""tokens_per_s_per_gpu: tokens that a rank trains on in a second, mean over the ranks."""

from __future__ import annotations

import numpy as np

from planner.search.objectives.base import Figures, FloatArray, Objective


class TokensPerSPerGpu(Objective):
    """Tokens of a step over its seconds and its ranks."""

    name = "tokens_per_s_per_gpu"
    title = "tokens a second and GPU"
    sense = "max"

    def value(self, figures: Figures) -> FloatArray:
        """Tokens a second and rank: ndarray (n,)."""
        return np.asarray(figures.question.step_tokens / figures.step_s / figures.world)
