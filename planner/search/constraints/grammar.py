"""The language of constraints: text -> tree, every name and unit checked.

::

    condition  = every ("or" every)*
    every      = negated ("and" negated)*
    negated    = "not" negated | compared
    compared   = sum (("<" | "<=" | ">" | ">=" | "==" | "=" | "!=") sum)+ | sum ["not"] "in" choices | "(" condition ")"
    choices    = "[" choice ("," choice)* "]" | choice
    choice     = sum [".." sum]
    sum        = product (("+" | "-") product)*
    product    = atom (("*" | "/" | "//" | "%") atom)*
    atom       = number | word | name | "-" atom | "(" sum ")"

Numbers carry units where a figure has one (``70GiB``, ``12s``, ``5%``, ``$1.20``); a chain such as ``2 <= tp <= 8``
holds where all its comparisons do.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import NoReturn

from hwmodels.errors import Fault, InputError
from hwmodels.records import dataclass
from planner.search.constraints import dimensions
from planner.search.constraints.names import NAMES, Name, code_of, known_words
from planner.search.constraints.tokens import Token, tokens
from planner.search.constraints.tree import (
    Arithmetic,
    Compare,
    Condition,
    Every,
    Literal,
    Member,
    Named,
    Not,
    Number,
    Some,
    names_of,
)

COMPARISONS = ("<=", ">=", "==", "!=", "<", ">", "=")
DEEPEST = 40
"""Brackets and negations inside each other that are read: more is no constraint that a person wrote."""


@dataclass(frozen=True, slots=True)
class Constraint:
    """A condition that every layout of an answer satisfies.

    Attributes
    ----------
    text : str
        As it was written, without spaces around it.
    tree : Condition
    where : str
        Option, or file and line.
    """

    text: str
    tree: Condition
    where: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """The names in it, each once."""
        return tuple(dict.fromkeys(names_of(self.tree)))

    @property
    def known(self) -> tuple[Name, ...]:
        """What they stand for."""
        return tuple(NAMES[name] for name in self.names)

    @property
    def of_layout(self) -> bool:
        """Whether the layout alone decides it, before anything is priced."""
        return all(name.kind in ("field", "derived", "question") for name in self.known)

    @property
    def needs_detail(self) -> bool:
        """Whether only the full prediction of a layout decides it."""
        return any(name.kind == "detail" for name in self.known)

    @property
    def base(self) -> tuple[str, ...]:
        """Fields of a layout that it depends on."""
        return tuple(dict.fromkeys(field for name in self.known for field in name.base))

    def __str__(self) -> str:
        return self.text


def parse_all(texts: Iterable[str], where: str = "--where") -> tuple[Constraint, ...]:
    """Read several constraints; the faults of all of them are raised together."""
    found: list[Constraint] = []
    faults: list[Fault] = []
    for text in texts:
        try:
            found.append(parse(text, where))
        except InputError as error:
            faults += error.faults
    if faults:
        raise InputError(faults)
    return tuple(found)


def parse(text: str, where: str = "--where") -> Constraint:
    """Read one constraint.

    Raises
    ------
    hwmodels.errors.InputError
        For a text that is no condition, an unknown name or word, or sides that cannot be compared; the message says
        what stands where, and what would work.
    """
    reader = _Reader(text.strip(), where)
    tree = reader.condition()
    if reader.now.kind != "end":
        reader.refuse(f"unexpected {reader.now.text!r}", "and, or, or the end")
    constraint = Constraint(text.strip(), tree, where)
    if all(name.kind == "question" for name in constraint.known):
        what = f"the constraint {constraint.text!r} names no field and no figure"
        raise InputError(Fault(what, where, "it would hold for all layouts or for none", '"tp <= 8"'))
    return constraint


class _Reader:
    """Reads the tokens of one text from left to right."""

    def __init__(self, text: str, where: str) -> None:
        self.text, self.where = text, where
        self.tokens = tokens(text, where)
        self.at = 0
        self.depth = 0

    @property
    def now(self) -> Token:
        return self.tokens[self.at]

    def take(self) -> Token:
        token = self.now
        self.at = min(self.at + 1, len(self.tokens) - 1)
        return token

    def is_sign(self, *signs: str) -> bool:
        return self.now.kind == "sign" and self.now.text in signs

    def is_key(self, word: str) -> bool:
        return self.now.kind == "name" and self.now.text.lower() == word

    def refuse(self, what: str, fix: str, at: int | None = None) -> NoReturn:
        place = (self.now.at if at is None else at) + 1
        said = "an empty constraint" if not self.text else f"{what} at position {place} of {self.text!r}"
        raise InputError(Fault(said, self.where, "", fix if self.text else '"tp <= 8"'))

    def expect(self, sign: str) -> None:
        if not self.is_sign(sign):
            self.refuse(f"{sign!r} is missing", f"a {sign!r} there")
        self.take()

    def deeper(self) -> None:
        self.depth += 1
        if self.depth > DEEPEST:
            self.refuse("too many brackets and negations", f"at most {DEEPEST} inside each other")

    def condition(self) -> Condition:
        parts = [self.every()]
        while self.is_key("or"):
            self.take()
            parts.append(self.every())
        return parts[0] if len(parts) == 1 else Some(tuple(parts))

    def every(self) -> Condition:
        parts = [self.negated()]
        while self.is_key("and"):
            self.take()
            parts.append(self.negated())
        return parts[0] if len(parts) == 1 else Every(tuple(parts))

    def negated(self) -> Condition:
        if self.is_key("not"):
            self.take()
            self.deeper()
            found = Not(self.negated())
            self.depth -= 1
            return found
        return self.compared()

    def compared(self) -> Condition:
        if self.is_sign("(") and self.opens_condition():
            self.take()
            self.deeper()
            inside = self.condition()
            self.expect(")")
            self.depth -= 1
            return inside
        left = self.sum()
        if self.is_key("not") or self.is_key("in"):
            negated = self.is_key("not")
            self.take()
            if negated and not self.is_key("in"):
                self.refuse("'in' is missing after 'not'", "not in [1, 2]")
            if negated:
                self.take()
            member = self.member(left)
            return Not(member) if negated else member
        if not self.is_sign(*COMPARISONS):
            said = repr(self.now.text) if self.now.text else "the end"
            self.refuse(f"{said} where a comparison belongs", "<=, <, >=, >, ==, != or in")
        parts: list[Condition] = []
        while self.is_sign(*COMPARISONS):
            token = self.take()
            right = self.sum()
            parts.append(self.compare("==" if token.text == "=" else token.text, left, right, token.at))
            left = right
        return parts[0] if len(parts) == 1 else Every(tuple(parts))

    def opens_condition(self) -> bool:
        """Whether the bracket here holds a condition, not a number: whether a comparison comes before it closes."""
        depth = 0
        for token in self.tokens[self.at :]:
            depth += (token.kind == "sign" and token.text == "(") - (token.kind == "sign" and token.text == ")")
            if depth == 0:
                return False
            compares = token.kind == "sign" and token.text in COMPARISONS
            if depth >= 1 and (compares or (token.kind == "name" and token.text.lower() in ("in", "not"))):
                return True
        return True

    def member(self, left: Number) -> Condition:
        choices: list[Number | tuple[Number, Number]] = []
        at = self.now.at
        if self.is_sign("["):
            self.take()
            while not self.is_sign("]"):
                choices.append(self.choice(left))
                if not self.is_sign("]"):
                    self.expect(",")
            self.take()
        else:
            choices.append(self.choice(left))
        if not choices:
            self.refuse("an empty list", "[1, 2, 4]", at)
        return Member(left, tuple(choices))

    def choice(self, left: Number) -> Number | tuple[Number, Number]:
        at = self.now.at
        low = self.sum()
        _, low = self.alike("==", left, low, at)
        if not self.is_sign(".."):
            return low
        self.take()
        high = self.sum()
        _, high = self.alike("<=", left, high, at)
        if isinstance(low, Literal) and isinstance(high, Literal) and low.value > high.value:
            self.refuse(f"the range {low.text}..{high.text} is empty", f"{high.text}..{low.text}", at)
        return low, high

    def compare(self, sign: str, left: Number, right: Number, at: int) -> Condition:
        return Compare(sign, *self.alike(sign, left, right, at))

    def alike(self, sign: str, left: Number, right: Number, at: int) -> tuple[Number, Number]:
        """Both sides, words as codes, refused where they cannot be compared."""
        left, right = self.coded(left, right), self.coded(right, left)
        first, second = (self.dimension(side) for side in (left, right))
        if first.startswith("word:") and first == second and sign not in ("==", "!="):
            self.refuse(f"words have no order, {sign!r}", "==, != or in", at)
        if why := dimensions.differ(first, second, left, right):
            self.refuse(why[0], why[1], at)
        return left, right

    def coded(self, side: Number, other: Number) -> Number:
        """A word as the code that the other side's field has for it."""
        if not (isinstance(side, Literal) and side.dimension == "word"):
            return side
        field = other.name if isinstance(other, Named) else ""
        if not field or not NAMES[field].dimension.startswith("word:"):
            self.refuse(f"the word {side.text!r} stands beside no field of words", "schedule in [1f1b, zb-h1]")
        code = code_of(field, side.text)
        if code is None:
            known = known_words(field)
            near = difflib.get_close_matches(side.text, known, 2, 0.6) or known
            self.refuse(f"{side.text!r} is no {field}", " or ".join(near))
        return Literal(code, NAMES[field].dimension, side.text)

    def sum(self) -> Number:
        left = self.product()
        while self.is_sign("+", "-"):
            token = self.take()
            left = self.joined(token, left, self.product())
        return left

    def product(self) -> Number:
        left = self.atom()
        while self.is_sign("*", "/", "//", "%"):
            token = self.take()
            left = self.joined(token, left, self.atom())
        return left

    def joined(self, token: Token, left: Number, right: Number) -> Number:
        if fault := dimensions.joined(token.text, self.dimension(left), self.dimension(right))[1]:
            self.refuse(fault, "numbers, or figures of one unit", token.at)
        figures = any(NAMES[n].kind in ("figure", "detail") for side in (left, right) for n in names_of(side))
        if token.text in ("//", "%") and figures:
            self.refuse(f"{token.text!r} of a figure", f"{token.text!r} of whole numbers", token.at)
        return Arithmetic(token.text, left, right)

    def dimension(self, side: Number) -> str:
        match side:
            case Literal(_, dimension, _):
                return dimension
            case Named(name):
                return NAMES[name].dimension
            case Arithmetic(sign, left, right):
                return dimensions.joined(sign, self.dimension(left), self.dimension(right))[0]

    def atom(self) -> Number:
        token = self.now
        if token.kind == "number":
            self.take()
            return Literal(token.value, token.dimension, token.text)
        if token.kind == "word":
            self.take()
            return Literal(0, "word", token.text)
        if self.is_sign("-"):
            self.take()
            self.deeper()
            inner = self.atom()
            self.depth -= 1
            return Arithmetic("-", Literal(0, self.dimension(inner), "0"), inner)
        if self.is_sign("("):
            self.take()
            self.deeper()
            inside = self.sum()
            self.expect(")")
            self.depth -= 1
            return inside
        if token.kind == "name" and token.text.lower() not in ("and", "or", "not", "in"):
            return self.named(self.take())
        said = repr(token.text) if token.text else "the end"
        return self.refuse(f"{said} where a number or a name belongs", "tp, microbatches, 8, 70GiB")

    def named(self, token: Token) -> Number:
        if token.text in NAMES:
            return Named(token.text)
        near = difflib.get_close_matches(token.text, NAMES, 2, 0.6)
        fix = " or ".join(near) if near else "one of " + ", ".join(sorted(NAMES))
        return self.refuse(f"unknown name {token.text!r}", fix, token.at)
