"""Failing, killed, slow and interrupted runs: one error, no process left, no file half written."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from executor import launch, messages
from executor.launch import run_plans, torchrun
from hwmodels.errors import InputError, RunError
from planner.layout import Layout
from tests.executor.conftest import make_plan

REPO = Path(__file__).resolve().parents[2]


def alive(pids: list[int]) -> list[int]:
    """The processes that still run (zombies do not)."""
    found = []
    for pid in pids:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            continue
        if state != "Z":
            found.append(pid)
    return found


def gone(pids: list[int], within_s: float = 8.0) -> bool:
    """Whether all of them end soon."""
    deadline = time.monotonic() + within_s
    while alive(pids) and time.monotonic() < deadline:
        time.sleep(0.1)
    return not alive(pids)


def test_importing_the_launcher_does_not_import_torch() -> None:
    code = "import sys, executor.launch, executor.calibrate, executor.support; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=REPO, check=False).returncode == 0


def test_missing_torch_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"meshwright\[executor\]"):
        launch.require_torch()


def test_messages_survive_other_output() -> None:
    line = f'[rank0]: {messages.MARK}{{"event": "progress", "text": "x"}}'
    assert messages.parse(line) == {"event": "progress", "text": "x"}
    assert messages.parse("Traceback (most recent call last):") is None
    assert messages.parse(f"{messages.MARK}{{broken") is None


@pytest.mark.slow
def test_a_killed_rank_ends_the_run(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    seen: list[int] = []

    def kill_one(_text: str) -> None:
        if not seen:
            # Workers are the children of torchrun, which is our child.
            children = _workers(os.getpid())
            seen.extend(children)
            os.kill(children[-1], signal.SIGKILL)

    with pytest.raises(RunError, match="killed by signal SIGKILL") as caught:
        run_plans(
            [make_plan("long", Layout(dp=2))], tmp_path, repeats=5000, timeout_s=120, device="cpu", on_progress=kill_one
        )
    assert "rank " in str(caught.value)
    assert len(seen) == 2 and gone(seen)
    assert not list(tmp_path.rglob("*.json")), "no half-written result"


@pytest.mark.slow
def test_a_run_that_takes_too_long_ends(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    seen: list[int] = []
    with pytest.raises(RunError, match="did not end within 40 s"):
        run_plans([make_plan("long", Layout(dp=2))], tmp_path, repeats=100000, timeout_s=40, device="cpu",
                  on_progress=lambda _: seen.extend(_workers(os.getpid())))  # fmt: skip
    assert seen and gone(seen)


@pytest.mark.slow
def test_sigterm_leaves_no_process(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script = textwrap.dedent(f"""
        import sys
        sys.path.insert(0, {str(REPO)!r})
        from executor.launch import run_plans
        from planner.layout import Layout
        from tests.executor.conftest import make_plan
        run_plans([make_plan("long", Layout(dp=2))], {str(tmp_path)!r}, repeats=100000, device="cpu",
                  on_progress=lambda text: print(text, flush=True))
    """)
    process = subprocess.Popen(
        [sys.executable, "-c", script], cwd=REPO, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdout is not None
    process.stdout.readline()
    workers = _workers(process.pid)
    assert len(workers) == 2
    process.send_signal(signal.SIGTERM)
    process.wait(20)
    process.stdout.close()
    assert gone(workers)


def test_an_error_of_a_rank_is_shown(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    missing = tmp_path / "plan.json"
    with pytest.raises(RunError, match=r"rank 0 failed: .*no such file"):
        torchrun(["-m", "executor.worker", "--plan", str(missing), "--out", str(tmp_path), "--device", "cpu"], 1, 60.0)


def _workers(root: int) -> list[int]:
    """Descendants of `root` that run the executor's worker module, by the process table."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except OSError:
                continue
    found: list[Any] = []
    for pid in parents:
        at = pid
        while at in parents and at != root:
            at = parents[at]
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if at == root and b"executor.worker" in words and b"torch.distributed.run" not in words:
            found.append(pid)
    return sorted(found)
