"""The types of a layout that Python code states: numbers, and sequences of them; words are `planner.layout.known`'s."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hwmodels.errors import Fault, InputError
from planner.stated import is_whole, number_fault

_WORDS = ("recompute", "schedule", "cp_kind", "reshard", "order")
LARGEST = 2**30
"""Of any number of a layout: far beyond any cluster, and safe in 64-bit products of two."""
_FROM_ZERO = (
    "sp", "zero_stage", "fsdp", "cp_ulysses", "offload_optimizer", "offload_parameters", "offload_activations",
)  # fmt: skip
_EXAMPLES: dict[str, str] = {
    "stage_layers": "stage_layers=(8, 8)",
    "recompute_layers": "recompute_layers=(2,)",
    "recompute_modules": 'recompute_modules=("core_attn",)',
    "placement": "placement=(0, 1, 4, 5)",
}


def normal_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers and sequences of a layout as Python's own.

    Raises
    ------
    hwmodels.errors.InputError
        With every field that is no whole number, or no sequence of what it holds.
    """
    found: dict[str, Any] = {}
    faults: list[Fault] = []
    for name, value in values.items():
        if name in _WORDS:
            continue
        where = f"layout.{name}"
        if name not in _EXAMPLES:
            if is_whole(value) and abs(value) <= LARGEST:
                found[name] = int(value)
            elif is_whole(value):
                faults.append(Fault(f"{name} is {value}", where, "no layout has as much", f"{LARGEST:,} at most"))
            else:
                faults.append(number_fault(name, value, where, 0 if name in _FROM_ZERO else 1))
            continue
        words = name == "recompute_modules"
        held = tuple(value) if isinstance(value, tuple | list) else None
        if held is not None and all(isinstance(v, str) if words else is_whole(v) for v in held):
            found[name] = held if words else tuple(int(v) for v in held)
        else:
            why = f"{name} is a tuple of {'names' if words else 'whole numbers'}"
            faults.append(Fault(f"{name} is {value!r}", where, why, _EXAMPLES[name]))
    if faults:
        raise InputError(faults)
    return found
