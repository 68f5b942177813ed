"""intervals: the spreads of prices -> the interval of a step time.

Prices of one law on one device err together: all nodes that they make up move by their spread at once.
Different laws (kernels, collectives inside a micro-batch, data-parallel collectives, sends, the optimizer)
err independently. So the engine times the step once for each law with its nodes at their high end and
once at their low end, and the distances from the middle add up in quadrature, with what no law
covers (`UNEXPLAINED`) as one more term. A node that hides behind others moves the step by as much as
it comes out from behind them, no more. First-order propagation of independent errors: JCGM 100:2008
(Guide to the expression of uncertainty in measurement), section 5.1.
"""

from __future__ import annotations

from dataclasses import fields

import numpy as np
from numpy.typing import NDArray

from hwmodels.records import dataclass
from planner.simulate.costs import StageCosts

FloatArray = NDArray[np.float64]

_COMPUTE = ("forward_s", "backward_input_s", "backward_weight_s")
MOVES: dict[str, tuple[str, ...]] = {
    "kernels": _COMPUTE,
    "collectives": _COMPUTE,
    "data_parallel": ("unshard_s", "reduce_s", "gather_s", "backward_sync_extra_s", "mirror_s", "sync_s", "tied_s"),
    "sends": ("send_forward_s", "send_backward_s"),
    "optimizer": ("optimizer_s",),
}
"""Law -> the nodes that its error moves."""


@dataclass(frozen=True, slots=True)
class Unexplained:
    """Spread that no residual covers: schedule jitter and what the model leaves out."""

    relative: float = 0.03
    source: str = "default: run-to-run spread of equal MLPerf submissions, 2-4 %"


UNEXPLAINED = Unexplained()


@dataclass(frozen=True, slots=True, eq=False)
class Spreads:
    """Relative spread by law, one value a layout: each ndarray (b,).

    `kernels` and `collectives` are relative to the compute nodes of a micro-batch, of which each
    is a part; the others to their own nodes.
    """

    kernels: FloatArray
    collectives: FloatArray
    data_parallel: FloatArray
    sends: FloatArray
    optimizer: FloatArray


def shifted(costs: StageCosts, spreads: Spreads, position: int) -> StageCosts:
    """The costs of one candidate, then for each law at its high and at its low end.

    Parameters
    ----------
    costs : StageCosts
        Of one candidate (B = 1).
    position : int
        Of that candidate in `spreads`.

    Returns
    -------
    StageCosts
        B = 1 + 2 x laws: the middle, then high and low of each of `MOVES` in turn.
    """
    size = 1 + 2 * len(MOVES)
    factors = {f.name: np.ones(size) for f in fields(StageCosts)}
    for i, (law, names) in enumerate(MOVES.items()):
        relative = float(getattr(spreads, law)[position])
        for name in names:
            factors[name][1 + 2 * i] = 1.0 + relative
            # A part of a node at its low end: the node loses no more than the part's share.
            factors[name][2 + 2 * i] = 1.0 / (1.0 + relative)
    moved = {}
    for name, factor in factors.items():
        value = getattr(costs, name)
        moved[name] = value * factor.reshape(-1, *(1,) * (value.ndim - 1))
    return StageCosts(**moved)


def interval(seconds: FloatArray) -> tuple[float, float, float]:
    """(low, mid, high) from the step times of the candidates of `shifted`."""
    mid = float(seconds[0])
    up = np.maximum(seconds[1::2] - mid, 0.0)
    down = np.maximum(mid - seconds[2::2], 0.0)
    rest = UNEXPLAINED.relative
    high = mid + float(np.sqrt(np.sum(up**2) + (rest * mid) ** 2))
    low = mid - float(np.sqrt(np.sum(down**2) + (mid - mid / (1.0 + rest)) ** 2))
    return max(low, 0.0), mid, high
