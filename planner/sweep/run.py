"""Running a sweep: what is kept already is read, the rest is answered and kept as it comes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hwmodels.errors import Fault, InputError
from planner.sweep import ray_engine
from planner.sweep.case import DONE, FAILED, Case
from planner.sweep.case import solve as search_of
from planner.sweep.engines import ENGINES, cores
from planner.sweep.store import Store
from planner.sweep.workers import Solve

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True)
class Outcome:
    """A case and what became of it.

    Attributes
    ----------
    case : Case
    document : dict
        ``status``, and ``answer`` (as ``search --json``, without the wall time) with ``layouts``, or ``why``.
    kept : bool
        Whether it was there from an earlier run.
    """

    case: Case
    document: dict[str, Any]
    kept: bool = False

    @property
    def status(self) -> str:
        """``done``, ``infeasible``, ``refused`` or ``failed``."""
        return str(self.document["status"])

    @property
    def best(self) -> dict[str, Any] | None:
        """The first plan of the answer; None where there is none."""
        plans = self.document["answer"]["plans"] if self.status == DONE else []
        return plans[0] if plans else None


def run(
    cases: Sequence[Case],
    *,
    solve: Solve = search_of,
    engine: str = "local",
    workers: int | None = None,
    store: Store | None = None,
    progress: Progress | None = None,
) -> list[Outcome]:
    """Answer every case, in the order given.

    Cases that ask the same are answered once. With a `store` every answer is kept as soon as it is there, so an
    interrupted sweep goes on where it stopped; failures are not kept, and are tried again.

    Parameters
    ----------
    cases : sequence of Case
    solve : callable
        Case -> document; a function of a module, for it is imported by the workers.
    engine : {'local', 'ray'}
    workers : int, optional
        Cases at the same time; the cores of this machine by default.
    store : Store, optional
    progress : callable, optional
        Called with the number of cases done, of all, and what happened.

    Raises
    ------
    InputError
        For an engine that is unknown or not installed, fewer than one worker, or two cases of one name.
    KeyboardInterrupt
        As it comes; what is done is in the store.
    """
    _check(cases, engine, workers)
    tell = progress or (lambda done, total, what: None)
    digests = [case.digest() for case in cases]
    found: dict[str, dict[str, Any]] = {}
    for digest in digests:
        document = store.read(digest) if store is not None else None
        if document is not None:
            found[digest] = document
    kept = set(found)
    asked: dict[str, Case] = {}
    for digest, case in zip(digests, cases, strict=True):
        asked.setdefault(digest, case)
    done = sum(digest in kept for digest in digests)
    if done:
        tell(done, len(cases), f"{done} of {len(cases)} are there already")
    open_ = [digest for digest in asked if digest not in kept]
    answers = ENGINES[engine](solve, workers or cores(), [asked[digest] for digest in open_]) if open_ else iter(())
    for number, document in answers:
        digest = open_[number]
        if store is not None and document["status"] != FAILED:
            store.write(digest, document)
        found[digest] = document
        done += digests.count(digest)
        tell(done, len(cases), f"{asked[digest].name}: {document['status']}")
    return [Outcome(case, found[digest], digest in kept) for case, digest in zip(cases, digests, strict=True)]


def _check(cases: Sequence[Case], engine: str, workers: int | None) -> None:
    faults = []
    if engine not in ENGINES:
        faults.append(Fault(f"unknown engine {engine!r}", "--engine", "", " or ".join(ENGINES)))
    if workers is not None and workers < 1:
        faults.append(Fault(f"{workers} workers", "--workers", "nobody would answer", "1 or more"))
    names = [case.name for case in cases]
    twice = sorted({name for name in names if names.count(name) > 1})
    faults += [Fault(f"two cases are called {name!r}", "sweep", "rows are told apart by name", "") for name in twice]
    if faults:
        raise InputError(faults)
    if engine == "ray":
        ray_engine.ray_module()
