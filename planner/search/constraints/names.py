"""What the names in a constraint stand for: fields of a layout, what follows from them, and figures of a step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwmodels.records import dataclass
from planner.layout import Layout, LayoutBatch, split_of
from planner.layout.degrees import CODES
from planner.layout.known import WORDS as LAYOUT_WORDS
from planner.layout.recompute import MODULES
from planner.search.objectives import OBJECTIVES
from planner.search.question import Question

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Name:
    """One name of the language.

    Attributes
    ----------
    name : str
    kind : {'field', 'derived', 'question', 'figure', 'detail'}
        A field of a layout; what follows from fields; a number that all layouts share; a figure that follows from step
        time and memory; a figure that only the full prediction of a layout has.
    dimension : str
        ``"number"``, ``"bytes"``, ``"seconds"``, ``"share"``, ``"usd"``, or ``"word:<field>"``.
    about : str
        What it is, for people.
    base : tuple of str
        The fields that it follows from: itself for a field, none for a figure.
    """

    name: str
    kind: str
    dimension: str
    about: str
    base: tuple[str, ...] = ()


_SPLITS = ("stage_layers", "recompute_layers")
_ABOUT = {"recompute_layers": "most layers that a virtual stage recomputes, 0 for the default"}

_DERIVED: dict[str, tuple[tuple[str, ...], str, Callable[[LayoutBatch, Question], Array]]] = {
    "world": (("tp", "cp", "pp", "dp"), "ranks: tp*cp*pp*dp", lambda b, q: b.world),
    "nodes": (("tp", "cp", "pp", "dp"), "nodes of the ranks", lambda b, q: b.world / q.cluster.gpus_per_node),
    "microbatches": (("dp", "mbs"), "micro-batches: gbs/(mbs*dp)", lambda b, q: b.microbatches(q.workload.gbs)),
    "model_parallel": (("tp", "cp", "pp"), "ranks of one replica: tp*cp*pp", lambda b, q: b.tp * b.cp * b.pp),
    "edp": (("tp", "cp", "dp", "ep", "etp"), "expert data parallel: tp*cp*dp/(ep*etp)", lambda b, q: b.edp),
    "layers_per_stage": (
        ("pp", "vpp"), "decoder layers over virtual stages", lambda b, q: q.model.n_layers / (b.pp * b.vpp)
    ),
}  # fmt: skip
_QUESTION: dict[str, tuple[str, Callable[[Question], float]]] = {
    "gbs": ("sequences in a step", lambda q: q.workload.gbs),
    "seq_len": ("tokens in a sequence", lambda q: q.workload.seq_len),
    "n_layers": ("decoder layers", lambda q: q.model.n_layers),
    "gpus_per_node": ("ranks in a node", lambda q: q.cluster.gpus_per_node),
}
DETAILS: dict[str, str] = {
    "bubble": "share of the step in which ranks wait for other stages",
    "exposed_comm": "share of the step that waits for communication",
}
"""Figures that only the full prediction of a layout has; all of them shares of the step."""


def _words() -> dict[str, tuple[str, ...]]:
    """Field whose values are words -> the words."""
    return {name: tuple(word for word in known if word) for name, known in LAYOUT_WORDS.items() if name in CODES}


FIELD_WORDS = _words()
WORDS: tuple[str, ...] = tuple(sorted({word for words in FIELD_WORDS.values() for word in words}))


def _table() -> dict[str, Name]:
    found = {}
    for f in fields(Layout):
        if f.name in ("stage_layers", "placement"):  # given as a whole, not compared
            continue
        words = f.name in FIELD_WORDS or f.name == "recompute_modules"
        dimension = f"word:{f.name}" if words else "number"
        found[f.name] = Name(f.name, "field", dimension, _ABOUT.get(f.name, "a field of the layout"), (f.name,))
    for name, (base, about, _) in _DERIVED.items():
        found[name] = Name(name, "derived", "number", about, base)
    for name, (about, _) in _QUESTION.items():
        found[name] = Name(name, "question", "number", about)
    for name, objective in OBJECTIVES.items():
        found[name] = Name(name, "figure", objective.dimension, objective.title)
    for name, about in DETAILS.items():
        found[name] = Name(name, "detail", "share", about)
    return found


NAMES: dict[str, Name] = _table()


def code_of(field: str, word: str) -> int | None:
    """The number that stands for a word of a field in arrays, or None for a word that it has not."""
    if field == "recompute_modules":
        parts = word.split("+") if word else []
        return CODES[field].encode(parts) if all(part in MODULES for part in parts) else None
    if word and word not in FIELD_WORDS[field]:
        return None
    try:
        return CODES[field].encode(word)
    except ValueError:
        return None


def known_words(field: str) -> tuple[str, ...]:
    """The words of a field."""
    return MODULES if field == "recompute_modules" else FIELD_WORDS[field]


def of_layouts(name: str, layouts: LayoutBatch, question: Question) -> Array | None:
    """Values of a field, of what follows from fields, or of a number of the question; None for a figure."""
    known = NAMES[name]
    if known.kind == "question":
        return np.asarray(_QUESTION[name][1](question))
    if known.kind == "derived":
        return np.asarray(_DERIVED[name][2](layouts, question))
    if known.kind != "field":
        return None
    column = np.asarray(getattr(layouts, name))
    if name not in _SPLITS:
        return column
    unique, inverse = np.unique(column, return_inverse=True)
    most = np.asarray([max(split_of(int(number)), default=0) for number in unique], dtype=np.int64)
    return np.asarray(most[inverse.reshape(np.shape(column))])
