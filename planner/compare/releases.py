"""Runs that a source repeats over releases of the software: the newest of each, scored beside the whole group.

Releases of one layout differ by several per cent (data/README: 6% at the median for Megatron-Bridge), and a
prediction speaks of one of them: the code that the framework preset describes.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from dataclasses import replace

from planner.compare.measurements import PRECISIONS
from planner.compare.scoring import GroupScore, RowResult, score

SUFFIX = ":newest"
"""After the name of a group: its newest rows alone."""

_VERSION = re.compile(r"\bv?(\d+(?:\.\d+)+)|(?<=[a-z])(\d+(?:\.\d+)+)")
"""Numbers with a dot, alone or behind letters: ``26.04.01``, ``v2.1.0``, ``ngc24.09``."""


def release(source: str) -> tuple[tuple[int, ...], ...]:
    """Version numbers of a source's words, in their order: ``"NeMo docs v2.1.0 (24.07)"`` is ((2, 1, 0), (24, 7))."""
    return tuple(tuple(int(n) for n in (a or b).split(".")) for a, b in _VERSION.findall(source))


def _run(result: RowResult) -> Hashable:
    """What repeats of a run have in common; the same for no two runs where there is no layout."""
    row = result.row
    if result.layout is None:
        return row.id
    precision = PRECISIONS.get(row.precision.lower(), row.precision)
    plain = _VERSION.sub("", row.source)
    return row.group, plain, row.model, row.kind, row.gpu, row.n_gpus, precision, row.seq_len, row.gbs, result.layout


def newest(results: Sequence[RowResult]) -> list[RowResult]:
    """Of rows that differ in the release alone, those of the latest; rows without a release stay."""
    latest: dict[Hashable, tuple[tuple[int, ...], ...]] = {}
    for r in results:
        latest[_run(r)] = max(latest.get(_run(r), ()), release(r.row.source))
    return [r for r in results if release(r.row.source) == latest[_run(r)]]


def newest_scores(results: Sequence[RowResult]) -> list[GroupScore]:
    """Scores of ``GROUP:newest`` for every group in which a release supersedes another."""
    kept = newest(results)
    before, after = ({r.row.id: r for r in some if r.layout is not None} for some in (results, kept))
    groups = {r.row.group for key, r in before.items() if key not in after}
    renamed = [replace(r, row=replace(r.row, group=r.row.group + SUFFIX)) for r in kept if r.row.group in groups]
    return score(renamed)
