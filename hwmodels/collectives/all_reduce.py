"""all-reduce: every rank ends with the sum of all ranks' `b` bytes.

Ring over all ranks: reduce-scatter then all-gather, ``2 (n-1)/n b`` out of every GPU and across every
node boundary (Patarasuk & Yuan 2009). Double binary tree between nodes, a chain inside them: ``2 b`` out of a GPU,
``2 (N-1)/N b`` out of a node (Sanders, Speck, Träff 2009), which is also the least that any algorithm sends. NVLS: a
GPU sends its ``b`` up once while the switch pulls the other shards, and takes the sum back: ``b`` per direction; over
nodes (NVLSTree) each node then holds its sum, and as little crosses as by a tree.
"""

from __future__ import annotations

import numpy as np

from hwmodels.collectives.base import Group
from hwmodels.estimate import FloatArray


class AllReduce:
    """Traffic of all-reduce; formulas in the module docstring."""

    name = "all_reduce"
    passes = 2.0
    reduces_in_switch = True
    pairwise = False
    single_port = False

    def wire(self, group: Group) -> FloatArray:
        """Bytes out of one GPU inside its node, per byte of `b`."""
        return np.asarray(2.0 * (group.size - 1.0) / group.size)

    def least_wire(self, group: Group) -> FloatArray:
        """As `wire`, by the best algorithm there could be."""
        return np.asarray(2.0 * (group.ranks - 1.0) / group.ranks)

    def out(self, group: Group) -> FloatArray:
        """Bytes out of the fullest node, per byte of `b`."""
        return np.asarray(2.0 * (group.size - 1.0) / group.size)

    def least_out(self, group: Group) -> FloatArray:
        """As `out`, by the best algorithm there could be."""
        return np.asarray(2.0 * (group.nodes - 1.0) / group.nodes)
