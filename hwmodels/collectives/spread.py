"""How far a price may be off: residuals of the fit by class, wider where nothing was measured."""

from __future__ import annotations

import numpy as np

from hwmodels.collectives.base import Group
from hwmodels.collectives.protocols import few_ranks
from hwmodels.device import Coefficient
from hwmodels.estimate import FloatArray
from hwmodels.network import Fabric, Link
from hwmodels.topology import GroupShape

LARGE_BYTES = 2.0**26
"""From here on bandwidth decides: 64 MiB."""
NO_EVIDENCE_NODES = 4
"""Groups over more nodes were not measured (but for single systems): their spread is wider."""
NO_EVIDENCE_SPREAD = 0.20
FEW_RANKS_SPREAD = 0.20
"""Added for one rank a node where only full nodes were measured; less for those between (in log ranks)."""
KERNEL = Coefficient(0.45, "profiled kernels on NVLink 3 and 4: they hold the wait for the slowest rank", 0, 0.0)
"""Spread of kernel times on links where none were measured."""
MOVED_SPREAD = 0.25
"""Added where a link takes over coefficients: NVLink 3, 4 and 5 predict each other to 27-39% at the median."""
UNMEASURED = Coefficient(0.35, "assumed: no measured collective on a link of this kind", 0, 0.0)
"""Spread of a link without coefficients of its own or of another link."""


def _class_spread(link: Link, name: str) -> float:
    found = link.find(f"spread.{name}", "collective.simple.efficiency", default=UNMEASURED)
    if name in ("small", "large") and f"spread.{name}" in link.coefficients:
        return found.value + (max(found.residual, MOVED_SPREAD) if found.residual > 0.0 else 0.0)
    return found.residual if found is not UNMEASURED else UNMEASURED.value


def relative_spread(
    fabric: Fabric, op: str, nbytes: FloatArray, group: Group, framework: str, kernel: bool = False
) -> FloatArray:
    """Relative half-width of each price; `kernel`: against kernel times of a profiler (``spread.kernel.*``).

    The coefficients ``spread.small`` and ``spread.large`` of a link hold the residual below and from `LARGE_BYTES`;
    a link that took its coefficients from another adds what the transfer costs (`hwmodels.laws`). Over nodes the wider
    of link and network counts, and beyond `NO_EVIDENCE_NODES` nodes `NO_EVIDENCE_SPREAD` is added, for fewer ranks a
    node than were measured up to `FEW_RANKS_SPREAD`.
    """
    large = nbytes >= LARGE_BYTES
    link = fabric.intra
    result = np.where(large, _class_spread(link, "large"), _class_spread(link, "small"))
    if kernel and op != "send_recv":
        words = [link.find(f"spread.kernel.{size}", default=KERNEL).value for size in ("large", "small")]
        result = np.maximum(result, np.where(large, *words))
    if framework and op == "all_reduce":
        own = link.find(f"custom.{framework}.spread", default=UNMEASURED)
        result = np.where(group.nodes > 1.0, result, own.value + own.residual)
    if fabric.inter is None:
        return np.asarray(result)
    network = np.where(large, _class_spread(fabric.inter, "large"), _class_spread(fabric.inter, "small"))
    wider = np.where(group.ranks > 1.0, np.maximum(result, network), network)
    wider = wider + FEW_RANKS_SPREAD * few_ranks(fabric, fabric.inter, op, group)
    result = np.where(group.nodes > 1.0, wider, result)
    return np.asarray(result + np.where(group.nodes > NO_EVIDENCE_NODES, NO_EVIDENCE_SPREAD, 0.0))


def evidence(shape: GroupShape) -> str:
    """``"no measured evidence"`` for groups over more than `NO_EVIDENCE_NODES` nodes, else empty."""
    wide = bool(np.any(np.asarray(shape.nodes) > NO_EVIDENCE_NODES))
    return f"no measured evidence beyond {NO_EVIDENCE_NODES} nodes" if wide else ""
