"""What oversubscribed uplinks and tori leave to a group, when every node is busy with groups like it.

**Trees.** A tier joins blocks of `L` nodes with uplinks that carry `L` times a node's ports over an
oversubscription `o`. A group of `N` nodes, `t` nodes apart, has `k = clip(L / t, 1, N)` of them in a block, and
`L / k` groups per port share the block. Per port:

- ring (and trees in node order): one edge of each group leaves the block, so `L / k` edges share `L / o`:
  each node sends at most ``k / o`` of its ports;
- all-to-all: a node sends ``(N - k) / (N - 1)`` of its bytes out of the block, so at most
  ``(N - 1) / ((N - k) o)``;
- a pair is a ring of two.

Groups that are not equally spaced state their `k` (`hwmodels.topology.GroupShape`). All nodes of a group in one
block pay nothing. That is the flow bound of a fat tree (Leiserson 1985, "Fat-Trees: Universal Networks for
Hardware-Efficient Supercomputing").

**Torus.** Of `d` nodes along a dimension that the group covers, both directions of the ring are used, so a
multi-dimensional ring has two ports for each dimension; a group that covers no whole dimension lies on a line,
where there and back take one port each way. Uniform all-to-all sends ``bytes x d / 8`` over each link of a ring
of even `d` (``(d^2 - 1) / (8 d)`` for odd `d`), a quarter-line's ``d / 4`` on an open line: the longest dimension
decides (Dally & Towles 2004, "Principles and Practices of Interconnection Networks", sections 5.1 and 3.3).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

import numpy as np

from hwmodels.estimate import FloatArray
from hwmodels.topology import INSIDE

PATTERNS = ("ring", "all_to_all", "pair")


def tree_factor(
    tiers: Sequence[tuple[int, float]],
    nodes: FloatArray,
    apart: FloatArray,
    pattern: str,
    stated: Sequence[FloatArray | None] = (),
) -> FloatArray:
    """Share of its ports' bandwidth that a group keeps; formulas in the module docstring.

    Parameters
    ----------
    tiers : sequence of (nodes below it, oversubscription of all tiers up to it)
    nodes, apart : ndarray
        Nodes of the group, and their distance in nodes; of one shape.
    pattern : {'ring', 'all_to_all', 'pair'}
    stated : sequence of ndarray, optional
        Nodes of a group in one block of each tier, 0 where `apart` says how many.

    Returns
    -------
    ndarray
        In (0, 1].
    """
    factor = np.ones(nodes.shape)
    for (block, over), known in zip_longest(tiers, stated[: len(tiers)]):
        # Blocks that the group's span does not divide may cut it even where it would fit.
        inside = (nodes * apart <= block) & (np.mod(block, np.maximum(nodes * apart, 1.0)) == 0)
        here = np.clip(np.floor(block / apart), 1.0, np.maximum(nodes - 1.0, 1.0))
        if known is not None and np.any(known):
            inside = np.where(known > 0.0, known >= INSIDE, inside)
            most = np.maximum(nodes - 1.0, 1.0) if pattern == "all_to_all" else np.inf
            here = np.where(known > 0.0, np.minimum(known, most), here)
        if pattern == "all_to_all":
            kept = (nodes - 1.0) / np.maximum((nodes - here) * over, 1e-12)
        else:
            kept = here / over
        factor = np.minimum(factor, np.where(inside | (nodes <= 1.0), 1.0, np.minimum(kept, 1.0)))
    return factor


def torus_bandwidth(
    port: float, torus: Sequence[int], nodes: FloatArray, apart: FloatArray, pattern: str
) -> FloatArray:
    """Bytes/s per direction that leave one node of a group on a torus; formulas in the module docstring.

    Parameters
    ----------
    port : float
        Bytes/s per direction of one port to one neighbour.
    torus : sequence of int
        Nodes along each dimension, the last one fastest.
    nodes, apart : ndarray
        Nodes of the group and their distance in nodes; of one shape.
    pattern : {'ring', 'all_to_all', 'pair'}
        A pair has one port.
    """
    span = nodes * apart
    ports, load = np.zeros(nodes.shape), np.zeros(nodes.shape)
    below = 1.0
    for d in reversed(torus):
        above = below * d
        # Steps that the group takes along this dimension: all of it, a part, or none.
        steps = np.clip(np.minimum(span, above) / np.maximum(below, apart), 1.0, d)
        touches = (span > below) & (apart < above) & (steps > 1.0)
        whole = touches & (steps >= d) & (apart <= below)
        ports = ports + np.where(whole, 2.0, 0.0)
        ring = (d * d - d % 2) / (8.0 * d)
        load = np.maximum(load, np.where(whole, ring, np.where(touches, steps / 4.0, 0.0)))
        below = above
    if pattern == "pair":
        return np.full(nodes.shape, port)
    if pattern == "ring":
        return np.asarray(port * np.maximum(ports, 1.0))
    uniform = port * (nodes - 1.0) / np.maximum(nodes, 1.0) / np.maximum(load, 1e-12)
    return np.asarray(np.where(load > 0.0, np.minimum(uniform, port * 2.0 * len(torus)), port))
