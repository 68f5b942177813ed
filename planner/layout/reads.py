"""Which fields of a layout a rule reads, found by watching it: a search applies a rule as soon as these are laid out.

What a rule reads may depend on the model, the workload and the framework (a dense model's rules about experts read
less), never on the layouts it is asked about: the probe has every field at a value that is not its default, so that no
rule leaves early for want of what it is about.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import numpy as np

from planner.layout.degrees import CODES, OPEN_CP_KINDS, BoolArray, LayoutBatch
from planner.layout.remedies import RuleContext
from planner.layout.splits import split_id

FIELDS: tuple[str, ...] = tuple(f.name for f in fields(LayoutBatch))


class _Watched(LayoutBatch):
    """A batch that notes which of its fields are asked for."""

    __slots__ = ()

    _log: set[str] = set()

    def __getattribute__(self, name: str) -> Any:
        if name in FIELDS:
            _Watched._log.add(name)
        return super().__getattribute__(name)

    def with_cp_kind(self, default: str) -> LayoutBatch:
        """The same batch: a kind is read, and no other field for its sake."""
        _Watched._log.add("cp_kind")
        return self


def _probe() -> dict[str, Any]:
    """Two layouts with every field away from its default: pipelines with and without a partial policy."""
    two = {name: np.asarray([2, 4], dtype=np.int64) for name in FIELDS}
    two |= {
        "sp": np.ones(2, dtype=np.int64),
        "zero_stage": np.asarray([2, 3]),
        "reshard": np.asarray([1, 2]),
        "recompute": np.asarray([CODES["recompute"].encode(word) for word in ("selective", "block")]),
        "schedule": np.asarray([CODES["schedule"].encode(word) for word in ("interleaved-1f1b", "gpipe")]),
        "cp_kind": np.asarray([OPEN_CP_KINDS.index(word) for word in ("hierarchical", "ulysses")]),
        "offload_parameters": np.ones(2, dtype=np.int64),
    }
    two |= {name: np.full(2, code.encode((1, 1))) for name, code in CODES.items() if code.encode is split_id}
    return {name: two[name] for name in FIELDS}


def fields_read(holds: Callable[[LayoutBatch, RuleContext], BoolArray], context: RuleContext) -> frozenset[str]:
    """Names of the fields that a test on arrays reads in a context."""
    watched = _Watched(**_probe())
    _Watched._log = set()
    with np.errstate(all="ignore"):
        holds(watched, context)
    return frozenset(_Watched._log)
