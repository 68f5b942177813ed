"""What a micro-batch is summed from, as one array over the blocks: every figure of every pass that is summed up.

Sums over stages are products with how many blocks a stage holds; with all figures in one array there is one
product instead of one a figure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from hwmodels.records import dataclass
from planner.price import COMM_GROUPS, BlockPrice, PassPrice

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


def _apart(half: str, group: str) -> Callable[[BlockPrice], FloatArray]:
    return lambda b: getattr(b, half).apart_s[group]


def _comm(name: str, group: str) -> Callable[[BlockPrice], FloatArray]:
    return lambda b: sum(getattr(p, name)[group] for p in (b.forward, b.backward_input, b.backward_weight))


def _sum(name: str) -> Callable[[BlockPrice], FloatArray]:
    return lambda b: sum(getattr(p, name) for p in (b.forward, b.backward_input, b.backward_weight))


ONCE: dict[str, Callable[[BlockPrice], FloatArray]] = {
    "forward": lambda b: b.forward.total_s,
    "forward_once": lambda b: b.forward.once_s,
    "input": lambda b: b.backward_input.total_s,
    "weight": lambda b: b.backward_weight.total_s,
    "weight_skipped": lambda b: b.backward_weight.skipped_s,
    "forward_compute": lambda b: b.forward.compute_s,
    "backward_compute": lambda b: b.backward_input.compute_s + b.backward_weight.compute_s,
    **{f"{g}_comm": _comm("comm_s", g) for g in COMM_GROUPS},
    **{f"{g}_hidden": _comm("hidden_s", g) for g in COMM_GROUPS},
    **{f"input_apart_{g}": _apart("backward_input", g) for g in COMM_GROUPS},
    **{f"weight_apart_{g}": _apart("backward_weight", g) for g in COMM_GROUPS},
    "forward_paired": lambda b: b.forward.paired_s["ep"],
    "input_paired": lambda b: b.backward_input.paired_s["ep"],
    "spread": _sum("spread_s"),
    "comm_spread": _sum("comm_spread_s"),
    "flops": _sum("flops"),
}
"""Figure of a block's own passes -> how it is read."""

AGAIN: dict[str, Callable[[PassPrice], FloatArray]] = {
    "total": lambda p: p.total_s,
    "compute": lambda p: p.compute_s,
    "tp_comm": lambda p: p.comm_s["tp"],
    "cp_comm": lambda p: p.comm_s["cp"],
    "ep_comm": lambda p: p.comm_s["ep"],
    "spread": lambda p: p.spread_s,
    "comm_spread": lambda p: p.comm_spread_s,
    "flops": lambda p: p.flops,
}
"""Figure of what recomputation runs again -> how it is read."""

_ONCE_AT = {name: i for i, name in enumerate(ONCE)}
_AGAIN_AT = {name: i for i, name in enumerate(AGAIN)}


@dataclass(frozen=True, slots=True, eq=False)
class PriceTable:
    """The figures of the blocks (layers, embedding, head) over the distinct block keys, k of them.

    Attributes
    ----------
    values : ndarray (figures of ONCE, k, blocks)
    reruns : ndarray (figures of AGAIN, policies, k, blocks)
    """

    values: FloatArray
    reruns: FloatArray

    @classmethod
    def of(cls, blocks: Sequence[BlockPrice]) -> PriceTable:
        """From the prices of the blocks."""
        size, policies = len(blocks[0].forward.compute_s), len(blocks[0].rerun)
        values = np.empty((len(ONCE), size, len(blocks)))
        reruns = np.empty((len(AGAIN), policies, size, len(blocks)))
        for i, block in enumerate(blocks):
            for at, read in enumerate(ONCE.values()):
                values[at, :, i] = read(block)
            for at, part in enumerate(AGAIN.values()):
                for policy, rerun in enumerate(block.rerun):
                    reruns[at, policy, :, i] = part(rerun)
        return cls(values, reruns)

    def once(self, names: Sequence[str], rows: IntArray) -> FloatArray:
        """Some figures of the blocks' own passes: ndarray (figures, n, blocks)."""
        return np.asarray(self.values[np.asarray([_ONCE_AT[name] for name in names])[:, None], rows])

    def again(self, names: Sequence[str], policy: IntArray, rows: IntArray) -> FloatArray:
        """Some figures of what runs again under each layout's policy: ndarray (figures, n, blocks)."""
        return np.asarray(self.reruns[np.asarray([_AGAIN_AT[name] for name in names])[:, None], policy, rows])
