"""DualPipeV: DualPipe cut in half, both directions of one pipeline folded into a V."""

from __future__ import annotations

from typing import ClassVar

from hwmodels.errors import InputError
from planner.schedule.base import Action, VSchedule
from planner.schedule.dual import dual_order


class DualPipeV(VSchedule):
    """The order of DualPipe on half the ranks: the second direction is the way back up the V.

    Rank r of pp holds stages r and 2*pp-1-r and runs what ranks r and 2*pp-1-r of a DualPipe over 2*pp
    stages would: in the steady state a forward of one stage next to a backward of the other, whose
    communication and compute can hide each other. With F and B the times of a virtual stage (B = I + W)
    and F&B those of a forward and a backward run together, the bubble is (pp-1)(F&B + B - 3W); a rank
    holds 2*pp + 1 activations. F&B is taken as F + B: PyTorch's runtime runs one after the other.

    References
    ----------
    DeepSeek-AI, "DeepSeek-V3 Technical Report", arXiv:2412.19437, section 3.2.1 (DualPipe); DeepSeek's
    DualPipe repository and the Sea AI Lab's "cut-in-half" note (DualPipeV); PyTorch's
    ``ScheduleDualPipeV`` (equal lists).
    """

    name: ClassVar[str] = "dualpipe-v"
    interleaved: ClassVar[bool] = True
    vpp_only: ClassVar[int] = 2
    split_backward: ClassVar[bool] = True
    torch_class: ClassVar[str] = "ScheduleDualPipeV"

    def actions(self, pp: int, microbatches: int, vpp: int = 2) -> list[list[Action]]:
        """Compute actions of every rank; see `Schedule.actions`."""
        if faults := self.check(pp, microbatches, vpp):
            raise InputError(faults)
        every = range(microbatches)
        return [dual_order(rank, pp, (rank, 2 * pp - 1 - rank), (every, every)) for rank in range(pp)]

    def least_microbatches(self, pp: int) -> int:
        """As many as stages."""
        return 2 * pp
