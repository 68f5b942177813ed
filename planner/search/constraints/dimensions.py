"""Which numbers of a constraint may be joined or compared: bytes with bytes, seconds with seconds."""

from __future__ import annotations

from planner.search.constraints.tree import Literal, Number

NUMBER = "number"
_EXAMPLES = {"bytes": "70GiB", "seconds": "12s", "share": "5%", "usd": "$1.20", "kwh": "0.5", "kg": "0.2"}
_BARE = ("usd", "kwh", "kg")
"""Dimensions whose figures have the unit in their name (`usd_per_mtoken`), so that a bare number says what it is."""


def joined(sign: str, left: str, right: str) -> tuple[str, str]:
    """Dimension of two numbers joined by a sign, and what is wrong with them (empty: nothing)."""
    if any(side == "word" or side.startswith("word:") for side in (left, right)):
        return NUMBER, f"{sign!r} between words"
    if sign in ("+", "-"):
        if left == right or (NUMBER in (left, right) and "share" in (left, right)):
            return ("share" if "share" in (left, right) else left), ""
        return left, f"{_said(left)} {sign} {_said(right)}"
    if sign == "*":
        for one, other in ((left, right), (right, left)):
            if one in (NUMBER, "share"):
                return (other if other != NUMBER or one == NUMBER else one), ""
        return left, f"{_said(left)} * {_said(right)}"
    if sign == "/":
        if right in (NUMBER, "share"):
            return left, ""
        return NUMBER, "" if left == right else f"{_said(left)} / {_said(right)}"
    return NUMBER, "" if left == right == NUMBER else f"{_said(left)} {sign} {_said(right)}"


def differ(left: str, right: str, first: Number, second: Number) -> tuple[str, str] | None:
    """Why two sides cannot be compared, and what would work; None where they can."""
    if left == right and left != "word":
        return None
    for one, other, side in ((left, right, second), (right, left, first)):
        if other != NUMBER or not isinstance(side, Literal):
            continue
        if one in _BARE or (one == "share" and abs(side.value) <= 1.0):
            return None
        if one == "share":
            return f"a share is compared with {side.text}, which is more than all", f"{side.text}%"
        if one in ("bytes", "seconds"):
            unit = "GiB" if one == "bytes" else "s"
            return f"{side.text} has no unit (a bare number is ambiguous)", f"{side.text}{unit}"
    if {left, right} == {NUMBER, "share"}:
        return None
    return f"{_said(left)} compared with {_said(right)}", f"a number such as {_EXAMPLES.get(left, '8')}"


def _said(dimension: str) -> str:
    """A dimension in words."""
    if dimension.startswith("word:"):
        return f"the words of {dimension[5:]}"
    return {"number": "a number", "share": "a share", "usd": "dollars", "word": "a word"}.get(dimension, dimension)
