"""What a constraint is made of once it is read: numbers and names, arithmetic, comparisons, and, or and not."""

from __future__ import annotations

from collections.abc import Iterator

from hwmodels.records import dataclass


@dataclass(frozen=True, slots=True)
class Literal:
    """A number, a size, a time, a share, or the code of a word.

    Attributes
    ----------
    value : int or float
        In SI base units; of a word its code in a `planner.layout.LayoutBatch`.
    dimension : str
        As `planner.search.constraints.names.Name.dimension`; ``"number"`` for a bare number.
    text : str
        As it was written.
    """

    value: float
    dimension: str
    text: str


@dataclass(frozen=True, slots=True)
class Named:
    """A field of a layout, a figure, or a number of the question."""

    name: str


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """Two numbers joined by one of ``+ - * / // %``."""

    sign: str
    left: Number
    right: Number


@dataclass(frozen=True, slots=True)
class Compare:
    """Two numbers compared by one of ``< <= > >= == !=``."""

    sign: str
    left: Number
    right: Number


@dataclass(frozen=True, slots=True)
class Member:
    """Whether a number is one of several, or in a range between two, both included."""

    left: Number
    choices: tuple[Number | tuple[Number, Number], ...]


@dataclass(frozen=True, slots=True)
class Every:
    """All of several conditions."""

    parts: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Some:
    """At least one of several conditions."""

    parts: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Not:
    """The contrary of a condition."""

    part: Condition


Number = Literal | Named | Arithmetic
Condition = Compare | Member | Every | Some | Not


def names_of(node: Number | Condition) -> Iterator[str]:
    """Every name in a tree, in the order of the text, as often as it stands there."""
    match node:
        case Named(name):
            yield name
        case Arithmetic(_, left, right) | Compare(_, left, right):
            yield from names_of(left)
            yield from names_of(right)
        case Member(left, choices):
            yield from names_of(left)
            for choice in choices:
                for end in choice if isinstance(choice, tuple) else (choice,):
                    yield from names_of(end)
        case Every(parts) | Some(parts):
            for part in parts:
                yield from names_of(part)
        case Not(part):
            yield from names_of(part)
        case _:
            return
