"""levels: how long the longest chain of predecessors of each node is, where most nodes wait for one other only."""

from __future__ import annotations

import numpy as np

from planner.simulate.graph import IntArray


def levels(n: int, source: IntArray, target: IntArray) -> IntArray | None:
    """Longest chain of predecessors of each of n nodes: ndarray (n,), or None if there is a cycle.

    A node that waits for one other stands one level above it. So every node is a number of steps above the *joint* at
    the root of its tree, a node that waits for several or for none; Kahn's algorithm goes over the joints alone. A
    plain loop: levels are about as wide as a pipeline, too narrow to gain from an array a level.

    Parameters
    ----------
    n : int
    source, target : ndarray (edges,)
        Each target waits for its source; none twice.
    """
    waits = np.bincount(target, minlength=n)
    root, steps = np.arange(n), np.zeros(n, np.int64)
    alone = waits[target] == 1
    root[target[alone]], steps[target[alone]] = source[alone], 1
    for _ in range(n.bit_length() + 1):  # each pass doubles the reach; the last one finds nothing
        further = steps[root]
        if not further.any():
            break
        steps, root = steps + further, root[root]
    else:  # a cycle of nodes that each wait for one other has no root
        return None
    joints = np.flatnonzero(waits != 1)
    number = np.full(n, -1)
    number[joints] = np.arange(len(joints))
    source, target = source[~alone], target[~alone]
    above = _of_joints(len(joints), number[root[source]], number[target], steps[source] + 1)
    return None if above is None else above[number[root]] + steps


def _of_joints(n: int, source: IntArray, target: IntArray, steps: IntArray) -> IntArray | None:
    """Levels of n joints, each `steps` or more above its sources."""
    by_source = np.argsort(source, kind="stable")
    ptr = np.concatenate([[0], np.cumsum(np.bincount(source, minlength=n))]).tolist()
    to, by = target[by_source].tolist(), steps[by_source].tolist()
    waiting = np.bincount(target, minlength=n).tolist()
    level = [0] * n
    ready = [v for v in range(n) if not waiting[v]]
    seen = 0
    while ready:
        v = ready.pop()
        seen += 1
        own = level[v]
        for i in range(ptr[v], ptr[v + 1]):
            w, least = to[i], own + by[i]
            if level[w] < least:
                level[w] = least
            waiting[w] -= 1
            if not waiting[w]:
                ready.append(w)
    return np.array(level, np.int64) if seen == n else None
