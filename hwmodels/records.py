"""`dataclass` of the standard library, made in a third of its time.

`dataclasses.dataclass` compiles six functions of source text for each frozen class. A search imports two hundred of
them, and those thousand compilations take as long as pricing tens of thousands of layouts. Here the fields are still
found by the standard library, and ``__init__``, which alone has to be fast and has parameters of its own, is still
compiled; comparison, hash, repr and the refusal of assignment are closures over the names of the fields. What is not
one of these cases (a subclass of a dataclass, keyword-only fields, an order) is left to the standard library whole.
A test holds both equal.
"""

from __future__ import annotations

import dataclasses
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import dataclass
else:
    from collections.abc import Callable
    from operator import attrgetter
    from typing import Any

    def dataclass(cls=None, /, *, frozen=False, slots=False, eq=True, repr=True, **others):  # noqa: A002
        """As `dataclasses.dataclass`."""

        def make(cls: type) -> type:
            defined = vars(cls)
            plain = not others and not any(dataclasses.is_dataclass(base) for base in cls.__mro__[1:])
            if not plain or "__setattr__" in defined or "__delattr__" in defined or _special(defined):
                return dataclasses.dataclass(frozen=frozen, slots=slots, eq=eq, repr=repr, **others)(cls)
            return _made(cls, frozen, slots, eq, repr)

        return make if cls is None else make(cls)

    def _special(defined: dict[str, Any]) -> bool:
        """Whether a field asks for more than a name, a type and a default."""
        marked = (value for value in defined.values() if isinstance(value, dataclasses.Field))
        if any(one.hash is not None or one.kw_only not in (False, dataclasses.MISSING) for one in marked):
            return True
        notes = " ".join(map(str, defined.get("__annotations__", {}).values()))
        return "InitVar" in notes or "KW_ONLY" in notes

    def _made(cls: type, frozen: bool, slots: bool, eq: bool, repr: bool) -> type:  # noqa: A002
        own_hash = vars(cls).get("__hash__", ...)
        hashed = own_hash is not ... and not (own_hash is None and "__eq__" in vars(cls))
        cls = dataclasses.dataclass(init=False, repr=False, eq=False, slots=slots)(cls)
        fields = dataclasses.fields(cls)
        key = _key([f.name for f in fields if f.compare])
        _add(cls, "__init__", _init(cls, fields, frozen))
        if repr:
            _add(cls, "__repr__", _repr([f.name for f in fields if f.repr]))
        if eq:
            _add(cls, "__eq__", _eq(key))
        if eq and not hashed:
            cls.__hash__ = _hash(key) if frozen else None
        if frozen:
            cls.__setattr__, cls.__delattr__ = _refusals(cls, frozenset(f.name for f in fields))
            if slots:
                _add(cls, "__getstate__", _getstate)
                _add(cls, "__setstate__", _setstate)
        params = cls.__dataclass_params__
        params.init, params.repr, params.eq, params.frozen = True, repr, eq, frozen
        return cls

    def _add(cls: type, name: str, function: Callable[..., Any]) -> None:
        """What the class defines itself stays."""
        if name not in vars(cls):
            function.__qualname__ = f"{cls.__qualname__}.{name}"
            setattr(cls, name, function)

    class _Factory:
        def __repr__(self) -> str:
            return "<factory>"

    _FACTORY = _Factory()

    def _init(cls: type, fields: tuple[Any, ...], frozen: bool) -> Callable[..., None]:
        """``__init__`` with the fields as parameters, compiled as the standard library compiles it."""
        held: dict[str, Any] = {"_set": object.__setattr__, "_missing": _FACTORY}
        words, body, notes = ["self"], [], {}
        for f in fields:
            name, value = f.name, f.name
            if f.default_factory is not dataclasses.MISSING:
                held[f"_make_{name}"] = f.default_factory
                value = f"_make_{name}() if {name} is _missing else {name}" if f.init else f"_make_{name}()"
            elif f.default is not dataclasses.MISSING:
                held[f"_default_{name}"] = f.default
                value = name if f.init else f"_default_{name}"
            elif not f.init:
                continue
            if f.init:
                notes[name] = f.type
                absent = "" if f.default is dataclasses.MISSING else f"=_default_{name}"
                words.append(name + (absent if f.default_factory is dataclasses.MISSING else "=_missing"))
            body.append(f"  _set(self, {name!r}, {value})" if frozen else f"  self.{name} = {value}")
        if hasattr(cls, "__post_init__"):
            body.append("  self.__post_init__()")
        source = f"def _create({', '.join(held)}):\n def __init__({', '.join(words)}):\n"
        source += "\n".join(body or ["  pass"]) + "\n return __init__"
        found: dict[str, Any] = {}
        exec(source, vars(sys.modules[cls.__module__]), found)
        made = found["_create"](**held)
        made.__annotations__ = {**notes, "return": None}
        return made

    def _key(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
        """The values of these fields."""
        if len(names) > 1:
            return attrgetter(*names)
        if not names:
            return lambda record: ()
        one = attrgetter(names[0])
        return lambda record: (one(record),)

    def _eq(key: Callable[[Any], tuple[Any, ...]]) -> Callable[..., Any]:
        def __eq__(self, other):  # noqa: N807
            return key(self) == key(other) if other.__class__ is self.__class__ else NotImplemented

        return __eq__

    def _hash(key: Callable[[Any], tuple[Any, ...]]) -> Callable[..., int]:
        def __hash__(self):  # noqa: N807
            return hash(key(self))

        return __hash__

    def _repr(names: list[str]) -> Callable[..., str]:
        def __repr__(self):  # noqa: N807
            return f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"

        return __repr__

    def _refusals(cls: type, names: frozenset[str]) -> tuple[Callable[..., None], Callable[..., None]]:
        """``__setattr__`` and ``__delattr__`` of a frozen class; a subclass may have attributes of its own."""

        def __setattr__(self, name, value):  # noqa: N807
            if type(self) is cls or name in names:
                raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
            super(cls, self).__setattr__(name, value)

        def __delattr__(self, name):  # noqa: N807
            if type(self) is cls or name in names:
                raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
            super(cls, self).__delattr__(name)

        return __setattr__, __delattr__

    def _getstate(self):
        return [getattr(self, f.name) for f in dataclasses.fields(self)]

    def _setstate(self, state):
        for f, value in zip(dataclasses.fields(self), state, strict=True):
            object.__setattr__(self, f.name, value)


__all__ = ["dataclass"]
