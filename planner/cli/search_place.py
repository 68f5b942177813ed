"""``search --place``: the best rows of an answer with their ranks placed on the fabric."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from planner.cli.problem import Problem
    from planner.search import Row, SearchResult


def with_places(result: SearchResult, problem: Problem, count: int) -> SearchResult:
    """The answer with the first `count` rows placed, where that is faster; ranked anew by step time if one moved.

    A row over several pools keeps its arrangement. Rows behind those that were looked at might gain too, so that the
    order is no longer proven once a rank has moved.
    """
    if count < 1:
        return result
    if problem.cluster.mixed:
        note = "ranks fill pools of unlike devices in order: no row was placed (docs/mixed.md)"
        return replace(result, notes=[*result.notes, note])
    rows = [_placed(row, problem) if row.use is None else row for row in result.rows[:count]] + result.rows[count:]
    moved = [row for row, old in zip(rows, result.rows, strict=True) if row is not old]
    if not moved:
        note = f"the first {min(count, len(rows))} rows are fastest with ranks in order, of the placements tried"
        return replace(result, notes=[*result.notes, note])
    if len(result.objectives) == 1:
        rows = sorted(rows, key=lambda row: row.step.step_s.mid)
    ranked = [replace(row, rank=i + 1) for i, row in enumerate(rows)]
    placed = ", ".join(str(row.rank) for row in ranked if any(row.layout is one.layout for one in moved))
    note = f"rows {placed}: ranks placed by the traffic of their groups (docs/placement.md); no measured evidence"
    return replace(result, rows=ranked, optimal=False, notes=[*result.notes, note])


def _placed(row: Row, problem: Problem) -> Row:
    """A row with the placement that is best for it; the row itself where ranks in order are."""
    from planner.placement import place
    from planner.placement.report import told
    from planner.predict import predict

    found = place(problem.model, problem.cluster, row.workload, row.layout)
    if not found.moved or found.step_s >= found.ordered_step_s * (1.0 - 1e-9):
        return row
    layout = told(found, problem.model, row.workload, problem.cluster).layout
    return replace(row, layout=layout, step=predict(problem.model, problem.cluster, row.workload, layout))
