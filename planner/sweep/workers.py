"""The engine ``local``: fresh processes on this machine, each given one case after the other.

A pool of `concurrent.futures` fails as a whole when one of its processes is killed and cannot say what that one was
doing. Here every worker has a pipe of its own: what it was doing is known, is given to another, and nothing else is
touched. Workers are spawned, not forked, and leave Ctrl-C to their parent.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from planner.sweep.case import FAILED, Case

ATTEMPTS = 3
"""Workers that may die over one case before it is given up: memory that one case needs too much of is no accident."""
ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""As many workers as cores, so each uses one."""

Solve = Callable[[Case], dict[str, Any]]
Answer = tuple[int, dict[str, Any]]


def failure(error: BaseException) -> dict[str, Any]:
    """The document of a case whose search raised what no search should."""
    return {"status": FAILED, "why": f"{type(error).__name__}: {error}"}


def attempted(solve: Solve, case: Case) -> dict[str, Any]:
    """The answer to a case, or its failure: one case must not end the others."""
    try:
        return solve(case)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is this case's
        return failure(error)


def _serve(connection: Connection, solve: Solve) -> None:
    """A worker: answer cases until the parent closes its end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interruption means
    while True:
        try:
            number, case = connection.recv()
        except EOFError:
            return
        connection.send((number, attempted(solve, case)))


@dataclass(slots=True, eq=False)
class _Worker:
    """A process and what it is doing (-1: nothing)."""

    process: BaseProcess
    connection: Connection
    doing: int = -1


class Workers:
    """Up to `count` processes; use `answers` once.

    Parameters
    ----------
    solve : callable
        Case -> document; importable by name in a fresh process.
    count : int
        Processes at the same time.
    """

    def __init__(self, solve: Solve, count: int) -> None:
        self._solve, self._count = solve, count
        self._context = multiprocessing.get_context("spawn")
        self._workers: list[_Worker] = []

    def answers(self, cases: Sequence[Case]) -> Iterator[Answer]:
        """Number and document of every case, in the order in which they are done.

        Whatever ends the iteration early (Ctrl-C in the parent, `close` of the iterator) ends the workers.
        """
        waiting = deque(range(len(cases)))
        deaths = [0] * len(cases)
        left = len(cases)
        try:
            while left:
                self._hire(min(self._count, left))
                for worker in self._workers:
                    if worker.doing < 0 and waiting:
                        self._give(worker, waiting, cases)
                for worker in self._ready():
                    found = self._take(worker)
                    if found is not None:
                        left -= 1
                        yield found
                    elif worker.doing >= 0:
                        number = worker.doing
                        deaths[number] += 1
                        if deaths[number] < ATTEMPTS:
                            waiting.append(number)
                        else:
                            left -= 1
                            yield number, _given_up(worker.process)
        finally:
            self._dismiss()

    def _hire(self, count: int) -> None:
        """Start workers until there are `count`."""
        kept = {name: os.environ.get(name) for name in ONE_THREAD}
        os.environ.update(dict.fromkeys(ONE_THREAD, "1"))  # what a spawned process inherits
        try:
            while len(self._workers) < count:
                ours, theirs = self._context.Pipe()
                process = self._context.Process(target=_serve, args=(theirs, self._solve), daemon=True)
                process.start()
                theirs.close()  # so that its end is the end of the pipe
                self._workers.append(_Worker(process, ours))
        finally:
            for name, value in kept.items():
                os.environ.pop(name)
                if value is not None:
                    os.environ[name] = value

    def _give(self, worker: _Worker, waiting: deque[int], cases: Sequence[Case]) -> None:
        number = waiting.popleft()
        try:
            worker.connection.send((number, cases[number]))
        except OSError:  # it is gone, and never had the case
            waiting.appendleft(number)
            return
        worker.doing = number

    def _ready(self) -> list[_Worker]:
        """Workers that have something to say, or have died."""
        by_handle: dict[Any, _Worker] = {}
        for worker in self._workers:
            by_handle[worker.connection] = worker
            by_handle[worker.process.sentinel] = worker
        return list({id(by_handle[handle]): by_handle[handle] for handle in wait(list(by_handle))}.values())

    def _take(self, worker: _Worker) -> Answer | None:
        """What a worker has answered; None, and the worker is let go, where it has died instead."""
        try:
            if worker.connection.poll():
                found: Answer = worker.connection.recv()
                worker.doing = -1
                return found
        except (EOFError, OSError):
            pass
        worker.process.join()
        worker.connection.close()
        self._workers.remove(worker)
        return None

    def _dismiss(self) -> None:
        for worker in self._workers:
            worker.process.terminate()
        for worker in self._workers:
            worker.process.join()
            worker.connection.close()
        self._workers.clear()


def _given_up(process: BaseProcess) -> dict[str, Any]:
    code = process.exitcode
    how = f"killed by signal {-code}" if code is not None and code < 0 else f"ended with {code}"
    why = f"{ATTEMPTS} workers were lost over it, the last one {how}; a machine out of memory kills with signal 9"
    return {"status": FAILED, "why": why}
