"""GPipe: all forwards, then all backwards."""

from __future__ import annotations

from typing import ClassVar

from hwmodels.errors import InputError
from planner.schedule.base import Action, Kind, Schedule


class GPipe(Schedule):
    """All micro-batches forward, then all backward, both in order.

    The simplest schedule and the one that holds most activations: bubble (pp-1)(f+b), in flight M.

    References
    ----------
    Huang et al., "GPipe", arXiv:1811.06965. The backwards run in micro-batch order, as in
    PyTorch's ``ScheduleGPipe`` (the paper runs them in reverse, which takes the same time).
    """

    name: ClassVar[str] = "gpipe"
    torch_class: ClassVar[str] = "ScheduleGPipe"
    falling: ClassVar[bool] = True

    def actions(self, pp: int, microbatches: int, vpp: int = 1) -> list[list[Action]]:
        """Compute actions of every rank; see `Schedule.actions`."""
        if faults := self.check(pp, microbatches, vpp):
            raise InputError(faults)
        return [
            [Action(rank, kind, m) for kind in (Kind.FORWARD, Kind.BACKWARD) for m in range(microbatches)]
            for rank in range(pp)
        ]

    def in_flight(self, pp: int, microbatches: int, vpp: int = 1) -> list[int]:
        """Every rank holds all M micro-batches when its last forward has run."""
        if faults := self.check(pp, microbatches, vpp):
            raise InputError(faults)
        return [microbatches] * pp

    def held(self, pp: int, microbatches: int, vpp: int = 1) -> list[list[tuple[int, ...]]]:
        """One moment: everything in flight."""
        return [[(count,)] for count in self.in_flight(pp, microbatches, vpp)]

    def at_loss(self, pp: int, microbatches: int, vpp: int = 1) -> list[int]:
        """All micro-batches lie between the forward and the backward of the last stage."""
        if faults := self.check(pp, microbatches, vpp):
            raise InputError(faults)
        return [0] * (pp - 1) + [microbatches]
