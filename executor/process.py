"""What every worker process does first and last: group, threads, errors, and dying with its parent."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta

import torch
import torch.distributed as dist

from executor import messages
from executor.device import Backend, choose
from hwmodels.errors import MeshwrightError


def die_with_parent() -> None:
    """End this process when the launcher that started it is gone, so that none is left behind.

    On Linux the kernel does it; elsewhere a thread looks every second.
    """
    parent = os.getppid()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def pin(threads: int) -> list[int]:
    """Keep this rank on cores of its own, where the machine has enough for all local ranks.

    Two ranks that share a core for a while are what makes steps on a CPU vary most.

    Returns
    -------
    list of int
        The cores; empty where nothing was pinned.
    """
    if not hasattr(os, "sched_setaffinity"):
        return []
    cores = sorted(os.sched_getaffinity(0))
    rank, ranks = int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if ranks * threads > len(cores):
        return []
    own = cores[rank * threads : (rank + 1) * threads]
    try:
        os.sched_setaffinity(0, own)
    except OSError:
        return []
    return own


def start(kind: str, threads: int, timeout_s: float) -> Backend:
    """Join the process group that torchrun describes in the environment."""
    torch.set_num_threads(threads)
    backend = choose(kind, int(os.environ.get("LOCAL_RANK", "0")))
    if not backend.is_cuda:
        pin(threads)
    device = backend.device if backend.is_cuda else None
    dist.init_process_group(backend.collectives, timeout=timedelta(seconds=timeout_s), device_id=device)
    return backend


def clock_offset_s() -> float:
    """Seconds to add to this rank's `perf_counter` to get rank 0's; 0 where all ranks share a host.

    Across hosts it is the median difference right after ten barriers, good to a barrier's skew.
    """
    hosts: list[str | None] = [None] * dist.get_world_size()
    dist.all_gather_object(hosts, socket.gethostname())
    if len(set(hosts)) == 1:
        return 0.0
    differences = []
    for _ in range(10):
        dist.barrier()
        now: list[float | None] = [None] * dist.get_world_size()
        dist.all_gather_object(now, time.perf_counter())
        differences.append((now[0] or 0.0) - (now[dist.get_rank()] or 0.0))
    return sorted(differences)[5]


def main(body: Callable[[], None]) -> None:
    """Run a worker; an error becomes one event with its cause and last lines, and exit code 1."""
    die_with_parent()
    rank = int(os.environ.get("RANK", "0"))
    messages.say("started", rank=rank, pid=os.getpid())
    try:
        body()
    except MeshwrightError as error:
        messages.say("error", rank=rank, cause=str(error), lines=[], ours=True)
        sys.exit(1)
    except Exception as error:  # noqa: BLE001 - whatever it is, the launcher shows it
        root: BaseException = error
        while root.__cause__ is not None:
            root = root.__cause__
        cause = " ".join(f"{type(root).__name__}: {root}".split())
        text = traceback.format_exception(root)
        lines = "".join(text).strip().splitlines()
        messages.say("error", rank=rank, cause=cause, lines=lines[-12:], ours=isinstance(root, MeshwrightError))
        sys.exit(1)
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()
