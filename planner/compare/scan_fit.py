"""Numbers that rows of several frameworks share: what a generation gets out of a joule, and the corner of the host.

One number is scanned over a few values for the least mean over groups of the mean absolute logarithm of predicted over
measured time, and again with each group left out, which says what the number is worth for rows it has not seen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from hwmodels.errors import Fault, InputError
from hwmodels.kernels.formats import format_of
from hwmodels.kernels.sustained import power_name
from planner.compare.fit_rows import Errors, case_of
from planner.compare.host_fit import usable
from planner.compare.measurements import Case
from planner.compare.rows import Row
from planner.frameworks import of as preset_of
from planner.precision import recipe_of

CORNERS: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Values of `planner.price.CORNER` that are tried."""
SHARES: tuple[float, ...] = tuple(round(0.3 + 0.1 * i, 1) for i in range(8))
"""Values of ``flop_per_j`` that are tried, over the most that can tell: the peak over the board power."""
FINER = 5
"""Steps of a finer scan between the best value and its neighbours."""


@dataclass(frozen=True, slots=True)
class ScanFit:
    """One number fitted by a scan.

    Attributes
    ----------
    name : str
    value : float
        That with the least error.
    step : float
        Between neighbouring values around `value`.
    rows : dict of str to int
        By group.
    residual : float
        Mean over groups of the mean absolute error at `value`, in the sample it was fitted on (0.05 = 5%).
    errors_pct : dict of float to Errors
        Error of each group at every value tried.
    left_out, left_out_pct : dict
        For each group, the value fitted on the others and its own error there; empty for a single group.
    """

    name: str
    value: float
    step: float
    rows: dict[str, int]
    residual: float
    errors_pct: dict[float, Errors]
    left_out: dict[str, float] = field(default_factory=dict)
    left_out_pct: Errors = field(default_factory=dict)


def scan(
    name: str,
    values: Sequence[float],
    rows: Mapping[str, int],
    score: Callable[[float], Errors],
    finer: int = 1,
) -> ScanFit:
    """Fit a number over evenly spaced values, then `finer` times as densely around the best.

    Parameters
    ----------
    values : sequence of float
        Rising, evenly spaced.
    rows : mapping of str to int
        Rows that are scored, by group.
    score : callable
        Value -> error in per cent by group.
    finer : int
        1: only `values`. A group that is left out takes the best of what was tried for all of them.
    """
    errors = {value: score(value) for value in values}

    def best(groups: Sequence[str]) -> float:
        return min(errors, key=lambda value: float(np.mean([errors[value][group] for group in groups])))

    groups, step = tuple(rows), float(values[1] - values[0]) / finer
    middle = best(groups)
    for i in range(1 - finer, finer):
        value = float(f"{middle + i * step:.6g}")
        if value not in errors:
            errors[value] = score(value)
    found = best(groups)
    others = {group: [name for name in groups if name != group] for group in groups if len(groups) > 1}
    left_out = {group: best(rest) for group, rest in others.items()}
    residual = float(np.mean([errors[found][group] for group in groups])) / 100.0
    left_out_pct = {group: errors[value][group] for group, value in left_out.items()}
    errors = {value: errors[value] for value in sorted(errors)}
    return ScanFit(name, found, step, dict(rows), round(residual, 3), errors, left_out, left_out_pct)


def powered_rows(data: str | Path, generation: str, dtype: str) -> tuple[list[Row], float]:
    """Rows whose tensor cores multiply `dtype` on a `generation` of devices, and the scan's largest ``flop_per_j``.

    Those of trust A where a tenth of them or more are; else also those of trust B.

    Raises
    ------
    hwmodels.errors.InputError
        Where the format is unknown or no row fits.
    """
    name = power_name(dtype)
    found: list[tuple[Row, Case]] = []
    known: dict[str, str] = {}  # generation of each GPU as rows call it
    for row in usable(data):
        if known.get(row.gpu, generation) != generation or (case := case_of(row)) is None:
            continue
        known[row.gpu] = case.cluster.device.generation
        if known[row.gpu] == generation and power_name(_format(case)) == name:
            found.append((row, case))
    if not found:
        raise InputError(Fault(f"no row ran {dtype} on {generation}", str(data), fix="another generation or format"))
    devices = [case.cluster.device for _, case in found]
    most = max(device.peak(format_of(dtype).peak) / device.tdp_w for device in devices if device.tdp_w > 0)
    first = [row for row, _ in found if row.trust == "A"]
    return (first if 10 * len(first) >= len(found) else [row for row, _ in found]), most


def _format(case: Case) -> str:
    return recipe_of(case.workload, preset_of(case.workload)).forward
