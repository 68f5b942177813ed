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

from hwmodels.distinct import distinct
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
    start, end = np.empty(dag.n), np.empty(dag.n)
    core = dag.n_core
    start[:core], end[:core] = run.started, run.ended
    if core < dag.n:
        first = dag.pred_ptr[core]
        end[core:] = start[core:] = np.maximum.reduceat(end[dag.pred[first:]], dag.pred_ptr[core:-1] - first)
    return Timing(start[None], end[None], end.max(keepdims=True))


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
    """One simulation: the processes of all streams and what they record.

    Core nodes alone are played: a marker (RECV, RESHARD) takes no time and holds nothing up, so it lies where the
    last of its predecessors ended. A node's event is made when somebody has to wait for that node.
    """

    def __init__(self, env: Environment, dag: Dag, seconds: FloatArray, contention: bool) -> None:
        self.env, self.n_core = env, dag.n_core
        self.started, self.ended = [0.0] * dag.n_core, [math.nan] * dag.n_core
        self._seconds = seconds.tolist()
        self._awaited: dict[int, Event] = {}
        links = distinct(dag.link[dag.link >= 0]).tolist() if contention else []
        self._links = {number: _FairLink(env) for number in links}
        self._link = [self._links.get(number) for number in dag.link.tolist()] if contention else [None] * dag.n
        self._before = _foreign_predecessors(dag)
        for rank in range(dag.pp):
            for stream in range(len(STREAMS)):
                nodes = dag.stream_nodes(rank, stream)
                if len(nodes := nodes[nodes < dag.n_core]):
                    env.process(self._stream(nodes.tolist()))

    def _stream(self, nodes: list[int]) -> Generator[Event, object, None]:
        env, started, ended, awaited = self.env, self.started, self.ended, self._awaited
        links, all_seconds, all_before = self._link, self._seconds, self._before
        for node in nodes:
            for before in all_before[node]:
                if ended[before] != ended[before]:  # not a number yet: it runs, or has not begun
                    event = awaited.get(before)
                    if event is None:
                        event = awaited[before] = env.event()
                    yield event
            started[node] = env.now
            link, seconds = links[node], all_seconds[node]
            if link is not None:
                yield link.transfer(seconds)
            elif seconds > 0:
                yield env.timeout(seconds)
            ended[node] = env.now
            event = awaited.pop(node, None)
            if event is not None:
                event.succeed()


def _foreign_predecessors(dag: Dag) -> list[list[int]]:
    """For each core node those it waits for on other streams; on its own it waits its turn."""
    ptr = dag.pred_ptr[: dag.n_core + 1]
    pred = dag.pred[: ptr[-1]]
    target = np.repeat(np.arange(dag.n_core), np.diff(ptr))
    stream = dag.rank * len(STREAMS) + dag.stream
    foreign = stream[pred] != stream[target]
    count = np.bincount(target[foreign], minlength=dag.n_core)
    ends = np.cumsum(count)
    flat, none = pred[foreign].tolist(), []  # type: list[int], list[int]
    return [
        flat[end - many : end] if many else none for many, end in zip(count.tolist(), ends.tolist(), strict=True)
    ]


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
        if not self._active:
            return
        plan = self._plan
        # The transfer with least work left, the first come among equals.
        first = min(self._active, key=self._active.__getitem__)
        wake = self._env.timeout(max(0.0, self._active[first] * len(self._active)))
        wake.callbacks.append(lambda _: self._depart(plan, first))

    def _depart(self, plan: int, done: Event) -> None:
        if plan != self._plan:
            return
        self._advance()
        # By name, not by "work left is zero": rounding must not leave it with a sliver.
        del self._active[done]
        done.succeed()
        self._schedule()
