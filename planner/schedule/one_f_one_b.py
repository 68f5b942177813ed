"""1F1B: one forward, one backward in the steady state."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from hwmodels.errors import InputError
from planner.schedule.arrays import ActionArrays, alternating
from planner.schedule.base import Action, Kind, Schedule


class OneFOneB(Schedule):
    """Non-interleaved 1F1B (PipeDream-Flush).

    Rank r runs ``w = min(pp-1-r, M)`` warm-up forwards, then M-w pairs of a forward and a
    backward, then w backwards. The bubble is GPipe's, (pp-1)(f+b), but rank r holds at most
    ``min(pp-r, M)`` micro-batches.

    References
    ----------
    Narayanan et al., arXiv:2006.09503 (PipeDream-Flush) and arXiv:2104.04473, section 2.2;
    PyTorch's ``Schedule1F1B``.
    """

    name: ClassVar[str] = "1f1b"
    torch_class: ClassVar[str] = "Schedule1F1B"
    falling: ClassVar[bool] = True

    def actions(self, pp: int, microbatches: int, vpp: int = 1) -> list[list[Action]]:
        """Compute actions of every rank; see `Schedule.actions`."""
        if faults := self.check(pp, microbatches, vpp):
            raise InputError(faults)
        return [_rank_actions(rank, min(pp - 1 - rank, microbatches), microbatches) for rank in range(pp)]

    def actions_of(self, rank: int, pp: int, microbatches: int, vpp: int = 1) -> list[Action]:
        """Those of one rank."""
        if faults := self.check(pp, microbatches, vpp):
            raise InputError(faults)
        return _rank_actions(rank, min(pp - 1 - rank, microbatches), microbatches)

    def arrays(self, pp: int, microbatches: int, vpp: int = 1) -> ActionArrays:
        """Those of all ranks at once."""
        if faults := self.check(pp, microbatches, vpp):
            raise InputError(faults)
        warmup = np.minimum(np.arange(pp)[::-1], microbatches)
        return alternating(warmup, np.zeros(microbatches, np.int64), np.arange(microbatches), vpp)

    def in_flight(self, pp: int, microbatches: int, vpp: int = 1) -> list[int]:
        """``min(pp-r, M)``: the warm-up forwards and the forward of the first pair."""
        if faults := self.check(pp, microbatches, vpp):
            raise InputError(faults)
        return [min(pp - rank, microbatches) for rank in range(pp)]

    def held(self, pp: int, microbatches: int, vpp: int = 1) -> list[list[tuple[int, ...]]]:
        """One moment: everything in flight."""
        return [[(count,)] for count in self.in_flight(pp, microbatches, vpp)]

    def at_loss(self, pp: int, microbatches: int, vpp: int = 1) -> list[int]:
        """The last stage runs a backward right after its forward."""
        if faults := self.check(pp, microbatches, vpp):
            raise InputError(faults)
        return [0] * (pp - 1) + [1]


def _rank_actions(rank: int, warmup: int, microbatches: int) -> list[Action]:
    order = [Action(rank, Kind.FORWARD, m) for m in range(warmup)]
    for m in range(warmup, microbatches):
        order.append(Action(rank, Kind.FORWARD, m))
        order.append(Action(rank, Kind.BACKWARD, m - warmup))
    order.extend(Action(rank, Kind.BACKWARD, m) for m in range(microbatches - warmup, microbatches))
    return order
