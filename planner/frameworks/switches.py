"""switches: fields of a framework preset that a run may set otherwise, by name.

A preset says what a framework does by default; a run that was started with other flags (a compiled
model, CUDA graphs, gradients reduced in bf16) says so with a switch. Switches are words in a plan and a scenario
(``{"cuda_graphs": "true"}``), so that a plan stays readable and a preset stays the only place of the meaning.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from difflib import get_close_matches
from functools import lru_cache
from inspect import cleandoc
from typing import Any

from hwmodels.errors import Fault, InputError
from planner.frameworks.base import FrameworkPreset
from planner.moe_switches import MoeSwitches

Switches = tuple[tuple[str, str], ...]

_FIXED = frozenset(
    {"name", "notes", "source", "kernel_s", "microbatch_s", "step_s", "scalings", "quantised_params", "zero_stages",
     "schedules", "searched_schedules", "zero_stage", "recomputes", "cp_kind", "cp_kinds",
     "selective", "uneven_stages", "recompute_by_stage"}
)  # fmt: skip
"""What makes a preset the preset it is, what a layout states, and fitted host constants: no switch."""

SWITCHES: tuple[str, ...] = tuple(f.name for f in fields(FrameworkPreset) if f.name not in _FIXED)
"""Every switch; its meaning is the attribute of `FrameworkPreset` of that name."""

COMPILED: tuple[str, ...] = ("fused_elementwise", "fused_norm", "fused_residual_norm")
"""What ``torch_compile`` turns on. Inductor fuses every chain of pointwise operators and the reductions at its end
(PyTorch documentation, torch.compiler: TorchInductor); torchtitan compiles each layer by itself
(`torchtitan/models/llama3/infra/parallelize.py` ``apply_compile``). A compiled loss is `fused_cross_entropy`."""

_DEFAULTS: dict[str, Any] = {f.name: f.default for f in fields(FrameworkPreset) if f.name in SWITCHES}
_ATTRIBUTE = re.compile(r"(?P<names>\w+(?:, \w+)*) : ")
"""First line of an attribute in a numpydoc docstring."""

_YES_NO = {"true": True, "false": False, "yes": True, "no": False, "on": True, "off": False}


def normal(given: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> Switches:
    """Switches in the order of `SWITCHES`, values as words.

    Raises
    ------
    InputError
        With every name that is no switch and every value that is none of its kind.
    """
    try:
        pairs = dict(given.items() if isinstance(given, Mapping) else given)
    except (TypeError, ValueError):
        why, fix = "switches are pairs of a name and a word", '(("cuda_graphs", "true"),)'
        raise InputError(Fault(f"switches is {given!r}", "workload.switches", why, fix)) from None
    faults = [
        Fault(f"{name!r} is no switch", f"workload.switches.{name}", "", _nearest(name))
        for name in pairs
        if name not in SWITCHES
    ]
    found = []
    for name in SWITCHES:
        if name in pairs:
            text = str(pairs[name]).strip().lower() if isinstance(pairs[name], bool) else str(pairs[name]).strip()
            try:
                _value(name, text)
            except InputError as error:
                faults += error.faults
            found.append((name, text))
    if faults:
        raise InputError(faults)
    return tuple(found)


def _nearest(name: str) -> str:
    """A switch that may have been meant, and where all of them stand."""
    near = get_close_matches(name, SWITCHES, n=2)
    return " or ".join([*near, "a name of `python -m planner list switches`"])


def _value(name: str, text: str) -> Any:
    """The value that a word means for a switch."""
    default, where = _DEFAULTS[name], f"workload.switches.{name}"
    if isinstance(default, bool):
        if text.lower() not in _YES_NO:
            raise InputError(Fault(f"{name} is {text!r}", where, "it is on or off", "true or false"))
        return _YES_NO[text.lower()]
    if isinstance(default, int | float):
        try:
            number = float(text)
        except ValueError:
            raise InputError(Fault(f"{name} is {text!r}", where, "a number is expected", str(default))) from None
        if isinstance(default, int) and not number.is_integer():
            raise InputError(Fault(f"{name} is {text!r}", where, "a whole number is expected", str(default)))
        return int(number) if isinstance(default, int) else number
    return text


@lru_cache(maxsize=1024)
def applied(preset: FrameworkPreset, switches: Switches) -> FrameworkPreset:
    """The preset with switches set; checked again as a whole.

    Raises
    ------
    InputError
        Where the preset does not hold together with them.
    """
    if not switches:
        return preset
    given = {name: _value(name, text) for name, text in switches}
    implied = dict.fromkeys(COMPILED, True) if given.get("torch_compile") else {}
    return replace(preset, **(implied | given))


def described(switches: Switches) -> str:
    """``name=value`` pairs for a table; blank without any."""
    return ", ".join(f"{name}={text}" for name, text in switches)


def departures(preset: FrameworkPreset) -> Switches:
    """What a preset sets otherwise than a well-made framework by default, as switches."""
    return tuple((name, _word(getattr(preset, name))) for name in SWITCHES if getattr(preset, name) != _DEFAULTS[name])


def defaults() -> dict[str, str]:
    """The word that each switch has where no preset sets it."""
    return {name: _word(value) for name, value in _DEFAULTS.items()}


def meanings() -> dict[str, str]:
    """What each switch means: its attribute in the docstrings of the contract, on one line."""
    found: dict[str, str] = {}
    for contract in (FrameworkPreset, MoeSwitches):
        lines = cleandoc(contract.__doc__ or "").splitlines()
        named: tuple[str, ...] = ()
        for line in lines:
            if head := _ATTRIBUTE.match(line):
                named = tuple(name.strip() for name in head["names"].split(","))
            elif line.startswith("    "):
                found |= {name: f"{found.get(name, '')} {line.strip()}".strip() for name in named}
    return {name: found[name].replace("``", "`") for name in SWITCHES}


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
