"""Interleaved zero bubble: interleaved 1F1B with trailing weight gradients."""

from __future__ import annotations

from typing import ClassVar

from hwmodels.errors import InputError
from planner.schedule.base import Action, Kind, Schedule
from planner.schedule.interleaved_1f1b import round_order, round_size


class InterleavedZeroBubble(Schedule):
    """Interleaved 1F1B with the backward split in two; W of rank r trails r actions behind (ZB1P).

    Placement and order of virtual stages are those of interleaved 1F1B, in rounds of g
    (`planner.schedule.interleaved_1f1b.round_size`). Rank r starts with ``(vpp-1)*g + pp-1-r``
    forwards, one fewer for each hop than there: only the I of the ranks behind it has to come back
    before the first backward, not the W. With F, I and W the times of a *virtual* stage the bubble
    is (pp-1)(F+I-W), 1/vpp of that of ZB-H1.

    References
    ----------
    Qi et al., arXiv:2401.10241, section 2 (applied to the interleaved schedule of
    arXiv:2104.04473); PyTorch's ``ScheduleInterleavedZeroBubble`` (equal lists wherever it runs that
    many micro-batches).
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

    def least_microbatches(self, pp: int) -> int:
        """One round of pp."""
        return pp


def _rank_actions(rank: int, pp: int, microbatches: int, vpp: int) -> list[Action]:
    """The order of the rounds for F; I and W take the chunks in reverse."""
    size = round_size(pp, microbatches)
    total, table = microbatches * vpp, round_order(microbatches, size, vpp)
    warmup = min((vpp - 1) * size + pp - 1 - rank, total)

    def at(k: int, kind: Kind) -> Action:
        chunk, microbatch = table[k]
        if kind is not Kind.FORWARD:
            chunk = vpp - 1 - chunk
        return Action(chunk * pp + rank, kind, microbatch)

    order = [at(k, Kind.FORWARD) for k in range(warmup)]
    for k in range(total):
        if k + warmup < total:
            order.append(at(k + warmup, Kind.FORWARD))
        order.append(at(k, Kind.BACKWARD_INPUT))
        if k >= rank:
            order.append(at(k - rank, Kind.BACKWARD_WEIGHT))
    return order + [at(k, Kind.BACKWARD_WEIGHT) for k in range(max(total - rank, 0), total)]
