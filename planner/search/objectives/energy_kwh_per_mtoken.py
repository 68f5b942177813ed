"""energy_kwh_per_mtoken: kilowatt-hours at the meter for a million tokens."""

from __future__ import annotations

import numpy as np

from hwmodels.energy import JOULES_PER_KWH, PUE
from hwmodels.errors import Fault
from hwmodels.kernels.formats import format_of
from planner import power
from planner.frameworks import of as preset_of
from planner.precision import recipe_of
from planner.search.objectives.base import Figures, FloatArray, Objective, no_power
from planner.search.question import Question


def step_kwh(figures: Figures) -> FloatArray:
    """Kilowatt-hours of one step (`planner.power`): ndarray (n,).

    A step that takes longer idles longer: the watts of its kernels are those of their FLOPs, however long it waits.
    """
    question = figures.question
    if figures.step_kwh is not None:
        return figures.step_kwh * (question.target.pue / PUE.value)
    work = figures.work
    dtype = recipe_of(question.workload, preset_of(question.workload)).forward
    world = np.asarray(figures.world, np.float64)
    joules = power.joules(
        question.cluster.device,
        work.compute_s,
        work.optimizer_s,
        figures.step_s,
        work.hardware_flops,
        question.cluster.device.peak(format_of(dtype).peak) * world,
        world,
        dtype,
        question.target.pue,
    )
    return np.asarray(joules / JOULES_PER_KWH)


class EnergyKwhPerMtoken(Objective):
    """Energy of a step over its tokens."""

    name = "energy_kwh_per_mtoken"
    title = "kWh a million tokens"
    dimension = "kwh"
    from_step = False

    def value(self, figures: Figures) -> FloatArray:
        """Kilowatt-hours: ndarray (n,)."""
        return step_kwh(figures) / figures.question.step_tokens * 1e6

    def faults(self, question: Question) -> list[Fault]:
        """The device's power is needed."""
        return no_power(self.name, question)
