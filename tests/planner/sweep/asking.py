"""Small cases, and ways to answer them that workers can import: counting, dying, waiting."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

from hwmodels import cluster as clusters
from hwmodels.errors import RunError
from planner import model as models
from planner.plan import Workload
from planner.search import Space
from planner.sweep import Case, solve

NOTES = "SWEEP_TEST_NOTES"
"""Environment variable with the folder in which workers leave a file for each case that they begin."""
MODEL, _ = models.load("tiny-llama")
CLUSTER = clusters.load("cpu-local:1")


def case(name: str, gbs: int = 8, top: int = 1) -> Case:
    """A search of a few layouts on the CPU ranks of one node."""
    return Case(
        name, MODEL, CLUSTER, Workload(256, gbs, "fp32"), {"space": Space(mbs=(1,)), "top": top}, {"gbs": gbs}
    )


def noted(one: Case) -> int:
    """Leave a note that a case was begun; how often it has been by now."""
    folder = Path(os.environ[NOTES])
    (folder / f"{one.name}.{os.getpid()}.{time.monotonic_ns()}").touch()
    return len(list(folder.glob(f"{one.name}.*")))


def counting(one: Case) -> dict[str, Any]:
    """As `solve`, with a note."""
    noted(one)
    return solve(one)


def dying_once(one: Case) -> dict[str, Any]:
    """The worker of case ``b`` is killed the first time."""
    if noted(one) == 1 and one.name == "b":
        os.kill(os.getpid(), signal.SIGKILL)
    return solve(one)


def dying_always(one: Case) -> dict[str, Any]:
    """Case ``b`` kills every worker."""
    noted(one)
    if one.name == "b":
        os.kill(os.getpid(), signal.SIGKILL)
    return solve(one)


def failing(one: Case) -> dict[str, Any]:
    """Case ``b`` raises until there is a file ``mended``."""
    noted(one)
    if one.name == "b" and not (Path(os.environ[NOTES]) / "mended").exists():
        raise RunError("the disk is full")
    return solve(one)


def slow(one: Case) -> dict[str, Any]:
    """Cases but the first two hang."""
    noted(one)
    if one.name not in ("a", "b"):
        time.sleep(60)
    return solve(one)
