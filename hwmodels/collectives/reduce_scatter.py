"""reduce-scatter: `b` bytes on every rank are summed, each rank keeps ``b / n``.

The reverse of all-gather, so the same traffic: ``(n-1)/n b`` along the ring; at least ``(r-1)/r b``
out of a GPU inside the node and ``(N-1)/N b`` out of a node.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hwmodels.collectives.base import Group
from hwmodels.estimate import FloatArray


class ReduceScatter:
    """Traffic of reduce-scatter; formulas in the module docstring."""

    name = "reduce_scatter"
    reduces_in_switch = False
    single_port = False

    def wire(self, group: Group) -> FloatArray:
        """Bytes out of one GPU inside its node, per byte of `b`."""
        return np.asarray((group.size - 1.0) / group.size)

    def least_wire(self, group: Group) -> FloatArray:
        """As `wire`, by the best algorithm there could be."""
        return np.asarray((group.ranks - 1.0) / group.ranks)

    def out(self, group: Group, in_switch: NDArray[np.bool_]) -> FloatArray:
        """Bytes out of the fullest node, per byte of `b`."""
        return np.asarray((group.size - 1.0) / group.size)

    def least_out(self, group: Group) -> FloatArray:
        """As `out`, by the best algorithm there could be."""
        return np.asarray((group.nodes - 1.0) / group.nodes)

    def switch_wire(self, group: Group) -> FloatArray:
        """Bytes out of one GPU when the switch takes part, per byte of `b`."""
        return np.asarray(self.wire(group))
