"""DualPipe: two copies of the pipeline run against each other on the same ranks."""

from __future__ import annotations

from typing import ClassVar

from hwmodels.errors import InputError
from planner.schedule.base import Action, VSchedule
from planner.schedule.dual import dual_order


class DualPipe(VSchedule):
    """Half of the micro-batches enter at rank 0, half at rank pp-1; each rank holds two whole stages.

    Rank r holds stage r of the first copy and stage pp-1-r of the second one (stage pp + pp-1-r here),
    so parameters and gradients stand twice and are reduced between the mirror ranks r and pp-1-r. In the
    steady state a rank runs a forward of one copy next to a backward of the other. With F and B of a stage
    (B = I + W) and F&B those of a forward and a backward run together, the bubble is
    (pp/2-1)(F&B + B - 3W) and a rank holds pp + 1 activations. F&B is taken as F + B.

    References
    ----------
    DeepSeek-AI, "DeepSeek-V3 Technical Report", arXiv:2412.19437, section 3.2.1, figure 5 and table 2;
    the order of DeepSeek's DualPipe repository. PyTorch has no such schedule: its runtime knows one
    pipeline, whose stages each lie on one rank.
    """

    name: ClassVar[str] = "dualpipe"
    split_backward: ClassVar[bool] = True
    directions: ClassVar[int] = 2
    pp_multiple: ClassVar[int] = 2

    def actions(self, pp: int, microbatches: int, vpp: int = 1) -> list[list[Action]]:
        """Compute actions of every rank; see `Schedule.actions`."""
        if faults := self.check(pp, microbatches, vpp):
            raise InputError(faults)
        half = pp // 2
        found = []
        for rank in range(pp):
            stages = (rank, 2 * pp - 1 - rank)
            parts = tuple(self.microbatches_of(stage, pp, microbatches) for stage in stages)
            # The second half of the ranks sees the directions in the other order.
            turn = 1 if rank < half else -1
            found.append(dual_order(min(rank, pp - 1 - rank), half, stages[::turn], parts[::turn]))
        return found

    def microbatch_multiple(self, pp: int) -> int:
        """An equal number in each direction."""
        return 2

    def least_microbatches(self, pp: int) -> int:
        """Two for each stage."""
        return 2 * pp
