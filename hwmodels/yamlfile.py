"""YAML at the edge: parsed text with the line of every key, and faults as `InputError`.

The schema is pydantic with unknown keys forbidden and no coercion (a quoted number is a fault);
every fault of a file is reported at once as ``file:line: key``.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from hwmodels.errors import Fault, InputError

Schema = TypeVar("Schema", bound=BaseModel)
Marks = dict[tuple[str | int, ...], int]

_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_Base):  # type: ignore[misc]
    """YAML 1.2 floats: ``1e-6`` is a number, not text."""


_Loader.yaml_implicit_resolvers = {k: list(v) for k, v in _Base.yaml_implicit_resolvers.items()}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$"),
    list("-+.0123456789"),
)


def read(path: str | Path) -> str:
    """Text of a file; `InputError` where it is missing or unreadable."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(Fault("no such file", str(path), fix="a path that exists")) from None
    except UnicodeDecodeError as error:
        raise InputError(Fault("is not UTF-8 text", str(path), str(error), "a text file")) from None
    except OSError as error:
        raise InputError(Fault("cannot be read", str(path), error.strerror or str(error), "a readable file")) from None


def _walk(node: yaml.Node, path: tuple[str | int, ...], marks: Marks, faults: list[Fault], file: str) -> None:
    """Fill `marks` with 1-based lines; a key given twice is a fault (YAML would keep the last)."""
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            name: Any = key.value
            if key.tag.endswith(":int"):
                name = int(key.value, 0)
            child = (*path, name)
            line = key.start_mark.line + 1
            if name in seen:
                faults.append(Fault(f"key {name!r} is given twice", f"{file}:{line}", fix="one of the two"))
            seen.add(name)
            marks[child] = line
            _walk(value, child, marks, faults, file)
    elif isinstance(node, yaml.SequenceNode):
        for i, value in enumerate(node.value):
            child = (*path, i)
            marks[child] = value.start_mark.line + 1
            _walk(value, child, marks, faults, file)


def parse(text: str, file: str) -> tuple[Any, Marks]:
    """Plain data and the line of every key.

    Raises
    ------
    InputError
        For broken YAML (with line and column), an empty file, or a key that is given twice.
    """
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        data = loader.construct_document(node) if node is not None else None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{file}:{mark.line + 1}:{mark.column + 1}" if mark is not None else file
        why = " ".join(str(part) for part in (getattr(error, "problem", None) or error,))
        raise InputError(Fault("is not valid YAML", where, why, "text that a YAML parser accepts")) from None
    finally:
        loader.dispose()
    if node is None:
        raise InputError(Fault("is empty", file, fix="a mapping of keys"))
    marks: Marks = {(): node.start_mark.line + 1}
    faults: list[Fault] = []
    _walk(node, (), marks, faults, file)
    if faults:
        raise InputError(faults)
    return data, marks


def where(file: str, loc: tuple[str | int, ...], marks: Marks) -> str:
    """``file:line: a.b[0]`` for the deepest part of `loc` that the file has."""
    known = tuple(loc)
    while known and known not in marks:
        known = known[:-1]
    text = ""
    for part in loc:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return f"{file}:{marks.get(known, 1)}: {text}" if text else f"{file}:{marks.get(known, 1)}"


_FIXES = {
    "extra_forbidden": "remove it or correct its spelling",
    "missing": "add it",
    "int_type": "a whole number without quotes",
    "float_type": "a number without quotes",
    "string_type": "text",
    "dict_type": "a mapping of keys",
    "list_type": "a list",
    "tuple_type": "a list",
}


_BOUNDS = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}


def _way_out(kind: str, context: dict[str, Any]) -> str:
    """What would work in the place of a value, from the kind of its fault."""
    if kind in _FIXES:
        return _FIXES[kind]
    bounds = [f"{words} {context[name]}" for name, words in _BOUNDS.items() if name in context]
    if bounds:
        return "a value of " + " and ".join(bounds)
    if "expected" in context:
        return str(context["expected"])
    if "min_length" in context:
        return f"at least {context['min_length']} entries"
    return "a value of the kind that is named"


def validate(schema: type[Schema], data: Any, file: str, marks: Marks) -> Schema:
    """`data` as `schema`; InputError with all faults, each with file, line and key."""
    try:
        return schema.model_validate(data)
    except ValidationError as error:
        faults = []
        for item in error.errors(include_url=False):
            loc = tuple(p for p in item["loc"] if isinstance(p, (str, int)) and not str(p).startswith("function-"))
            kind, given = item["type"], item.get("input")
            if kind == "extra_forbidden":
                fields = ", ".join(schema.model_fields) if len(loc) == 1 else ""
                fix = f"remove it, or one of {fields}" if fields else _FIXES[kind]
                faults.append(Fault(f"unknown key {loc[-1]!r}", where(file, loc, marks), "", fix))
            elif kind == "missing":
                faults.append(Fault(f"key {loc[-1]!r} is missing", where(file, loc[:-1], marks), "", _FIXES[kind]))
            else:
                cause = item.get("ctx", {}).get("error")
                inner = getattr(cause, "faults", ())
                if inner:
                    faults += [Fault(f.what, where(file, loc, marks), f.why, f.fix) for f in inner]
                else:
                    shown = repr(given) if len(repr(given)) < 60 else type(given).__name__
                    why = item["msg"][:1].lower() + item["msg"][1:]
                    fix = _way_out(kind, item.get("ctx", {}))
                    faults.append(Fault(f"value {shown}", where(file, loc, marks), why, fix))
        raise InputError(faults) from None


def dump(content: dict[str, Any]) -> str:
    """YAML text with keys in the order given; only what is nested may stand on one line."""
    parts = []
    for key, value in content.items():
        flow = None if isinstance(value, (dict, list)) else False
        parts.append(yaml.dump({key: value}, sort_keys=False, default_flow_style=flow, width=110, allow_unicode=True))
    return "".join(parts)
