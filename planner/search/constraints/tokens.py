"""Words, numbers and signs of a constraint's text."""

from __future__ import annotations

import re
from collections.abc import Callable

from hwmodels import units
from hwmodels.errors import Fault, InputError
from hwmodels.records import dataclass
from planner.search.constraints.names import WORDS

SIGNS = ("<=", ">=", "==", "!=", "..", "//", "<", ">", "=", "+", "-", "*", "/", "%", "(", ")", "[", "]", ",")
_SPACE = re.compile(r"\s+")
_QUOTED = re.compile(r"\"([^\"]*)\"|'([^']*)'")
_NUMBER = re.compile(r"\$?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_PERCENT = re.compile(r"%(?!\s*[\w(])")
_UNIT = re.compile(r"\s?(?:([KMGTP]i?)?B|k?B|ns|us|µs|μs|ms|min|[shd])(?!\w)")
_NAME = re.compile(r"[A-Za-z_]\w*")
_WORDS = re.compile("(?:" + "|".join(map(re.escape, sorted(WORDS, key=len, reverse=True))) + r")(?![\w-])")


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of the text.

    Attributes
    ----------
    kind : {'number', 'word', 'name', 'sign', 'end'}
        A word is a value such as ``zb-h1``, a name stands for a figure or one of ``and or not in``.
    text : str
    at : int
        Position in the constraint's text, from 0.
    value : float
        Of a number, in SI base units.
    dimension : str
        Of a number: ``"number"``, ``"bytes"``, ``"seconds"``, ``"share"`` or ``"usd"``.
    """

    kind: str
    text: str
    at: int
    value: float = 0.0
    dimension: str = ""


def tokens(text: str, where: str) -> list[Token]:
    """Cut a text into tokens; the last one is of kind ``end``.

    Raises
    ------
    hwmodels.errors.InputError
        For a character that no constraint has, or an unknown unit.
    """
    found: list[Token] = []
    at = 0
    while at < len(text):
        if space := _SPACE.match(text, at):
            at = space.end()
            continue
        token, at = _next(text, at, where)
        found.append(token)
    return [*found, Token("end", "", len(text))]


def _next(text: str, at: int, where: str) -> tuple[Token, int]:
    if quoted := _QUOTED.match(text, at):
        return Token("word", quoted[1] or quoted[2] or "", at), quoted.end()
    if word := _WORDS.match(text, at):
        return Token("word", word[0], at), word.end()
    if number := _NUMBER.match(text, at):
        return _number(text, at, number.end(), where)
    if name := _NAME.match(text, at):
        return Token("name", name[0], at), name.end()
    for sign in SIGNS:
        if text.startswith(sign, at):
            return Token("sign", sign, at), at + len(sign)
    what = f"{text[at]!r} at position {at + 1} of {text!r} means nothing in a constraint"
    raise InputError(Fault(what, where, "", '"tp <= 8", "pp in [1, 2, 4]", "peak_memory <= 70GiB"'))


def _number(text: str, at: int, end: int, where: str) -> tuple[Token, int]:
    digits = text[at:end]
    if digits.startswith("$"):
        return Token("number", digits, at, float(digits[1:]), "usd"), end
    if percent := _PERCENT.match(text, end):
        return Token("number", digits + "%", at, float(digits) / 100.0, "share"), percent.end()
    if unit := _UNIT.match(text, end):
        written = text[at : unit.end()]
        parse: Callable[[object], float] = units.parse_bytes if unit[0].endswith("B") else units.parse_duration
        return Token("number", written, at, parse(written), "bytes" if unit[0].endswith("B") else "seconds"), unit.end()
    if attached := _NAME.match(text, end):
        what = f"unknown unit {attached[0]!r} in {digits + attached[0]!r}"
        fix = "70GiB, 12s, 500ms, 30d, 5%, $1.20, or a name in quotes"
        raise InputError(Fault(what, where, f"in the constraint {text!r}", fix))
    value = float(digits)
    whole = int(value) if re.fullmatch(r"\d+", digits) else value
    return Token("number", digits, at, whole, "number"), end
