"""Why layouts with given values are not the answer: not searched, not legal, too large, out of limits, or slower."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from hwmodels.errors import Fault, InfeasibleError, InputError
from planner.layout import RULES
from planner.layout.degrees import CODES
from planner.results import PHASES
from planner.search.constraints.grammar import parse
from planner.search.constraints.names import NAMES
from planner.search.constraints.tree import Compare, Literal, Named
from planner.search.nothing.ask import Ask
from planner.search.result import Row, SearchResult

RANKS = 200
"""Rows of the answer among which the best layout with the given values is looked for."""
RANKS_OVER_POOLS = 10
"""The same where pools differ: there every row is timed and told in full."""
Searches = Callable[..., SearchResult]
"""`planner.search.search` of one problem: takes `space`, `top` and the other keywords that differ."""


@dataclass(frozen=True, slots=True)
class Absence:
    """Why layouts with some values are not the first row of an answer.

    Attributes
    ----------
    asked : dict
        Field -> the value that was asked about.
    unsearched : tuple of str
        Sentences about values outside the searched ranges.
    excluded : str
        Why no such layout can be in any answer, where that is so.
    best : Row or None
        The best layout with the values.
    first : Row
        The first row of the answer.
    rank : int or None
        Of `best` in the answer, were its values searched; None where it lies behind `ranks` rows, and for a front.
    dominated_by : Row or None
        With several objectives: a row of the front that beats it in all of them.
    ranks : int
        Rows among which it was looked for.
    """

    asked: dict[str, Any]
    unsearched: tuple[str, ...]
    excluded: str
    best: Row | None
    first: Row
    rank: int | None
    dominated_by: Row | None = None
    ranks: int = RANKS

    @property
    def gaps(self) -> dict[str, float]:
        """Phase -> seconds a step that the best such layout spends more than the first row, mean over its ranks."""
        if self.best is None:
            return {}
        mine, other = (_phase_means(row) for row in (self.best, self.first))
        return {name: mine[name] - other[name] for name in PHASES}

    def to_dict(self) -> dict[str, Any]:
        """The JSON object of ``search --why``."""
        best = self.best

        def told(row: Row | None) -> dict[str, Any] | None:
            if row is None:
                return None
            peak = max(m.peak_bytes for m in row.step.memory)
            return {"layout": row.layout, "label": row.layout.label(), "step_s": row.step.step_s.mid,
                    "peak_bytes": peak, "figures": row.figures}  # fmt: skip

        slower = None if best is None else best.step.step_s.mid / self.first.step.step_s.mid - 1.0
        return {
            "schema": 1, "asked": self.asked, "unsearched": list(self.unsearched), "excluded": self.excluded or None,
            "best": told(best), "first": told(self.first), "rank": self.rank, "slower": slower,
            "phase_gaps_s": self.gaps,
            "dominated_by": told(self.dominated_by),
        }  # fmt: skip


def _phase_means(row: Row) -> dict[str, float]:
    phases = row.step.phases
    return {name: sum(phase[name] for phase in phases) / len(phases) for name in PHASES}


def read_values(text: str, where: str = "--why") -> dict[str, Any]:
    """Fields and values of ``"tp=8 pp=4"``, with spaces or commas between.

    Raises
    ------
    hwmodels.errors.InputError
        With everything that is no field of a layout with a value of its kind.
    """
    found: dict[str, Any] = {}
    faults: list[Fault] = []
    words = re.sub(r"\s*==?\s*", "=", text.replace(",", " ")).split()
    for word in words:
        try:
            name, value = _pair(word, where)
        except InputError as error:
            faults += error.faults
            continue
        if found.setdefault(name, value) != value:
            faults.append(Fault(f"{name} is {found[name]} and {value}", where, "a layout has one value", "one of them"))
    if not words:
        faults.append(Fault("no field is named", where, "", f'{where} "tp=8 pp=4"'))
    if faults:
        raise InputError(faults)
    return found


def _pair(word: str, where: str) -> tuple[str, Any]:
    tree = parse(word, where).tree
    match tree:
        case Compare("==", Named(name), Literal(value, dimension, said)) if NAMES[name].kind == "field":
            if dimension.startswith("word:"):
                return name, said
            if value == int(value) and name not in CODES:
                return name, int(value)
    fields = ", ".join(n.name for n in NAMES.values() if n.kind == "field" and n.name != "recompute_layers")
    raise InputError(Fault(f"{word!r} is no field with a value", where, f"fields are {fields}", f'{where} "tp=8 pp=4"'))


def absent(ask: Ask, asked: dict[str, Any], search: Searches, objectives: tuple[str, ...]) -> Absence:
    """Explain why layouts with the values `asked` are not the first row of the answer to `ask`.

    Parameters
    ----------
    ask : Ask
        The request.
    asked : dict
        As `read_values` gives it.
    search : callable
        The search of the request.
    objectives : tuple of str
        What it ranks by.

    Raises
    ------
    hwmodels.errors.InfeasibleError
        Where the request itself has no answer.
    """
    several = len(objectives) > 1
    ranks = RANKS_OVER_POOLS if ask.cluster.mixed else RANKS
    answer = search(top=ranks, shown=None if several else 1)
    first = answer.rows[0]
    unsearched = _outside(ask, asked)
    space = replace(ask.space, **{name: (value,) for name, value in asked.items()})
    try:
        found = search(space=space, top=1)
    except InfeasibleError as error:
        return Absence(asked, unsearched, excluded(error, tuple(asked)), None, first, None)
    best = found.rows[0]
    if several:
        beaten = next((row for row in answer.rows if _beats(row, best, objectives)), None)
        return Absence(asked, unsearched, "", best, first, None, beaten)
    if not found.values:  # pools of unlike devices: rows alone
        return _over_pools(Absence(asked, unsearched, "", best, first, None, ranks=ranks), answer, objectives[0])
    better = sum(value < found.values[0] for value in answer.values)
    rank = better + 1 if better < len(answer.values) or len(answer.values) < RANKS else None
    return Absence(asked, unsearched, "", best, first, rank)


def _over_pools(found: Absence, answer: SearchResult, objective: str) -> Absence:
    """With the rank among rows of unlike pools: the best of what was timed, which this layout may not have been."""
    from planner.search.objectives import OBJECTIVES

    best = found.best
    if best is None:
        return found
    same = [row.rank for row in answer.rows if row.layout == best.layout and row.workload == best.workload]
    if same:
        return replace(found, rank=same[0])
    sign = 1.0 if OBJECTIVES[objective].sense == "min" else -1.0
    better = sum(sign * row.figures[objective] < sign * best.figures[objective] for row in answer.rows)
    if better == found.ranks:
        return found
    untimed = "over pools the answer is the best of what was timed, and this layout was not"
    return replace(found, rank=better + 1, unsearched=(*found.unsearched, untimed))


def _beats(row: Row, other: Row, objectives: tuple[str, ...]) -> bool:
    """Whether a row is as good as another in all objectives and better in one."""
    from planner.search.objectives import OBJECTIVES

    signs = [1.0 if OBJECTIVES[name].sense == "min" else -1.0 for name in objectives]
    pairs = [(s * row.figures[n], s * other.figures[n]) for s, n in zip(signs, objectives, strict=True)]
    return all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)


def _outside(ask: Ask, asked: dict[str, Any]) -> tuple[str, ...]:
    """A sentence about each value that is not searched."""
    searched = ask.searched()
    found = []
    for name, value in asked.items():
        given = getattr(ask.space, name, ())
        if name == "dp":
            if given and value not in given:
                found.append(f"dp={value} is not searched: --dp keeps {', '.join(map(str, given))}")
            continue
        code = CODES[name].encode(value) if name in CODES else value
        if code in searched[name]:
            continue
        values = [str(CODES[name].decode(v)) or "the framework's" if name in CODES else str(v) for v in searched[name]]
        whose = "given" if given else "the default range"
        shown = ", ".join(values[:12]) + (", ..." if len(values) > 12 else "")
        found.append(f"{name}={value} is not searched: {whose} {'are' if given else 'is'} {shown}")
    return tuple(found)


def excluded(error: InfeasibleError, asked: tuple[str, ...] = ()) -> str:
    """What the error of an empty answer says about these values: the binding rule in its own sentence, or the bytes.

    Ways that give up a field that was asked about are no answer to why it is not there, and are left out.
    """
    rules = [rule.sentence for rule in RULES if f"[{rule.id}]" in error.binding]
    said = error.binding or str(error)
    given_up = ("without the given fields", *(f"with {name} open" for name in asked))
    left = [way for way in re.split(r"; (?:or )?", error.nearest) if way and not (asked and way.startswith(given_up))]
    ways = f". What would work: {'; or '.join(left)}" if left else ""
    return said + (f" ({' '.join(rules)})" if rules else "") + ways



