"""Reading measured.json back into a `Measurement`, with all faults of the file at once."""

from __future__ import annotations

from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from hwmodels.errors import Fault, InputError
from planner.files import read_json
from planner.results import Measurement, OpRecord, TimelineEvent

SCHEMA = 1


def _kind_of(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")


def _fits(value: Any, hint: Any) -> bool:
    if hint is Any:
        return True
    origin = get_origin(hint) or hint
    if origin is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if origin is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if origin is list:
        return isinstance(value, list) and all(_fits(item, get_args(hint)[0]) for item in value)
    if origin is dict:
        return isinstance(value, dict) and all(_fits(item, get_args(hint)[1]) for item in value.values())
    return isinstance(value, origin)


def _build(cls: type, content: Any, where: str, faults: list[Fault]) -> Any:
    """An instance of a dataclass from plain JSON, or None after adding to `faults`."""
    if not isinstance(content, dict):
        fix = "the file that planner run wrote"
        faults.append(Fault(f"is {_kind_of(content)}", where, "an object is expected", fix))
        return None
    hints = get_type_hints(cls)
    known = {f.name for f in fields(cls)}
    before = len(faults)
    faults += [Fault("unknown key", f"{where}.{key}", "", "leave it out") for key in content if key not in known]
    values: dict[str, Any] = {}
    for field in fields(cls):
        if field.name not in content:
            if field.default is MISSING and field.default_factory is MISSING:
                faults.append(Fault("is missing", f"{where}.{field.name}", "every measurement has it", field.name))
            continue
        value, hint = content[field.name], hints[field.name]
        inner = get_args(hint)[0] if get_origin(hint) is list else None
        if inner in (OpRecord, TimelineEvent):
            items = value if isinstance(value, list) else []
            if not isinstance(value, list):
                faults.append(Fault(f"is {_kind_of(value)}", f"{where}.{field.name}", "a list is expected", "[]"))
            values[field.name] = [_build(inner, v, f"{where}.{field.name}[{i}]", faults) for i, v in enumerate(items)]
        elif not _fits(value, hint):
            expected = str(hint).replace("typing.", "") if get_origin(hint) else hint.__name__
            why = f"{expected} is expected"
            faults.append(Fault(f"is {value!r:.60}", f"{where}.{field.name}", why, "measure again"))
        else:
            values[field.name] = value
    return cls(**values) if len(faults) == before else None


def read_measurement(path: str | Path) -> Measurement:
    """The content of measured.json.

    Raises
    ------
    hwmodels.errors.InputError
        Where the file is missing, no JSON, of another schema, or has missing, unknown or
        mistyped keys (all named with their path).
    """
    content = read_json(path)
    faults: list[Fault] = []
    found = _build(Measurement, content, str(path), faults)
    if isinstance(content, dict) and content.get("schema", SCHEMA) != SCHEMA:
        faults.insert(0, Fault(f"schema {content['schema']!r}", f"{path}.schema", "this version reads 1", "schema 1"))
    if faults:
        raise InputError(faults)
    measurement: Measurement = found
    return measurement
