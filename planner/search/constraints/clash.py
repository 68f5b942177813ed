"""Constraints that contradict one another, or a rule of layouts: found over the finite ranges of the fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from hwmodels.records import dataclass
from planner.layout import RULES, Layout, LayoutBatch, RuleContext
from planner.layout.degrees import CODES
from planner.search.constraints.evaluate import BoolArray
from planner.search.constraints.grammar import Constraint
from planner.search.constraints.masks import Known
from planner.search.question import Question

IntArray = NDArray[np.int64]
MOST = 400_000
"""Combinations of field values that are looked at for one pair."""
_WORLD = ("tp", "cp", "pp", "dp")


@dataclass(frozen=True, slots=True)
class Clash:
    """Two things that no layout satisfies together.

    Attributes
    ----------
    first : str
        A constraint.
    second : str
        Another constraint, or a rule of layouts with its identifier, or the values that are searched.
    values : str
        The values of the fields that the first leaves, or nothing where there are too many to list.
    """

    first: str
    second: str
    values: str = ""

    def __str__(self) -> str:
        left = f" ({self.values})" if self.values else ""
        return f"{self.first}{left} contradicts {self.second}"


def find_clash(
    constraints: Sequence[Constraint],
    domains: Mapping[str, Sequence[int]],
    question: Question,
    ranges: Mapping[str, Sequence[int]] | None = None,
) -> Clash | None:
    """The first contradiction of a constraint with the values of its fields, a rule, or another constraint.

    Parameters
    ----------
    constraints : sequence of Constraint
    domains : mapping
        Field of a layout -> every value that it could have, words as codes.
    question : Question
    ranges : mapping, optional
        Field -> the values that are searched, where they are fewer.
    """
    table = _Table(domains, ranges or {}, question)
    for constraint in constraints:
        if found := _alone(constraint, table):
            return found
    for first, second in combinations(constraints, 2):
        if found := _pair(first, second, table):
            return found
    for constraint in constraints:
        if found := _unsearched(constraint, table):
            return found
    return None


@dataclass(frozen=True, slots=True, eq=False)
class _Table:
    """Lays out the values of a few fields."""

    domains: Mapping[str, Sequence[int]]
    ranges: Mapping[str, Sequence[int]]
    question: Question

    def fields_of(self, constraints: Sequence[Constraint]) -> tuple[str, ...]:
        """Fields that the constraints depend on; with dp those that it follows from."""
        names = dict.fromkeys(name for constraint in constraints for name in constraint.base)
        if "dp" in names:
            names = dict.fromkeys([*(n for n in names if n != "dp"), "tp", "cp", "pp"])
        return tuple(names)

    def layouts(self, names: tuple[str, ...], dp: bool, searched: bool = False) -> LayoutBatch | None:
        """Every combination of the values of `names`, dp from the number of ranks; None where there are too many."""
        axes = []
        for name in names:
            values = self.ranges.get(name) if searched else None
            axes.append(np.asarray(values if values else self.domains[name], dtype=np.int64))
        if np.prod([float(len(axis)) for axis in axes]) > MOST:
            return None
        grids = np.meshgrid(*axes, indexing="ij") if axes else []
        columns = {name: grid.reshape(-1) for name, grid in zip(names, grids, strict=True)}
        if not columns:
            columns = {"tp": np.ones(1, dtype=np.int64)}
        if dp:
            world = self.question.cluster.n_ranks
            rest = columns["tp"] * columns["cp"] * columns["pp"]
            whole = world % rest == 0
            columns = {name: column[whole] for name, column in columns.items()}
            columns["dp"] = world // rest[whole]
        return LayoutBatch.filled(columns)

    def mask(self, constraint: Constraint, layouts: LayoutBatch) -> BoolArray:
        return Known(self.question, layouts).decide(constraint)[1]


def _alone(constraint: Constraint, table: _Table) -> Clash | None:
    """Whether a constraint leaves no value at all, or none that a rule allows."""
    dp = "dp" in constraint.base
    names = table.fields_of([constraint])
    layouts = table.layouts(names, dp)
    if layouts is None or not constraint.base:
        return None
    kept = table.mask(constraint, layouts)
    if not kept.any():
        return Clash(_said(constraint), _domain(constraint, layouts))
    if rule := _broken(layouts.take(kept), (*names, *(("dp",) if dp else ())), table.question):
        return Clash(_said(constraint), rule, _values(constraint, layouts.take(kept)))
    return None


def _unsearched(constraint: Constraint, table: _Table) -> Clash | None:
    """Whether a constraint leaves none of the values that are searched."""
    searched = table.layouts(table.fields_of([constraint]), "dp" in constraint.base, searched=True)
    if searched is None or not constraint.base or table.mask(constraint, searched).any():
        return None
    return Clash(_said(constraint), "what is searched, " + _domain(constraint, searched))


def _pair(first: Constraint, second: Constraint, table: _Table) -> Clash | None:
    """Whether two constraints on common fields, or on one figure, leave nothing together."""
    common = set(first.base) & set(second.base) or {"dp"} & {*first.base, *second.base}
    figures = {n.name for n in first.known if not n.base} & {n.name for n in second.known if not n.base}
    if not common and not figures:
        return None
    dp = "dp" in {*first.base, *second.base}
    layouts = table.layouts(table.fields_of([first, second]), dp)
    if layouts is None:
        return None
    one, other = table.mask(first, layouts), table.mask(second, layouts)
    if one.any() and other.any() and not (one & other).any():
        return Clash(_said(first), _said(second), _values(first, layouts.take(one)))
    return _on_figures(first, second)


def _on_figures(first: Constraint, second: Constraint) -> Clash | None:
    """Whether two limits of one figure leave no number between them."""
    from planner.search.constraints.limits import interval_of

    one, other = interval_of(first), interval_of(second)
    if one is None or other is None or one.name != other.name or one.meets(other):
        return None
    return Clash(_said(first), _said(second))


def _broken(layouts: LayoutBatch, names: tuple[str, ...], question: Question) -> str:
    """The rule that all of these layouts break by these fields alone, or nothing."""
    context = RuleContext.of(question.model, question.workload, question.cluster.n_ranks)
    if len(layouts) > 10_000:
        return ""
    for rule in RULES:
        if rule.id in ("world-product", "degrees-positive"):
            continue
        if rule.id in _OF_FIELDS and set(_OF_FIELDS[rule.id]) <= set(names) and not rule.holds(layouts, context).any():
            return f"the rule {rule.sentence.rstrip('.')} [{rule.id}]"
    return ""


_OF_FIELDS: dict[str, tuple[str, ...]] = {
    "tp-heads": ("tp",),
    "tp-kv-heads": ("tp",),
    "tp-ffn": ("tp",),
    "ep-experts": ("ep", "etp"),
    "etp-width": ("etp",),
    "gbs-microbatch": ("dp", "mbs"),
    "layers-stages": ("pp", "vpp"),
    "framework-zero-stage": ("zero_stage",),
    "framework-zero-pipeline": ("pp", "zero_stage"),
}
"""Rules that depend on a few fields alone, and those fields."""


def _said(constraint: Constraint) -> str:
    return f"{constraint.text!r}" + (f" of {constraint.where}" if constraint.where else "")


def _domain(constraint: Constraint, layouts: LayoutBatch) -> str:
    """The values that the fields of a constraint have."""
    return _values(constraint, layouts) or "the values of " + ", ".join(constraint.base)


def _values(constraint: Constraint, layouts: LayoutBatch) -> str:
    """Distinct values of the fields of a constraint, where they are few."""
    parts = []
    for name in constraint.base:
        values = np.unique(getattr(layouts, name))
        if len(values) > 12:
            parts.append(f"{name} from {values[0]} to {values[-1]}")
            continue
        words = [str(CODES[name].decode(int(v))) or "default" if name in CODES else str(v) for v in values]
        parts.append(f"{name} in {', '.join(words)}" if len(words) > 1 else f"{name} = {words[0]}")
    return "; ".join(parts)


def domain_of(field: str, values: Sequence[int] | Sequence[str]) -> tuple[int, ...]:
    """Values of a field as they stand in arrays."""
    code = CODES.get(field)
    return tuple(code.encode(v) if code is not None and not isinstance(v, int) else int(v) for v in values)


DEFAULTS: dict[str, int] = {name: int(getattr(LayoutBatch.of(Layout()), name)) for name in Layout.__dataclass_fields__}
"""The value of every field that is not searched, as it stands in arrays."""
