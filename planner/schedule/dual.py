"""The order of actions that DualPipe and DualPipeV share."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from planner.schedule.base import Action, Kind

_F, _B, _I, _W = Kind.FORWARD, Kind.BACKWARD, Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT


def dual_order(depth: int, half: int, stages: Sequence[int], microbatches: Sequence[range]) -> list[Action]:
    """Actions of a rank that sees its two stages at distance `depth` of `half` from the ends.

    Eight steps (DeepSeek-V3, arXiv:2412.19437, figure 5): forwards of the near stage; forwards of both;
    backwards of the far stage with its forwards, weight gradients split off; forward and backward of
    opposite stages in turn; the rest of the far stage; backwards alone, split from half way on; the last
    input gradients of the near stage; the weight gradients that are left.

    Parameters
    ----------
    depth : int
        0 at an end of the pipeline, half - 1 next to its middle.
    half : int
        Ranks from an end to the middle.
    stages : (int, int)
        The near stage (whose micro-batches enter at the end that is `depth` away) and the far one.
    microbatches : (range, range)
        What each of them runs, equally many.
    """
    order: list[Action] = []
    waiting: deque[Action] = deque()
    done = {(side, kind): 0 for side in (0, 1) for kind in (_F, _B)}

    def run(side: int, kind: Kind) -> None:
        counter = _F if kind is _F else _B
        action = Action(stages[side], kind, microbatches[side][done[side, counter]])
        done[side, counter] += 1
        order.append(action)
        if kind is _I:
            waiting.append(Action(stages[side], _W, action.microbatch))

    def weight() -> None:
        if waiting:
            order.append(waiting.popleft())

    ahead = half - depth - 1
    for _ in range(2 * ahead):
        run(0, _F)
    for _ in range(depth + 1):
        run(0, _F)
        run(1, _F)
    for _ in range(ahead):
        run(1, _I)
        weight()
        run(1, _F)
    for _ in range(len(microbatches[0]) - 2 * half + depth + 1):
        run(0, _F)
        run(1, _B)
        run(1, _F)
        run(0, _B)
    for _ in range(ahead):
        run(1, _B)
        run(1, _F)
        run(0, _B)
    middle = (depth + 1) // 2  # from here on nobody behind waits for the weight gradients
    for i in range(depth + 1):
        run(1, _I if i >= middle + (depth + 1) % 2 else _B)
        run(0, _I if i >= middle else _B)
    for _ in range(ahead):
        weight()
        run(0, _I)
    while waiting:
        weight()
    return order
