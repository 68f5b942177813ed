"""The contract of an objective: one figure of a layout, and which end of it is better.

An objective is a function of `Figures`. Its value never gets better when the step takes longer, all else equal, and
a conformance test holds every member to that. So its value at a lower bound of the step time is a bound on its value
at the exact one, by the same formula, and an order found with such bounds is proven.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import field
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from hwmodels.errors import Fault, InputError
from hwmodels.records import dataclass
from planner.layout import LayoutBatch
from planner.search.question import Question

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """What a rank does in a step apart from waiting, mean over pipeline ranks, for n layouts.

    Attributes
    ----------
    compute_s : ndarray (n,)
        Seconds of forward, backward and recomputation kernels.
    optimizer_s : ndarray (n,)
        Seconds of the optimizer.
    hardware_flops : ndarray (n,)
        FLOPs of the step, all ranks, recomputation included.
    """

    compute_s: FloatArray
    optimizer_s: FloatArray
    hardware_flops: FloatArray


@dataclass(slots=True, eq=False)
class Figures:
    """What is known of n layouts.

    Attributes
    ----------
    question : Question
    world : ndarray (n,)
        Ranks of each layout, or one number for all.
    step_s : ndarray (n,)
        Seconds of a step: exact, or a lower bound.
    peak_bytes : ndarray (n,)
        On the rank that needs most.
    find_work : callable
        Gives `work` when an objective asks for it.
    usd_per_s, step_kwh : ndarray (n,) or None
        What the ranks cost in a second and a step takes at the default PUE, where layouts were predicted; else by the
        formulas of this package.
    find_layouts : callable or None
        Gives the layouts, shape (n,), when an objective asks for more of them than their ranks.
    """

    question: Question
    world: NDArray[np.int64]
    step_s: FloatArray
    peak_bytes: FloatArray
    find_work: Callable[[], Work]
    find_layouts: Callable[[], LayoutBatch] | None = None
    usd_per_s: FloatArray | None = None
    step_kwh: FloatArray | None = None
    _work: Work | None = field(default=None, init=False, repr=False)

    @property
    def work(self) -> Work:
        """What a rank does in a step, found once."""
        if self._work is None:
            self._work = self.find_work()
        return self._work

    @property
    def layouts(self) -> LayoutBatch:
        """The layouts, shape (n,)."""
        if self.find_layouts is None:
            raise InputError(Fault("the figures come without layouts", "objective", "", "Figures(find_layouts=...)"))
        return self.find_layouts()


class Objective(ABC):
    """One figure that layouts are ranked by.

    Attributes
    ----------
    name : str
        Its word in options, files and constraints; says the unit where it is no SI base unit.
    title : str
        In a few words, for people.
    dimension : {'number', 'seconds', 'bytes', 'share', 'usd', 'kwh', 'kg'}
    sense : {'min', 'max'}
        Whether less or more is better.
    from_step : bool
        Whether it follows from step time and peak memory alone; else it asks for `Figures.work`.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    dimension: ClassVar[str] = "number"
    sense: ClassVar[Literal["min", "max"]] = "min"
    from_step: ClassVar[bool] = True

    @abstractmethod
    def value(self, figures: Figures) -> FloatArray:
        """The figure of every layout: ndarray (n,); never better for a longer step."""

    def loose(self, figures: Figures) -> FloatArray:
        """A bound of the figure that reads no layouts: ndarray (n,), never worse than `value`."""
        return self.value(figures)

    def faults(self, question: Question) -> list[Fault]:
        """What the question lacks for this figure."""
        del question
        return []

    def cost(self, figures: Figures) -> FloatArray:
        """The figure with its sign such that less is better: ndarray (n,)."""
        value = self.value(figures)
        return value if self.sense == "min" else -value

    def bounds(self, figures: Figures, whole: bool = True) -> tuple[FloatArray, FloatArray]:
        """Between which ends the figure lies when `figures` holds lower bounds of the step time.

        Without `whole` the layouts of `figures` are not known in every field, and are not read.
        """
        best = self.value(figures) if whole else self.loose(figures)
        if self.sense == "min":
            return best, np.full(np.shape(best), np.inf)
        return np.full(np.shape(best), -np.inf), best


def require(objectives: list[Objective], question: Question) -> None:
    """Raise `InputError` with everything that the question lacks for these objectives."""
    faults = [fault for objective in objectives for fault in objective.faults(question)]
    if faults:
        raise InputError(list(dict.fromkeys(faults)))


def no_price(name: str, question: Question) -> list[Fault]:
    """The fault of a cluster without a price."""
    cluster = question.cluster
    if cluster.usd_per_gpu_hour is not None or all(pool.usd_per_gpu_hour is not None for pool in cluster.pools):
        return []
    why = f"the cluster {question.cluster.name} has no price"
    return [Fault(f"{name} cannot be told", "objective", why, "price: {usd_per_gpu_hour: 2.95} in the cluster's file")]


def no_tokens(name: str, question: Question) -> list[Fault]:
    """The fault of a question about no run."""
    if question.target.tokens is not None:
        return []
    return [Fault(f"{name} is of a run", "objective", "how many tokens it trains on is not said", "--tokens 15T")]


def no_power(name: str, question: Question) -> list[Fault]:
    """The fault of a device whose power is not known."""
    device = question.cluster.device
    if device.tdp_w > 0:
        return []
    why = f"the datasheet of {device.name} gives no board power"
    return [Fault(f"{name} cannot be told", "objective", why, "tdp: 700W in the device's entry")]


def usd_per_second(figures: Figures) -> FloatArray:
    """Dollars that the ranks of each layout cost in a second: ndarray (n,)."""
    if figures.usd_per_s is not None:
        return figures.usd_per_s
    price = figures.question.cluster.usd_per_gpu_hour
    return np.asarray(figures.world * (float(price.value) if price else np.nan) / 3600.0)
