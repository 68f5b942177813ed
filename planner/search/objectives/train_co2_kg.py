"""train_co2_kg: kilograms of carbon dioxide of a run, by the grid's intensity."""

from __future__ import annotations

from hwmodels.errors import Fault
from planner.search.objectives.base import Figures, FloatArray, Objective, no_power, no_tokens
from planner.search.objectives.energy_kwh_per_mtoken import step_kwh
from planner.search.question import Question


class TrainCo2Kg(Objective):
    """Energy of the run at the meter times what the grid gives off for it."""

    name = "train_co2_kg"
    title = "kg CO2 to train"
    dimension = "kg"
    from_step = False

    def value(self, figures: Figures) -> FloatArray:
        """Kilograms: ndarray (n,)."""
        question = figures.question
        return question.steps * step_kwh(figures) * question.target.kg_per_kwh

    def faults(self, question: Question) -> list[Fault]:
        """A run and the device's power are needed."""
        return [*no_tokens(self.name, question), *no_power(self.name, question)]
