"""Scenarios that work as they are: one question each, from the model to the outputs."""

from __future__ import annotations

from pathlib import Path


def names() -> tuple[str, ...]:
    """Names of the shipped scenarios, sorted."""
    entries = (entry.name for entry in Path(__file__).parent.iterdir())
    return tuple(sorted(name.removesuffix(".yaml") for name in entries if name.endswith(".yaml")))


def path(name: str) -> Path:
    """The file of a shipped scenario, by its name with or without ``.yaml``.

    Raises
    ------
    hwmodels.errors.InputError
        Where there is none of that name.
    """
    from hwmodels.errors import Fault, InputError

    bare = name.removesuffix(".yaml")
    if bare not in names():
        raise InputError(Fault(f"no scenario named {name!r}", "scenario", "it does not ship", " or ".join(names())))
    return Path(__file__).parent / f"{bare}.yaml"
