"""YAML at the edge: parsed text with the line of every key, and faults as `InputError`.

The schema is a declaration (`hwmodels.declared`) with unknown keys forbidden and no coercion (a quoted number is a
fault); every fault of a file is reported at once as ``file:line: key``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import yaml

from hwmodels.declared import Strict, Unsure, read_slowly
from hwmodels.declared import read as read_declared
from hwmodels.errors import Fault, InputError

Schema = TypeVar("Schema", bound=Strict)
Keys = tuple[str | int, ...]
Marks = Mapping[Keys, int]
"""1-based line of every key of a file, by its keys from the root."""

_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_Base):  # type: ignore[misc]
    """YAML 1.2 floats: ``1e-6`` is a number, not text. Notes whether a mapping came out shorter than it was written."""

    doubled = False

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """As the base; a key that is given twice leaves one value."""
        made: dict[Any, Any] = super().construct_mapping(node, deep)
        self.doubled |= len(made) < len(node.value)
        return made


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


class _Lines(Mapping[Keys, int]):
    """The lines of a document, looked up when the first of them is asked for: those of a right file never are."""

    def __init__(self, root: yaml.Node) -> None:
        self._root = root
        self._found: dict[Keys, int] = {}

    def _all(self) -> dict[Keys, int]:
        if not self._found:
            self._found[()] = self._root.start_mark.line + 1
            _walk(self._root, (), self._found, [], "")
        return self._found

    def __getitem__(self, path: Keys) -> int:
        return self._all()[path]

    def __iter__(self) -> Iterator[Keys]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())


def _walk(node: yaml.Node, path: Keys, marks: dict[Keys, int], faults: list[Fault], file: str) -> None:
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


MOST_NODES = 1_000_000
"""Values of a file once its aliases are written out: a few lines of aliases of aliases can stand for billions."""


def _refuse_loops(root: yaml.Node, file: str) -> None:
    """InputError where an alias stands inside of what it names, or where aliases multiply without bound.

    Depth first without recursion: `sizes` holds the number of values below each node that is finished, `open_` the
    nodes on the way to the current one, of which an alias may name none.
    """
    sizes: dict[int, int] = {}
    open_: set[int] = set()
    stack: list[tuple[yaml.Node, bool]] = [(root, False)]
    while stack:
        node, done = stack.pop()
        below = [part for pair in node.value for part in pair] if isinstance(node, yaml.MappingNode) else (
            list(node.value) if isinstance(node, yaml.SequenceNode) else []
        )  # fmt: skip
        if done:
            open_.discard(id(node))
            sizes[id(node)] = 1 + sum(sizes[id(part)] for part in below)
            if sizes[id(node)] > MOST_NODES:
                why = f"it stands for more than {MOST_NODES:,} values"
                where = f"{file}:{node.start_mark.line + 1}"
                raise InputError(Fault("aliases multiply", where, why, "the values themselves, without aliases"))
            continue
        if id(node) in sizes:
            continue
        open_.add(id(node))
        stack.append((node, True))
        for part in below:
            if id(part) in open_:
                where = f"{file}:{part.start_mark.line + 1}"
                why = "a value cannot hold itself"
                raise InputError(Fault("an anchor is named inside of itself", where, why, "the value in its place"))
            stack.append((part, False))


def parse(text: str, file: str) -> tuple[Any, Marks]:
    """Plain data and the line of every key.

    Raises
    ------
    InputError
        For broken YAML (with line and column), an empty file, a key that is given twice, an alias inside of what it
        names, aliases that multiply beyond `MOST_NODES`, or a file that is nested deeper than Python's stack.
    """
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is not None and "*" in text:  # without it there is no alias
            _refuse_loops(node, file)
        data = loader.construct_document(node) if node is not None else None
    except RecursionError:
        raise InputError(Fault("is nested too deeply", file, fix="fewer levels of lists and mappings")) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{file}:{mark.line + 1}:{mark.column + 1}" if mark is not None else file
        why = " ".join(str(part) for part in (getattr(error, "problem", None) or error,))
        raise InputError(Fault("is not valid YAML", where, why, "text that a YAML parser accepts")) from None
    finally:
        loader.dispose()
    if node is None:
        raise InputError(Fault("is empty", file, fix="a mapping of keys"))
    if loader.doubled:
        faults: list[Fault] = []
        _walk(node, (), {}, faults, file)
        if faults:
            raise InputError(faults)
    return data, _Lines(node)


def where(file: str, loc: Keys, marks: Marks) -> str:
    """``file:line: a.b[0]`` for the deepest part of `loc` that the file has."""
    known = tuple(loc)
    while known and known not in marks:
        known = known[:-1]
    text = ""
    for part in loc:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return f"{file}:{marks.get(known, 1)}: {text}" if text else f"{file}:{marks.get(known, 1)}"


_FIXES = {
    "model_type": "a mapping of keys",
    "extra_forbidden": "remove it or correct its spelling",
    "missing": "add it",
    "int_type": "a whole number without quotes",
    "float_type": "a number without quotes",
    "string_type": "text",
    "dict_type": "a mapping of keys",
    "list_type": "a list",
    "tuple_type": "a list",
}
_WHYS = {"model_type": "it is no mapping of keys"}
"""In the place of what pydantic says where it names classes."""

_MEMBER = re.compile(r"(?P<text>constrained-str|str)|dict\[.*\]|[A-Z]\w*")
"""What pydantic puts into the place of a fault for a member of a union: a name, or the mapping that it stands for."""


def _place(loc: tuple[Any, ...], data: Any) -> tuple[Keys, str]:
    """The keys of `loc` without pydantic's own words, and the member of a union that it ends with ("" for none)."""
    keys: list[str | int] = []
    member, here = "", data
    for part in loc:
        if not isinstance(part, (str, int)) or str(part).startswith("function-"):
            continue
        if isinstance(part, str) and _MEMBER.fullmatch(part) and not (isinstance(here, dict) and part in here):
            member = part
            continue
        keys.append(part)
        member = ""
        try:
            here = here[part]
        except (KeyError, IndexError, TypeError):
            here = None
    return tuple(keys), member


def _of_another_member(member: str, given: Any) -> bool:
    """Whether a fault only says that a value is of another member of its union: a name is none for a mapping."""
    match = _MEMBER.fullmatch(member) if member else None
    if match is None:
        return False
    return isinstance(given, dict) if match.group("text") else isinstance(given, str)


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


def _shown(given: Any) -> str:
    return repr(given) if len(repr(given)) < 60 else type(given).__name__


def validate(schema: type[Schema], data: Any, file: str, marks: Marks) -> Schema:
    """`data` as `schema`; InputError with all faults, each with file, line and key."""
    with suppress(Unsure):
        return read_declared(schema, data)
    from pydantic import ValidationError

    try:
        return read_slowly(schema, data)
    except ValidationError as error:
        faults: list[Fault] = []
        for item in error.errors(include_url=False):
            loc, member = _place(item["loc"], data)
            kind, given = item["type"], item.get("input")
            if _of_another_member(member, given):
                continue
            if member and not isinstance(given, (dict, str)):
                neither = Fault(f"value {_shown(given)}", where(file, loc, marks), "it is neither a name nor a mapping",
                                "a name, or a mapping of keys")  # fmt: skip
                faults += [neither] if neither not in faults else []
            elif kind == "extra_forbidden":
                fields = ", ".join(schema.declared_fields()) if len(loc) == 1 else ""
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
                    why = _WHYS.get(kind) or item["msg"][:1].lower() + item["msg"][1:]
                    fix = _way_out(kind, item.get("ctx", {}))
                    faults.append(Fault(f"value {_shown(given)}", where(file, loc, marks), why, fix))
        raise InputError(faults) from None


def dump(content: dict[str, Any]) -> str:
    """YAML text with keys in the order given; only what is nested may stand on one line."""
    parts = []
    for key, value in content.items():
        flow = None if isinstance(value, (dict, list)) else False
        parts.append(yaml.dump({key: value}, sort_keys=False, default_flow_style=flow, width=110, allow_unicode=True))
    return "".join(parts)
