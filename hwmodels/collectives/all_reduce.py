"""all-reduce: every rank ends with the sum of all ranks' `b` bytes.

Ring: reduce-scatter then all-gather, ``2 (n-1)/n b`` out of every GPU (Patarasuk & Yuan 2009).
Between nodes: each node reduces inside, then exchanges ``2 (N-1)/N b`` over its rails
(hierarchical; a double binary tree sends ``2 b`` at most). NVLS: a GPU sends its ``b`` up once
while the switch pulls the other shards, and takes the sum back: ``b`` per direction.
"""

from __future__ import annotations

import numpy as np

from hwmodels.collectives.base import Group
from hwmodels.estimate import FloatArray


class AllReduce:
    """Traffic of all-reduce; formulas in the module docstring."""

    name = "all_reduce"
    reduces_in_switch = True
    single_port = False

    def wire(self, group: Group) -> FloatArray:
        """Bytes out of one GPU inside its node, per byte of `b`."""
        return np.asarray(2.0 * (group.ranks - 1.0) / group.ranks)

    def out(self, group: Group) -> FloatArray:
        """Bytes out of the fullest node, per byte of `b`."""
        return np.asarray(2.0 * (group.nodes - 1.0) / group.nodes)

    def switch_wire(self, group: Group) -> FloatArray:
        """Bytes out of one GPU when the switch takes part, per byte of `b`."""
        return np.asarray(np.ones(group.ranks.shape))
