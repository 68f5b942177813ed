"""Several jobs on one fabric: what they take from each other on the links that both use.

A job repeats its step: rounds of compute with the traffic that hides behind it, then the traffic that does not, phase
by phase. Transfers that run at the same time share links max-min fairly (`hwmodels.network.sharing.max_min`), none
faster than alone; SimPy plays it. Jobs start at moments drawn from a seed, so that a result repeats to the bit.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hwmodels.network import max_min

if TYPE_CHECKING:
    from simpy import Environment, Event

FloatArray = NDArray[np.float64]
ROUNDS = 8
"""Pieces that a step is cut into: enough that a short transfer of one job meets compute and transfers of another."""


@dataclass(frozen=True, slots=True, eq=False)
class Phase:
    """Traffic of one phase of a step.

    Attributes
    ----------
    name : str
    exposed_s, hidden_s : float
        Seconds that the step waits for it, and that it runs beside compute, alone on the fabric.
    nbytes : ndarray (links,)
        On every shared link.
    """

    name: str
    exposed_s: float
    hidden_s: float
    nbytes: FloatArray

    @property
    def rate(self) -> FloatArray:
        """Bytes/s on every link while it runs alone."""
        whole = self.exposed_s + self.hidden_s
        return self.nbytes / whole if whole > 0.0 else np.zeros_like(self.nbytes)


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """A job as others see it: its compute and its phases."""

    name: str
    compute_s: float
    phases: tuple[Phase, ...]

    @property
    def step_s(self) -> float:
        """Seconds of a step of which hidden traffic fits behind compute."""
        return self.compute_s + sum(phase.exposed_s for phase in self.phases)


@dataclass(slots=True)
class _Transfer:
    left_s: float
    rate: FloatArray
    done: Event


@dataclass(slots=True)
class _Links:
    """Transfers under way; every start and end shares the links anew."""

    env: Environment
    capacity: FloatArray
    running: list[_Transfer] = field(default_factory=list)
    speed: FloatArray = field(default_factory=lambda: np.zeros(0))
    since: float = 0.0
    turn: int = 0

    def send(self, seconds: float, rate: FloatArray) -> Event:
        """An event at the end of a transfer that takes so long alone."""
        done = self.env.event()
        if seconds <= 0.0:
            done.succeed()
            return done
        self._advance()
        self.running.append(_Transfer(seconds, rate, done))
        self._share()
        return done

    def _advance(self) -> None:
        now = float(self.env.now)
        for transfer, speed in zip(self.running, self.speed, strict=True):
            transfer.left_s -= (now - self.since) * float(speed)
        self.since = now

    def _share(self) -> None:
        self.turn += 1
        if not self.running:
            self.speed = np.zeros(0)
            return
        rates = np.stack([transfer.rate for transfer in self.running])
        most = rates.max(axis=1)
        flow, edge = np.nonzero(rates > 0.0)
        shares = rates[flow, edge] / most[flow]
        fair = max_min(flow, edge, shares, self.capacity, len(self.running), np.where(most > 0.0, most, 1.0))
        self.speed = np.where(most > 0.0, fair / np.where(most > 0.0, most, 1.0), 1.0)
        wait = min(t.left_s / float(s) for t, s in zip(self.running, self.speed, strict=True))
        self.env.process(self._until(max(wait, 0.0), self.turn))

    def _until(self, wait: float, turn: int) -> Generator[Any, Any, None]:
        yield self.env.timeout(wait)
        if turn != self.turn:
            return
        self._advance()
        ended = [t for t in self.running if t.left_s <= 1e-12]
        self.running = [t for t in self.running if t.left_s > 1e-12]
        self._share()
        for transfer in ended:
            transfer.done.succeed()


def play(jobs: Sequence[Job], capacity: FloatArray, steps: int, seed: int = 0) -> list[float]:
    """Mean seconds of a step of every job, over `steps` of each that begin when all others run.

    Parameters
    ----------
    capacity : ndarray (links,)
        Bytes/s of every shared link.
    seed : int
        Of the moments, within a step, at which jobs start.
    """
    import simpy

    env = simpy.Environment()
    links = _Links(env, capacity)
    drawn = np.random.default_rng(seed).random(len(jobs))
    starts = [float(share) * job.step_s for share, job in zip(drawn, jobs, strict=True)]
    spans: list[list[float]] = [[] for _ in jobs]
    ends = [env.event() for _ in jobs]
    for job, first, span, end in zip(jobs, starts, spans, ends, strict=True):
        env.process(_run(env, links, job, (first, max(starts)), span, steps, end))
    env.run(until=env.all_of(ends))
    return [float(np.mean(span[:steps])) for span in spans]


def _run(
    env: Environment, links: _Links, job: Job, start: tuple[float, float], spans: list[float], steps: int, end: Event
) -> Generator[Any, Any, None]:
    """Steps of a job without end; the seconds of each noted that begins after all jobs have started."""
    first, counts = start
    yield env.timeout(first)
    while True:
        begun = float(env.now)
        for _ in range(ROUNDS):
            beside = [links.send(phase.hidden_s / ROUNDS, phase.rate) for phase in job.phases]
            yield env.all_of([env.timeout(job.compute_s / ROUNDS), *beside])
            for phase in job.phases:
                yield links.send(phase.exposed_s / ROUNDS, phase.rate)
        if begun < counts:
            continue
        spans.append(float(env.now) - begun)
        if len(spans) == steps:
            end.succeed()
