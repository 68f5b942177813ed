"""send-recv: a rank sends `b` bytes to its neighbour: pipeline boundaries, ring exchanges.

``b`` over the link; between nodes over one port (trap 5).
"""

from __future__ import annotations

import numpy as np

from hwmodels.collectives.base import Group
from hwmodels.estimate import FloatArray


class SendRecv:
    """Traffic of send-recv; formulas in the module docstring."""

    name = "send_recv"
    passes = 1.0
    reduces_in_switch = False
    pairwise = True
    single_port = True

    def wire(self, group: Group) -> FloatArray:
        """Bytes out of one GPU inside its node, per byte of `b`."""
        return np.ones(np.shape(group.ranks))

    def least_wire(self, group: Group) -> FloatArray:
        """As `wire`, by the best algorithm there could be."""
        return self.wire(group)

    def out(self, group: Group) -> FloatArray:
        """Bytes out of the fullest node, per byte of `b`."""
        return np.ones(np.shape(group.nodes))

    def least_out(self, group: Group) -> FloatArray:
        """As `out`, by the best algorithm there could be."""
        return self.out(group)
