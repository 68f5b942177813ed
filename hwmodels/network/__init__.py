"""What joins GPUs: links, fabrics, the graph of a fabric, traffic placed on it, and links shared between groups.

`Link` and `Fabric` are what prices need (array-shaped, no graph). The rest answers questions of placement and
contention on an explicit graph: `wire` (every directed edge), `traffic` (what a collective sends from GPU to
GPU), `place` (the bytes on each edge), `max_min` and `share` (flows and groups that run at once). `advice` and
`diagnosis` turn these numbers into findings.
"""

from __future__ import annotations

from hwmodels.network.fabric import CurveTable, Fabric
from hwmodels.network.graph import Wiring, wire
from hwmodels.network.link import LINK_KINDS, TOPOLOGIES, Link, PcieTree
from hwmodels.network.placement import Placement, place
from hwmodels.network.sharing import Sharing, max_min, share
from hwmodels.network.traffic import ALGORITHMS, Flows, traffic

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
