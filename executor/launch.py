"""Starts workers under torchrun, follows them, and leaves no process behind. Imports no torch."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from executor import messages, support
from hwmodels.errors import Fault, InputError, RunError
from planner.model import read_config
from planner.plan import Plan
from planner.plan_io import save_plan
from planner.results import Measurement
from planner.results_io import load_measurement

_EXIT = re.compile(r"failed \(exitcode: (-?\d+)\) local_rank: (\d+)")
_GRACE_S = 3.0


def require_torch() -> None:
    """Raise `InputError` where PyTorch is not installed."""
    if importlib.util.find_spec("torch") is None:
        raise InputError(
            Fault(
                "PyTorch is not installed",
                "executor",
                "plans run on torch.distributed",
                "pip install 'meshwright[executor]'",
                "executor-torch",
            )
        )


def run_plans(
    plans: list[Plan],
    out_dir: str | Path,
    *,
    repeats: int = 20,
    warmup: int = 3,
    timeout_s: float = 1800.0,
    device: str = "auto",
    seed: int = 0,
    threads: int = 1,
    on_progress: Callable[[str], None] | None = None,
) -> list[Measurement]:
    """Check and time plans in one launch of torchrun, their steps interleaved.

    Parameters
    ----------
    plans : list of Plan
        All of one world size, with different names.
    out_dir : path
        Receives ``<plan name>/measured.json`` (and ``plan.json``) for each, complete or not at all.
    repeats, warmup : int
        Timed steps at least (up to twice as many until the median is stable), steps before.
    timeout_s : float
        Wall seconds after which the launch is ended.
    device : {'auto', 'cpu', 'cuda'}
    on_progress : callable, optional
        Gets a line of text now and then.

    Returns
    -------
    list of Measurement
        In the order of `plans`.

    Raises
    ------
    hwmodels.errors.InputError
        For plans that cannot run here, before anything starts: all faults at once.
    hwmodels.errors.RunError
        When a rank dies, a check fails or time runs out.
    """
    require_torch()
    _check(plans, repeats, warmup)
    out = Path(out_dir)
    with tempfile.TemporaryDirectory(prefix="meshwright-") as scratch:
        command = [
            "-m",
            "executor.worker",
            "--out",
            scratch,
            "--repeats",
            str(repeats),
            "--warmup",
            str(warmup),
            "--device",
            device,
            "--seed",
            str(seed),
            "--threads",
            str(threads),
            "--budget",
            f"{timeout_s / 2:.0f}",
            "--timeout",
            f"{min(timeout_s, 600.0):.0f}",
        ]
        for i, plan in enumerate(plans):
            command += ["--plan", str(save_plan(plan, Path(scratch) / f"plan-{i:02d}.json"))]
        events = torchrun(command, plans[0].layout.world, timeout_s, on_progress)
        written = {e["number"]: e["path"] for e in events if e["event"] == "written"}
        missing = [p.name for i, p in enumerate(plans) if i not in written]
        if missing:
            raise RunError(f"the workers ended without a measurement of {', '.join(missing)}")
        found = [load_measurement(written[i]) for i in range(len(plans))]
    for plan, measured in zip(plans, found, strict=True):
        from planner.results_io import save_measurement

        folder = out / _folder(plan.name)
        save_plan(plan, folder / "plan.json")
        save_measurement(measured, folder / "measured.json")
    return found


RANKS_PER_CORE = 4
"""Ranks that a host takes for each of its cores; a GPU host has more cores than GPUs."""


def _folder(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "plan"


def _check(plans: Sequence[Plan], repeats: int, warmup: int) -> None:
    faults = []
    if not plans:
        faults.append(Fault("no plan to run", "plans", "", "at least one plan"))
    if repeats < 2:
        faults.append(Fault(f"repeats is {repeats}", "repeats", "a median and its drift need some steps", "20"))
    if warmup < 1:
        faults.append(Fault(f"warmup is {warmup}", "warmup", "the first step allocates and connects", "3"))
    worlds = sorted({p.layout.world for p in plans})
    if len(worlds) > 1:
        faults.append(
            Fault(
                f"plans of {worlds} ranks in one launch",
                "plans",
                "steps are interleaved on the same ranks",
                "one launch for each world size",
            )
        )
    most = RANKS_PER_CORE * (os.cpu_count() or 1)
    if worlds and worlds[-1] > most:
        faults.append(
            Fault(
                f"a plan of {worlds[-1]} ranks",
                "plans",
                f"all ranks start on this host, whose {os.cpu_count()} cores hold at most {most}",
                f"a plan of at most {most} ranks, e.g. from search --cluster cpu-local",
                "executor-world",
            )
        )
    folders = [_folder(p.name) for p in plans]
    if len(set(folders)) < len(folders):
        faults.append(Fault("two plans share a name", "plans", "each writes a folder of its name", "different names"))
    for plan in plans:
        if plan.kind == "training":
            faults += support.check(plan, read_config(plan.model, plan.model_name))
        else:
            faults.append(
                Fault(
                    f"plan {plan.name} is of kind {plan.kind}",
                    "plans",
                    "the executor trains",
                    "a training plan",
                    "executor-kind",
                )
            )
    if faults:
        raise InputError(faults)


def torchrun(
    command: Sequence[str], ranks: int, timeout_s: float, on_progress: Callable[[str], None] | None = None
) -> list[dict[str, Any]]:
    """Run ``python <command>`` on `ranks` processes of this host; returns the workers' events.

    Raises
    ------
    hwmodels.errors.RunError
        Naming the rank, its cause and its last lines.
    """
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(ranks), *command]
    with _terminated_as_interrupt():
        process = subprocess.Popen(
            launcher,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=_environment(),
            start_new_session=True,
            preexec_fn=_die_with_parent if os.name == "posix" else None,  # noqa: PLW1509 - one prctl, no locks
        )
        run = _Run(process, ranks, on_progress)
        try:
            run.follow(time.monotonic() + timeout_s, timeout_s)
        finally:
            run.end()
    run.raise_for_failure()
    return run.events


def _environment() -> dict[str, str]:
    env = dict(os.environ)
    root = str(Path(__file__).resolve().parent.parent)
    env["PYTHONPATH"] = os.pathsep.join(p for p in (root, env.get("PYTHONPATH", "")) if p)
    env.setdefault("OMP_NUM_THREADS", "1")
    env.setdefault("PYTHONUNBUFFERED", "1")
    # Freed activations stay with the process: handing them back to the kernel costs a page fault for every
    # 4 KiB of the next step (a tenth of a CPU step and most of its variation). glibc only; others ignore it.
    env.setdefault("MALLOC_MMAP_MAX_", "0")
    env.setdefault("MALLOC_TRIM_THRESHOLD_", str(1 << 40))
    env.setdefault("MALLOC_TOP_PAD_", str(64 << 20))
    env.setdefault("MALLOC_ARENA_MAX", "1")
    # gloo would otherwise look the host name up, which fails where it does not resolve.
    if "GLOO_SOCKET_IFNAME" not in env and Path("/sys/class/net/lo").exists():
        env["GLOO_SOCKET_IFNAME"] = "lo"
    return env


def _die_with_parent() -> None:
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG: torchrun then ends its workers


@contextmanager
def _terminated_as_interrupt() -> Iterator[None]:
    """Let SIGTERM unwind like Ctrl-C, so that the workers are ended too."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(_signal: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class _Run:
    """One torchrun process: its events, its last lines, its end."""

    def __init__(self, process: subprocess.Popen[bytes], ranks: int, on_progress: Callable[[str], None] | None) -> None:
        self.process, self.ranks, self.on_progress = process, ranks, on_progress
        self.events: list[dict[str, Any]] = []
        self.lines: deque[str] = deque(maxlen=200)
        self.exits: dict[int, int] = {}
        self.timed_out_s: float | None = None

    def follow(self, deadline: float, timeout_s: float) -> None:
        """Read output until torchrun ends or the deadline passes."""
        stream = self.process.stdout
        if stream is None:
            raise RunError("torchrun has no output to follow")
        os.set_blocking(stream.fileno(), False)
        pending = b""
        with selectors.DefaultSelector() as selector:
            selector.register(stream, selectors.EVENT_READ)
            while True:
                left = deadline - time.monotonic()
                if left <= 0:
                    self.timed_out_s = timeout_s
                    return
                if not selector.select(min(left, 0.5)):
                    if self.process.poll() is not None:
                        return
                    continue
                data = stream.read(65536)
                if not data:
                    return
                *whole, pending = (pending + data).split(b"\n")
                for line in whole:
                    self._take(line.decode("utf-8", "replace").rstrip())

    def _take(self, line: str) -> None:
        event = messages.parse(line)
        if event is None:
            self.lines.append(line)
            match = _EXIT.search(line)
            if match:
                self.exits[int(match[2])] = int(match[1])
            return
        self.events.append(event)
        if event["event"] == "progress" and self.on_progress is not None:
            self.on_progress(event["text"])

    def end(self) -> None:
        """Make sure that neither torchrun nor a worker is left."""
        if self.process.poll() is None and self.timed_out_s is None:
            with suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
                self.process.wait(_GRACE_S)
        workers = [e["pid"] for e in self.events if e["event"] == "started"]
        if self.process.poll() is None:
            _signal_group(self.process.pid, signal.SIGTERM)
            for pid in workers:
                _signal_worker(pid, signal.SIGTERM)
            try:
                self.process.wait(_GRACE_S)
            except subprocess.TimeoutExpired:
                _signal_group(self.process.pid, signal.SIGKILL)
                self.process.wait()
        for pid in workers:
            _signal_worker(pid, signal.SIGKILL)
        if self.process.stdout is not None:
            self.process.stdout.close()

    def raise_for_failure(self) -> None:
        """Turn a failed end into a `RunError` that says which rank failed, and why."""
        if self.timed_out_s is not None:
            said = [e["text"] for e in self.events if e["event"] == "progress"]
            where = f" after: {said[-1]}" if said else ""
            raise RunError(
                f"the run did not end within {self.timed_out_s:.0f} s{where}. "
                "Try: fewer repeats, a smaller model, a longer timeout"
            )
        if self.process.returncode == 0:
            return
        killed = {rank: code for rank, code in self.exits.items() if code < 0 and code != -signal.SIGTERM}
        if killed:
            rank, code = next(iter(killed.items()))
            raise RunError(
                f"rank {rank} was killed by signal {_signal_name(-code)}; the other ranks were ended. "
                f"Last lines: {self._tail()}"
            )
        errors = [e for e in self.events if e["event"] == "error"]
        if errors:
            # Ranks whose peer is gone fail too; the first that failed by itself is the cause.
            own = [
                e
                for e in errors
                if "onnection closed by peer" not in e["cause"] and "onnection reset" not in e["cause"]
            ]
            first = (own or errors)[0]
            detail = "" if first["ours"] else "\n  " + "\n  ".join(first["lines"])
            raise RunError(f"rank {first['rank']} failed: {first['cause']}{detail}")
        raise RunError(f"torchrun ended with code {self.process.returncode}. Last lines: {self._tail()}")

    def _tail(self) -> str:
        return "\n  ".join(["", *[line for line in self.lines if line.strip()][-12:]])


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


def _signal_group(pid: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def _signal_worker(pid: int, number: int) -> None:
    """Signal a worker, unless its id now belongs to something else."""
    with suppress(OSError):
        if b"executor." in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, number)
