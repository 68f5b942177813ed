"""The best candidates seen so far: the `top` of one objective, or the Pareto front of several.

Both say of a bound whether what it bounds could still belong to the answer, so that a search may stop where nothing
that is left can.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
Entry = TypeVar("Entry")
ROUNDING = 1e-12
"""Share of a cost below which two are the same."""


class Ranking(Generic[Entry]):
    """Exact costs (less is better) of candidates, and what stands for each.

    Parameters
    ----------
    objectives : int
        Columns of the costs.
    top : int
        Rows of the answer of one objective; a front is whole.
    """

    def __init__(self, objectives: int, top: int) -> None:
        self.objectives = objectives
        self.top = top
        self._costs: FloatArray = np.zeros((0, objectives))
        self._places: list[tuple[int, ...]] = []
        self._entries: list[Entry] = []

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, costs: FloatArray, places: Sequence[tuple[int, ...]], entries: Sequence[Entry]) -> None:
        """Candidates with costs (n, objectives); `places` order those of equal costs."""
        self._costs = np.concatenate([self._costs, costs])
        self._places += places
        self._entries += entries
        kept = self._in_answer()
        self._costs = self._costs[kept]
        self._places = [self._places[i] for i in kept]
        self._entries = [self._entries[i] for i in kept]

    def open(self, bounds: FloatArray) -> BoolArray:
        """Whether candidates whose costs are at least `bounds` (n, objectives) could belong to the answer.

        One objective: less than the last row's cost; of layouts that cost the same those stay that came first. Several:
        no point of the front is as good in all and better in one.
        """
        if self.objectives == 1:
            worst = self.worst
            return np.asarray(bounds[:, 0] < (worst - ROUNDING * abs(worst) if np.isfinite(worst) else worst))
        found = np.ones(len(bounds), dtype=np.bool_)
        for point in self._costs:
            found[found] = ~beats(point, bounds[found])
        return found

    @property
    def worst(self) -> float:
        """Cost of the last row of one objective; infinite as long as rows are missing."""
        return float(self._costs[self.top - 1, 0]) if len(self._costs) >= self.top else float("inf")

    def rows(self) -> list[tuple[FloatArray, Entry]]:
        """The answer, best first; a front by its first objective."""
        n = self.top if self.objectives == 1 else len(self._entries)
        return list(zip(self._costs[:n], self._entries[:n], strict=True))

    def _in_answer(self) -> list[int]:
        """Positions of what may stay in the answer, in its order; ties with the last row stay."""
        order = sorted(range(len(self._entries)), key=lambda i: (*self._costs[i], self._places[i]))
        if self.objectives == 1:
            last = self._costs[order[min(self.top, len(order)) - 1], 0] if order else np.inf
            return [i for i in order if self._costs[i, 0] <= last]
        kept: list[int] = []
        for i in order:  # by the first objective, so that nothing later beats what is kept
            if not any(beats(self._costs[j], self._costs[i : i + 1])[0] for j in kept):
                kept.append(i)
        return kept


def beats(point: FloatArray, others: FloatArray) -> BoolArray:
    """Whether a point (objectives,) is as good as others (n, objectives) in all objectives and better in one."""
    return np.asarray((point <= others).all(axis=1) & (point < others).any(axis=1))


def best_first(bounds: FloatArray) -> IntArray:
    """Order of candidates by their bounds (n, objectives), each objective over the least of its finite ones: (n,)."""
    size = np.where(np.isfinite(bounds), np.abs(bounds), np.inf)
    spans = size.min(axis=0, initial=np.inf)
    spans = np.where(np.isfinite(spans), np.maximum(spans, 1e-300), 1.0)
    with np.errstate(invalid="ignore"):
        total = np.nan_to_num((bounds / spans).sum(axis=1), nan=-np.inf, posinf=np.inf, neginf=-np.inf)
    return np.asarray(np.argsort(total, kind="stable"))
