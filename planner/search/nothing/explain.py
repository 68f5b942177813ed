"""The error for a request that no layout satisfies: which constraint, rule, byte or figure stands in its way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from hwmodels.errors import InfeasibleError
from hwmodels.units import format_bytes
from planner.layout import Layout, RuleContext, faults
from planner.search.constraints import Constraint, find_clash
from planner.search.constraints.limits import Interval, interval_of
from planner.search.constraints.names import NAMES
from planner.search.least import Least
from planner.search.nothing.ask import Ask
from planner.search.nothing.changes import MOST, more_nodes, of_memory, opened, without_each
from planner.search.objectives import OBJECTIVES
from planner.search.result import Row
from planner.search.space import closest, survey
from planner.search.written import with_unit
from planner.step.assemble import group_memory

Best = Callable[[Ask, str], Row | None]
"""Finds the best row of a request by an objective; None where there is none."""


def nothing(ask: Ask, considered: int, best: Best) -> InfeasibleError:
    """The error, with the binding constraint and the nearest request that has an answer.

    Parameters
    ----------
    ask : Ask
    considered : int
        Candidates that were looked at.
    best : callable
        The search itself, for requests that differ in one thing.
    """
    work = ask.workload
    asked = (
        f"No layout of {ask.model.name} on {ask.cluster.n_ranks:,} ranks with gbs={work.gbs}, seq_len={work.seq_len}"
    )
    clash = find_clash(ask.where, ask.domains(), ask.question, ask.searched())
    if clash is not None:
        message = f"{asked} satisfies what was asked: {considered:,} considered, all dropped."
        return InfeasibleError(message, str(clash), _without(ask) or f"without {clash.first}")
    if any(not one.of_layout for one in ask.where) and ask.fits() is not None:
        return _out_of_limits(ask, asked, best)  # without the leanest layout of all, which takes as long as a search
    if not survey(ask.space, ask.model, ask.cluster, work, ask.constraints()).pairs:
        return _illegal(ask, asked, considered)
    smallest = ask.smallest()
    if smallest is None:
        return _illegal(ask, asked, considered)
    if smallest.peak_bytes > ask.capacity:
        return _too_large(ask, smallest)
    return _out_of_limits(ask, asked, best)


def _without(ask: Ask) -> str:
    """Which constraint alone, taken away, leaves something that fits."""
    freed = [change.text for change in without_each(ask) if change.ask.fits() is not None]
    return " or ".join(freed[:MOST])


def _illegal(ask: Ask, asked: str, considered: int) -> InfeasibleError:
    """The error for a space in which no layout is legal, with the way out of the one closest to it."""
    message = f"{asked} is legal: {considered:,} considered, all dropped."
    near = closest(ask.space, ask.model, ask.cluster, ask.workload, ask.constraints())
    if near is None:
        return InfeasibleError(message, "the given dp is no quotient of the ranks", "leave dp open")
    broken = faults(near, RuleContext.of(ask.model, ask.workload, ask.cluster.n_ranks))
    unmet = _unmet(ask, near)
    binding = "; ".join([*(f"{f.what} [{f.rule}]" for f in broken), *(f"it does not satisfy {one}" for one in unmet)])
    ways = [f.fix for f in broken] or [f"without {one}" for one in unmet]
    freed = [change.text for change in (*without_each(ask), *opened(ask)) if change.ask.fits() is not None]
    nearest = "; ".join(dict.fromkeys([*freed[:MOST], *ways]))
    return InfeasibleError(message, f"the closest, {near.label()}, breaks {binding}", nearest)


def _unmet(ask: Ask, layout: Layout) -> list[str]:
    """The constraints that a layout cannot satisfy."""
    from planner.layout import LayoutBatch
    from planner.search.constraints import layout_mask

    batch = LayoutBatch.of([layout])
    return [repr(one.text) for one in ask.where if one.base and not layout_mask(one, batch, ask.question)[0]]


def _too_large(ask: Ask, smallest: Least) -> InfeasibleError:
    """The error for legal layouts of which none fits the memory."""
    priced, peak = smallest.priced, smallest.peak_bytes
    layout, device = priced.layouts.layout(0), ask.cluster.device
    sized = group_memory(priced, np.asarray([0]), layout.pp, layout.vpp, layout.schedule)
    stage = int(np.argmax(sized.peak_bytes[0]))
    largest = max(sized.by_category, key=lambda k: float(sized.by_category[k][0, stage]))
    capacity, need, excess = (format_bytes(v) for v in (device.memory_bytes, peak, peak - ask.capacity))
    ways = of_memory(ask, lambda: without_each(ask))
    if not ways:
        ways = [f"a device with {format_bytes(peak / (1.0 - ask.memory_headroom))}"]
    return InfeasibleError(
        f"None of {smallest.legal:,} legal layouts of {ask.model.name} fits in {capacity} of {device.name} "
        f"with {ask.memory_headroom:.0%} headroom.",
        f"memory of stage {stage}: {layout.label()} misses by least, {need} needed, {excess} too much, "
        f"most of it {largest}",
        "; or ".join(ways),
    )


def _out_of_limits(ask: Ask, asked: str, best: Best) -> InfeasibleError:
    """The error for layouts that fit, of which none keeps to the limits of figures."""
    limits = [one for one in ask.where if not one.of_layout]
    binding, ways = [], []
    for one in limits:
        rest = replace(ask, where=tuple(other for other in ask.where if other is not one))
        interval = interval_of(one)
        row = best(rest, _towards(interval))
        if row is None:
            continue
        binding.append(f"{one.text!r}: {_reached(one, interval, row, len(limits) > 1)}")
        ways.append(_loosened(one, interval, row))
    if not binding:
        binding, ways = _each_alone(ask, limits, best)
    if all(interval is not None and interval.name in _OF_TIME for interval in map(interval_of, limits)):

        def enough(other: Ask) -> str:
            row = best(other, "step_time")
            return "" if row is None else row.layout.label()

        larger = more_nodes(ask, enough) if ask.cluster.n_ranks <= FEW_RANKS else ""
        ways += [larger] if larger else []
    message = f"{asked} keeps to {' and '.join(repr(one.text) for one in limits)}."
    return InfeasibleError(message, "; ".join(binding), "; or ".join(ways))


def _each_alone(ask: Ask, limits: list[Constraint], best: Best) -> tuple[list[str], list[str]]:
    """Of limits that no layout keeps to, nor to all but one of them: how near each comes without the others."""
    binding, ways = [], []
    free = replace(ask, where=tuple(one for one in ask.where if one.of_layout))
    for one in limits:
        interval = interval_of(one)
        row = best(free, _towards(interval))
        if row is not None:
            binding.append(f"{one.text!r}: {_reached(one, interval, row, False)}")
            ways.append(f"{_loosened(one, interval, row)} alone")
    return binding, ways or ["without them"]


FEW_RANKS = 1024
"""Ranks up to which a larger cluster is searched for one that meets a limit of time."""
_OF_TIME = ("step_time", "train_time", "tokens_per_s")
"""Figures that more ranks improve."""


def _towards(interval: Interval | None) -> str:
    """The objective that leads towards a limit, or step time where none does."""
    if interval is None or interval.name not in OBJECTIVES:
        return "step_time"
    objective = OBJECTIVES[interval.name]
    better_is_lower = objective.sense == "min"
    wants_lower = bool(np.isfinite(interval.high))
    return interval.name if better_is_lower == wants_lower else "step_time"


def value_of(name: str, row: Row) -> float | None:
    """A figure of a row by its name in a constraint, where the row holds it."""
    from planner.search.asked import DETAILS

    if name in row.figures:
        return row.figures[name]
    return DETAILS[name](row) if name in DETAILS else None


def _reached(one: Constraint, interval: Interval | None, row: Row, others: bool) -> str:
    """How near a limit the best layout without it comes."""
    value = None if interval is None else value_of(interval.name, row)
    left = "that the others leave " if others else ""
    if interval is None or value is None:
        return f"the best layout {left}without it is {row.layout.label()}"
    shown = _figure(interval.name, value)
    if interval.name in row.figures and _towards(interval) == interval.name:
        return f"the best {left}is {shown} ({row.layout.label()})"
    return f"the fastest layout {left}has {shown} ({row.layout.label()})"


def _loosened(one: Constraint, interval: Interval | None, row: Row) -> str:
    """The limit with a number that the best layout keeps to."""
    value = None if interval is None else value_of(interval.name, row)
    if interval is None or value is None:
        return f"without {one.text!r}"
    upper = value > interval.high or (value == interval.high and interval.open_high)
    return f'"{interval.name} {"<=" if upper else ">="} {_written(interval.name, value, upper)}"'


def _figure(name: str, value: float) -> str:
    """A figure with its unit, for people."""
    return with_unit(NAMES[name].dimension, value) or f"{value:,.4g}"


def _written(name: str, value: float, upper: bool) -> str:
    """A number as a constraint has it, rounded to the side on which the value keeps to it."""
    scale, unit = {"bytes": (2.0**30, "GiB"), "seconds": (1.0, "s"), "share": (0.01, "%")}.get(
        NAMES[name].dimension, (1.0, "")
    )
    number = value / scale
    step = 10.0 ** (np.floor(np.log10(abs(number))) - 2) if number else 1.0
    rounded = (np.ceil if upper else np.floor)(number / step * (1 - 1e-12 if upper else 1 + 1e-12)) * step
    return f"{float(f'{rounded:.6g}'):g}{unit}"
