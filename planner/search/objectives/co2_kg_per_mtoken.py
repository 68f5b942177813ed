"""co2_kg_per_mtoken: kilograms of carbon dioxide for a million tokens, by the grid's intensity."""

from __future__ import annotations

from hwmodels.errors import Fault
from planner.search.objectives.base import Figures, FloatArray, Objective, no_power
from planner.search.objectives.energy_kwh_per_mtoken import step_kwh
from planner.search.question import Question


class Co2KgPerMtoken(Objective):
    """Energy at the meter times what the grid gives off for it."""

    name = "co2_kg_per_mtoken"
    title = "kg CO2 a million tokens"
    dimension = "kg"
    from_step = False

    def value(self, figures: Figures) -> FloatArray:
        """Kilograms: ndarray (n,)."""
        question = figures.question
        return step_kwh(figures) * question.target.kg_per_kwh / question.step_tokens * 1e6

    def faults(self, question: Question) -> list[Fault]:
        """The device's power is needed."""
        return no_power(self.name, question)
