"""Objectives: what layouts are ranked by; one file each, the contract in `base`."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from importlib import import_module

from hwmodels.errors import Fault, InputError
from planner.search.objectives.base import Figures, Objective, Work, require

__all__ = ["OBJECTIVES", "Figures", "Objective", "Work", "get", "names", "require"]

_NAMES = (
    "step_time", "tokens_per_s", "tokens_per_s_per_gpu", "mfu", "usd_per_mtoken", "train_time", "train_usd",
    "energy_kwh_per_mtoken", "train_kwh", "co2_kg_per_mtoken", "train_co2_kg", "peak_memory", "memory_headroom",
    "goodput", "kept_tokens_per_s",
)  # fmt: skip
"""Modules of this package, each with the objective of its name."""


class _Table(Mapping[str, Objective]):
    """Objectives by name, each loaded when it is asked for: a search ranks by one or two of fifteen."""

    def __init__(self) -> None:
        self._loaded: dict[str, Objective] = {}

    def __getitem__(self, name: str) -> Objective:
        if name not in self._loaded:
            if name not in _NAMES:
                raise KeyError(name)
            module = import_module(f"{__name__}.{name}")
            (member,) = (one for one in vars(module).values() if getattr(one, "__module__", "") == module.__name__
                         and isinstance(one, type) and issubclass(one, Objective))  # fmt: skip
            self._loaded[name] = member()
        return self._loaded[name]

    def __contains__(self, name: object) -> bool:
        return name in _NAMES

    def __iter__(self) -> Iterator[str]:
        return iter(_NAMES)

    def __len__(self) -> int:
        return len(_NAMES)


OBJECTIVES: Mapping[str, Objective] = _Table()
"""Objectives by name; the first is the default."""


def names() -> tuple[str, ...]:
    """The names of all objectives."""
    return tuple(OBJECTIVES)


def get(name: str, where: str = "objective") -> Objective:
    """The objective of a name.

    Raises
    ------
    hwmodels.errors.InputError
        For a name that is none, with those that resemble it.
    """
    if name in OBJECTIVES:
        return OBJECTIVES[name]
    near = difflib.get_close_matches(name, OBJECTIVES, 2, 0.5) or list(OBJECTIVES)
    raise InputError(Fault(f"objective {name!r} is unknown", where, "", " or ".join(near)))
