"""The engine ``ray``: the same cases as tasks of a Ray cluster, where the extra ``ray`` is installed.

Ray starts a task again when its worker or its node is lost; answers come back to the driver, which alone writes. The
program must be installed on every node (`ray` reports a node that lacks it as the failure of the case).

References
----------
Ray documentation, "Fault tolerance > Tasks": ``max_retries`` counts system failures, the death of a worker among them.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from typing import Any

from hwmodels.errors import Fault, InputError
from planner.sweep.case import Case
from planner.sweep.workers import ATTEMPTS, Answer, Solve, attempted, failure


def ray_module() -> Any:
    """The library, imported when it is asked for.

    Raises
    ------
    InputError
        Where it is not installed.
    """
    try:
        return importlib.import_module("ray")
    except ImportError:
        why = "the extra ray is not installed"
        fix = "pip install 'meshwright[ray]', or --engine local"
        raise InputError(Fault("there is no Ray here", "--engine", why, fix)) from None


def answers(solve: Solve, count: int, cases: Sequence[Case]) -> Iterator[Answer]:
    """Number and document of every case, in the order in which they are done.

    Joins the cluster that ``RAY_ADDRESS`` or a running one names, else starts one on this machine with `count` CPUs;
    that one ends with the iteration.

    Parameters
    ----------
    solve : callable
    count : int
        Tasks at the same time.
    cases : sequence of Case
    """
    ray = ray_module()
    started = not ray.is_initialized()
    if started:
        _join(ray, count)
    task = ray.remote(num_cpus=1, max_retries=ATTEMPTS - 1)(attempted)
    waiting = iter(range(len(cases)))
    running: dict[Any, int] = {}
    try:
        while True:
            for number in waiting:
                running[task.remote(solve, cases[number])] = number
                if len(running) >= count:
                    break
            if not running:
                return
            done, _ = ray.wait(list(running), num_returns=1)
            for reference in done:
                number = running.pop(reference)
                try:
                    found = ray.get(reference)
                except ray.exceptions.RayError as error:  # lost more often than Ray tries again
                    found = failure(error)
                yield number, found
    finally:
        for reference in running:
            ray.cancel(reference, force=True)
        if started:
            ray.shutdown()


def _join(ray: Any, count: int) -> None:
    """The cluster that is there, or one of our own."""
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    try:
        ray.init(address="auto", **quiet)
    except ConnectionError:
        ray.init(num_cpus=count, include_dashboard=False, **quiet)
