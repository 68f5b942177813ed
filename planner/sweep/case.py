"""One search of a sweep: what it asks, the digest of that, and its answer as a plain document."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

import hwmodels
import planner
from hwmodels.cluster import Cluster
from hwmodels.errors import InfeasibleError, InputError, RunError
from planner.model.spec import ModelSpec
from planner.plan import Workload
from planner.search import search

DONE, INFEASIBLE, REFUSED, FAILED = "done", "infeasible", "refused", "failed"
"""What became of a case: an answer; legal and nothing fits; the question breaks a rule; it could not be run.

The first three are answers, which the same question gets again. A failure is not: it is tried again."""


@dataclass(frozen=True, slots=True)
class Case:
    """One search. Picklable: it is what a worker is sent.

    Attributes
    ----------
    name : str
        Unique in a sweep; rows are called by it.
    model : ModelSpec
    cluster : Cluster
    workload : Workload
    keywords : mapping
        Further keywords of `planner.search.search`: space, objective, top, constraints.
    labels : mapping of str to str or int
        What the sweep varies, for tables: model, cluster, gpus, gbs. No part of the question.
    """

    name: str
    model: ModelSpec
    cluster: Cluster
    workload: Workload
    keywords: Mapping[str, Any] = field(default_factory=dict)
    labels: Mapping[str, str | int] = field(default_factory=dict)

    def digest(self) -> str:
        """Hash of the question and of the program that answers it; 32 hex digits.

        Two cases of one digest have one answer, whatever they are called. Another version of the laws, of the
        catalog or of the code gives another digest: what it answered before is not taken for its answer.
        """
        content = [_plain(value) for value in (self.model, self.cluster, self.workload, dict(self.keywords))]
        text = json.dumps([program_digest(), *content], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]


def _plain(value: Any) -> Any:
    """JSON types that say all of a value: dataclasses with their type, mappings, sequences, numbers, text.

    Raises
    ------
    RunError
        For a value that has no content of its own to compare (a function, an open file).
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return repr(value)
    if is_dataclass(value) and not isinstance(value, type):
        return [type(value).__qualname__, {f.name: _plain(getattr(value, f.name)) for f in fields(value)}]
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if isinstance(value, Iterable):
        return [_plain(item) for item in value]
    raise RunError(f"a sweep cannot compare {type(value).__name__} by content. Try: a dataclass, numbers or text")


@cache
def program_digest() -> str:
    """Hash of the code and data that answer a search: every source, YAML and JSON file of both packages."""
    found = hashlib.sha256()
    for package in (hwmodels, planner):
        root = Path(package.__file__ or "").parent
        for path in sorted(path for path in root.rglob("*") if path.suffix in (".py", ".yaml", ".json")):
            found.update(f"{package.__name__}/{path.relative_to(root)}\n".encode())
            found.update(path.read_bytes())
    return found.hexdigest()


def solve(case: Case) -> dict[str, Any]:
    """The answer to a case, in plain types: as ``search --json``, and the layouts of its plans in words.

    An infeasible case is an answer that says why.

    Nothing that two runs may differ in (wall time, host) is part of it, so every engine gives the same bytes.
    """
    try:
        result = search(case.model, case.cluster, case.workload, **case.keywords)
    except InfeasibleError as error:
        return {"status": INFEASIBLE, "why": str(error), "binding": error.binding, "nearest": error.nearest}
    except InputError as error:
        return {"status": REFUSED, "why": "; ".join(map(str, error.faults))}
    answer = result.to_dict()
    answer.pop("wall_s")
    return {"status": DONE, "answer": answer, "layouts": [row.layout.label() for row in result.rows]}
