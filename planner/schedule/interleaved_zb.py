"""Interleaved zero bubble: interleaved 1F1B with trailing weight gradients."""

from __future__ import annotations

from typing import ClassVar

from hwmodels.errors import InputError
from planner.schedule.base import Action, Kind, Schedule


class InterleavedZeroBubble(Schedule):
    """Interleaved 1F1B with the backward split in two; W of rank r trails r actions behind (ZB1P).

    Placement and order of virtual stages are those of interleaved 1F1B. Rank r starts with
    ``(vpp-1)*pp + pp-1-r`` forwards, one fewer for each hop than there: only the I of the ranks
    behind it has to come back before the first backward, not the W. With F, I and W the times of a
    *virtual* stage the bubble is (pp-1)(F+I-W), 1/vpp of that of ZB-H1.

    References
    ----------
    Qi et al., arXiv:2401.10241, section 2 (applied to the interleaved schedule of
    arXiv:2104.04473); PyTorch's ``ScheduleInterleavedZeroBubble`` (equal lists where M is a multiple
    of pp).
    """

    name: ClassVar[str] = "interleaved-zb"
    interleaved: ClassVar[bool] = True
    split_backward: ClassVar[bool] = True
    torch_class: ClassVar[str] = "ScheduleInterleavedZeroBubble"

    def actions(self, pp: int, microbatches: int, vpp: int = 1) -> list[list[Action]]:
        """Compute actions of every rank; see `Schedule.actions`."""
        if faults := self.check(pp, microbatches, vpp):
            raise InputError(faults)
        return [_rank_actions(rank, pp, microbatches, vpp) for rank in range(pp)]

    def microbatch_multiple(self, pp: int) -> int:
        """Whole rounds of pp."""
        return pp


def _rank_actions(rank: int, pp: int, microbatches: int, vpp: int) -> list[Action]:
    """The k-th forward is of chunk (k // pp) % vpp; I and W take the chunks in reverse."""
    total = microbatches * vpp
    warmup = min((vpp - 1) * pp + pp - 1 - rank, total)

    def at(k: int, kind: Kind) -> Action:
        round_index, within = divmod(k, pp * vpp)
        chunk, offset = divmod(within, pp)
        if kind is not Kind.FORWARD:
            chunk = vpp - 1 - chunk
        return Action(chunk * pp + rank, kind, round_index * pp + offset)

    order = [at(k, Kind.FORWARD) for k in range(warmup)]
    for k in range(total):
        if k + warmup < total:
            order.append(at(k + warmup, Kind.FORWARD))
        order.append(at(k, Kind.BACKWARD_INPUT))
        if k >= rank:
            order.append(at(k - rank, Kind.BACKWARD_WEIGHT))
    return order + [at(k, Kind.BACKWARD_WEIGHT) for k in range(max(total - rank, 0), total)]
