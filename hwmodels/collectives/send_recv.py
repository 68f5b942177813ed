"""send-recv: a rank sends `b` bytes to its neighbour: pipeline boundaries, ring exchanges.

``b`` over the link; between nodes over one port (trap 5).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hwmodels.collectives.base import Group
from hwmodels.estimate import FloatArray


class SendRecv:
    """Traffic of send-recv; formulas in the module docstring."""

    name = "send_recv"
    reduces_in_switch = False
    single_port = True

    def wire(self, group: Group) -> FloatArray:
        """Bytes out of one GPU inside its node, per byte of `b`."""
        return np.asarray(np.ones(group.ranks.shape))

    def least_wire(self, group: Group) -> FloatArray:
        """As `wire`, by the best algorithm there could be."""
        return self.wire(group)

    def out(self, group: Group, in_switch: NDArray[np.bool_]) -> FloatArray:
        """Bytes out of the fullest node, per byte of `b`."""
        return np.asarray(np.ones(group.nodes.shape))

    def least_out(self, group: Group) -> FloatArray:
        """As `out`, by the best algorithm there could be."""
        return self.out(group, np.zeros(group.ranks.shape, bool))

    def switch_wire(self, group: Group) -> FloatArray:
        """Bytes out of one GPU when the switch takes part, per byte of `b`."""
        return np.asarray(self.wire(group))
