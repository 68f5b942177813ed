"""mfu: model FLOPs of a step over what the ranks' tensor cores could do in its time."""

from __future__ import annotations

import numpy as np

from hwmodels.kernels.formats import format_of
from planner.flops import formula_of, model_flops
from planner.frameworks import of as preset_of
from planner.precision import recipe_of
from planner.search.objectives.base import Figures, FloatArray, Objective


class Mfu(Objective):
    """Model FLOPs utilisation (PaLM, arXiv 2204.02311, appendix B), by the workload's formula."""

    name = "mfu"
    title = "model FLOPs utilisation"
    dimension = "share"
    sense = "max"

    def value(self, figures: Figures) -> FloatArray:
        """Share of the dense peak of the forward's format: ndarray (n,)."""
        question = figures.question
        workload = question.workload
        flops = model_flops(question.model, workload, formula_of(workload))
        dtype = recipe_of(workload, preset_of(workload)).forward
        peak = question.cluster.device.peak(format_of(dtype).peak)
        return np.asarray(flops / figures.step_s / (peak * figures.world))
