"""Interleaved 1F1B: each rank holds vpp virtual stages and alternates between them."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from hwmodels.errors import InputError
from planner.schedule.arrays import ActionArrays, alternating
from planner.schedule.base import Action, Kind, Schedule


class Interleaved1F1B(Schedule):
    """Interleaved 1F1B with looped placement (virtual stage s on rank s mod pp).

    Micro-batches run in rounds of `round_size`, pp where it divides their number; a rank runs a round
    through all its virtual stages before the next round. With rounds of g rank r starts with
    ``w = min((vpp-1)*g + 2*(pp-1-r), M*vpp)`` forwards, then alternates. With equal stages and rounds of pp
    the bubble is (pp-1)(f+b), where f and b are the times of one *virtual* stage, that is 1/vpp of the bubble
    of 1F1B.

    References
    ----------
    Narayanan et al., arXiv:2104.04473, section 2.2; Megatron-LM
    ``forward_backward_pipelining_with_interleaving``, ``get_schedule_table``; PyTorch's
    ``ScheduleInterleaved1F1B`` (equal lists wherever it runs that many micro-batches).
    """

    name: ClassVar[str] = "interleaved-1f1b"
    interleaved: ClassVar[bool] = True
    torch_class: ClassVar[str] = "ScheduleInterleaved1F1B"
    falling: ClassVar[bool] = True

    def actions(self, pp: int, microbatches: int, vpp: int = 1) -> list[list[Action]]:
        """Compute actions of every rank; see `Schedule.actions`."""
        if faults := self.check(pp, microbatches, vpp):
            raise InputError(faults)
        return [_rank_actions(rank, pp, microbatches, vpp) for rank in range(pp)]

    def actions_of(self, rank: int, pp: int, microbatches: int, vpp: int = 1) -> list[Action]:
        """Those of one rank."""
        if faults := self.check(pp, microbatches, vpp):
            raise InputError(faults)
        return _rank_actions(rank, pp, microbatches, vpp)

    def arrays(self, pp: int, microbatches: int, vpp: int = 1) -> ActionArrays:
        """Those of all ranks at once."""
        if faults := self.check(pp, microbatches, vpp):
            raise InputError(faults)
        size = round_size(pp, microbatches)
        chunk, microbatch = np.array(round_order(microbatches, size, vpp), np.int64).T
        warmup = np.minimum((vpp - 1) * size + 2 * np.arange(pp)[::-1], len(chunk))
        return alternating(warmup, chunk, microbatch, vpp)

    def in_flight(self, pp: int, microbatches: int, vpp: int = 1) -> list[int]:
        """``min((vpp-1)*g + 2*(pp-1-r) + 1, M*vpp)``: the warm-up and the forward of the first pair."""
        if faults := self.check(pp, microbatches, vpp):
            raise InputError(faults)
        size = round_size(pp, microbatches)
        return [min((vpp - 1) * size + 2 * (pp - 1 - rank) + 1, microbatches * vpp) for rank in range(pp)]

    def held(self, pp: int, microbatches: int, vpp: int = 1) -> list[list[tuple[int, ...]]]:
        """Every step of the steady state keeps the number and may shift which chunks it is made of.

        After ``first + i`` forwards and i backwards a rank holds the difference of both counts by
        chunk; the pattern repeats after a round of g·vpp. With a shorter last round it is counted.
        """
        total, size = microbatches * vpp, round_size(pp, microbatches)
        if microbatches % size:
            return super().held(pp, microbatches, vpp)
        cycle = size * vpp

        def done(k: int, chunk: int) -> int:
            return k // cycle * size + min(max(k % cycle - chunk * size, 0), size)

        found = []
        for first in self.in_flight(pp, microbatches, vpp):
            moments = {
                tuple(done(first + i, c) - done(i, vpp - 1 - c) for c in range(vpp))
                for i in range(min(cycle, total - first + 1))
            }
            found.append(sorted(moments))
        return found

    def at_loss(self, pp: int, microbatches: int, vpp: int = 1) -> list[int]:
        """The last rank alternates as soon as its last virtual stage has run once; a shorter last round is counted."""
        if faults := self.check(pp, microbatches, vpp):
            raise InputError(faults)
        if microbatches % round_size(pp, microbatches):
            return super().at_loss(pp, microbatches, vpp)
        return [0] * (pp - 1) + [1]

    def least_microbatches(self, pp: int) -> int:
        """One round of pp."""
        return pp


def round_size(pp: int, microbatches: int) -> int:
    """Micro-batches that a virtual stage runs before the next one: the smallest round that runs them all.

    At least pp, and the last round is whole or holds at least pp too: what Megatron-Core demands of
    ``--microbatch-group-size-per-virtual-pipeline-stage`` (``forward_backward_pipelining_with_interleaving``;
    pp unless it is given), and for M = q·pp + rest what PyTorch computes (M // (M // pp), where that is whole).
    """
    sizes = range(pp, microbatches + 1)
    return next((g for g in sizes if microbatches % g == 0 or microbatches % g >= pp), max(microbatches, 1))


def round_order(microbatches: int, size: int, vpp: int) -> list[tuple[int, int]]:
    """(chunk, micro-batch) of the k-th forward of any rank; backwards take the chunks in reverse."""
    return [
        (chunk, microbatch)
        for first in range(0, microbatches, size)
        for chunk in range(vpp)
        for microbatch in range(first, min(first + size, microbatches))
    ]


def _rank_actions(rank: int, pp: int, microbatches: int, vpp: int) -> list[Action]:
    """Warm-up, then a forward and a backward in turn."""
    size = round_size(pp, microbatches)
    total, table = microbatches * vpp, round_order(microbatches, size, vpp)
    warmup = min((vpp - 1) * size + 2 * (pp - 1 - rank), total)

    def at(k: int, kind: Kind) -> Action:
        chunk, microbatch = table[k]
        if kind is Kind.BACKWARD:
            chunk = vpp - 1 - chunk
        return Action(chunk * pp + rank, kind, microbatch)

    order = [at(k, Kind.FORWARD) for k in range(warmup)]
    for k in range(warmup, total):
        order.append(at(k, Kind.FORWARD))
        order.append(at(k - warmup, Kind.BACKWARD))
    order.extend(at(k, Kind.BACKWARD) for k in range(total - warmup, total))
    return order
