"""`Job`: what of a training run decides its goodput, in seconds and nodes."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from hwmodels.errors import Fault, InputError
from hwmodels.records import dataclass
from hwmodels.reliability import Component

FloatArray = NDArray[np.float64]

LOSSES: tuple[str, ...] = ("checkpoint", "rework", "detection", "repair", "restart", "straggler", "shrunk")
"""Where time goes that is no training: blocked by checkpoints; done again after a failure; until a failure is noticed
and ranks are scheduled; waiting for a repair; loading and warming up; slowed down by and exchanging a straggler;
training on fewer replicas."""


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """One run, or runs in n layouts that fail alike. Checked when built.

    Attributes
    ----------
    blocked_s : ndarray
        Seconds for which a checkpoint holds up training.
    lag_s : ndarray
        Seconds from there until it is in storage; 0 for a synchronous one.
    restart_s : ndarray
        Seconds of loading and warming up, in which components can fail again.
    detect_s, reschedule_s : float
        Seconds after a failure in which nothing runs.
    components : tuple of Component
        What the job depends on.
    nodes : int
    spares : int or None
        Nodes that can take the place of failed ones; None for as many as are needed.
    repair_s : float
    weibull_shape : float
    straggler_rate : float
        Stragglers a second.
    straggler_factor, straggler_detect_s : float
    dp : int
        Replicas; 0 where a run cannot go on with fewer of them.
    nodes_per_replica : float
        Below 1 where a node holds several.
    """

    blocked_s: FloatArray
    lag_s: FloatArray
    restart_s: FloatArray
    detect_s: float
    reschedule_s: float
    components: tuple[Component, ...]
    nodes: int
    spares: int | None = None
    repair_s: float = 0.0
    weibull_shape: float = 1.0
    straggler_rate: float = 0.0
    straggler_factor: float = 1.0
    straggler_detect_s: float = 0.0
    dp: int = 0
    nodes_per_replica: float = 1.0

    def __post_init__(self) -> None:
        faults = []
        for name in ("blocked_s", "lag_s", "restart_s"):
            value = np.asarray(getattr(self, name), np.float64)
            if not (np.isfinite(value).all() and (value >= 0.0).all()):
                faults.append(Fault(f"{name} is {value}", f"job.{name}", "a time is finite", "0 or more seconds"))
            object.__setattr__(self, name, value)
        if self.nodes < 1 or (self.spares or 0) < 0 or self.dp < 0 or not self.nodes_per_replica > 0.0:
            what = f"{self.nodes} nodes, {self.spares} spares, {self.dp} replicas of {self.nodes_per_replica:g} nodes"
            faults.append(Fault(what, "job", "counts", "at least one node"))
        if faults:
            raise InputError(faults)

    @property
    def rate(self) -> float:
        """Failures a second of all components while the job runs."""
        return sum(c.rate for c in self.components)

    @property
    def node_rate(self) -> float:
        """Those of them that take a node out."""
        return sum(c.rate for c in self.components if c.takes_node)

    @property
    def mtbf_s(self) -> float:
        """Mean seconds between failures of the job; infinite where nothing fails."""
        return 1.0 / self.rate if self.rate else math.inf

    def nodes_outside_repair(self, away: int) -> int:
        """Nodes that could run, `away` of them all being repaired; those of the job where spares are not counted."""
        return self.nodes if self.spares is None else self.nodes + self.spares - away

    def spare_for(self, away: int) -> bool:
        """Whether one more node can be replaced while `away` are being repaired."""
        return self.spares is None or away < self.spares

    def replicas(self, available: int) -> int:
        """Whole replicas on a number of nodes, at most `dp`."""
        return min(self.dp, math.floor(available / self.nodes_per_replica + 1e-9))
