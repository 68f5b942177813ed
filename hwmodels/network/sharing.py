"""Links shared by flows, and by groups, that run at once: max-min fairness by progressive filling.

All flows grow together until a link is full; its flows stay at that rate, the rest grow on (Bertsekas & Gallager,
"Data Networks", 2nd edition, section 6.5.2). A rate vector is max-min fair when each flow has a *bottleneck*: a full
link on which no other flow is faster. Lossless fabrics with per-connection fairness come near it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from hwmodels.errors import Fault, InputError
from hwmodels.estimate import FloatArray
from hwmodels.network.graph import Wiring
from hwmodels.network.placement import place
from hwmodels.network.routing import IntArray
from hwmodels.network.traffic import Flows
from hwmodels.records import dataclass

FULL = 1e-9
"""A link is full when this share of its capacity is left."""


def max_min(
    flow: IntArray, edge: IntArray, share: FloatArray, capacity: FloatArray, flows: int, limit: ArrayLike = np.inf
) -> FloatArray:
    """Max-min fair rates over a sparse incidence.

    Parameters
    ----------
    flow, edge : ndarray of int64 (entries,)
        Flow `flow` crosses edge `edge` ...
    share : ndarray (entries,)
        ... with `share` x its rate.
    capacity : ndarray (edges,)
        Bytes/s, finite and > 0 where an edge is used.
    flows : int
        How many there are.
    limit : array_like
        Highest rate of each flow, bytes/s.

    Returns
    -------
    ndarray (flows,)
        Bytes/s. A flow that crosses no edge gets its limit.

    Raises
    ------
    InputError
        For an edge in use without capacity: its flows could never finish.
    """
    used = np.bincount(edge, weights=share, minlength=capacity.size) > 0
    if used.any() and not (np.all(np.isfinite(capacity[used])) and capacity[used].min() > 0):
        bad = int(np.flatnonzero(used & ~((capacity > 0) & np.isfinite(capacity)))[0])
        why = "its flows could never finish"
        raise InputError(
            Fault(f"edge {bad} has a capacity of {capacity[bad]:g} bytes/s", "max_min", why, "more than 0")
        )
    cap = np.broadcast_to(np.asarray(limit, np.float64), (flows,))
    rate, growing = np.zeros(flows), np.ones(flows, dtype=bool)
    growing[np.bincount(flow, minlength=flows) == 0] = False
    rate[~growing] = cap[~growing]
    slack = capacity.astype(np.float64).copy()
    while growing.any():
        weight = np.bincount(edge, weights=share * growing[flow], minlength=capacity.size)
        busy = weight > 0
        room = np.full(capacity.size, np.inf)
        room[busy] = np.maximum(slack[busy], 0.0) / weight[busy]
        step = min(float(room.min()), float((cap[growing] - rate[growing]).min()))
        rate[growing] += step
        slack -= weight * step
        # The links that set the step are full whatever rounding says, so that every round freezes a flow.
        full = busy & ((room <= step * (1.0 + FULL)) | (slack <= FULL * capacity))
        stopped = np.zeros(flows, dtype=bool)
        stopped[flow[full[edge] & (share > 0)]] = True
        growing &= ~(stopped | (rate >= cap * (1.0 - FULL)))
    return rate


@dataclass(frozen=True, slots=True, eq=False)
class Sharing:
    """Groups that run at once.

    Attributes
    ----------
    alone_s : ndarray (groups,)
        Seconds of each group with the fabric to itself.
    together_s : ndarray (groups,)
        Seconds when all start at the same time.
    """

    alone_s: FloatArray
    together_s: FloatArray

    @property
    def slowdown(self) -> FloatArray:
        """`together_s` over `alone_s`, at least 1; 1 for a group without bytes."""
        ratio = np.divide(self.together_s, self.alone_s, out=np.ones_like(self.alone_s), where=self.alone_s > 0)
        return np.asarray(np.maximum(ratio, 1.0))


def finish(flow: IntArray, edge: IntArray, share: FloatArray, capacity: FloatArray, nbytes: FloatArray) -> FloatArray:
    """Seconds at which each flow has moved its bytes, rates max-min fair at every moment.

    When a flow ends, the others share what it leaves (flow-level simulation; Casanova et al. 2014, SimGrid).
    """
    end = np.zeros(nbytes.size)
    # What crosses no edge (a GPU to itself) is there at once.
    left = np.where(np.bincount(flow, minlength=nbytes.size) > 0, nbytes, 0.0).astype(np.float64)
    now = 0.0
    alive = left > 0
    while alive.any():
        keep = alive[flow]
        index = np.cumsum(alive) - 1
        rate = max_min(index[flow[keep]], edge[keep], share[keep], capacity, int(alive.sum()))
        needs = left[alive] / rate
        step = float(needs.min())
        now += step
        # Flows that end together but for rounding end together.
        done = needs <= step * (1.0 + 1e-9)
        remaining = np.where(done, 0.0, left[alive] - rate * step)
        ids = np.flatnonzero(alive)
        left[ids] = remaining
        end[ids[done]] = now
        alive[ids[done]] = False
    return end


def share(wiring: Wiring, groups: Sequence[Flows], pxn: bool = True, hashed: int | None = None) -> Sharing:
    """How long groups take alone and side by side: data-parallel groups over one spine, two jobs on one fabric.

    Parameters
    ----------
    wiring : Wiring
    groups : sequence of Flows
        What each group sends (`hwmodels.network.traffic`).
    pxn, hashed
        As `hwmodels.network.routing.route`.

    Raises
    ------
    InputError
        Where a flow has no path.
    """
    together = place(wiring, Flows.together(groups), pxn, hashed)
    owner = np.repeat(np.arange(len(groups)), [len(g) for g in groups])

    def last(end: FloatArray, who: IntArray) -> FloatArray:
        result = np.zeros(len(groups))
        np.maximum.at(result, who, end)
        return result

    end = finish(together.flow, together.edge, together.share, wiring.bandwidth, together.flows.nbytes)
    alone = np.zeros(len(groups))
    for i in range(len(groups)):
        mine = owner[together.flow] == i
        ids = np.flatnonzero(owner == i)
        if ids.size:
            local = together.flow[mine] - ids[0]
            nbytes = together.flows.nbytes[ids]
            edge, part = together.edge[mine], together.share[mine]
            alone[i] = finish(local, edge, part, wiring.bandwidth, nbytes).max()
    return Sharing(alone, last(end, owner))
