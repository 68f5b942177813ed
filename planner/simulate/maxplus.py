"""The deterministic engine: longest paths through a `Dag`, for many candidates at once.

A node starts when its last predecessor ends (maximum) and ends its duration later (plus):
the step is a product of matrices over the max-plus semiring (Baccelli et al., *Synchronization
and Linearity*, 1992, chapter 1). Nodes lie sorted by level, so one level of all candidates is
three array operations.
"""

from __future__ import annotations

import numpy as np

from planner.simulate.bound import lower_bound
from planner.simulate.costs import FloatArray
from planner.simulate.graph import Dag, IntArray
from planner.simulate.timing import Timing

__all__ = ["lower_bound", "simulate", "step_seconds"]


def simulate(dag: Dag, durations: FloatArray) -> Timing:
    """Time one step of B candidates.

    Parameters
    ----------
    dag : Dag
    durations : ndarray (B, dag.slots.size)
        Seconds of every slot, from `planner.simulate.dag.durations`.

    Returns
    -------
    Timing
        ``start`` and ``end`` (B, n), ``step_s`` (B,).
    """
    start = np.empty((dag.n, len(durations)))
    end = _run(dag, durations, start)
    core = dag.n_core
    if core < dag.n:  # markers: zero length, at the end of their last predecessor
        first = dag.pred_ptr[core]
        np.maximum.reduceat(end[dag.pred[first:]], dag.pred_ptr[core:-1] - first, axis=0, out=start[core:])
        end[core:] = start[core:]
    return Timing(start.T, end.T, end[:core].max(axis=0))


def step_seconds(dag: Dag, durations: FloatArray) -> FloatArray:
    """Step time alone, shape (B,): what ranking needs, in half the memory of `simulate`."""
    end: FloatArray = _run(dag, durations, None)[: dag.n_core].max(axis=0)
    return end


def _run(dag: Dag, durations: FloatArray, start: FloatArray | None) -> FloatArray:
    """End of every core node, node-major so that a level is one block of memory."""
    end = np.ascontiguousarray(durations.T)[dag.slot]
    bounds, edges = dag.level_ptr.tolist(), dag.pred_ptr[dag.level_ptr].tolist()
    pairs, several = _pairs(dag), _several(dag)
    # Offsets of a node's predecessors within its level.
    inside = dag.pred_ptr[: dag.n_core] - np.repeat(dag.pred_ptr[dag.level_ptr[:-1]], np.diff(dag.level_ptr))
    most = int(np.diff(dag.level_ptr).max())
    widest = max(2 * most, int(np.diff(dag.pred_ptr[dag.level_ptr]).max(initial=0)))
    buffer = np.empty((widest, end.shape[1]))
    ready = np.empty((most, end.shape[1])) if start is None else start
    if start is not None:
        start[: bounds[1]] = 0.0
    pred = dag.pred
    take, later, latest, add = end.take, np.maximum, np.maximum.reduceat, np.add
    for i in range(1, len(bounds) - 1):
        a, b = bounds[i], bounds[i + 1]
        begun = ready[: b - a] if start is None else ready[a:b]
        if several[i]:
            p, q = edges[i], edges[i + 1]
            latest(take(pred[p:q], 0, buffer[: q - p], "clip"), inside[a:b], 0, None, begun)
        else:
            take(pairs[2 * a : 2 * b], 0, buffer[: 2 * (b - a)], "clip")
            later(buffer[: b - a], buffer[b - a : 2 * (b - a)], out=begun)
        node = end[a:b]
        add(node, begun, node)
    return end


def _pairs(dag: Dag) -> IntArray:
    """First and last predecessor of every core node: level by level, the first ones of all its nodes, then the last.

    Most nodes have two, and two blocks of memory have a maximum several times as fast as pieces of one. What has one
    takes it twice. Nodes of level 0 have none, and numbers without meaning here.
    """
    ptr, core = dag.pred_ptr, dag.n_core
    width = np.diff(dag.level_ptr)
    at = np.arange(core) + np.repeat(dag.level_ptr[:-1], width)
    found = np.zeros(2 * core, np.int64)
    some = int(width[0])
    found[at[some:]] = dag.pred[ptr[some:core]]
    found[at[some:] + np.repeat(width, width)[some:]] = dag.pred[ptr[some + 1 : core + 1] - 1]
    return found


def _several(dag: Dag) -> list[bool]:
    """Whether a node of each level has more than two predecessors."""
    count = np.diff(dag.pred_ptr[: dag.n_core + 1])
    return list((np.maximum.reduceat(count, dag.level_ptr[:-1]) > 2).tolist())
