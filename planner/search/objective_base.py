"""What a search ranks by and what it is limited by: the contracts of objectives, constraints and limits.

An objective is computed from the seconds and the peak bytes of candidates, and grows no better as these grow: of lower
bounds of both it gives a bound of itself, so that one formula prunes and ranks. Where it needs more than the two (the
energy of a step's phases), it says so, and the search asks for each row's value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
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
    compute_s : ndarray (n,) or float
        Seconds of a step that the kernels of a rank take at least, mean over pipeline ranks.
    whole : bool
        Whether every field is that of the layout that would run, splits of uneven stages included.
    exact : bool
        Whether seconds and bytes are exact.
    """

    step_s: FloatArray
    peak_bytes: FloatArray
    workload: Workload
    cluster: Cluster
    field: Callable[[str], IntArray]
    compute_s: FloatArray | float = 0.0
    whole: bool = False
    exact: bool = False

    def take(self, index: IntArray) -> Candidates:
        """Some of them."""
        compute = np.broadcast_to(self.compute_s, self.step_s.shape)[index]
        return replace(
            self, step_s=self.step_s[index], peak_bytes=self.peak_bytes[index], compute_s=compute,
            field=lambda name: self.field(name)[index],
        )  # fmt: skip


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


class Limit(Protocol):
    """A condition on figures of priced candidates, on their own or with fields.

    Attributes
    ----------
    id : str
        What dropped candidates are counted under, ``"constraint:peak_memory <= 70GiB"``.
    from_step : bool
        Whether `may` is exact where seconds and bytes are; else `holds` of each row is asked for.
    """

    @property
    def id(self) -> str:
        """Name in `SearchResult.dropped`."""

    @property
    def from_step(self) -> bool:
        """Whether seconds and bytes decide it."""

    def may(self, candidates: Candidates) -> BoolArray:
        """Which candidates may meet it, whatever lies above their seconds and bytes where these are lower bounds."""

    def holds(self, row: Row) -> bool:
        """Whether one row of the answer meets it."""


def costs(objective: Objective, found: FloatArray) -> FloatArray:
    """Values of an objective so that less is better: ndarray (n,)."""
    return found if objective.sense == "min" else np.asarray(-found)
