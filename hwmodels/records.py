"""`dataclass` of the standard library, made in a tenth of its time.

`dataclasses.dataclass` compiles six functions of source text for each frozen class. A search imports two hundred of
them, and those thousand compilations take as long as pricing tens of thousands of layouts. Here comparison, hash, repr
and the refusal of assignment are closures over the names of the fields, and ``__init__``, which alone has to be fast
and has parameters of its own, is compiled as the standard library compiles it, but when it is first used: of most
classes that a command imports it makes no record. What is not one of these cases (an order, `KW_ONLY`, annotations that
are not text) is left to the standard library whole. A test holds both equal.
"""

from __future__ import annotations

import dataclasses
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import dataclass
else:
    from collections.abc import Callable
    from copy import copy
    from operator import attrgetter
    from typing import Any

    def dataclass(cls=None, /, *, frozen=False, slots=False, eq=True, repr=True, kw_only=False, **others):  # noqa: A002
        """As `dataclasses.dataclass`."""

        def make(cls: type) -> type:
            if others or _special(cls, frozen):
                others.update(frozen=frozen, slots=slots, eq=eq, repr=repr, kw_only=kw_only)
                return dataclasses.dataclass(**others)(cls)
            return _made(cls, _fields(cls, kw_only), frozen, slots, eq, repr)

        return make if cls is None else make(cls)

    def _special(cls: type, frozen: bool) -> bool:
        """Whether the class asks for more than fields with a name, a type and a default."""
        defined = vars(cls)
        if any(p.frozen != frozen for p in (getattr(base, _PARAMS, None) for base in cls.__mro__[1:]) if p is not None):
            return True
        if any(name in defined for name in ("__setattr__", "__delattr__", "__slots__")):
            return True
        if defined.get("__doc__") is None:  # one is written, from the signature
            return True
        if any(isinstance(value, dataclasses.Field) and value.hash is not None for value in defined.values()):
            return True
        notes = defined.get("__annotations__", {}).values()
        return not all(isinstance(note, str) for note in notes) or any(
            word in note for note in notes for word in ("InitVar", "KW_ONLY")
        )

    def _made(cls: type, fields: tuple[Any, ...], frozen: bool, slots: bool, eq: bool, repr: bool) -> type:  # noqa: A002
        own_hash = vars(cls).get("__hash__", ...)
        hashed = own_hash is not ... and not (own_hash is None and "__eq__" in vars(cls))
        cls = _slotted(cls, fields) if slots else cls
        key = _key([f.name for f in fields if f.compare])
        _add(cls, "__init__", _Init(cls, fields, frozen))
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
        cls.__match_args__ = vars(cls).get("__match_args__", tuple(f.name for f in fields if f.init and not f.kw_only))
        cls.__dataclass_params__ = params = copy(getattr(_Sample, _PARAMS))
        params.init, params.repr, params.eq, params.frozen = True, repr, eq, frozen
        if _REPLACE is not None and "__replace__" not in vars(cls):
            cls.__replace__ = _REPLACE
        return cls

    _FIELDS, _PARAMS = "__dataclass_fields__", "__dataclass_params__"

    @dataclasses.dataclass
    class _Sample:
        """What the standard library keeps in every class that it makes, in this version of Python."""

        field: int

    _KIND = dataclasses.fields(_Sample)[0]._field_type
    _REPLACE = vars(_Sample).get("__replace__")

    def _fields(cls: type, kw_only: bool) -> tuple[Any, ...]:
        """The fields of the class and of its bases; the class loses the attributes that hold no default.

        Raises
        ------
        ValueError
            Where a default would be shared by all records and can change.
        TypeError
            Where a field with no default follows one that has one.
        """
        found = {name: f for base in cls.__mro__[:0:-1] for name, f in vars(base).get(_FIELDS, {}).items()}
        for name, note in vars(cls).get("__annotations__", {}).items():
            if note.startswith(("ClassVar", "typing.ClassVar")):
                continue
            default = vars(cls).get(name, dataclasses.MISSING)
            marked = isinstance(default, dataclasses.Field)
            f = default if marked else dataclasses.field(default=default)
            if f.default.__class__.__hash__ is None:
                raise ValueError(f"mutable default {type(f.default)} for field {name} is not allowed")
            if marked and f.default is dataclasses.MISSING:
                delattr(cls, name)
            elif marked:
                setattr(cls, name, f.default)
            f.name, f.type, f._field_type = name, note, _KIND
            f.kw_only = kw_only if f.kw_only is dataclasses.MISSING else f.kw_only
            found[name] = f
        optional = ""
        for f in (f for f in found.values() if f.init and not f.kw_only):
            absent = f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
            if absent and optional:
                raise TypeError(f"non-default argument {f.name!r} follows default argument {optional!r}")
            optional = optional if absent else f.name
        setattr(cls, _FIELDS, found)
        return tuple(found.values())

    def _slotted(cls: type, fields: tuple[Any, ...]) -> type:
        """The class made anew with slots for its fields, as slots cannot be added to a class that exists."""
        names = tuple(f.name for f in fields)
        inherited = {name for base in cls.__mro__[1:-1] for name in _slots_of(base)}
        defined = {name: value for name, value in vars(cls).items() if name not in (*names, "__dict__", "__weakref__")}
        made = type(cls)(
            cls.__name__, cls.__bases__, defined | {"__slots__": tuple(n for n in names if n not in inherited)}
        )
        made.__qualname__ = cls.__qualname__
        return made

    def _slots_of(base: type) -> tuple[str, ...]:
        slots = vars(base).get("__slots__", ())
        return (slots,) if isinstance(slots, str) else tuple(slots)

    def _add(cls: type, name: str, function: Callable[..., Any]) -> None:
        """What the class defines itself stays."""
        if name not in vars(cls):
            function.__qualname__ = f"{cls.__qualname__}.{name}"
            setattr(cls, name, function)

    class _Init:
        """``__init__`` of a class until it is first asked for, by a call or by a look: then it is compiled."""

        __slots__ = ("__qualname__", "cls", "fields", "frozen")

        def __init__(self, cls: type, fields: tuple[Any, ...], frozen: bool) -> None:
            self.cls, self.fields, self.frozen = cls, fields, frozen

        def __get__(self, instance: Any, owner: type) -> Callable[..., None]:
            made = _init(self.cls, self.fields, self.frozen)
            made.__qualname__ = self.__qualname__
            self.cls.__init__ = made
            return made.__get__(instance, owner)

    class _Factory:
        def __repr__(self) -> str:
            return "<factory>"

    _FACTORY = _Factory()

    def _init(cls: type, fields: tuple[Any, ...], frozen: bool) -> Callable[..., None]:
        """``__init__`` with the fields as parameters, compiled as the standard library compiles it."""
        held: dict[str, Any] = {"_set": object.__setattr__, "_missing": _FACTORY}
        words, body, notes = ["self"], [], {}
        for f in sorted(fields, key=attrgetter("kw_only")):
            name, value = f.name, f.name
            if f.default_factory is not dataclasses.MISSING:
                held[f"_make_{name}"] = f.default_factory
                value = f"_make_{name}() if {name} is _missing else {name}" if f.init else f"_make_{name}()"
            elif f.default is not dataclasses.MISSING:
                held[f"_default_{name}"] = f.default
                value = name if f.init else f"_default_{name}"
            elif not f.init:
                continue
            if f.init and f.kw_only and "*" not in words:
                words.append("*")
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
