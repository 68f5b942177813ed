"""What all-gather and reduce-scatter share: each is one half of a ring all-reduce.

Ring over all ranks: every GPU receives ``(n-1)/n b``, and so much crosses every node boundary (trap 5: no hierarchy
helps NCCL here). At least ``(N-1)/N b`` must pass a node boundary, and ``(r-1)/r b`` must reach (or leave) a GPU
from the others of its node. Reference: Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication
Operations in MPICH", 2005.
"""

from __future__ import annotations

import numpy as np

from hwmodels.collectives.base import Group
from hwmodels.estimate import FloatArray


class RingHalf:
    """Traffic of one pass round the ring; formulas in the module docstring."""

    passes = 1.0
    reduces_in_switch = False
    pairwise = False
    single_port = False

    def wire(self, group: Group) -> FloatArray:
        """Bytes out of one GPU inside its node, per byte of `b`."""
        return np.asarray((group.size - 1.0) / group.size)

    def least_wire(self, group: Group) -> FloatArray:
        """As `wire`, by the best algorithm there could be."""
        return np.asarray((group.ranks - 1.0) / group.ranks)

    def out(self, group: Group) -> FloatArray:
        """Bytes out of the fullest node, per byte of `b`."""
        return np.asarray((group.size - 1.0) / group.size)

    def least_out(self, group: Group) -> FloatArray:
        """As `out`, by the best algorithm there could be."""
        return np.asarray((group.nodes - 1.0) / group.nodes)
