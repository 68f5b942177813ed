"""Framework presets: what a training framework does unless a plan says otherwise.

A preset holds switches (which kernels, which dtypes, what overlaps) and at most three host
constants of its own: per kernel, per micro-batch and per step. It never holds an efficiency
or another coefficient: those describe hardware and live in the device. The state of a code
base at another time is another preset ("megatron-2021"), not a branch. One file a framework: a new file of this
package that holds `PRESETS` is found by itself.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from hwmodels.errors import Fault, InputError
from planner.frameworks.base import FrameworkPreset, HostConstant
from planner.frameworks.nemo import ACROSS_NODES, ON_RACKS
from planner.frameworks.switches import Switches, applied

__all__ = [
    "FrameworkPreset", "HostConstant", "Run", "across_nodes", "get", "instead", "names", "of", "on_racks",
    "preset_for_source",
]  # fmt: skip


class Run(Protocol):
    """What of a workload says how a framework runs it."""

    @property
    def framework(self) -> str:
        """Name of a preset."""

    @property
    def switches(self) -> Switches:
        """Fields of it that the run sets otherwise."""


def _found() -> dict[str, FrameworkPreset]:
    modules = [importlib.import_module(f"{__name__}.{m.name}") for m in pkgutil.iter_modules(__path__)]
    presets = [preset for module in modules for preset in getattr(module, "PRESETS", ())]
    return {p.name: p for p in sorted(presets, key=lambda p: (p.name != "generic", p.name))}


_PRESETS = _found()

_SOURCES: tuple[tuple[str, str], ...] = (
    ("Megatron-LM SC21", "megatron-2021"),
    ("Korthikanti", "megatron-2022"),
    ("NeMo container 25.", "megatron-bridge-26.04"),
    ("NeMo container 26.02", "megatron-bridge-26.04"),
    ("NeMo container 26.04", "megatron-bridge-26.04"),
    ("Megatron-Bridge", "megatron-bridge"),
    ("NeMo docs", "nemo"),
    ("Megatron-LM functional-test", "megatron-defaults"),
    ("SimuMax", "megatron"),
    ("torchtitan", "fsdp2"),
    ("llm-foundry", "composer"),
    ("BigScience", "bigscience-2022"),
    ("vTrain", "deepspeed-2022"),
    ("MLPerf", "nemo"),
    ("Primus", "primus"),
)
"""Part of a measurement's `source` -> preset; the first that matches, case ignored."""


def names() -> tuple[str, ...]:
    """Names of all presets."""
    return tuple(_PRESETS)


def get(name: str) -> FrameworkPreset:
    """The preset called `name`; `InputError` with the known names otherwise."""
    try:
        return _PRESETS[name]
    except KeyError:
        what = f"unknown framework preset {name!r}"
        raise InputError(Fault(what, "framework", "", "one of " + ", ".join(_PRESETS))) from None


def of(workload: Run) -> FrameworkPreset:
    """The preset of a workload's framework, with the workload's switches set; `InputError` as `get`."""
    return applied(get(workload.framework), workload.switches)


@contextmanager
def instead(preset: FrameworkPreset) -> Iterator[None]:
    """`preset` in the place of the known one of its name while the block runs (fits)."""
    known = get(preset.name)
    _PRESETS[preset.name] = preset
    try:
        yield
    finally:
        _PRESETS[preset.name] = known


def preset_for_source(source: str) -> str:
    """Name of the preset that a measurement's `source` speaks of; ``generic`` where none matches.

    The only code that lets `source` decide how a run is predicted; a row that names its framework does not come here.
    Scores read it too, to tell runs apart: `planner.compare.scoring` the families whose steps are ranked,
    `planner.compare.releases` the versions of the software.
    """
    text = source.casefold()
    return next((name for part, name in _SOURCES if part.casefold() in text), "generic")


def across_nodes(name: str) -> Switches:
    """Switches that a framework's recipes set where the expert grid leaves the node; none for most."""
    return ACROSS_NODES.get(name, ())


def on_racks(name: str) -> str:
    """The preset that a framework's recipes for racks of NVLink have (GB200, GB300 NVL72), where they differ."""
    return ON_RACKS.get(name, name)
