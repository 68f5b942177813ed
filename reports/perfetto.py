"""A timeline as Chrome trace JSON, which ui.perfetto.dev and chrome://tracing open.

One process a rank, one thread a stream, arrows from each send to what it feeds, and counters for
the activations in flight and (where known) the memory. The format is the "Trace Event Format"
document of the Chromium project: times in microseconds, phases X (complete), M (metadata),
s/f (flow start and finish), C (counter).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hwmodels.errors import Fault, InputError
from planner.files import write_text
from planner.results import TimelineEvent

_ACTION = re.compile(r"^(\d+)(F|B|I|W|SEND_F|RECV_F|SEND_B|RECV_B)(\d+)$")

_STREAM_ORDER = ("compute", "tp", "cp", "ep", "pp", "dp", "dp_ag", "dp_rs")


def _ticks(seconds: float) -> int:
    """Whole nanoseconds: abutting events stay abutting, whatever their floats say."""
    return round(seconds * 1e9)


def _us(ticks: int) -> float:
    return ticks / 1000.0


def _check(events: Sequence[TimelineEvent]) -> None:
    faults = [
        Fault(
            f"{e.name} runs from {e.start_s} to {e.end_s} s", f"timeline event {i}", "an event ends after it starts", ""
        )
        for i, e in enumerate(events)
        if not (math.isfinite(e.start_s) and math.isfinite(e.end_s) and e.start_s <= e.end_s)
    ]
    if faults:
        raise InputError(faults[:20])


def _stream_key(stream: str) -> tuple[int, str]:
    known = _STREAM_ORDER.index(stream) if stream in _STREAM_ORDER else len(_STREAM_ORDER)
    return known, stream


def _lanes(events: Sequence[TimelineEvent]) -> list[int]:
    """Lane of each event of one stream: a viewer cannot draw events that overlap on a thread."""
    ends: list[int] = []
    lanes = [0] * len(events)
    for i in sorted(range(len(events)), key=lambda i: (_ticks(events[i].start_s), -_ticks(events[i].end_s))):
        start, end = _ticks(events[i].start_s), _ticks(events[i].end_s)
        lane = next((n for n, busy in enumerate(ends) if busy <= start), len(ends))
        if lane == len(ends):
            ends.append(end)
        else:
            ends[lane] = end
        lanes[i] = lane
    return lanes


def _target(name: str) -> list[str]:
    """Names of the events that a send may feed, the most direct first; empty for other events."""
    match = _ACTION.match(name)
    if match is None:
        return []
    stage, kind, microbatch = int(match[1]), match[2], match[3]
    if kind == "SEND_F":
        return [f"{stage + 1}RECV_F{microbatch}", f"{stage + 1}F{microbatch}"]
    if kind == "SEND_B":
        return [f"{stage - 1}RECV_B{microbatch}", f"{stage - 1}B{microbatch}", f"{stage - 1}I{microbatch}"]
    return []


def _flows(events: Sequence[TimelineEvent], place: Sequence[tuple[int, int]]) -> list[dict[str, Any]]:
    """Arrows from each send to its receive, or to the compute that waited for it."""
    where: dict[str, list[int]] = {}
    for i in sorted(range(len(events)), key=lambda i: events[i].rank):
        where.setdefault(events[i].name, []).append(i)
    found: list[dict[str, Any]] = []
    for name, senders in where.items():
        receivers = next((where[target] for target in _target(name) if target in where), [])
        if len(receivers) != len(senders):
            continue
        # Replicas run the same action: the n-th sending rank feeds the n-th receiving one.
        for i, j in zip(senders, receivers, strict=True):
            common = {"name": "send", "cat": "pipeline", "id": len(found) // 2 + 1}
            (pid, tid), (to_pid, to_tid) = place[i], place[j]
            leaves = _ticks(events[i].start_s)
            arrives = max(_ticks(events[j].start_s), leaves)
            found.append({**common, "ph": "s", "ts": _us(leaves), "pid": pid, "tid": tid})
            found.append({**common, "ph": "f", "bp": "e", "ts": _us(arrives), "pid": to_pid, "tid": to_tid})
    return found


def _in_flight(events: Sequence[TimelineEvent]) -> list[dict[str, Any]]:
    """Counter of each rank: activations kept for a backward that has not ended yet."""
    changes: list[tuple[int, int, int]] = []
    weights = {m[1] + "/" + m[3] for e in events if (m := _ACTION.match(e.name)) and m[2] == "W"}
    for event in events:
        match = _ACTION.match(event.name)
        if match is None:
            continue
        kind, key = match[2], match[1] + "/" + match[3]
        # a split backward holds what the weight gradient needs until W has run
        released = kind in ("W", "B") or (kind == "I" and key not in weights)
        if kind == "F":
            changes.append((_ticks(event.start_s), event.rank, 1))
        elif released:
            changes.append((_ticks(event.end_s), event.rank, -1))
    level: dict[int, int] = {}
    found = []
    for ticks, rank, change in sorted(changes):
        level[rank] = level.get(rank, 0) + change
        found.append(
            {
                "name": "activations in flight",
                "ph": "C",
                "ts": _us(ticks),
                "pid": rank,
                "tid": 0,
                "args": {"micro-batches": level[rank]},
            }
        )
    return found


def _plain(value: Any) -> Any:
    """JSON types; numbers that JSON cannot say become text."""
    if isinstance(value, bool | int | str) or value is None:
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return str(value)


def _threads(events: Sequence[TimelineEvent]) -> tuple[list[tuple[int, int]], list[dict[str, Any]]]:
    """(pid, tid) of every event, and the metadata that names processes and threads."""
    place: list[tuple[int, int]] = [(0, 0)] * len(events)
    meta: list[dict[str, Any]] = []

    def say(kind: str, pid: int, tid: int, **args: Any) -> None:
        meta.append({"name": kind, "ph": "M", "ts": 0, "pid": pid, "tid": tid, "args": args})

    for rank in sorted({e.rank for e in events}):
        say("process_name", rank, 0, name=f"rank {rank}")
        say("process_sort_index", rank, 0, sort_index=rank)
        tid = 0
        for stream in sorted({e.stream for e in events if e.rank == rank}, key=_stream_key):
            members = [i for i, e in enumerate(events) if e.rank == rank and e.stream == stream]
            lanes = _lanes([events[i] for i in members])
            for lane in range(max(lanes) + 1):
                tid += 1
                say("thread_name", rank, tid, name=stream if lane == 0 else f"{stream} ({lane + 1})")
                say("thread_sort_index", rank, tid, sort_index=tid)
                for i, own in zip(members, lanes, strict=True):
                    if own == lane:
                        place[i] = (rank, tid)
    return place, meta


def trace(
    events: Sequence[TimelineEvent],
    *,
    title: str = "",
    memory: Mapping[int, Sequence[tuple[float, float]]] | None = None,
) -> dict[str, Any]:
    """The trace as a JSON object.

    Parameters
    ----------
    events : sequence of TimelineEvent
        Any order, any ranks. Times in seconds.
    title : str
        Told in the trace's metadata.
    memory : mapping of int to sequence of (seconds, bytes), optional
        Memory of each rank over time, drawn as a counter.

    Raises
    ------
    hwmodels.errors.InputError
        Where an event ends before it starts, or a time is not finite.
    """
    _check(events)
    place, found = _threads(events)
    for event, (pid, tid) in zip(events, place, strict=True):
        start, end = _ticks(event.start_s), _ticks(event.end_s)
        found.append(
            {
                "name": event.name,
                "cat": event.kind,
                "ph": "X",
                "ts": _us(start),
                "dur": _us(end - start),
                "pid": pid,
                "tid": tid,
                "args": {"kind": event.kind, **_plain(event.args)},
            }
        )
    found += _flows(events, place)
    found += _in_flight(events)
    for rank, samples in (memory or {}).items():
        found += [
            {"name": "memory", "ph": "C", "ts": _us(_ticks(t)), "pid": rank, "tid": 0, "args": {"bytes": nbytes}}
            for t, nbytes in samples
        ]
    return {"traceEvents": found, "displayTimeUnit": "ms", "otherData": {"title": title, "producer": "meshwright"}}


def write_trace(
    path: str | Path,
    events: Sequence[TimelineEvent],
    *,
    title: str = "",
    memory: Mapping[int, Sequence[tuple[float, float]]] | None = None,
) -> Path:
    """Write `trace` as a file that ui.perfetto.dev opens; whole or not at all."""
    content = trace(events, title=title, memory=memory)
    return write_text(path, json.dumps(content, allow_nan=False, separators=(",", ":")) + "\n")
