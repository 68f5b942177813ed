"""`Timing`: what both engines return."""

from __future__ import annotations

from hwmodels.records import dataclass
from planner.simulate.costs import FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class Timing:
    """Start and end of every node of a DAG, for B candidates.

    Attributes
    ----------
    start, end : ndarray (B, n)
        Seconds since the start of the step, in the node order of the `Dag`.
    step_s : ndarray (B,)
        End of the last node.
    """

    start: FloatArray
    end: FloatArray
    step_s: FloatArray
