"""peak_memory: bytes on the device at the peak of a step."""

from __future__ import annotations

from planner.search.objectives.base import Figures, FloatArray, Objective


class PeakMemory(Objective):
    """Bytes of the rank that needs most."""

    name = "peak_memory"
    title = "peak memory"
    dimension = "bytes"

    def value(self, figures: Figures) -> FloatArray:
        """Bytes: ndarray (n,)."""
        return figures.peak_bytes
