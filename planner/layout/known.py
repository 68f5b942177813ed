"""Words of a layout that nobody knows: refused before any rule, which speaks of their numbers (`CODES`)."""

from __future__ import annotations

from hwmodels.errors import Fault
from planner.frameworks.orders import ORDERS
from planner.layout.degrees import OPEN_CP_KINDS, RESHARDS, SCHEDULES, Layout
from planner.layout.recompute import MODULES, RECOMPUTE

WORDS: dict[str, tuple[str, ...]] = {
    "recompute": RECOMPUTE,
    "schedule": SCHEDULES,
    "cp_kind": OPEN_CP_KINDS,
    "reshard": RESHARDS,
    "order": ORDERS,
}
"""Field of `Layout` that is a word -> the known ones."""

KNOWN: dict[str, str] = {
    "recompute-known": "recompute is a known kind: " + ", ".join(RECOMPUTE) + ".",
    "recompute-modules-known": "recompute_modules are out of " + ", ".join(MODULES) + ".",
    "schedule-known": "schedule is one of `list schedules`.",
    "cp_kind-known": "cp_kind is a known kind: " + ", ".join(filter(None, OPEN_CP_KINDS)) + "; or blank.",
    "reshard-known": "reshard is " + ", ".join(RESHARDS) + ".",
    "order-known": "order names tp, cp, dp and pp once each, the fastest first, such as " + ORDERS[0] + ".",
}
"""Identifier that a fault of `unknown_names` carries -> its sentence."""


def unknown_names(layout: Layout, where: str) -> list[Fault]:
    """Every word of a layout that is no known name, with the known ones."""
    found, why = [], "it is not a known name"
    for name, allowed in WORDS.items():
        value = getattr(layout, name)
        if value not in allowed:
            found.append(Fault(f"{name} is {value!r}", where, why, " or ".join(filter(None, allowed)), f"{name}-known"))
    unknown = [name for name in layout.recompute_modules if name not in MODULES]
    if unknown:
        what = f"recompute_modules is {', '.join(map(repr, unknown))}"
        found.append(Fault(what, where, why, ", ".join(MODULES), "recompute-modules-known"))
    return found
