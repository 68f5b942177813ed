"""`Single`: one layout of a group with everything that its step is made of, rank by rank."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hwmodels.records import dataclass
from planner.simulate.costs import CommPlan, StageCosts
from planner.step.intervals import Spreads

FloatArray = NDArray[np.float64]
Parts = dict[str, FloatArray]
"""Phase -> seconds a micro-batch of each rank, ndarray (1, pp)."""


@dataclass(frozen=True, slots=True, eq=False)
class Single:
    """A layout alone (arrays over candidates have one).

    Attributes
    ----------
    microbatches : int
    costs : StageCosts
        Durations of every node.
    parts, hidden : dict
        Seconds a micro-batch of each rank by phase, exposed and behind compute: ndarray (1, pp) each.
    flops : ndarray (1, pp)
        FLOPs a micro-batch executed by a rank, recomputation included.
    spreads : Spreads
        Relative spread by law.
    """

    pp: int
    vpp: int
    schedule: str
    microbatches: int
    comm: CommPlan
    costs: StageCosts
    parts: Parts
    hidden: Parts
    flops: FloatArray
    spreads: Spreads
