"""What a file may say, declared once: read at once where it is plainly right, by pydantic where it may be wrong.

A declaration is a class of annotated fields with the words of pydantic (`Field`, `PlainValidator`,
`BeforeValidator`, defaults, `Literal`, unions). Importing pydantic and building its validators takes longer than a
whole search may, and what pydantic adds is the list of everything that is wrong with a file. So `read` takes a
document that fits its declaration word for word, and whatever leaves a doubt goes to the pydantic model that is made
from the same declaration (`Strict.pydantic_model`): it accepts it or names every fault. A test holds the two equal.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from functools import cache
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Literal,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

if TYPE_CHECKING:
    from pydantic import BaseModel

Reader = Callable[[Any], Any]
Made = TypeVar("Made", bound="Strict")


class Unsure(Exception):  # noqa: N818 - no error yet: pydantic has the last word
    """The value is not plainly what the declaration asks for."""


class Field:
    """Bounds of a value, as `pydantic.Field` takes them: strict, ge, gt, le, lt, min_length, pattern."""

    def __init__(self, **bounds: Any) -> None:
        self.bounds = bounds

    def model(self) -> Any:
        """The same for pydantic."""
        from pydantic import Field as PydanticField

        return PydanticField(**self.bounds)


class PlainValidator:
    """The value is what `check` returns; a ValueError is a fault. `json_schema_input_type` is for editors."""

    def __init__(self, check: Callable[[Any], Any], json_schema_input_type: Any = Any) -> None:
        self.check, self.shown = check, json_schema_input_type

    def model(self) -> Any:
        """The same for pydantic."""
        from pydantic import PlainValidator as PydanticPlain

        return PydanticPlain(self.check, json_schema_input_type=self.shown)


class BeforeValidator:
    """`check` sees the value before its type is looked at; a ValueError is a fault."""

    def __init__(self, check: Callable[[Any], Any]) -> None:
        self.check = check

    def model(self) -> Any:
        """The same for pydantic."""
        from pydantic import BeforeValidator as PydanticBefore

        return PydanticBefore(self.check)


@dataclass_transform(kw_only_default=True, frozen_default=True)
class Strict:
    """A mapping of a file: unknown keys are faults, nothing can be changed afterwards.

    A subclass declares its keys as annotated fields; `check_together`, where it has one, holds them against each other.
    """

    _REMADE: ClassVar[str] = "declared_by"

    def __init__(self, **values: Any) -> None:
        for name in self.declared_fields():
            if name in values:
                value = values.pop(name)
            elif name in self.defaults():
                value = self.defaults()[name]
            else:
                raise TypeError(f"{type(self).__name__} needs {name}")
            object.__setattr__(self, name, value)
        if values:
            raise TypeError(f"{type(self).__name__} has no {', '.join(values)}")

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{type(self).__name__}.{name} cannot be changed")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"

    def check_together(self) -> None:
        """Raise ValueError where fields contradict each other."""

    @classmethod
    @cache
    def declared_fields(cls) -> Mapping[str, Any]:
        """Name -> annotation of every key, in the order of the declaration."""
        hints = get_type_hints(cls, include_extras=True)
        return {name: hint for name, hint in hints.items() if get_origin(hint) is not ClassVar}

    @classmethod
    @cache
    def defaults(cls) -> Mapping[str, Any]:
        """Name -> value of every key that may be left out."""
        found: dict[str, Any] = {}
        for each in reversed(cls.__mro__[: -len(Strict.__mro__)]):
            found |= {name: value for name, value in vars(each).items() if name in cls.declared_fields()}
        return found

    def with_values(self: Made, **values: Any) -> Made:
        """A copy with other values, not checked."""
        return type(self)(**{**vars(self), **values})

    def to_dict(self) -> dict[str, Any]:
        """Plain values, nested declarations as mappings."""
        return {name: _plain(value) for name, value in vars(self).items()}

    @classmethod
    @cache
    def pydantic_model(cls) -> type[BaseModel]:
        """The pydantic model of the declaration, made when it is first asked for."""
        from pydantic import ConfigDict, create_model, model_validator

        class Base(_base()):  # type: ignore[misc]
            model_config = ConfigDict(extra="forbid", frozen=True)

        def ordered(made: Any) -> Any:
            cls(**{name: getattr(made, name) for name in cls.declared_fields()}).check_together()
            return made

        checks: dict[str, Any] = {}
        if cls.check_together is not Strict.check_together:
            checks["ordered"] = model_validator(mode="after")(ordered)
        fields: dict[str, Any] = {
            name: (_annotation(hint), _model_value(cls.defaults().get(name, ...)))
            for name, hint in cls.declared_fields().items()
        }
        made: type[BaseModel] = create_model(
            cls.__name__, __base__=Base, __doc__=cls.__doc__, __validators__=checks, **fields
        )
        setattr(made, cls._REMADE, cls)
        return made


def _base() -> Any:
    from pydantic import BaseModel

    return BaseModel


def read(schema: type[Made], data: Any) -> Made:
    """`data` as `schema`, where every value is plainly of the kind that is declared.

    Raises
    ------
    Unsure
        Where one may not be.
    """
    reader = _declared(schema)
    try:
        made: Made = reader(data)
    except (ValueError, OverflowError):
        raise Unsure from None
    return made


def read_slowly(schema: type[Made], data: Any) -> Made:
    """`data` as `schema` by pydantic; `pydantic.ValidationError` with every fault."""
    made: Made = _from_model(schema.pydantic_model().model_validate(data))
    return made


_READERS: dict[type, Reader] = {}


def _declared(schema: type[Strict]) -> Reader:
    """What takes the mapping of a declaration; built once."""
    if schema not in _READERS:
        _READERS[schema] = _of_declaration(schema)
    return _READERS[schema]


def _of_declaration(schema: type[Strict]) -> Reader:
    readers = {name: _reader(hint) for name, hint in schema.declared_fields().items()}
    defaults = schema.defaults()
    checked = schema.check_together is not Strict.check_together

    def declared(value: Any) -> Any:
        if type(value) is not dict or not value.keys() <= readers.keys():
            raise Unsure
        made = object.__new__(schema)
        for name, reader in readers.items():
            if name in value:
                object.__setattr__(made, name, reader(value[name]))
            elif name in defaults:
                object.__setattr__(made, name, defaults[name])
            else:
                raise Unsure
        if checked:
            made.check_together()
        return made

    return declared


def _reader(hint: Any, marks: tuple[Any, ...] = ()) -> Reader:
    """What takes a value of the annotation `hint` with the markers `marks`, or raises `Unsure`."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _reader(parts[0], (*hint.__metadata__, *marks))
    for mark in marks:
        if isinstance(mark, PlainValidator):
            return mark.check
    before = [mark.check for mark in marks if isinstance(mark, BeforeValidator)]
    bounds: dict[str, Any] = {}
    for mark in marks:
        bounds |= mark.bounds if isinstance(mark, Field) else {}
    inner = _bounded(_unbounded(hint, origin, parts), bounds)
    if not before:
        return inner

    def after(value: Any) -> Any:
        for check in before:
            value = check(value)
        return inner(value)

    return after


def _unbounded(hint: Any, origin: Any, parts: tuple[Any, ...]) -> Reader:
    if hint is Any:
        return lambda value: value
    if isinstance(hint, type) and origin is None and issubclass(hint, Strict):
        return lambda value: _declared(hint)(value)  # noqa: PLW0108 - built when the first such value is met
    if hint is float:
        return _of_types((int, float), float)
    if hint in (int, str, bool, NoneType):
        return _of_types((hint,))
    if origin is Literal:
        return _literal(parts)
    if origin in (Union, UnionType):
        return _either([_reader(part) for part in parts])
    if origin is list:
        return _list(_reader(parts[0]))
    if origin is tuple:
        return _tuple([_reader(part) for part in parts])
    if origin is dict:
        return _dict(_reader(parts[0]), _reader(parts[1]))
    raise TypeError(f"a declaration cannot hold {hint!r}")


def _of_types(kinds: tuple[type, ...], make: Reader | None = None) -> Reader:
    def of_types(value: Any) -> Any:
        if type(value) not in kinds:
            raise Unsure
        return value if make is None else make(value)

    return of_types


def _literal(words: tuple[Any, ...]) -> Reader:
    def literal(value: Any) -> Any:
        if type(value) is not str or value not in words:
            raise Unsure
        return value

    return literal


def _either(readers: list[Reader]) -> Reader:
    def either(value: Any) -> Any:
        for reader in readers:
            try:
                return reader(value)
            except (Unsure, ValueError, OverflowError):
                continue
        raise Unsure

    return either


def _list(item: Reader) -> Reader:
    def listed(value: Any) -> Any:
        if type(value) is not list:
            raise Unsure
        return [item(each) for each in value]

    return listed


def _tuple(items: list[Reader]) -> Reader:
    def tupled(value: Any) -> Any:
        if type(value) is not list or len(value) != len(items):
            raise Unsure
        return tuple(item(each) for item, each in zip(items, value, strict=True))

    return tupled


def _dict(key: Reader, item: Reader) -> Reader:
    def mapped(value: Any) -> Any:
        if type(value) is not dict:
            raise Unsure
        return {key(name): item(each) for name, each in value.items()}

    return mapped


def _bounded(inner: Reader, bounds: Mapping[str, Any]) -> Reader:
    limits = {name: bound for name, bound in bounds.items() if name != "strict"}
    if not limits:
        return inner

    def bounded(value: Any) -> Any:
        taken = inner(value)
        if not all(_within(name, bound, taken) for name, bound in limits.items()):
            raise Unsure
        return taken

    return bounded


def _within(name: str, bound: Any, value: Any) -> bool:
    """Whether a value keeps one bound; a comparison with NaN never holds, here as in pydantic."""
    if name == "pattern":  # "$" stands before a last line break too, which pydantic's expressions do not allow
        return "\n" not in value and re.search(bound, value, re.ASCII) is not None
    if name == "min_length":
        return len(value) >= bound
    compare: Callable[[Any, Any], bool] = getattr(operator, name)  # ge, gt, le, lt
    return compare(value, bound)


def _annotation(hint: Any) -> Any:
    """An annotation in pydantic's own words."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return Annotated[(_annotation(parts[0]), *(mark.model() for mark in hint.__metadata__))]
    if isinstance(hint, type) and origin is None and issubclass(hint, Strict):
        return hint.pydantic_model()
    if origin in (Union, UnionType):
        return Union[tuple(_annotation(part) for part in parts)]  # noqa: UP007 - made of what is not known before
    if origin in (list, tuple, dict):
        return origin[tuple(_annotation(part) for part in parts)]
    return hint


def _model_value(value: Any) -> Any:
    """A default in pydantic's own form."""
    if not isinstance(value, Strict):
        return value
    return type(value).pydantic_model().model_construct(**{n: _model_value(v) for n, v in vars(value).items()})


def _from_model(value: Any) -> Any:
    """What pydantic made, as declared."""
    declared = getattr(type(value), Strict._REMADE, None)
    if declared is not None:
        return declared(**{name: _from_model(getattr(value, name)) for name in declared.declared_fields()})
    if isinstance(value, dict):
        return {key: _from_model(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_from_model(item) for item in value)
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, Strict):
        return value.to_dict()
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_plain(item) for item in value)
    return value
