"""A clock that gives every moment of a step to exactly one phase, so that phases add up.

Phases nest: entering ``tp_comm`` inside ``forward`` pauses ``forward``. Whatever is covered by
no phase is ``host``. Communication phases cover the time for which the compute stream (on a
CPU, the main thread) issues or waits for a collective: its exposed part.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from executor.device import Backend


@dataclass(slots=True)
class Span:
    """A stretch of a step: marks, and what it was (for timelines and records)."""

    phase: str
    name: str
    stream: str
    start: Any
    end: Any = None
    nbytes: int = 0
    op: str = ""
    group: str = ""
    key: tuple[Any, ...] = ()


@dataclass(slots=True)
class StepTimes:
    """One step of one rank, in seconds from the start of the step.

    Attributes
    ----------
    start_s : float
        `time.perf_counter` at the start.
    total_s : float
    phases : dict
        Phase -> exclusive seconds; sums to `total_s`.
    spans : list of dict
        phase, name, stream, start_s, end_s, nbytes, op, group, key.
    counts : dict
        (op, group, nbytes) -> collectives issued.
    """

    start_s: float
    total_s: float
    phases: dict[str, float]
    spans: list[dict[str, Any]]
    counts: dict[tuple[str, str, int], int]


@dataclass(slots=True)
class Recorder:
    """Records the phases of one step after another; does nothing between `begin` and `finish` calls."""

    backend: Backend
    active: bool = False
    _host_start: float = 0.0
    _stack: list[str] = field(default_factory=list)
    _switches: list[tuple[Any, str]] = field(default_factory=list)
    _spans: list[Span] = field(default_factory=list)
    _counts: dict[tuple[str, str, int], int] = field(default_factory=lambda: defaultdict(int))

    def begin(self) -> None:
        """Start a step: everything is ``host`` until a phase is entered."""
        import time

        self._stack, self._spans = ["host"], []
        self._counts = defaultdict(int)
        self.active = True
        self._host_start = time.perf_counter()
        self._switches = [(self.backend.mark(), "host")]

    def push(self, phase: str) -> Any:
        """Enter a phase; returns the mark."""
        mark = self.backend.mark()
        self._stack.append(phase)
        self._switches.append((mark, phase))
        return mark

    def pop(self) -> Any:
        """Leave the phase entered last and resume the one around it; returns the mark."""
        mark = self.backend.mark()
        self._stack.pop()
        self._switches.append((mark, self._stack[-1]))
        return mark

    def open(
        self,
        phase: str,
        name: str,
        stream: str = "compute",
        *,
        nbytes: int = 0,
        op: str = "",
        group: str = "",
        key: tuple[Any, ...] = (),
    ) -> Span:
        """Enter a phase and keep it for the timeline; `close` leaves it."""
        entry = Span(phase, name, stream, self.push(phase), None, nbytes, op, group, key)
        self._spans.append(entry)
        return entry

    def close(self, entry: Span) -> None:
        """Leave the phase that `open` entered."""
        entry.end = self.pop()

    @contextmanager
    def span(self, phase: str, name: str, stream: str = "compute", **facts: Any) -> Iterator[Span | None]:
        """Cover a block with a phase and keep it for the timeline; facts as in `open`."""
        if not self.active:
            yield None
            return
        entry = self.open(phase, name, stream, **facts)
        try:
            yield entry
        finally:
            self.close(entry)

    def issued(self, op: str, group: str, nbytes: int) -> None:
        """Count one collective."""
        if self.active:
            self._counts[op, group, nbytes] += 1

    @property
    def in_backward(self) -> bool:
        """Whether the current phase is inside a backward pass (a forward there is recomputation)."""
        return self.active and "backward" in self._stack

    def finish(self) -> StepTimes:
        """End the step and turn marks into seconds."""
        end = self.backend.mark()
        self.backend.synchronize()
        self.active = False
        phases: dict[str, float] = defaultdict(float)
        seconds = self.backend.seconds
        marks = [*self._switches, (end, "")]
        for (start, phase), (stop, _) in pairwise(marks):
            phases[phase] += seconds(start, stop)
        origin = self._switches[0][0]
        spans = [
            {
                "phase": s.phase,
                "name": s.name,
                "stream": s.stream,
                "start_s": seconds(origin, s.start),
                "end_s": seconds(origin, s.end),
                "nbytes": s.nbytes,
                "op": s.op,
                "group": s.group,
                "key": s.key,
            }
            for s in self._spans
            if s.end is not None
        ]
        return StepTimes(self._host_start, seconds(origin, end), dict(phases), spans, dict(self._counts))


_current: Recorder | None = None


def install(recorder: Recorder | None) -> None:
    """Make `recorder` the one that model and communication code report to (None for none)."""
    global _current
    _current = recorder


def current() -> Recorder | None:
    """The installed recorder."""
    return _current


@contextmanager
def phase(name: str, label: str = "") -> Iterator[None]:
    """Cover a block with a phase of the installed recorder, if there is one."""
    if _current is None or not _current.active:
        yield
        return
    with _current.span(name, label or name):
        yield


@contextmanager
def recompute_in_backward() -> Iterator[None]:
    """Cover a forward that runs inside a backward pass: recomputation."""
    if _current is None or not _current.in_backward:
        yield
        return
    with _current.span("recompute", "recompute"):
        yield
