"""Progress on stderr: a live bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any

PLAIN_EVERY_S = 2.0


class Progress:
    """Reports what a long command is doing; use as a context manager.

    `stage` starts a new step; `update` moves it (``done`` of ``total``), `log` leaves a line.
    On a terminal a bar with the elapsed time is redrawn in place; otherwise a line appears at
    the start of each stage, at most every two seconds while it goes on, and at its end.

    Parameters
    ----------
    quiet : bool
        Nothing at all is shown.
    """

    def __init__(self, quiet: bool = False) -> None:
        self._quiet = quiet
        self._terminal = not quiet and sys.stderr.isatty()
        self._live: Any = None
        self._task: Any = None
        self._name = ""
        self._started = 0.0
        self._said = 0.0

    def __enter__(self) -> Progress:
        if self._terminal:
            from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
            from rich.progress import Progress as Live

            from planner.cli.output import console

            self._live = Live(
                SpinnerColumn(),
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                TextColumn("{task.fields[detail]}"),
                TimeElapsedColumn(),
                console=console(sys.stderr),
            )
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._finish()
        if self._live is not None:
            self._live.stop()

    def stage(self, name: str, total: float | None = None) -> None:
        """Begin a step; the one before it is done."""
        self._finish()
        self._name, self._started = name, time.monotonic()
        self._said = self._started
        if self._live is not None:
            self._task = self._live.add_task(name, total=total, detail="")
        elif not self._quiet:
            print(f"{name} ...", file=sys.stderr, flush=True)

    def update(self, done: float | None = None, total: float | None = None, detail: str = "") -> None:
        """Say how far the current step is."""
        if self._live is not None and self._task is not None:
            self._live.update(self._task, completed=done, total=total, detail=detail)
        elif not self._quiet and time.monotonic() - self._said >= PLAIN_EVERY_S:
            self._said = time.monotonic()
            parts = [self._name, f"{done:g}/{total:g}" if done is not None and total else "", detail]
            print("  " + " ".join(part for part in parts if part), file=sys.stderr, flush=True)

    def log(self, message: str) -> None:
        """Leave a line on stderr that stays."""
        if self._live is not None:
            self._live.console.print(message, markup=False)
        elif not self._quiet:
            print(f"  {message}", file=sys.stderr, flush=True)

    def _finish(self) -> None:
        if not self._name:
            return
        seconds = time.monotonic() - self._started
        if self._live is not None and self._task is not None:
            task = self._live.tasks[self._live.task_ids.index(self._task)]
            total = task.total or 1.0
            self._live.update(self._task, completed=total, total=total, detail="done")
            self._task = None
        elif not self._quiet:
            print(f"{self._name}: done in {seconds:.1f} s", file=sys.stderr, flush=True)
        self._name = ""
