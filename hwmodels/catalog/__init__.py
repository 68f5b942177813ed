"""The catalog that ships with the package: devices, networks and clusters, one YAML each."""

from __future__ import annotations

import difflib
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from hwmodels import yamlfile
from hwmodels.device import Device
from hwmodels.errors import Fault, InputError
from hwmodels.network import Link

FOLDER = Path(__file__).parent


@lru_cache(maxsize=3)
def _names(folder: str) -> tuple[str, ...]:
    entries = (FOLDER / folder).iterdir()
    return tuple(sorted(e.name.removesuffix(".yaml") for e in entries if e.name.endswith(".yaml")))


def device_names() -> tuple[str, ...]:
    """Devices that the catalog knows."""
    return _names("devices")


def network_names() -> tuple[str, ...]:
    """Links that the catalog knows."""
    return _names("networks")


def cluster_names() -> tuple[str, ...]:
    """Cluster presets that the catalog knows."""
    return _names("clusters")


def text(folder: str, name: str) -> str:
    """YAML text of an entry of ``devices``, ``networks`` or ``clusters``.

    Raises
    ------
    InputError
        For an unknown name, with the closest known ones.
    """
    known = _names(folder)
    if name not in known:
        near = difflib.get_close_matches(name, known, n=4, cutoff=0.4) or list(known)
        raise InputError(Fault(f"{folder[:-1]} {name!r} is not in the catalog", fix="one of " + ", ".join(near)))
    return (FOLDER / folder / f"{name}.yaml").read_text(encoding="utf-8")


def _entry(folder: str, name: str, schema: type[Any]) -> Any:
    file = f"catalog/{folder}/{name}.yaml"
    data, marks = yamlfile.parse(text(folder, name), file)
    return yamlfile.validate(schema, data, file, marks)


@cache
def device(name: str) -> Device:
    """The `Device` of that name.

    Raises
    ------
    InputError
        For an unknown name.
    """
    from hwmodels.schema import DeviceFile

    entry = _entry("devices", name, DeviceFile)
    built: Device = entry.build()
    return built


@cache
def link(name: str) -> Link:
    """The `Link` of that name.

    Raises
    ------
    InputError
        For an unknown name.
    """
    from hwmodels.schema import LinkFile

    entry = _entry("networks", name, LinkFile)
    built: Link = entry.build()
    return built
