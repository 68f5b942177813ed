"""Other stages in a search: candidates with uneven splits and fitted recomputation beside those of the space."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field, fields

import numpy as np
from numpy.typing import NDArray

from hwmodels.records import dataclass
from planner.layout import LayoutBatch
from planner.layout.recompute import BLOCK, FULL
from planner.priced import PricedModel
from planner.search.examine import Examiner
from planner.search.objective_base import Candidates, costs
from planner.search.uneven.candidates import at, balanced_candidates, least_seconds
from planner.search.variant import Variant

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
WAVE, GROWTH = 64, 4
"""Rows of work whose stages are dealt anew at first, and how many times more each time the answer was looked at."""
_BEHIND = 2**62
"""Place of added candidates among those of equal costs: behind all that stand in the tables."""
_FIELDS = tuple(f.name for f in fields(LayoutBatch))


@dataclass(slots=True, eq=False)
class Extension:
    """Adds candidates with other stages to what an examiner has found.

    Attributes
    ----------
    examiner : Examiner
    variants : sequence of Variant
    tried : int
        Candidates that were added.
    """

    examiner: Examiner
    variants: Sequence[Variant]
    tried: int = 0
    _seen: set[tuple[int, ...]] = field(default_factory=set)

    def rows(self) -> None:
        """Balanced stages of the layouts that are in the answer so far.

        The answer can only get better by it. Of layouts that are not in it nothing is known then: another split could
        have brought them in.
        """
        batches: dict[int, tuple[PricedModel, list[int]]] = {}
        for _, one in self.examiner.ranking.rows():
            index = batches.setdefault(id(one.priced), (one.priced, []))[1]
            index.append(int(one.group.index[one.position]))
        for priced, index in batches.values():
            number = next(v.number for v in self.variants if v.workload == priced.workload)
            self._add(number, balanced_candidates(priced, np.asarray(index), headroom=self._headroom))

    def everywhere(self, *, fit: bool) -> None:
        """Balanced (and fitted) stages of every candidate that could enter the answer with them.

        Candidates are taken in the order of what a step takes at least whatever the split
        (`planner.search.uneven.least_seconds`), until every one that is left would cost more than the answer's last
        row. With `fit` the candidates are those that recompute blocks, or whole layers where none does.
        """
        for variant in self.variants:
            (work, low), wave = self._bases(variant, fit), WAVE
            while len(work := work[kept := self.examiner.ranking.open(low)]):
                low, now = low[kept], work[:wave]
                base = variant.of(*variant.found.of_work(now))
                found = balanced_candidates(base, np.arange(len(base.layouts)), headroom=self._headroom, fit=fit)
                self._add(variant.number, found)
                work, low, wave = work[wave:], low[wave:], wave * GROWTH

    @property
    def _headroom(self) -> float:
        return 1.0 - self.examiner.capacity / self.examiner.cluster.device.memory_bytes

    def _bases(self, variant: Variant, fit: bool) -> tuple[IntArray, FloatArray]:
        """Rows of work with a pipeline, the cheapest first, and lower bounds of their costs (rows, objectives)."""
        survey = variant.found
        table = survey.work
        rows = np.flatnonzero(table["pp"] > 1)
        if fit:
            whole = BLOCK if (table["recompute"] == BLOCK).any() else FULL
            rows = rows[table["recompute"][rows] == whole]
        cell = np.searchsorted(survey.work_cell, rows, side="right") - 1
        rows, cell = (part[np.diff(survey.state_cell)[cell] > 0] for part in (rows, cell))
        first = survey.state_cell[cell]
        if not len(rows):
            return rows, np.zeros((0, len(self.examiner.objectives)))
        seconds = least_seconds(variant.of(rows, first), np.arange(len(rows)), fit=fit)
        here = Candidates(
            seconds, np.zeros(len(rows)), variant.workload, self.examiner.cluster,
            lambda name: survey.field(name, rows, first),
        )  # fmt: skip
        low = np.stack([costs(one, one.of(here)) for one in self.examiner.objectives], axis=1)
        spans = np.maximum(np.abs(low).min(axis=0), 1e-300)
        order = np.argsort((low / spans).sum(axis=1), kind="stable")
        return rows[order], low[order]

    def _add(self, number: int, found: PricedModel) -> None:
        """Examine candidates that were not looked at before."""
        new, places = [], []
        for i, key in enumerate(self._keys(number, found)):
            if key not in self._seen:
                self._seen.add(key)
                new.append(i)
                places.append((number, _BEHIND, len(self._seen)))
        if new:
            self.tried += len(new)
            self.examiner.add(at(found, np.asarray(new)), places)

    def _keys(self, number: int, found: PricedModel) -> Iterator[tuple[int, ...]]:
        columns = [np.broadcast_to(getattr(found.layouts, name), len(found.layouts)).tolist() for name in _FIELDS]
        return ((number, *row) for row in zip(*columns, strict=True))


def extend(examiner: Examiner, variants: Sequence[Variant], stages: Sequence[str]) -> int:
    """Look for better stages as a space asks for them (`Space.stages`); returns how many candidates that added."""
    extension = Extension(examiner, variants)
    if "best" in stages:
        extension.rows()
    if "balanced" in stages:
        extension.everywhere(fit=False)
    if "fit" in stages:
        extension.everywhere(fit=True)
    return extension.tried
