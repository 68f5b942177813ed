"""ZB-H1: 1F1B whose weight gradients fill the bubble, at the memory of 1F1B."""

from __future__ import annotations

from typing import ClassVar

from hwmodels.errors import InputError
from planner.schedule.base import Action, Kind, Schedule


class ZBH1(Schedule):
    """1F1B with the backward split in two; the weight gradient W of rank r trails r micro-batches behind.

    Nobody waits for a W, so ranks that used to wait at the end of the step run theirs then. With F, I
    and W the times of a stage the bubble is (pp-1)(F+I-W), in the words of DeepSeek-V3 (B = I + W)
    (pp-1)(F+B-2W), a third of the bubble of 1F1B where all three are equal. Rank r holds
    ``min(pp-r, M)`` micro-batches whole and up to r more between I and W: pp in all, no rank more
    than the first one of 1F1B.

    References
    ----------
    Qi, Wan, Huang, Lin, "Zero Bubble Pipeline Parallelism", arXiv:2401.10241, section 2.1 and table 2
    (the memory-efficient schedule); PyTorch's ``ScheduleInterleavedZeroBubble`` with one stage a rank
    gives the same lists.
    """

    name: ClassVar[str] = "zb-h1"
    split_backward: ClassVar[bool] = True
    torch_class: ClassVar[str] = "ScheduleInterleavedZeroBubble"

    def actions(self, pp: int, microbatches: int, vpp: int = 1) -> list[list[Action]]:
        """Compute actions of every rank; see `Schedule.actions`."""
        if faults := self.check(pp, microbatches, vpp):
            raise InputError(faults)
        return [_rank_actions(rank, pp, microbatches) for rank in range(pp)]


def _rank_actions(rank: int, pp: int, microbatches: int) -> list[Action]:
    warmup = min(pp - 1 - rank, microbatches)
    order = [Action(rank, Kind.FORWARD, m) for m in range(warmup)]
    for m in range(microbatches):
        if m + warmup < microbatches:
            order.append(Action(rank, Kind.FORWARD, m + warmup))
        order.append(Action(rank, Kind.BACKWARD_INPUT, m))
        if m >= rank:
            order.append(Action(rank, Kind.BACKWARD_WEIGHT, m - rank))
    late = range(max(microbatches - rank, 0), microbatches)
    return order + [Action(rank, Kind.BACKWARD_WEIGHT, m) for m in late]
