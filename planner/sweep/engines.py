"""The engines of a sweep by name: who answers the cases. All give the same documents."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence

from planner.sweep import ray_engine
from planner.sweep.case import Case
from planner.sweep.workers import Answer, Solve, Workers, attempted

Engine = Callable[[Solve, int, Sequence[Case]], Iterator[Answer]]


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def local(solve: Solve, count: int, cases: Sequence[Case]) -> Iterator[Answer]:
    """On this machine: `count` processes, or the calling one where one is enough."""
    if min(count, len(cases)) > 1:
        return Workers(solve, count).answers(cases)
    return ((number, attempted(solve, case)) for number, case in enumerate(cases))


ENGINES: dict[str, Engine] = {"local": local, "ray": ray_engine.answers}
