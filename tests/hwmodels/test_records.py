"""The quick `dataclass` against that of the standard library, on every kind of class that there is here."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from collections.abc import Callable
from typing import Any, ClassVar, get_type_hints

import numpy as np
import pytest

from hwmodels import records
from hwmodels.errors import InputError

OPTIONS: tuple[dict[str, Any], ...] = (
    {"frozen": True, "slots": True}, {"frozen": True, "slots": True, "eq": False}, {"frozen": True}, {},
    {"slots": True}, {"slots": True, "eq": False}, {"frozen": True, "slots": True, "eq": False, "repr": False},
)  # fmt: skip
Make = Callable[..., Any]


def point(make: Make, **options: Any) -> Any:
    class Point:
        """A point."""

        kind: ClassVar[str] = "point"
        x: int
        y: float = 2.0
        names: list[str] = dataclasses.field(default_factory=list)
        made: int = dataclasses.field(default=7, init=False)
        hidden: str = dataclasses.field(default="h", repr=False, compare=False)

        def __post_init__(self) -> None:
            if self.x < 0:
                raise ValueError("x is negative")

    Point.__qualname__ = "Point"
    return make(**options)(Point)


def single(make: Make, **options: Any) -> Any:
    class Single:
        """One field."""

        value: Any

    return make(**options)(Single)


def none(make: Make, **options: Any) -> Any:
    class Nothing:
        """No field."""

    return make(**options)(Nothing)


def own(make: Make, **options: Any) -> Any:
    class Own:
        """Defines what the decorator would."""

        x: int = 1

        def __repr__(self) -> str:
            return "own"

        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 5

    return make(**options)(Own)


def named(make: Make, **options: Any) -> Any:
    class Named:
        """Fields by name alone, and one that is not."""

        x: int = 1
        first: int = dataclasses.field(kw_only=False)
        made: list[int] = dataclasses.field(default_factory=list)

    return make(**options, kw_only=True)(Named)


def below(make: Make, **options: Any) -> Any:
    class Longer(named(make, **options)):  # type: ignore[misc]
        """With the fields of its base, one of which it has otherwise."""

        x: int = dataclasses.field(default=3, kw_only=True)
        y: float = 2.0

    return make(**options)(Longer)


def called(function: Callable[..., Any], *words: Any) -> Any:
    try:
        return function(*words)
    except Exception as error:
        return type(error).__name__, str(error).replace("Point.__init__()", "__init__()")


@pytest.mark.parametrize("build", [point, single, none, own, named, below])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_class_is_as_the_standard_library_makes_it(build: Callable[..., Any], options: dict[str, Any]) -> None:
    quick, usual = build(records.dataclass, **options), build(dataclasses.dataclass, **options)
    assert [(f.name, f.init, f.compare) for f in dataclasses.fields(quick)] == [
        (f.name, f.init, f.compare) for f in dataclasses.fields(usual)
    ]
    assert str(inspect.signature(quick)) == str(inspect.signature(usual))
    assert get_type_hints(quick.__init__) == get_type_hints(usual.__init__)
    assert quick.__match_args__ == usual.__match_args__
    for name in ("init", "repr", "eq", "order", "frozen"):
        assert getattr(quick.__dataclass_params__, name) == getattr(usual.__dataclass_params__, name)
    arguments: tuple[tuple[Any, ...], ...] = ((), (1,), (1, 2.0), (1, 3.0, ["a"]), (-1,), (1, 2, 3, 4, 5))
    for words in arguments:
        ones = [called(made, *words) for made in (quick, usual)]
        if isinstance(ones[0], tuple):
            assert ones[0] == ones[1]
            continue
        others = [called(made, *words) for made in (quick, usual)]
        one, other = ones
        if options.get("repr", True):
            assert repr(one) == repr(other)
        assert (one == others[0]) == (other == others[1]) and (one == 3) == (other == 3)
        assert (quick.__hash__ is None) == (usual.__hash__ is None)
        if quick.__hash__ is not None and options.get("eq", True):
            assert called(hash, one) == called(hash, other)
        assert dataclasses.asdict(one) == dataclasses.asdict(other)
        for name in ("x", "value", "new"):
            refused = [called(setattr, made, name, 1) for made in (one, other)]
            removed = [called(delattr, made, name) for made in (one, other)]
            if options.get("frozen"):
                assert refused[0][0] == removed[0][0] == "FrozenInstanceError"
                if name in quick.__dataclass_fields__:  # for others Python 3.11 itself stumbles over slots
                    assert refused[0] == refused[1] and removed[0] == removed[1]


def test_default_lists_are_not_shared_and_changes_make_new_ones() -> None:
    made = point(records.dataclass, frozen=True, slots=True)
    assert made(1).names is not made(1).names
    changed = dataclasses.replace(made(1, 3.0), x=4)
    assert (changed.x, changed.y, changed.made) == (4, 3.0, 7)
    with pytest.raises(ValueError, match="negative"):
        dataclasses.replace(changed, x=-1)


@records.dataclass(frozen=True, slots=True)
class Kept:
    """Importable, for pickle."""

    values: Any
    name: str = "k"


@records.dataclass(frozen=True)
class Base:
    """With a subclass."""

    x: int


@records.dataclass(frozen=True)
class Below(Base):
    """Of a class by `records`."""

    y: int = 2


@dataclasses.dataclass(frozen=True)
class Beside(Base):
    """By the standard library itself."""

    y: int = 2


def test_a_frozen_class_is_copied_and_pickled() -> None:
    one = Kept((1, 2))
    assert pickle.loads(pickle.dumps(one)) == one == copy.deepcopy(one) and len({one, Kept((1, 2))}) == 1
    arrays = Kept(np.arange(3))
    with pytest.raises(ValueError, match="ambiguous"):
        assert arrays == Kept(np.arange(3))


def test_what_the_standard_library_refuses_is_refused() -> None:
    class Shared:
        """A default that all would share."""

        x: list[int] = []

    class Unordered:
        """A default before none."""

        x: int = 1
        y: int

    class Thawed(Base):
        """Of a frozen class."""

        y: int = 1

    for make in (records.dataclass, dataclasses.dataclass):
        with pytest.raises(ValueError, match=r"mutable default .* for field x is not allowed"):
            make(Shared)
        with pytest.raises(TypeError, match="non-default argument 'y' follows default argument"):
            make(Unordered)
        with pytest.raises(TypeError, match="cannot inherit non-frozen dataclass from a frozen one"):
            make(Thawed)


def test_subclasses() -> None:
    assert Below(1) == Below(1, 2) != Beside(1) and repr(Below(1)) == "Below(x=1, y=2)" and Base(1) != Below(1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        Beside(1).x = 2  # type: ignore[misc]

    class Plain(Base):
        pass

    plain = Plain(1)
    plain.extra = 3  # type: ignore[attr-defined]
    with pytest.raises(dataclasses.FrozenInstanceError):
        plain.x = 3  # type: ignore[misc]


def test_one_of_ours_still_refuses_with_its_faults() -> None:
    from hwmodels.units import parse_bytes

    with pytest.raises(InputError):
        parse_bytes("x")
