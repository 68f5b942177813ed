"""Pipeline schedules, one file each; a new file in this package is found by itself."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from hwmodels.errors import Fault, InputError
from planner.schedule.base import COMPUTE_KINDS, Action, Kind, Schedule

__all__ = ["COMPUTE_KINDS", "Action", "Kind", "Schedule", "get", "names"]


@cache
def _registry() -> dict[str, Schedule]:
    found: dict[str, Schedule] = {}
    for module in pkgutil.iter_modules(__path__):
        if module.name == "base":
            continue
        loaded = importlib.import_module(f"{__name__}.{module.name}")
        for value in vars(loaded).values():
            if isinstance(value, type) and issubclass(value, Schedule) and value.__module__ == loaded.__name__:
                found[value.name] = value()
    return dict(sorted(found.items()))


def names() -> tuple[str, ...]:
    """Names of all schedules, sorted."""
    return tuple(_registry())


def get(name: str) -> Schedule:
    """The schedule of a name; raises `InputError` naming the known ones."""
    try:
        return _registry()[name]
    except KeyError:
        raise InputError(Fault(f"unknown schedule {name!r}", "schedule", "", " or ".join(names()))) from None
