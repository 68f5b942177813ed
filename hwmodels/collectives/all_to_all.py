"""all-to-all: every rank sends ``b / n`` to each rank; `b` is its whole send buffer.

A GPU sends ``(r-1)/n b`` inside its node, and the `r` ranks of a node together send
``r (n-r)/n b`` to other nodes. Skewed (expert parallelism with uneven routing): `b` is the mean over ranks, and the
fullest pair carries `skew` times the mean of a pair; the rank that receives it is taken to receive `skew` times as
much from everybody, as a hot expert does, so that all terms in bytes grow by `skew`.
"""

from __future__ import annotations

import numpy as np

from hwmodels.collectives.base import Group
from hwmodels.estimate import FloatArray


class AllToAll:
    """Traffic of all-to-all; formulas in the module docstring."""

    name = "all_to_all"
    passes = 1.0
    reduces_in_switch = False
    pairwise = True
    single_port = False

    def wire(self, group: Group) -> FloatArray:
        """Bytes out of one GPU inside its node, per byte of `b`."""
        return np.asarray((group.ranks - 1.0) / group.size)

    def least_wire(self, group: Group) -> FloatArray:
        """As `wire`, by the best algorithm there could be."""
        return self.wire(group)

    def out(self, group: Group) -> FloatArray:
        """Bytes out of the fullest node, per byte of `b`."""
        return np.asarray(group.ranks * (group.size - group.ranks) / group.size)

    def least_out(self, group: Group) -> FloatArray:
        """As `out`, by the best algorithm there could be."""
        return self.out(group)
