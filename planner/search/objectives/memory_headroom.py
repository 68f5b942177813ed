"""memory_headroom: bytes of the device that stay free at the peak of a step."""

from __future__ import annotations

from planner.search.objectives.base import Figures, FloatArray, Objective


class MemoryHeadroom(Objective):
    """Memory of the device less the peak of the rank that needs most."""

    name = "memory_headroom"
    title = "free memory"
    dimension = "bytes"
    sense = "max"

    def value(self, figures: Figures) -> FloatArray:
        """Bytes: ndarray (n,)."""
        return figures.question.cluster.device.memory_bytes - figures.peak_bytes
