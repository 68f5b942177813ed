"""The discrete-event engine: the same `Dag` in SimPy, with contention, jitter and stragglers.

Every stream of every rank is a process that runs its nodes first in, first out; a node waits for
its predecessors, then for its duration or, with contention, for its share of a link. Without
contention and randomness the times are those of `planner.simulate.maxplus`.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from hwmodels.errors import Fault, InputError
from planner.simulate.costs import FloatArray
from planner.simulate.graph import COMPUTE, STREAMS, Dag, NodeKind
from planner.simulate.timing import Timing

if TYPE_CHECKING:
    from simpy import Environment, Event

_SLOWED = (NodeKind.F, NodeKind.B, NodeKind.I, NodeKind.W, NodeKind.OPTIMIZER)
_COLLECTIVE = (NodeKind.SYNC, NodeKind.TIED)


def simulate_events(
    dag: Dag,
    durations: FloatArray,
    *,
    contention: bool = False,
    jitter: float = 0.0,
    stragglers: Mapping[int, float] | None = None,
    seed: int = 0,
) -> Timing:
    """Time one step of one candidate, event by event.

    Parameters
    ----------
    dag : Dag
    durations : ndarray (1, dag.slots.size) or (dag.slots.size,)
        Seconds of every slot, from `planner.simulate.dag.durations`.
    contention : bool
        Transfers that run on the same `Dag.link` at the same time share it evenly (processor
        sharing): n of them each run at 1/n of their speed.
    jitter : float
        Standard deviation of the logarithm of a factor on every node, drawn from a log-normal
        distribution of mean 1; 0 for none. All ranks of one collective draw the same factor.
    stragglers : mapping of int to float
        Pipeline rank -> factor (above 0) on its compute and optimizer.
    seed : int
        Of the jitter. The same arguments give the same times to the bit.

    Returns
    -------
    Timing
        With a leading axis of 1.

    Raises
    ------
    hwmodels.errors.InputError
        For more than one candidate, a negative jitter, a factor that is not positive, or a rank
        that the pipeline has not.
    """
    import simpy  # only this engine needs it

    flat = np.atleast_2d(np.asarray(durations, np.float64))
    if faults := _faults(dag, flat, jitter, stragglers or {}):
        raise InputError(faults)
    seconds = _node_seconds(dag, flat[0], jitter, stragglers or {}, seed)
    run = _Run(simpy.Environment(), dag, seconds, contention)
    run.env.run()
    return Timing(run.start[None], run.end[None], run.end.max(keepdims=True))


def _faults(dag: Dag, flat: FloatArray, jitter: float, stragglers: Mapping[int, float]) -> list[Fault]:
    found = []
    if flat.shape != (1, dag.slots.size):
        fix = f"shape (1, {dag.slots.size})"
        found.append(Fault(f"durations of shape {flat.shape}", "durations", "one candidate at a time", fix))
    if not (math.isfinite(jitter) and jitter >= 0):
        found.append(Fault(f"jitter is {jitter}", "jitter", "it is a standard deviation", "jitter=0.05"))
    for rank, factor in stragglers.items():
        if not 0 <= rank < dag.pp:
            found.append(Fault(f"straggler on rank {rank}", "stragglers", f"pp={dag.pp}", f"a rank of 0..{dag.pp - 1}"))
        if not (math.isfinite(factor) and factor > 0):
            found.append(Fault(f"straggler factor {factor}", "stragglers", "a slow rank takes longer", "1.2"))
    return found


def _node_seconds(
    dag: Dag, flat: FloatArray, jitter: float, stragglers: Mapping[int, float], seed: int
) -> FloatArray:
    seconds: FloatArray = flat[dag.slot]
    if jitter > 0:
        normal = np.random.default_rng(seed).standard_normal(dag.n)
        for kind in _COLLECTIVE:
            of = np.flatnonzero(dag.kind == kind)
            normal[of] = normal[of[:1]]
        of = np.flatnonzero(dag.kind == NodeKind.MIRROR)
        mirror = of[np.argsort(dag.rank[of])]
        normal[mirror] = normal[mirror[np.minimum(np.arange(len(of)), np.arange(len(of))[::-1])]]
        # exp(-sigma^2/2 + sigma N) has mean 1.
        seconds = seconds * np.exp(jitter * normal - jitter**2 / 2)
    for rank, factor in stragglers.items():
        slow = (dag.rank == rank) & np.isin(dag.kind, _SLOWED) & (dag.stream == COMPUTE)
        seconds = np.where(slow, seconds * factor, seconds)
    return seconds


class _Run:
    """One simulation: the processes of all streams and what they record."""

    def __init__(self, env: Environment, dag: Dag, seconds: FloatArray, contention: bool) -> None:
        self.env, self.dag = env, dag
        self.start, self.end = np.zeros(dag.n), np.zeros(dag.n)
        self._seconds = seconds.tolist()
        self._link = dag.link.tolist() if contention else [-1] * dag.n
        links = np.unique(dag.link[dag.link >= 0]).tolist() if contention else []
        self._links = {number: _FairLink(env) for number in links}
        self._done = [env.event() for _ in range(dag.n_core)]  # nobody waits for a marker
        for rank in range(dag.pp):
            for stream in range(len(STREAMS)):
                nodes = dag.stream_nodes(rank, stream)
                if len(nodes):
                    env.process(self._stream(nodes.tolist()))

    def _stream(self, nodes: list[int]) -> Generator[Event, object, None]:
        env, done = self.env, self._done
        for node in nodes:
            for before in self.dag.predecessors(node).tolist():
                if not done[before].processed:
                    yield done[before]
            self.start[node] = env.now
            link = self._links.get(self._link[node])
            if link is not None:
                yield link.transfer(self._seconds[node])
            elif self._seconds[node] > 0:
                yield env.timeout(self._seconds[node])
            self.end[node] = env.now
            if node < self.dag.n_core:
                done[node].succeed()


class _FairLink:
    """A link that its active transfers share evenly (egalitarian processor sharing).

    A transfer's work is its duration alone on the link. At each arrival and departure the work
    left is brought up to date and the next departure planned anew.
    """

    def __init__(self, env: Environment) -> None:
        self._env = env
        self._active: dict[Event, float] = {}  # transfer -> work left, in order of arrival
        self._since = 0.0
        self._plan = 0  # number of the plan in force; older wake-ups do nothing

    def transfer(self, work: float) -> Event:
        """An event that fires when `work` seconds of the whole link have been given."""
        done = self._env.event()
        if work <= 0:
            done.succeed()
            return done
        self._advance()
        self._active[done] = work
        self._schedule()
        return done

    def _advance(self) -> None:
        if self._active:
            given = (self._env.now - self._since) / len(self._active)
            for done in self._active:
                self._active[done] -= given
        self._since = self._env.now

    def _schedule(self) -> None:
        self._plan += 1
        if self._active:
            # The transfer with least work left, the first come among equals.
            first = min(self._active, key=self._active.__getitem__)
            self._env.process(self._depart(self._plan, first, max(0.0, self._active[first] * len(self._active))))

    def _depart(self, plan: int, done: Event, delay_s: float) -> Generator[Event, object, None]:
        yield self._env.timeout(delay_s)
        if plan != self._plan:
            return
        self._advance()
        # By name, not by "work left is zero": rounding must not leave it with a sliver.
        del self._active[done]
        done.succeed()
        self._schedule()
