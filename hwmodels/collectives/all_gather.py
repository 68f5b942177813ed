"""all-gather: every rank ends with all `b` gathered bytes; each contributes ``b / n``.

Every GPU receives ``(n-1)/n b``; every node must receive the ``(N-1)/N b`` that it lacks. With
several nodes each GPU still takes the whole ``b`` in, all but its own node's network share over NVLink:
``(r-1)/r b`` inside the node (its rail brings ``b / r``).
"""

from __future__ import annotations

import numpy as np

from hwmodels.collectives.base import Group
from hwmodels.estimate import FloatArray


class AllGather:
    """Traffic of all-gather; formulas in the module docstring."""

    name = "all_gather"
    reduces_in_switch = False
    single_port = False

    def wire(self, group: Group) -> FloatArray:
        """Bytes out of one GPU inside its node, per byte of `b`."""
        return np.asarray((group.ranks - 1.0) / group.ranks)

    def out(self, group: Group) -> FloatArray:
        """Bytes out of the fullest node, per byte of `b`."""
        return np.asarray((group.nodes - 1.0) / group.nodes)

    def switch_wire(self, group: Group) -> FloatArray:
        """Bytes out of one GPU when the switch takes part, per byte of `b`."""
        return np.asarray(self.wire(group))
