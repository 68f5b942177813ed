"""ZB-V: two stages a rank in V placement, no bubble where F, I and W take equally long."""

from __future__ import annotations

from typing import ClassVar

from hwmodels.errors import InputError
from planner.schedule.base import Action, Kind, VSchedule


class ZBV(VSchedule):
    """The pipeline folded into a V, split backwards, weight gradients in the gaps.

    Rank r holds stages r and 2*pp-1-r. Every rank starts its first backward when the forward chain
    has come back to it, and fills the wait with forwards of its other stage; at the end only weight
    gradients are left. With F = I = W of a virtual stage, nothing to send and M >= 2*pp - 1 no rank waits between its
    first and its last action; the step takes 6M + pp - 1 of them, which is the way down the V to the
    last rank. Every rank holds at most 2*pp virtual stages' activations, pp whole micro-batches: what the
    first rank of 1F1B holds.

    Where F, I and W differ, the order stays and waits appear (the paper searches an order for the
    measured times instead).

    References
    ----------
    Qi et al., "Zero Bubble Pipeline Parallelism", arXiv:2401.10241, section 6; Qi et al., "Pipeline
    Parallelism with Controllable Memory", arXiv:2405.15362 (V-shape building blocks; the placement);
    PyTorch's ``ScheduleZBVZeroBubble`` (equal lists).
    """

    name: ClassVar[str] = "zb-v"
    interleaved: ClassVar[bool] = True
    vpp_only: ClassVar[int] = 2
    split_backward: ClassVar[bool] = True
    torch_class: ClassVar[str] = "ScheduleZBVZeroBubble"

    def actions(self, pp: int, microbatches: int, vpp: int = 2) -> list[list[Action]]:
        """Compute actions of every rank; see `Schedule.actions`."""
        if faults := self.check(pp, microbatches, vpp):
            raise InputError(faults)
        full = max(microbatches, 2 * pp - 1)  # a shorter step is the full order without the absent micro-batches
        return [
            [action for action in _rank_actions(rank, pp, full) if (action.microbatch or 0) < microbatches]
            for rank in range(pp)
        ]


def _rank_actions(rank: int, pp: int, microbatches: int) -> list[Action]:
    order: list[Action] = []
    stage = (rank, 2 * pp - 1 - rank)
    done = {(chunk, kind): 0 for chunk in (0, 1) for kind in Kind}

    def run(chunk: int, *kinds: Kind) -> None:
        for kind in kinds:
            order.append(Action(stage[chunk], kind, done[chunk, kind]))
            done[chunk, kind] += 1

    forward, inputs, weights = Kind.FORWARD, Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT
    for _ in range(2 * (pp - rank) - 1):  # until the first micro-batch comes back up the V
        run(0, forward)
    for _ in range(rank):
        run(1, forward)
        run(0, forward)
    for _ in range(pp - rank):
        run(1, forward, inputs, weights)
    while done[1, forward] < done[0, forward] or done[0, forward] < microbatches:
        if done[0, forward] < microbatches:
            run(0, forward)
        run(0, inputs, weights)
        run(1, forward, inputs, weights)
    for _ in range(rank):  # input gradients first: the ranks above wait for them
        run(0, inputs)
        run(1, inputs)
    for _ in range(pp - rank):
        run(0, inputs, weights)
    for chunk in (1, 0):
        while done[chunk, weights] < done[chunk, inputs]:
            run(chunk, weights)
    return order
