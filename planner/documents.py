"""Strict reading of JSON documents into the plain dataclasses that describe them.

The dataclass is the only description: a pydantic schema is derived from its fields, with unknown
keys forbidden and no coercion (a quoted number is text). All faults of a document are raised
together, each with its JSON path.
"""

from __future__ import annotations

import difflib
import json
import types
from collections.abc import Iterable
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from hwmodels.errors import Fault, InputError

T = TypeVar("T")

MOST_FAULTS = 40
"""A document with more faults than this has one cause; the rest are only counted."""


def from_dict(cls: type[T], content: Any, source: str = "") -> T:
    """Build a dataclass from plain JSON-able content.

    Parameters
    ----------
    cls : type
        A dataclass; nested dataclasses, tuples, lists, dicts and optional values may occur.
    content : dict
        What `dataclasses.asdict` or a JSON parser gives.
    source : str
        File that the faults name.

    Raises
    ------
    hwmodels.errors.InputError
        With every unknown, missing or mistyped key under its JSON path.
    """
    from pydantic import ValidationError

    try:
        plain = _adapter(cast(Any, cls)).validate_json(json.dumps(content))
    except ValidationError as error:
        found = [_fault(cls, item, source) for item in error.errors(include_url=False)]
        raise InputError(limited(found, source)) from None
    return cast(T, _build(cls, plain))


def limited(found: Iterable[Fault], source: str = "") -> list[Fault]:
    """The first `MOST_FAULTS` faults, and one that counts the rest."""
    items = list(found)
    if len(items) <= MOST_FAULTS:
        return items
    rest = len(items) - MOST_FAULTS
    return [*items[:MOST_FAULTS], Fault(f"{rest} more faults of the same kind", source)]


def json_path(location: Iterable[str | int]) -> str:
    """Key path as people write it: ``stages[0].layers[2]``."""
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def place(source: str, path: str) -> str:
    """Source and key path, as faults print them."""
    return f"{source}: {path}" if source and path else source or path


def describe(value: Any) -> str:
    """A JSON value as a person would call it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return f"{str(value).lower()} (true/false)"
    if isinstance(value, str):
        return f"{value!r} (text)" if len(value) <= 60 else "a long text"
    if isinstance(value, dict):
        return "an object"
    return "a list" if isinstance(value, list | tuple) else repr(value)


_EXPECTED = {
    "int_type": "a whole number without quotes",
    "int_from_float": "a whole number",
    "float_type": "a number without quotes",
    "finite_number": "a finite number",
    "string_type": "text",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": "an object",
    "literal_error": "",
}


def _fault(cls: Any, item: Any, source: str) -> Fault:
    kind, location, value = item["type"], item["loc"], item["input"]
    where = place(source, json_path(location))
    if kind == "extra_forbidden":
        near = difflib.get_close_matches(str(location[-1]), sorted(_names(cls)), 1, 0.6)
        return Fault("is not a known key", where, "unknown keys are refused", near[0] if near else "leave it out")
    if kind == "missing" and isinstance(location[-1], int):
        return Fault(f"has no entry {location[-1]}", place(source, json_path(location[:-1])), "the format requires it")
    if kind == "missing":
        return Fault("is missing", where, "the format requires it", f"add {location[-1]!r}")
    if kind in ("too_short", "too_long"):
        return Fault("has the wrong number of entries", where, item["msg"], "as many as the format says")
    expected = _EXPECTED.get(kind) or item["msg"].removeprefix("Input should be ")
    return Fault(f"is {describe(value)}", where, f"{expected} is expected", expected)


@cache
def _names(cls: Any) -> frozenset[str]:
    """Field names of a dataclass and of all that nest in it."""
    found = set()
    for name, hint in get_type_hints(cls).items():
        found.add(name)
        for inner in _dataclasses(hint):
            found |= _names(inner)
    return frozenset(found)


def _dataclasses(hint: Any) -> list[Any]:
    if is_dataclass(hint) and isinstance(hint, type):
        return [hint]
    return [found for part in get_args(hint) for found in _dataclasses(part)]


@cache
def _adapter(cls: Any) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(_schema(cls))


@cache
def _schema(cls: Any) -> Any:
    """The strict TypedDict with the fields of a dataclass: pydantic needs no model class then."""
    from pydantic import ConfigDict
    from typing_extensions import NotRequired, TypedDict  # noqa: UP035 - pydantic needs this one before Python 3.12

    hints = get_type_hints(cls)
    keys: dict[str, Any] = {}
    for entry in fields(cls):
        optional = entry.default is not MISSING or entry.default_factory is not MISSING
        translated = _translate(hints[entry.name])
        keys[entry.name] = NotRequired[translated] if optional else translated
    made: Any = cast(Any, TypedDict)(cls.__name__, keys)
    made.__pydantic_config__ = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
    return made


def _translate(hint: Any) -> Any:
    """A type hint with each dataclass replaced by its schema."""
    if is_dataclass(hint) and isinstance(hint, type):
        return _schema(hint)
    origin, parts = get_origin(hint), get_args(hint)
    if origin is None or not _dataclasses(hint):
        return hint
    translated = tuple(part if part is Ellipsis else _translate(part) for part in parts)
    if origin in (Union, types.UnionType):
        return Union[translated]  # noqa: UP007 - built at run time
    return origin[translated]


def _build(hint: Any, value: Any) -> Any:
    """Dataclass instances out of validated plain content."""
    if is_dataclass(hint) and isinstance(hint, type):
        hints = get_type_hints(hint)
        return hint(**{key: _build(hints[key], item) for key, item in value.items()})
    if value is None or not _dataclasses(hint):
        return value
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _build(next(part for part in parts if _dataclasses(part)), value)
    if origin is dict:
        return {key: _build(parts[1], item) for key, item in value.items()}
    items = (_build(parts[0], item) for item in value)
    return tuple(items) if origin is tuple else list(items)
