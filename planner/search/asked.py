"""What was asked of an answer, in the form in which a search takes it: objectives, constraints and limits.

`planner.search.objectives` holds formulas and `planner.search.constraints` conditions; both are about a question. Here
they are bound to the one that a search answers, whose workload may differ from candidate to candidate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from hwmodels.records import dataclass
from planner import power
from planner.flops import formula_of, model_flops
from planner.layout import LayoutBatch, RuleContext
from planner.layout.degrees import BoolArray
from planner.search.objective_base import Candidates
from planner.search.objectives import OBJECTIVES, Figures, Objective, Work
from planner.search.objectives.base import FloatArray
from planner.search.question import Question
from planner.search.result import Row, exposed_fraction

if TYPE_CHECKING:
    from planner.search.constraints import Constraint

DETAILS: dict[str, Callable[[Row], float]] = {
    "bubble": lambda row: row.step.bubble_fraction,
    "exposed_comm": lambda row: exposed_fraction(row.step),
}
"""Figures of a constraint that only the full prediction of a layout has."""


_SLACK = 1e-9
"""Share by which what kernels leave of a step is raised: sums in another order round otherwise."""


def _rest(candidates: Candidates) -> FloatArray | float:
    """Share of the step that kernels leave, where the step is known: no bubble and no transfer is longer.

    The phases of a rank add up to its step, and both shares are means over ranks as the kernels' seconds are.
    """
    if not candidates.exact:
        return 1.0
    return np.asarray(np.clip(1.0 - candidates.compute_s / candidates.step_s + _SLACK, 0.0, 1.0))


FIELDS: tuple[str, ...] = tuple(f.name for f in fields(LayoutBatch))


def figures_of(question: Question, candidates: Candidates) -> Figures:
    """What is known of candidates; of kernels the seconds that they take at least, and no recomputation."""

    def layouts() -> LayoutBatch:
        return LayoutBatch.filled({name: candidates.field(name) for name in FIELDS})

    def least() -> Work:
        compute = np.broadcast_to(np.asarray(candidates.compute_s, np.float64), np.shape(candidates.step_s))
        flops = model_flops(question.model, candidates.workload, formula_of(candidates.workload))
        return Work(compute, np.zeros(compute.shape), np.full(compute.shape, flops))

    own = replace(question, cluster=candidates.cluster, workload=candidates.workload)
    world = np.asarray(candidates.cluster.n_ranks)
    return Figures(own, world, candidates.step_s, candidates.peak_bytes, least, layouts)


def row_figures(question: Question, row: Row) -> Figures:
    """What is known of one predicted layout: everything."""
    step = row.step
    busy, update = (
        np.asarray([sum(phases[name] for phases in step.phases for name in names) / len(step.phases)])
        for names in (power.COMPUTE, ("optimizer",))
    )
    work = Work(busy, update, np.asarray([step.hardware_flops]))
    peak = np.asarray([float(max(m.peak_bytes for m in step.memory))])
    own = replace(question, workload=row.workload)
    seconds, world = np.asarray([step.step_s.mid]), np.asarray([row.layout.world])
    million = own.step_tokens / 1e6
    usd = None if step.usd_per_mtoken is None else np.asarray([step.usd_per_mtoken * million]) / seconds
    kwh = None if step.energy_kwh_per_mtoken is None else np.asarray([step.energy_kwh_per_mtoken * million])
    return Figures(own, world, seconds, peak, lambda: work, lambda: LayoutBatch.of([row.layout]), usd, kwh)


_PREDICTED: dict[str, Callable[[Row], float]] = {
    "mfu": lambda row: row.step.mfu,
    "tokens_per_s_per_gpu": lambda row: row.step.tokens_per_s_per_gpu,
    "memory_headroom": lambda row: min(m.capacity_bytes - m.peak_bytes for m in row.step.memory),
}


@dataclass(frozen=True, slots=True)
class Ranked:
    """An objective of one question, as a search ranks by it (`planner.search.objective_base.Objective`)."""

    objective: Objective
    question: Question

    @property
    def name(self) -> str:
        """The objective's own."""
        return self.objective.name

    @property
    def sense(self) -> Literal["min", "max"]:
        """The objective's own."""
        return self.objective.sense

    @property
    def from_step(self) -> bool:
        """The objective's own."""
        return self.objective.from_step

    def of(self, candidates: Candidates) -> FloatArray:
        """Values of candidates: ndarray (n,)."""
        with np.errstate(divide="ignore"):  # a step of which nothing is known yet may be as short as 0
            figures = figures_of(self.question, candidates)
            value = (self.objective.value if candidates.whole else self.objective.loose)(figures)
        return np.broadcast_to(value, np.shape(candidates.step_s))

    def value(self, row: Row) -> float:
        """The value of one row; what the prediction says itself counts for pools of unlike devices as well."""
        if self.name in _PREDICTED:
            return float(_PREDICTED[self.name](row))
        return float(self.objective.value(row_figures(self.question, row))[0])


@dataclass(frozen=True, slots=True)
class OnLayouts:
    """A constraint as a search applies it to layouts that are not priced (`planner.search.objective_base.Constraint`).

    Layouts stay that may satisfy it, whatever their figures turn out to be.
    """

    constraint: Constraint
    question: Question

    @property
    def id(self) -> str:
        """What dropped candidates are counted under."""
        return f"constraint:{self.constraint.text}"

    def holds(self, layouts: LayoutBatch, context: RuleContext) -> BoolArray:
        """True where the constraint may hold; reads its own fields of `layouts` and no other."""
        from planner.search.constraints import layout_mask  # loaded where there is a constraint, as below

        del context
        return layout_mask(self.constraint, layouts, self.question)


@dataclass(frozen=True, slots=True)
class OnFigures:
    """A constraint as a search applies it to priced candidates (`planner.search.objective_base.Limit`)."""

    constraint: Constraint
    question: Question

    @property
    def id(self) -> str:
        """What dropped candidates are counted under."""
        return f"constraint:{self.constraint.text}"

    @property
    def from_step(self) -> bool:
        """Whether layout, step time and peak memory decide it; else it asks for the full prediction."""
        names = [name.name for name in self.constraint.known if name.kind in ("figure", "detail")]
        return all(name in OBJECTIVES and OBJECTIVES[name].from_step for name in names)

    def may(self, candidates: Candidates) -> BoolArray:
        """Which candidates may satisfy it, as far as they are known: ndarray (n,)."""
        from planner.search.constraints import Known

        columns = {name: candidates.field(name) for name in self.constraint.base}
        shape = np.shape(candidates.step_s)
        layouts = LayoutBatch.filled(columns or {"tp": np.broadcast_to(np.asarray(1), shape)})
        figures = figures_of(self.question, candidates)
        exact = candidates.exact and self.from_step
        with np.errstate(divide="ignore"):
            known = Known(self.question, layouts, figures, exact, candidates.whole, rest=_rest(candidates))
            return known.decide(self.constraint)[1]

    def holds(self, row: Row) -> bool:
        """Whether one predicted layout satisfies it."""
        from planner.search.constraints import Known

        details = {name: np.asarray([read(row)]) for name, read in DETAILS.items()}
        known = Known(self.question, LayoutBatch.of([row.layout]), row_figures(self.question, row), True, True, details)
        return bool(known.decide(self.constraint)[1][0])


@dataclass(frozen=True, slots=True)
class Asked:
    """Everything that was asked of an answer.

    Attributes
    ----------
    objectives : tuple of Ranked
        One for a ranking, several for their front.
    constraints : tuple of OnLayouts
    limits : tuple of OnFigures
    """

    objectives: tuple[Ranked, ...]
    constraints: tuple[OnLayouts, ...]
    limits: tuple[OnFigures, ...]

    @classmethod
    def of(cls, question: Question, names: Sequence[str], where: Sequence[Constraint]) -> Asked:
        """From the names of objectives and constraints.

        Raises
        ------
        hwmodels.errors.InputError
            For an unknown objective, and for what the question lacks for one, in a constraint as well.
        """
        from planner.search.objectives import get, require

        chosen = [get(name) for name in names]
        used = [OBJECTIVES[name.name] for one in where for name in one.known if name.kind == "figure"]
        require([*chosen, *used], question)
        return cls(
            tuple(Ranked(objective, question) for objective in chosen),
            tuple(OnLayouts(one, question) for one in where if one.base),
            tuple(OnFigures(one, question) for one in where if not one.of_layout),
        )
