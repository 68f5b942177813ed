"""What joins GPUs: links, fabrics, the graph of a fabric, traffic placed on it, and links shared between groups.

`Link` and `Fabric` are what prices need (array-shaped, no graph). The rest answers questions of placement and
contention on an explicit graph: `wire` (every directed edge), `traffic` (what a collective sends from GPU to
GPU), `place` (the bytes on each edge), `max_min` and `share` (flows and groups that run at once). `advice` and
`diagnosis` turn these numbers into findings.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hwmodels.network.fabric import CurveTable, Fabric
from hwmodels.network.link import LINK_KINDS, TOPOLOGIES, Link, PcieTree
from hwmodels.network.traffic import ALGORITHMS, Flows, traffic

if TYPE_CHECKING:
    from hwmodels.network.graph import Wiring, wire
    from hwmodels.network.placement import Placement, place
    from hwmodels.network.sharing import Sharing, max_min, share

_ON_GRAPHS = {
    "Wiring": "graph", "wire": "graph", "Placement": "placement", "place": "placement", "Sharing": "sharing",
    "max_min": "sharing", "share": "sharing",
}  # fmt: skip
"""Name -> module. They are loaded when they are asked for: a search prices links and walks no graph."""

__all__ = [
    "ALGORITHMS",
    "LINK_KINDS",
    "TOPOLOGIES",
    "CurveTable",
    "Fabric",
    "Flows",
    "Link",
    "PcieTree",
    "Placement",
    "Sharing",
    "Wiring",
    "max_min",
    "place",
    "share",
    "traffic",
    "wire",
]


def __getattr__(name: str) -> Any:
    if name not in _ON_GRAPHS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_ON_GRAPHS[name]}"), name)
    return value
