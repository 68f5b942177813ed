"""Memory of every pipeline rank by moment and category, and whether it fits."""

from planner.memory.allocator import AT_RISK, FITS, HEADROOM, OUT, Footprint, footprint, verdict
from planner.memory.estimate import MOMENTS, MemoryEstimate, memory
from planner.memory.moments import ACTIONS, moments

__all__ = [
    "ACTIONS", "AT_RISK", "FITS", "HEADROOM", "MOMENTS", "OUT", "Footprint", "MemoryEstimate", "footprint", "memory",
    "moments", "verdict",
]  # fmt: skip
