"""Measured runs that are priced once and timed again for every value that a fit tries.

A fit asks for the errors of the same rows some tens of times. Host constants (`planner.frameworks`) enter after the
kernels are priced and those of the device before; either way memory, intervals and notes are left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hwmodels.device import Coefficient
from hwmodels.errors import InfeasibleError, InputError
from planner.compare.measurements import Case, UnreadableRowError, to_case
from planner.compare.rows import Row
from planner.evaluate import exact_seconds
from planner.frameworks import HostConstant
from planner.layout import LayoutBatch, RuleContext, validate
from planner.price import CORNER
from planner.priced import PricedModel, price_model
from planner.step.assemble import assemble, dag_groups

ROWS_A_GROUP = 48
"""Rows of a group that a fit looks at: evenly spaced ones of a larger group."""

Errors = dict[str, float]
"""Mean absolute logarithm of predicted over measured time by group, in per cent."""


@dataclass(frozen=True, slots=True, eq=False)
class FitRow:
    """One measured run, with its blocks priced.

    Attributes
    ----------
    row : Row
    case : Case
    measured_s : float
        Seconds of a step, from tokens per second where the source gives those.
    priced : PricedModel
    """

    row: Row
    case: Case
    measured_s: float
    priced: PricedModel

    def error_pct(self, priced: PricedModel) -> float:
        """Logarithm of the predicted over the measured time, in per cent."""
        shape = next(dag_groups(priced, np.arange(1)))
        seconds = float(exact_seconds(assemble(priced, *shape), np.arange(1))[0])
        return math.log(seconds / self.measured_s) * 100.0


def priced_rows(rows: Sequence[Row], done: Callable[[int, int], None] | None = None) -> list[FitRow]:
    """`rows` priced, those left out that cannot be predicted; `done` is called with (rows done, rows in all)."""
    found = []
    for number, row in enumerate(rows, start=1):
        if (one := _priced(row)) is not None:
            found.append(one)
        if done is not None:
            done(number, len(rows))
    return found


def case_of(row: Row) -> Case | None:
    """What a row ran; None for one that cannot be predicted."""
    try:
        case = to_case(row)
        validate(case.layout, RuleContext.of(case.model, case.workload, case.cluster.n_ranks), "layout")
    except (UnreadableRowError, InputError):
        return None
    return case


def _priced(row: Row) -> FitRow | None:
    case = case_of(row) if row.measured is not None and not row.oom else None
    if row.measured is None or case is None:
        return None
    try:
        priced = price_model(case.model, case.workload, LayoutBatch.of([case.layout]), case.cluster)
    except (InputError, InfeasibleError):
        return None
    metric, value = row.measured
    tokens = case.workload.gbs * case.workload.tokens_per_sequence
    seconds = value if metric == "step_time" else tokens / (value * case.layout.world)
    return FitRow(row, case, seconds, priced)


def sampled(rows: Iterable[Row], most: int = ROWS_A_GROUP) -> list[Row]:
    """At most `most` evenly spaced rows of each group, in the order of the file."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.group, []).append(row)
    kept: list[Row] = []
    for members in groups.values():
        index = np.unique(np.linspace(0, len(members) - 1, min(len(members), most)).round().astype(int))
        kept += [members[i] for i in index]
    return kept


def counts(rows: Sequence[FitRow]) -> dict[str, int]:
    """Rows by group."""
    found: dict[str, int] = {}
    for one in rows:
        found[one.row.group] = found.get(one.row.group, 0) + 1
    return found


def host_errors(rows: Sequence[FitRow], values: Mapping[str, float], corner: float | None = None) -> Errors:
    """Errors with other host constants, and another `planner.price.CORNER` where it is given.

    Parameters
    ----------
    values : mapping of str to float
        Host constant of the preset -> seconds; constants that are not named stay.
    """
    constants = {name: HostConstant(value, "trial") for name, value in values.items()}
    width = CORNER if corner is None else corner

    def error(one: FitRow) -> float:
        preset = replace(one.priced.preset, **constants)  # type: ignore[arg-type]
        return one.error_pct(one.priced.hosted(preset, width))

    return _by_group(rows, error)


def device_errors(rows: Sequence[FitRow], values: Mapping[str, float]) -> Errors:
    """Errors with other coefficients of the device (name -> value); blocks are priced anew."""

    def error(one: FitRow) -> float:
        priced, trial = one.priced, {name: Coefficient(value, "trial") for name, value in values.items()}
        pools = tuple(
            replace(pool, device=replace(pool.device, coefficients={**pool.device.coefficients, **trial}))
            for pool in priced.cluster.pools
        )
        cluster = replace(priced.cluster, pools=pools)
        return one.error_pct(price_model(one.case.model, one.case.workload, priced.layouts, cluster))

    return _by_group(rows, error)


def _by_group(rows: Sequence[FitRow], error: Callable[[FitRow], float]) -> Errors:
    found: dict[str, list[float]] = {}
    for one in rows:
        found.setdefault(one.row.group, []).append(abs(error(one)))
    return {group: sum(each) / len(each) for group, each in found.items()}
