"""broadcast: one rank's `b` bytes reach all ranks.

A pipelined chain passes ``b`` over every link once; a node takes ``b`` in.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hwmodels.collectives.base import Group
from hwmodels.estimate import FloatArray


class Broadcast:
    """Traffic of broadcast; formulas in the module docstring."""

    name = "broadcast"
    reduces_in_switch = False
    single_port = False

    def wire(self, group: Group) -> FloatArray:
        """Bytes out of one GPU inside its node, per byte of `b`."""
        return np.asarray(np.ones(group.ranks.shape))

    def least_wire(self, group: Group) -> FloatArray:
        """As `wire`, by the best algorithm there could be."""
        return np.asarray(np.ones(group.ranks.shape))

    def out(self, group: Group, in_switch: NDArray[np.bool_]) -> FloatArray:
        """Bytes out of the fullest node, per byte of `b`."""
        return np.asarray(np.ones(group.nodes.shape))

    def least_out(self, group: Group) -> FloatArray:
        """As `out`, by the best algorithm there could be."""
        return np.asarray(np.ones(group.nodes.shape))

    def switch_wire(self, group: Group) -> FloatArray:
        """Bytes out of one GPU when the switch takes part, per byte of `b`."""
        return np.asarray(self.wire(group))
