"""reduce-scatter: every rank has `b` bytes and ends with ``b / n`` bytes of the sum."""

from __future__ import annotations

from hwmodels.collectives.ring_half import RingHalf


class ReduceScatter(RingHalf):
    """Traffic of reduce-scatter; formulas in `hwmodels.collectives.ring_half`."""

    name = "reduce_scatter"
