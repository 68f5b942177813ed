"""Error per group that may only shrink, kept in a JSON file.

The file says for each group and metric the largest mean absolute error that is accepted:

    {"schema": 1, "slack_pct": 0.05, "groups": {"GROUP": {"METRIC": mean_abs_pct}}}
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from hwmodels.errors import Fault, InputError
from planner.compare.scoring import GroupScore
from planner.files import read_json, write_json

SCHEMA = 1

SLACK_PCT = 0.05
"""Percentage points by which an error may differ between machines (order of sums, libm)."""


def read_limits(path: str | Path) -> dict[str, dict[str, float]]:
    """Group -> metric -> largest accepted mean absolute error in per cent.

    Raises
    ------
    hwmodels.errors.InputError
        Where the file is missing or not of the form above; all faults at once.
    """
    content = read_json(path)
    if not isinstance(content, dict) or content.get("schema") != SCHEMA or not isinstance(content.get("groups"), dict):
        raise InputError(Fault("is no regression file", str(path), f"schema {SCHEMA} with groups is expected",
                               '{"schema": 1, "groups": {"GROUP": {"step_time": 5.0}}}'))  # fmt: skip
    faults = [
        Fault(f"{metrics!r} is not a table of errors", f"{path}: groups.{group}", "", '{"step_time": 5.0}')
        for group, metrics in content["groups"].items()
        if not isinstance(metrics, dict) or not all(_is_error(v) for v in metrics.values())
    ]
    if faults:
        raise InputError(faults)
    return {g: {m: float(v) for m, v in metrics.items()} for g, metrics in content["groups"].items()}


def _is_error(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0


def check(scores: Iterable[GroupScore], present: Collection[str], path: str | Path) -> list[str]:
    """Sentences about every group that got worse, or was scored before and is no longer.

    Groups of the file that are not among `present`, the groups that were read, are left alone,
    so that a part of the data can be checked by itself. Empty when nothing regressed.
    """
    scored = {(g.group, g.metric): g.mean_abs_pct for g in scores}
    found = []
    for group, metrics in read_limits(path).items():
        for metric, limit in metrics.items():
            if group not in present:
                continue
            error = scored.get((group, metric))
            if error is None:
                found.append(f"{group} {metric}: no row is predicted any more (limit {limit:.2f} %)")
            elif error > limit + SLACK_PCT:
                found.append(f"{group} {metric}: mean absolute error rose from {limit:.2f} % to {error:.2f} %")
    return found


def tighten(scores: Iterable[GroupScore], path: str | Path) -> Path:
    """Lower the limits to the errors of `scores`, add new groups, and never raise a limit."""
    limits = read_limits(path) if Path(path).exists() else {}
    for score in scores:
        metrics = limits.setdefault(score.group, {})
        error = round(score.mean_abs_pct, 2)
        metrics[score.metric] = min(error, metrics.get(score.metric, error))
    return write_json(path, {"schema": SCHEMA, "slack_pct": SLACK_PCT, "groups": limits})
