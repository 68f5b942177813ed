"""Interleaved 1F1B: each rank holds vpp virtual stages and alternates between them."""

from __future__ import annotations

from typing import ClassVar

from hwmodels.errors import InputError
from planner.schedule.base import Action, Kind, Schedule


class Interleaved1F1B(Schedule):
    """Interleaved 1F1B with looped placement (virtual stage s on rank s mod pp).

    Micro-batches run in rounds of pp; a rank runs a round through all its virtual stages before
    the next round. Rank r starts with ``w = min((vpp-1)*pp + 2*(pp-1-r), M*vpp)`` forwards, then
    alternates. With equal stages the bubble is (pp-1)(f+b), where f and b are the times of one
    *virtual* stage, that is 1/vpp of the bubble of 1F1B.

    References
    ----------
    Narayanan et al., arXiv:2104.04473, section 2.2; Megatron-LM
    ``forward_backward_pipelining_with_interleaving``; PyTorch's ``ScheduleInterleaved1F1B``
    (equal lists where M is a multiple of pp, which Megatron-LM demands).
    """

    name: ClassVar[str] = "interleaved-1f1b"
    interleaved: ClassVar[bool] = True
    torch_class: ClassVar[str] = "ScheduleInterleaved1F1B"

    def actions(self, pp: int, microbatches: int, vpp: int = 1) -> list[list[Action]]:
        """Compute actions of every rank; see `Schedule.actions`."""
        if faults := self.check(pp, microbatches, vpp):
            raise InputError(faults)
        return [_rank_actions(rank, pp, microbatches, vpp) for rank in range(pp)]

    def in_flight(self, pp: int, microbatches: int, vpp: int = 1) -> list[int]:
        """``min((vpp-1)*pp + 2*(pp-1-r) + 1, M*vpp)``: the warm-up and the forward of the first pair."""
        if faults := self.check(pp, microbatches, vpp):
            raise InputError(faults)
        return [min((vpp - 1) * pp + 2 * (pp - 1 - rank) + 1, microbatches * vpp) for rank in range(pp)]

    def held(self, pp: int, microbatches: int, vpp: int = 1) -> list[list[tuple[int, ...]]]:
        """Every step of the steady state keeps the number and may shift which chunks it is made of.

        After ``first + i`` forwards and i backwards a rank holds the difference of both counts by
        chunk; the pattern repeats after a round of pp·vpp.
        """
        total, cycle = microbatches * vpp, pp * vpp

        def done(k: int, chunk: int) -> int:
            return k // cycle * pp + min(max(k % cycle - chunk * pp, 0), pp)

        found = []
        for first in self.in_flight(pp, microbatches, vpp):
            moments = {
                tuple(done(first + i, c) - done(i, vpp - 1 - c) for c in range(vpp))
                for i in range(min(cycle, total - first + 1))
            }
            found.append(sorted(moments))
        return found

    def at_loss(self, pp: int, microbatches: int, vpp: int = 1) -> list[int]:
        """The last rank alternates as soon as its last virtual stage has run once."""
        if faults := self.check(pp, microbatches, vpp):
            raise InputError(faults)
        return [0] * (pp - 1) + [1]

    def microbatch_multiple(self, pp: int) -> int:
        """Whole rounds of pp."""
        return pp


def _rank_actions(rank: int, pp: int, microbatches: int, vpp: int) -> list[Action]:
    """The k-th forward is of chunk (k // pp) % vpp; backwards take the chunks in reverse."""
    total = microbatches * vpp
    warmup = min((vpp - 1) * pp + 2 * (pp - 1 - rank), total)

    def at(k: int, kind: Kind) -> Action:
        round_index, within = divmod(k, pp * vpp)
        chunk, offset = divmod(within, pp)
        if kind is Kind.BACKWARD:
            chunk = vpp - 1 - chunk
        return Action(chunk * pp + rank, kind, round_index * pp + offset)

    order = [at(k, Kind.FORWARD) for k in range(warmup)]
    for k in range(warmup, total):
        order.append(at(k, Kind.FORWARD))
        order.append(at(k - warmup, Kind.BACKWARD))
    order.extend(at(k, Kind.BACKWARD) for k in range(total - warmup, total))
    return order
