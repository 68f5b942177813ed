"""train_kwh: kilowatt-hours of a run, step after step, without failures."""

from __future__ import annotations

from hwmodels.errors import Fault
from planner.search.objectives.base import Figures, FloatArray, Objective, no_power, no_tokens
from planner.search.objectives.energy_kwh_per_mtoken import step_kwh
from planner.search.question import Question


class TrainKwh(Objective):
    """Whole steps of the run times the energy of one."""

    name = "train_kwh"
    title = "kWh to train"
    dimension = "kwh"
    from_step = False

    def value(self, figures: Figures) -> FloatArray:
        """Kilowatt-hours: ndarray (n,)."""
        return figures.question.steps * step_kwh(figures)

    def faults(self, question: Question) -> list[Fault]:
        """A run and the device's power are needed."""
        return [*no_tokens(self.name, question), *no_power(self.name, question)]
