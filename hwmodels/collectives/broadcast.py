"""broadcast: one rank's `b` bytes reach all ranks.

A pipelined chain passes ``b`` over every link once; a node takes ``b`` in.
"""

from __future__ import annotations

import numpy as np

from hwmodels.collectives.base import Group
from hwmodels.estimate import FloatArray


class Broadcast:
    """Traffic of broadcast; formulas in the module docstring."""

    name = "broadcast"
    passes = 1.0
    reduces_in_switch = False
    pairwise = False
    single_port = False

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
