"""A collective and the compute that it runs beside: how much longer both take, and what is left exposed.

While both run, compute goes on at ``1/a`` of its rate and the collective at ``1/b`` of its own. For `k`
seconds of compute and `c` of a collective, each alone::

    b c <= a k:   k + b c (1 - 1/a)          the collective ends first, compute makes up for what it lost
    else:         a k + c - a k / b          compute ends first, the rest of the collective runs alone

A measured overlap `o` (``calibrate``: ``1 - (both - longer)/shorter``) is the symmetric case ``a = b = 2 - o``:
both expressions then give ``longer + (1 - o) shorter``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from hwmodels.collectives.overlap import CHANNELS_A_PORT, overlap
from hwmodels.estimate import FloatArray
from hwmodels.records import dataclass

if TYPE_CHECKING:
    from hwmodels.cluster import Cluster


@dataclass(frozen=True, slots=True, eq=False)
class Beside:
    """Slow-downs of compute (`a`) and of the collective (`b`) while both run.

    Attributes
    ----------
    compute, collective : ndarray
        Time beside the other over time alone, >= 1; broadcast against what they are applied to.
    """

    compute: FloatArray
    collective: FloatArray

    def taken(self, collective_s: ArrayLike) -> FloatArray:
        """Seconds by which compute that outlasts the collective becomes longer."""
        return np.asarray(np.asarray(collective_s) * self.collective * (1.0 - 1.0 / self.compute))

    def exposed(self, collective_s: ArrayLike, compute_s: ArrayLike) -> FloatArray:
        """Seconds that both together take beyond the compute alone, at most `collective_s`."""
        c, k = np.asarray(collective_s, dtype=np.float64), np.asarray(compute_s, dtype=np.float64)
        rest = c + k * (self.compute - 1.0 - self.compute / self.collective)
        found = np.where(self.collective * c <= self.compute * k, self.taken(c), rest)
        # Running one after the other is always open to a scheduler.
        return np.asarray(np.clip(found, 0.0, c))


def beside(cluster: Cluster, op: str, nodes: ArrayLike, ranks_per_node: ArrayLike = np.inf) -> Beside:
    """Slow-downs beside a collective of groups that span `nodes` nodes.

    The cluster's measured overlap where it has one, else what the links take (`overlap`): SMs for
    channels of the network where a group crosses nodes, of the link inside the node elsewhere. Between nodes
    a group has two channels for each port that it uses (`hwmodels.collectives.overlap.CHANNELS`), and its
    `ranks_per_node` ranks of a node use as many ports; all of the node's unless given.
    """
    shape = np.broadcast_shapes(np.shape(nodes), np.shape(ranks_per_node))
    if cluster.overlap is not None:
        both = np.full(shape, 2.0 - cluster.overlap.value)
        return Beside(both, both)
    fabric, n_sm = cluster.fabric, cluster.device.n_sm
    near = overlap(fabric.intra, n_sm, op)
    far = overlap(fabric.inter, n_sm, op) if fabric.inter is not None else near
    crosses = np.broadcast_to(np.asarray(nodes) > 1, shape)
    held = np.minimum(far.sm_share, CHANNELS_A_PORT * np.asarray(ranks_per_node, dtype=np.float64) / max(n_sm, 1))
    slower = far.compute_slowdown * (1.0 - far.sm_share) / (1.0 - held)
    return Beside(
        np.where(crosses, slower, near.compute_slowdown),
        np.where(crosses, far.collective_slowdown, near.collective_slowdown),
    )


def expert_beside(cluster: Cluster, sms: ArrayLike) -> Beside:
    """Slow-downs beside an expert dispatch or combine that holds `sms` SMs (`hwmodels.collectives.expert_sms`).

    The cluster's measured overlap where it has one; else compute keeps the other SMs, and both sides lose what
    they lose beside any collective (`hwmodels.collectives.overlap`).
    """
    held = np.asarray(sms, dtype=np.float64)
    if cluster.overlap is not None:
        both = np.full(held.shape, 2.0 - cluster.overlap.value)
        return Beside(both, both)
    n_sm = cluster.device.n_sm
    near = overlap(cluster.fabric.intra, n_sm)
    if n_sm == 0:
        return Beside(np.full(held.shape, near.compute_slowdown), np.full(held.shape, near.collective_slowdown))
    share = np.minimum(held / n_sm, 0.9)
    rest = near.compute_slowdown * (1.0 - near.sm_share)  # what memory traffic takes beyond the SMs
    return Beside(rest / (1.0 - share), np.full(held.shape, near.collective_slowdown))
