"""What a search ranks by: the contract of an objective, and the three that follow from the step time alone.

An objective is computed from the seconds and the peak bytes of candidates, and grows no better as these grow: of lower
bounds of both it gives a bound of itself, so that one formula prunes and ranks. Where it needs more than the two (the
energy of a step's phases), it says so, and the search asks for each row's value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from hwmodels.cluster import Cluster
from hwmodels.records import dataclass
from planner.layout import LayoutBatch, RuleContext
from planner.layout.degrees import BoolArray
from planner.plan import Workload
from planner.search.result import Row

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
Sense = Literal["min", "max"]


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """Layouts of one workload on one cluster, with what is known of them.

    Attributes
    ----------
    step_s, peak_bytes : ndarray (n,)
        Seconds of a step; bytes of the fullest rank. Exact, or lower bounds of both.
    workload : Workload
    cluster : Cluster
    field : callable
        A field of `LayoutBatch` by name: ndarray (n,). Columns are made when they are asked for.
    """

    step_s: FloatArray
    peak_bytes: FloatArray
    workload: Workload
    cluster: Cluster
    field: Callable[[str], IntArray]


class Objective(Protocol):
    """One quantity to rank by.

    Attributes
    ----------
    name : str
        As options, scenarios and results spell it.
    sense : {'min', 'max'}
        Whether less or more is better.
    from_step : bool
        Whether `of` is exact where seconds and bytes are; else `value` of each row is asked for.
    """

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def sense(self) -> Sense:
        """Whether less or more is better."""

    @property
    def from_step(self) -> bool:
        """Whether `of` is exact."""

    def of(self, candidates: Candidates) -> FloatArray:
        """The objective of candidates: ndarray (n,); no worse than it is where seconds and bytes are lower bounds."""

    def value(self, row: Row) -> float:
        """The objective of one row of the answer."""


class Constraint(Protocol):
    """A condition on fields of a layout, applied like a rule as soon as the fields that it reads are laid out.

    Attributes
    ----------
    id : str
        What dropped candidates are counted under, ``"constraint:tp <= 8"``.
    """

    @property
    def id(self) -> str:
        """Its name among what drops candidates."""

    def holds(self, layouts: LayoutBatch, context: RuleContext) -> BoolArray:
        """True where the condition is met; reads its own fields of `layouts` and no other."""


@dataclass(frozen=True, slots=True)
class Limit:
    """A condition on a metric: no worse than `value`, counted under ``constraint:`` and its name.

    Attributes
    ----------
    metric : Objective
    value : float
    """

    metric: Objective
    value: float

    @property
    def id(self) -> str:
        """Name in `SearchResult.dropped`."""
        return f"constraint:{self.metric.name} {'<=' if self.metric.sense == 'min' else '>='} {self.value:g}"

    def meets(self, found: FloatArray) -> BoolArray:
        """Which values meet it."""
        return np.asarray(found <= self.value if self.metric.sense == "min" else found >= self.value)


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of a step."""

    name: str = "step_time"
    sense: Sense = "min"
    from_step: bool = True

    def of(self, candidates: Candidates) -> FloatArray:
        """Seconds."""
        return candidates.step_s

    def value(self, row: Row) -> float:
        """Seconds."""
        return row.step.step_s.mid


@dataclass(frozen=True, slots=True)
class TokensPerGpu:
    """Tokens a second and rank of the cluster."""

    name: str = "tokens_per_s_per_gpu"
    sense: Sense = "max"
    from_step: bool = True

    def of(self, candidates: Candidates) -> FloatArray:
        """Tokens of a step over its seconds and the ranks."""
        work = candidates.workload
        tokens = work.gbs * work.tokens_per_sequence / candidates.cluster.n_ranks
        return np.asarray(tokens / np.maximum(candidates.step_s, 1e-30))

    def value(self, row: Row) -> float:
        """Tokens a second and rank."""
        return row.step.tokens_per_s_per_gpu


@dataclass(frozen=True, slots=True)
class DollarsPerMtoken:
    """Dollars for a million tokens; seconds where the cluster has no price, which order alike."""

    name: str = "usd_per_mtoken"
    sense: Sense = "min"
    from_step: bool = True

    def of(self, candidates: Candidates) -> FloatArray:
        """Price of the ranks for the seconds of a step, over its tokens."""
        work, cluster = candidates.workload, candidates.cluster
        if cluster.usd_per_gpu_hour is None:
            return candidates.step_s
        a_second = float(cluster.usd_per_gpu_hour.value) * cluster.n_ranks / 3600.0
        return np.asarray(candidates.step_s * a_second / (work.gbs * work.tokens_per_sequence) * 1e6)

    def value(self, row: Row) -> float:
        """Dollars, or seconds."""
        found = row.step.usd_per_mtoken
        return row.step.step_s.mid if found is None else found


BASIC: dict[str, Objective] = {one.name: one for one in (StepTime(), TokensPerGpu(), DollarsPerMtoken())}
"""Objectives that follow from the step time, by name."""


def costs(objective: Objective, found: FloatArray) -> FloatArray:
    """Values of an objective so that less is better: ndarray (n,)."""
    return found if objective.sense == "min" else np.asarray(-found)
