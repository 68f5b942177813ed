"""Traffic placed on a fabric's edges: bytes on each, the bottleneck, and where the time goes."""

from __future__ import annotations

import numpy as np

from hwmodels.estimate import FloatArray
from hwmodels.network.graph import Wiring
from hwmodels.network.routing import IntArray, route
from hwmodels.network.traffic import Flows
from hwmodels.records import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class Placement:
    """Flows on the edges of a wiring.

    Attributes
    ----------
    wiring : Wiring
    flows : Flows
    flow, edge : ndarray of int64 (entries,)
        Flow `flow` crosses edge `edge` ...
    share : ndarray (entries,)
        ... with this share of its bytes.
    load : ndarray (edges,)
        Bytes on each directed edge.
    """

    wiring: Wiring
    flows: Flows
    flow: IntArray
    edge: IntArray
    share: FloatArray
    load: FloatArray

    @property
    def seconds(self) -> float:
        """Least time to move all bytes, no edge above its bandwidth: ``max(load / bandwidth)``; 0 for no bytes."""
        return float((self.load / self.wiring.bandwidth).max(initial=0.0))

    @property
    def bottleneck(self) -> tuple[str, str] | None:
        """The edge that decides `seconds`, by name; None without bytes."""
        if not self.load.size or self.load.max() == 0.0:
            return None
        return self.wiring.edge(int(np.argmax(self.load / self.wiring.bandwidth)))

    def busiest(self, count: int = 10) -> list[tuple[str, str, float, float]]:
        """The `count` edges that take longest: ``(tail, head, bytes, seconds)``."""
        seconds = self.load / self.wiring.bandwidth
        order = np.argsort(-seconds, kind="stable")[:count]
        return [(*self.wiring.edge(int(e)), float(self.load[e]), float(seconds[e])) for e in order if self.load[e] > 0]

    def bytes_by_link(self) -> dict[str, float]:
        """Bytes that crossed edges of each link, summed over edges (a byte counts on every edge that it takes)."""
        names = np.asarray(self.wiring.link, dtype=np.str_)
        return {str(name): float(self.load[names == name].sum()) for name in np.unique(names)} if names.size else {}


def place(wiring: Wiring, flows: Flows, pxn: bool = True, hashed: int | None = None) -> Placement:
    """Route flows over the edges of a fabric.

    Parameters
    ----------
    wiring : Wiring
        Of `hwmodels.network.wire`.
    flows : Flows
    pxn, hashed
        As `hwmodels.network.routing.route`.

    Raises
    ------
    InputError
        Where a flow has no path.
    """
    found = route(wiring, flows.source, flows.target, pxn, hashed)
    load = np.bincount(found.edge, weights=flows.nbytes[found.flow] * found.share, minlength=len(wiring))
    return Placement(wiring, flows, found.flow, found.edge, found.share, load.astype(np.float64))
