"""What the deterministic engine says of single layouts: those of one graph are timed together.

A graph costs an engine thousands of steps in Python, whether one layout goes through or a hundred.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace

import numpy as np

from hwmodels.records import dataclass
from planner.simulate.costs import CommPlan, StageCosts
from planner.simulate.dag import build_dag, durations
from planner.simulate.graph import Dag
from planner.simulate.maxplus import simulate, step_seconds
from planner.simulate.timing import Timing
from planner.step.intervals import MOVES, interval, shifted
from planner.step.single import Single

MOST_VALUES = 1 << 23
"""Ends of nodes that are kept at once."""


@dataclass(frozen=True, slots=True, eq=False)
class Played:
    """One layout in the engine.

    Attributes
    ----------
    dag : Dag
    timing : Timing
        Of the layout alone.
    low_s, step_s, high_s : float
        `planner.step.intervals.interval`.
    serial_s : float
        Seconds with nothing overlapped, collectives inside a micro-batch apart (`serial_plan`).
    """

    dag: Dag
    timing: Timing
    low_s: float
    step_s: float
    high_s: float
    serial_s: float


def played(ones: Sequence[Single]) -> list[Played]:
    """Each of the layouts, in their order."""
    found: dict[int, Played] = {}
    for places in _alike(ones):
        found.update(zip(places, _together([ones[i] for i in places]), strict=True))
    return [found[i] for i in range(len(ones))]


def serial_plan(comm: CommPlan) -> CommPlan:
    """A plan by which gathers, sends and reductions all hold up the compute stream."""
    return replace(comm, reduce="none" if comm.reduce == "none" else "end", prefetch=0, p2p_blocking=True)


def _alike(ones: Sequence[Single]) -> Iterator[list[int]]:
    """Positions of layouts of one graph, few enough for `MOST_VALUES`."""
    shapes: dict[tuple[str, int, int, int, CommPlan], list[int]] = {}
    for i, one in enumerate(ones):
        shapes.setdefault((one.schedule, one.pp, one.microbatches, one.vpp, one.comm), []).append(i)
    for shape, places in shapes.items():
        each = build_dag(*shape).n * (1 + 2 * len(MOVES))
        width = max(1, MOST_VALUES // each)
        yield from (places[i : i + width] for i in range(0, len(places), width))


def _together(ones: Sequence[Single]) -> list[Played]:
    """Layouts of one graph."""
    one = ones[0]
    dag = build_dag(one.schedule, one.pp, one.microbatches, one.vpp, one.comm)
    plain = build_dag(one.schedule, one.pp, one.microbatches, one.vpp, serial_plan(one.comm))
    own = _joined([one.costs for one in ones])
    timing = simulate(dag, durations(dag, own))
    ends = step_seconds(dag, durations(dag, _joined([shifted(one.costs, one.spreads, 0) for one in ones])))
    serial = step_seconds(plain, durations(plain, own))
    found = []
    for i, seconds in enumerate(ends.reshape(len(ones), -1)):
        alone = Timing(*(np.ascontiguousarray(v[i : i + 1]) for v in (timing.start, timing.end, timing.step_s)))
        found.append(Played(dag, alone, *interval(seconds), float(serial[i])))
    return found


def _joined(costs: Sequence[StageCosts]) -> StageCosts:
    """The candidates of all."""
    if len(costs) == 1:
        return costs[0]
    return StageCosts(**{f.name: np.concatenate([getattr(c, f.name) for c in costs]) for f in fields(StageCosts)})
