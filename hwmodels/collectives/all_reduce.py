"""all-reduce: every rank ends with the sum of all ranks' `b` bytes.

Ring over all ranks: reduce-scatter then all-gather, ``2 (n-1)/n b`` out of every GPU and across every
node boundary (Patarasuk & Yuan 2009). NVLS: a GPU sends its ``b`` up once while the switch pulls the
other shards, and takes the sum back: ``b`` per direction; each node then holds its sum, and only
``2 (N-1)/N b`` crosses between nodes (NVLSTree), which is also the least that any algorithm sends.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hwmodels.collectives.base import Group
from hwmodels.estimate import FloatArray


class AllReduce:
    """Traffic of all-reduce; formulas in the module docstring."""

    name = "all_reduce"
    reduces_in_switch = True
    single_port = False

    def wire(self, group: Group) -> FloatArray:
        """Bytes out of one GPU inside its node, per byte of `b`."""
        return np.asarray(2.0 * (group.size - 1.0) / group.size)

    def least_wire(self, group: Group) -> FloatArray:
        """As `wire`, by the best algorithm there could be."""
        return np.asarray(2.0 * (group.ranks - 1.0) / group.ranks)

    def out(self, group: Group, in_switch: NDArray[np.bool_]) -> FloatArray:
        """Bytes out of the fullest node, per byte of `b`."""
        return np.asarray(2.0 * np.where(in_switch, (group.nodes - 1.0) / group.nodes, (group.size - 1.0) / group.size))

    def least_out(self, group: Group) -> FloatArray:
        """As `out`, by the best algorithm there could be."""
        return np.asarray(2.0 * (group.nodes - 1.0) / group.nodes)

    def switch_wire(self, group: Group) -> FloatArray:
        """Bytes out of one GPU when the switch takes part, per byte of `b`."""
        return np.asarray(np.ones(group.ranks.shape))
