"""The screen: lower bounds of time and memory for all candidates of a workload, from sums over the two tables.

A candidate is a row of work and a row of state, and both its bounds are sums over the two (`work`, `state`), so that a
million of them cost a few additions each. No formula stands here again: the prices are those of
`planner.priced`, the bytes those of `planner.memory`, and what is left out only adds to either. Tests hold both bounds
below the exact values.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hwmodels.records import dataclass
from planner.layout import SCHEDULES
from planner.layout.distinct import distinct_rows
from planner.memory.allocator import fragments
from planner.priced import PricedModel
from planner.search.axes import CELL
from planner.search.screen.shapes import RANKS, shape_of
from planner.search.screen.state import StateBounds, state_bounds
from planner.search.screen.work import WorkBounds, work_bounds
from planner.search.space import Survey

__all__ = ["Screen", "screen_of"]
FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
SLACK = 1e-9
"""Share by which bounds are lowered: sums in another order than the exact value's round otherwise."""


@dataclass(frozen=True, slots=True, eq=False)
class Screen:
    """Bounds of the rows of both tables, and what all candidates share.

    Attributes
    ----------
    work : WorkBounds
    state : StateBounds
    sync_s : float
        Collective over the world before the optimizer.
    fragmented : bool
        Whether the device has an allocator that holds more than it hands out.
    """

    work: WorkBounds
    state: StateBounds
    sync_s: float
    fragmented: bool

    def seconds(self, work: IntArray, state: IntArray) -> FloatArray:
        """Least seconds of a step of candidates: ndarray (n,)."""
        w, s = self.work, self.state
        count = w.microbatches[work].astype(np.float64)
        ready = w.pipeline_s[work] + s.at_end_s[state]
        times = s.gathers[state, 0] + s.gathers[state, 1] * count
        np.maximum(ready, times * s.unshard_s[state], out=ready)
        reduced = s.reduce_s[state] * np.where(s.each[state], count, 1.0)
        np.maximum(ready, w.forward_s[work] + reduced, out=ready)
        return np.asarray((ready + s.after_s[state] + self.sync_s) * (1.0 - SLACK))

    def compute_s(self, work: IntArray) -> FloatArray:
        """Least seconds of a step that kernels of micro-batches take, mean over pipeline ranks: ndarray (n,)."""
        return np.asarray(self.work.kernels_s()[work] * (1.0 - SLACK))

    def least_seconds(self) -> FloatArray:
        """Least seconds of a step of all candidates of a row of work: ndarray (rows,)."""
        after = float(self.state.after_s.min(initial=np.inf))
        return np.asarray((self.work.pipeline_s + after + self.sync_s) * (1.0 - SLACK))

    def peak_bytes(self, work: IntArray, state: IntArray) -> FloatArray:
        """Least bytes of the fullest rank of candidates: ndarray (n,)."""
        w, s = self.work, self.state
        one = (w.microbatches[work] == 1).astype(np.int64)
        peak = np.zeros(len(work))
        for rank in range(RANKS):
            most = s.step[one, state, rank] + w.step_bytes[work, rank]
            np.maximum(most, s.late[one, state, rank] + w.held_bytes[work, rank], out=most)
            np.maximum(most, s.load[one, state, rank], out=most)
            if self.fragmented:
                most += fragments(most) + s.flat[one, state, rank]
            np.maximum(peak, most, out=peak)
        return np.asarray((peak + s.outside[state]) * (1.0 - SLACK))


def screen_of(found: Survey, priced: PricedModel, like: IntArray) -> Screen:
    """The screen of the candidates of a workload.

    Parameters
    ----------
    priced : PricedModel
        Of the distinct micro-batches and policies.
    like : ndarray (n,)
        Which of them each row of work has.
    """
    columns = [found.work[name] for name in ("pp", "vpp", "schedule")]
    first, _ = distinct_rows(columns, len(like))
    shapes = [
        shape_of(priced.model, int(columns[0][i]), int(columns[1][i]), SCHEDULES[int(columns[2][i])]) for i in first
    ]
    cell = np.repeat(np.arange(len(found.state_cell) - 1), np.diff(found.state_cell))
    table = {name: found.work[name][found.work_cell[cell]] for name in CELL} | dict(found.state)
    return Screen(
        work_bounds(priced, like, found.work), state_bounds(priced, table, shapes), float(priced.sync_s[0]),
        priced.cluster.device.kind == "gpu",
    )  # fmt: skip
