"""Models: `ModelSpec`, one importer per family of Hugging Face configs, and a catalog of known shapes.

A new file in this package that holds an `Importer` is found by itself.
"""

from __future__ import annotations

import difflib
import importlib
import json
import pkgutil
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from hwmodels.errors import Fault, InputError
from planner.files import read_json
from planner.model.base import Importer, kind_of
from planner.model.spec import ModelSpec

__all__ = ["ModelSpec", "families", "load", "names", "read_config"]


@cache
def _registry() -> dict[str, Importer]:
    found: dict[str, Importer] = {}
    for module in pkgutil.iter_modules(__path__):
        found |= _importers(module.name)
    return dict(sorted(found.items()))


def _importers(module: str) -> dict[str, Importer]:
    """`model_type` -> importer of one module of this package."""
    loaded = importlib.import_module(f"{__name__}.{module}")
    found: dict[str, Importer] = {}
    for value in vars(loaded).values():
        here = isinstance(value, type) and issubclass(value, Importer) and value.__module__ == loaded.__name__
        if here and value is not Importer:
            importer = value()
            found.update(dict.fromkeys(value.model_types, importer))
    return found


@cache
def _importer(kind: str) -> Importer | None:
    """The importer of a `model_type`; the modules whose text names it are asked before all are imported."""
    for path in sorted(Path(__file__).parent.glob("*.py")):
        if path.name != "__init__.py" and f'"{kind}"' in path.read_text(encoding="utf-8"):
            found = _importers(path.stem).get(kind)
            if found is not None:
                return found
    return _registry().get(kind)


def families() -> tuple[str, ...]:
    """The `model_type`s that can be read, sorted."""
    return tuple(_registry())


@cache
def names() -> tuple[str, ...]:
    """Names of the catalog of known architectures, sorted."""
    folder = Path(__file__).parent / "catalog"
    return tuple(sorted(entry.name.removesuffix(".json") for entry in folder.iterdir() if entry.name.endswith(".json")))


def _near(word: str, known: tuple[str, ...]) -> str:
    """What a wrong word may have meant; everything that is known where nothing resembles it."""
    close = difflib.get_close_matches(word, known, 3, 0.6)
    return " or ".join(close) if close else "one of " + ", ".join(known)


def read_config(config: Mapping[str, Any], name: str = "", source: str = "") -> ModelSpec:
    """The spec of a parsed Hugging Face config.json.

    Parameters
    ----------
    config : mapping
        Its `model_type` chooses the importer.
    name : str
        Name of the model; by default the config's own, or its `model_type`.
    source : str
        Where the config came from; printed in front of the key path of a fault.

    Raises
    ------
    hwmodels.errors.InputError
        With every missing, mistyped or contradictory key, or naming the readable
        `model_type`s where this one is not.
    """
    if not isinstance(config, Mapping):
        raise InputError(
            Fault(f"is {kind_of(config)}", source, "a model config is a JSON object", "the model's config.json")
        )
    where = f"{source}: model_type" if source else "model_type"
    kind = config.get("model_type")
    importer = _importer(kind) if isinstance(kind, str) and kind else None
    known = families() if importer is None else ()
    if not isinstance(kind, str) or not kind:
        what = "is missing" if kind is None else f"is {kind_of(kind)}"
        raise InputError(Fault(what, where, "it says which family the keys belong to", "one of " + ", ".join(known)))
    if importer is None:
        close = difflib.get_close_matches(kind, known, 2, 0.6)
        meant = f"did you mean {' or '.join(close)}? " if close else ""
        raise InputError(
            Fault(
                f"{kind!r} is not a supported model family",
                where,
                "its keys cannot be read without guessing",
                f"{meant}supported: {', '.join(known)}",
            )
        )
    own = config.get("_name_or_path")
    return importer.read(config, name or (Path(own).name if isinstance(own, str) and own else kind), source)


def _read_file(path: Path) -> tuple[ModelSpec, dict[str, Any]]:
    target = path / "config.json" if path.is_dir() else path
    config = read_json(target)
    name = target.stem if target.stem != "config" else target.resolve().parent.name
    spec = read_config(config, name, str(target))
    return spec, dict(config)


def load(name_or_path: str | Path) -> tuple[ModelSpec, dict[str, Any]]:
    """A model by catalog name, path of a config.json, or folder that holds one.

    Returns
    -------
    spec : ModelSpec
    config : dict
        The raw config, so that a plan can carry it.

    Raises
    ------
    hwmodels.errors.InputError
        Where there is no such name or file, or the config has faults.
    """
    text = str(name_or_path)
    if text in names():
        config = json.loads((Path(__file__).parent / "catalog" / f"{text}.json").read_text(encoding="utf-8"))
        return read_config(config, text, f"catalog/{text}.json"), config
    path = Path(text)
    if text and (path.exists() or path.suffix == ".json" or len(path.parts) > 1):
        return _read_file(path)
    raise InputError(
        Fault(
            f"no model named {text!r}",
            "model",
            "it is neither in the catalog nor a file",
            f"{_near(text, names())}, or the path of a config.json",
        )
    )
