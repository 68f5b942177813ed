"""simulate: a run event by event in SimPy: failures, repairs, spares, stragglers, elastic replicas; many times over.

Nothing happens between two events but training in cycles, so the time between them is added up in one go
(`_Ledger`): a month of a run with hundreds of failures takes a few thousand events. Equal seeds give equal bytes.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hwmodels.errors import Fault, InputError
from hwmodels.reliability import Component
from planner.goodput.job import LOSSES, Job
from planner.goodput.ledger import Ledger

if TYPE_CHECKING:
    from simpy import Environment, Event

FloatArray = NDArray[np.float64]
DAY_S = 86400.0
Z = 1.959963984540054
"""The 97.5% point of the normal distribution."""


@dataclass(frozen=True, slots=True)
class Simulated:
    """Means over the replications of one simulation.

    Attributes
    ----------
    goodput : float
        Share of the time that ends up as training.
    half_width : float
        Half of the 95% confidence interval of that mean.
    losses : dict
        Share of the time by cause (`planner.goodput.job.LOSSES`); with `goodput` they sum to 1.
    failures : float
        Of a replication.
    """

    interval_s: float
    days: float
    replications: int
    seed: int
    goodput: float
    half_width: float
    losses: dict[str, float]
    failures: float


def simulate(job: Job, interval_s: float, *, days: float = 30.0, replications: int = 50, seed: int = 0) -> Simulated:
    """Simulate a run with a checkpoint every `interval_s` of training.

    Parameters
    ----------
    job : Job
        Its arrays hold one value each.
    interval_s : float
        Infinite for no checkpoint at all.
    days, replications
        Length of each of the independent runs, and how many.
    seed : int
        Intervals that are simulated with the same seed meet the same failures.

    Raises
    ------
    hwmodels.errors.InputError
        For a job of several layouts, and values that are not positive.
    """
    faults = []
    if job.blocked_s.size != 1 or job.lag_s.size != 1 or job.restart_s.size != 1:
        faults.append(Fault(f"the job has {job.blocked_s.size} layouts", "job", "one is simulated", "one layout"))
    if not interval_s > 0.0:
        faults.append(Fault(f"interval is {interval_s:g} s", "interval_s", "it is a time", "3600"))
    if not (0.0 < days < math.inf):
        faults.append(Fault(f"days is {days:g}", "days", "a run has an end", "30"))
    if replications < 2:
        faults.append(Fault(f"replications is {replications}", "replications", "a spread needs two", "50"))
    if seed < 0:
        faults.append(Fault(f"seed is {seed}", "seed", "seeds are whole numbers from 0 on", "0"))
    if faults:
        raise InputError(faults)
    horizon = days * DAY_S
    runs = [
        _Run(job, float(interval_s), horizon, np.random.default_rng(child)).play()
        for child in np.random.SeedSequence(seed).spawn(replications)
    ]
    good = np.asarray([run.seconds["goodput"] for run in runs]) / horizon
    spread = float(good.std(ddof=1)) / math.sqrt(replications)
    return Simulated(
        float(interval_s), days, replications, seed, float(good.mean()), student(replications - 1) * spread,
        {name: max(float(np.mean([run.seconds[name] for run in runs])), 0.0) / horizon for name in LOSSES},
        float(np.mean([run.failures for run in runs])),
    )  # fmt: skip


def student(freedom: int) -> float:
    """The 97.5% point of Student's t: z + (z³ + z)/4ν + (5z⁵ + 16z³ + 3z)/96ν² + (3z⁷ + 19z⁵ + 17z³ - 15z)/384ν³.

    Abramowitz and Stegun (1964), 26.7.5; within 1% from three degrees of freedom on; below that, the table's.
    """
    if freedom < 3:
        return (12.706, 4.303)[freedom - 1]
    terms = (
        Z,
        (Z**3 + Z) / 4.0,
        (5 * Z**5 + 16 * Z**3 + 3 * Z) / 96.0,
        (3 * Z**7 + 19 * Z**5 + 17 * Z**3 - 15 * Z) / 384.0,
    )
    return sum(term / freedom**i for i, term in enumerate(terms))


class _Fuse:
    """Running time of the job until its next failure, and of what."""

    def __init__(self, components: tuple[Component, ...], shape: float, random: np.random.Generator) -> None:
        self._components, self._shape, self._random = components, shape, random
        self._clock = 0.0
        rates = np.asarray([c.rate for c in components])
        self._rate = float(rates.sum()) if components else 0.0
        self._share = np.cumsum(rates) / self._rate if self._rate else rates
        # With another shape than 1 it matters how old a component is: all are new at the start.
        self._due = [self._lives(c, c.count) for c in components] if shape != 1.0 else []
        self.left = math.inf
        self.component: Component | None = None
        self.light()

    def _lives(self, component: Component, count: int) -> FloatArray:
        """Draw times to failure with the component's mean: Weibull of scale m / Γ(1 + 1/k)."""
        scale = component.mtbf_s / math.gamma(1.0 + 1.0 / self._shape)
        return np.asarray(scale * self._random.weibull(self._shape, count))

    def burn(self, seconds: float) -> None:
        """The job ran for some of the time that is left."""
        self.left = max(self.left - seconds, 0.0)
        self._clock += seconds

    def light(self) -> None:
        """Find the next failure after one; what failed is new."""
        if not self._rate:
            return
        if not self._due:
            self.left = float(self._random.exponential(1.0 / self._rate))
            chosen = int(np.searchsorted(self._share, self._random.random(), side="right"))
            self.component = self._components[min(chosen, len(self._components) - 1)]
            return
        first = min(range(len(self._due)), key=lambda i: float(self._due[i].min()))
        position = int(self._due[first].argmin())
        self.left = max(float(self._due[first][position]) - self._clock, 0.0)
        self.component = self._components[first]
        life = float(self._lives(self.component, 1)[0])
        self._due[first][position] = self._clock + self.left + life


class _Run:
    """One replication."""

    def __init__(self, job: Job, interval_s: float, horizon_s: float, random: np.random.Generator) -> None:
        import simpy  # only simulations need it

        self.env: Environment = simpy.Environment()
        self.job, self.horizon_s, self.random = job, horizon_s, random
        self.blocked, self.lag, self.restart = (
            float(v.reshape(-1)[0]) for v in (job.blocked_s, job.lag_s, job.restart_s)
        )
        self.seconds = dict.fromkeys(("goodput", *LOSSES), 0.0)
        self.failures = 0
        self.ledger = Ledger(interval_s, self.blocked, self.lag, self.seconds)
        self.fuse = _Fuse(job.components, job.weibull_shape, random)
        # Without stragglers and replicas to grow by, nothing but a failure interrupts training.
        self._interrupted = bool(job.dp) or (job.straggler_rate > 0.0 and job.straggler_factor > 1.0)
        self.away = 0  # nodes in repair, where spares are counted
        self.running = job.dp
        self.slow = 0  # stragglers among the nodes of the job
        self.found = 0  # those of them that are known
        self._doing: tuple[str, float] | None = None
        self._back: Event = self.env.event()
        self._change: Event = self.env.event()

    def play(self) -> _Run:
        """Run to the horizon."""
        self.env.process(self._life())
        if self.job.straggler_rate and self.job.straggler_factor > 1.0:
            self.env.process(self._stragglers())
        self.env.run(until=self.horizon_s)
        if self._doing is not None:
            name, since = self._doing
            if name == "train":
                self.ledger.advance(self.horizon_s - since)
            else:
                self.seconds[name] += self.horizon_s - since
        self.ledger.commit()
        return self

    def _spend(self, name: str, seconds: float) -> Generator[Event, Any, None]:
        """Let time pass that is booked under one name."""
        if seconds > 0.0:
            since = self.env.now
            self._doing = name, since
            yield self.env.timeout(seconds)
            self.seconds[name] += self.env.now - since
        self._doing = None

    def _exposed(self, name: str, seconds: float) -> Generator[Event, Any, bool]:
        """The same in which components may fail; whether none did."""
        survives = self.fuse.left > seconds
        spent = seconds if survives else self.fuse.left
        yield from self._spend(name, spent)
        self.fuse.burn(spent)
        return survives

    def _life(self) -> Generator[Event, Any, None]:
        while True:
            cause = yield from self._train()
            planned = cause != "" and (yield from self._exposed(cause, self.blocked + self.lag))
            if planned:
                self.ledger.commit()
                self._exchange()
                yield from self._spend(cause, self.job.reschedule_s)
                planned = yield from self._exposed(cause, self.restart)
            if not planned:
                yield from self._recover()
            self._resume()

    def _train(self) -> Generator[Event, Any, str]:
        """Train until something fails (``""``), or until it pays to stop on purpose."""
        while True:
            if self.found and self.job.spare_for(self.away):
                return "straggler"
            if self.job.dp and self._possible() > self.running:
                return "shrunk"
            self._change = self.env.event()
            since = self.env.now
            self._doing = "train", since
            if math.isinf(self.fuse.left):
                yield self._change
                failed = False
            elif not self._interrupted:
                yield self.env.timeout(self.fuse.left)
                failed = True
            else:
                end = self.env.timeout(self.fuse.left)
                yield end | self._change
                failed = end.processed
            elapsed = self.env.now - since
            self._doing = None
            self.ledger.advance(elapsed)
            self.fuse.burn(elapsed)
            if failed:
                return ""
            self._set_pace()

    def _recover(self) -> Generator[Event, Any, None]:
        """From a failure to the end of a restart without another one."""
        job = self.job
        while True:
            self.failures += 1
            self.ledger.lose()
            failed = self.fuse.component
            self.fuse.light()
            yield from self._spend("detection", job.detect_s)
            if failed is not None and failed.takes_node:
                self._take_out()
            self._exchange()
            while job.spares is not None and self.away > job.spares and not (job.dp and self._possible()):
                since = self.env.now
                self._doing = "repair", since
                yield self._back
                self.seconds["repair"] += self.env.now - since
                self._doing = None
            yield from self._spend("detection", job.reschedule_s)
            if (yield from self._exposed("restart", self.restart)):
                return

    def _resume(self) -> None:
        """Training begins at the last checkpoint, with the nodes that are there."""
        if self.job.dp:
            self.running = self._possible()
        self._set_pace()

    def _possible(self) -> int:
        """Replicas that the nodes outside repair are enough for."""
        return self.job.replicas(self.job.nodes_outside_repair(self.away))

    def _set_pace(self) -> None:
        slow = self.job.straggler_factor if self.slow else 1.0
        self.ledger.pace(slow, self.job.dp / self.running if self.job.dp and self.running else 1.0)

    def _take_out(self) -> None:
        if self.job.spares is None:
            return
        self.away += 1
        self.env.process(self._repair())

    def _repair(self) -> Generator[Event, Any, None]:
        yield self.env.timeout(self.job.repair_s)
        self.away -= 1
        back, self._back = self._back, self.env.event()
        back.succeed()
        self._changed()

    def _changed(self) -> None:
        if not self._change.triggered:
            self._change.succeed()

    def _exchange(self) -> None:
        """Put spares in the place of known stragglers."""
        while self.found and self.job.spare_for(self.away):
            self.found -= 1
            self.slow -= 1
            self._take_out()

    def _stragglers(self) -> Generator[Event, Any, None]:
        while True:
            yield self.env.timeout(float(self.random.exponential(1.0 / self.job.straggler_rate)))
            self.slow += 1
            self._changed()
            self.env.process(self._detect())

    def _detect(self) -> Generator[Event, Any, None]:
        yield self.env.timeout(self.job.straggler_detect_s)
        self.found += 1
        self._changed()
