"""Objectives: what layouts are ranked by; one file each, the contract in `base`."""

from __future__ import annotations

import difflib

from hwmodels.errors import Fault, InputError
from planner.search.objectives.base import Figures, Objective, Work, require
from planner.search.objectives.co2_kg_per_mtoken import Co2KgPerMtoken
from planner.search.objectives.energy_kwh_per_mtoken import EnergyKwhPerMtoken
from planner.search.objectives.goodput import Goodput
from planner.search.objectives.kept_tokens_per_s import KeptTokensPerS
from planner.search.objectives.memory_headroom import MemoryHeadroom
from planner.search.objectives.mfu import Mfu
from planner.search.objectives.peak_memory import PeakMemory
from planner.search.objectives.step_time import StepTime
from planner.search.objectives.tokens_per_s import TokensPerS
from planner.search.objectives.tokens_per_s_per_gpu import TokensPerSPerGpu
from planner.search.objectives.train_co2_kg import TrainCo2Kg
from planner.search.objectives.train_kwh import TrainKwh
from planner.search.objectives.train_time import TrainTime
from planner.search.objectives.train_usd import TrainUsd
from planner.search.objectives.usd_per_mtoken import UsdPerMtoken

__all__ = ["OBJECTIVES", "Figures", "Objective", "Work", "get", "names", "require"]

_MEMBERS: tuple[type[Objective], ...] = (
    StepTime,
    TokensPerS,
    TokensPerSPerGpu,
    Mfu,
    UsdPerMtoken,
    TrainTime,
    TrainUsd,
    EnergyKwhPerMtoken,
    TrainKwh,
    Co2KgPerMtoken,
    TrainCo2Kg,
    PeakMemory,
    MemoryHeadroom,
    Goodput,
    KeptTokensPerS,
)
OBJECTIVES: dict[str, Objective] = {member.name: member() for member in _MEMBERS}
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
