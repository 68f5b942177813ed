"""all-gather: every rank ends with all `b` gathered bytes; each contributes ``b / n``."""

from __future__ import annotations

from hwmodels.collectives.ring_half import RingHalf


class AllGather(RingHalf):
    """Traffic of all-gather; formulas in `hwmodels.collectives.ring_half`."""

    name = "all_gather"
