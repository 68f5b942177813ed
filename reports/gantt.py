"""A timeline as lanes of the page: one for each rank and stream, idle time left open."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hwmodels.units import format_percent, format_seconds
from planner.results import TimelineEvent

KIND_CLASS: dict[str, str] = {
    "F": "c0",
    "B": "c2",
    "I": "c2",
    "W": "c6",
    "OPTIMIZER": "c4",
    "SEND": "c3",
    "RECV": "c3",
    "SEND_F": "c3",
    "RECV_F": "c3",
    "SEND_B": "c3",
    "RECV_B": "c3",
    "UNSHARD": "c5",
    "RESHARD": "c5",
    "REDUCE_GRAD": "c5",
    "MIRROR": "c5",
}
KIND_NAME: dict[str, str] = {
    "F": "forward",
    "B": "backward",
    "I": "backward of inputs",
    "W": "backward of weights",
    "OPTIMIZER": "optimizer",
    "UNSHARD": "gather parameters",
    "REDUCE_GRAD": "reduce gradients",
    "MIRROR": "reduce gradients with the mirror rank",
}
OTHER = "c7"

WIDTH = 10000
"""Units of a lane's width."""

MOST_TITLED = 1500
"""Up to here each event is an element with its own tooltip; above, a lane's events are drawn as few paths."""

MOST_LANES = 160
"""A page with more lanes shows the compute lanes only."""


def _name(kind: str) -> str:
    if kind in KIND_NAME:
        return KIND_NAME[kind]
    return "send and receive" if kind.startswith(("SEND", "RECV")) else kind.replace("_", " ").lower()


def _css(events: Sequence[TimelineEvent]) -> list[str]:
    """Class of each event; those of one kind take turns of shade, so that neighbours are told apart."""
    seen: dict[str, int] = {}
    found = []
    for event in events:
        base = KIND_CLASS.get(event.kind, OTHER)
        seen[base] = seen.get(base, 0) + 1
        found.append(base if seen[base] % 2 else f"{base} odd")
    return found


def _boxes(events: Sequence[TimelineEvent], start_s: float, span_s: float) -> list[dict[str, str]]:
    found = []
    for event, css in zip(events, _css(events), strict=True):
        x = (event.start_s - start_s) / span_s * WIDTH
        w = max((event.end_s - event.start_s) / span_s * WIDTH, 1.0)
        length = format_seconds(event.end_s - event.start_s)
        title = f"{event.name}: {length}, from {format_seconds(event.start_s - start_s)}"
        found.append({"css": css, "x": f"{x:.1f}", "w": f"{w:.1f}", "title": title})
    return found


def _paths(boxes: Sequence[dict[str, str]]) -> list[dict[str, str]]:
    shapes: dict[str, list[str]] = {}
    for box in boxes:
        shapes.setdefault(box["css"], []).append(f"M{box['x']} 0h{box['w']}v10h-{box['w']}z")
    return [{"css": css, "d": "".join(parts)} for css, parts in shapes.items()]


def _compute(stream: str) -> bool:
    return stream == "compute"


def _busy(events: Sequence[TimelineEvent]) -> float:
    """Seconds covered by at least one event."""
    covered, reach = 0.0, float("-inf")
    for event in sorted(events, key=lambda e: e.start_s):
        covered += max(0.0, event.end_s - max(event.start_s, reach))
        reach = max(reach, event.end_s)
    return covered


def gantt(events: Sequence[TimelineEvent], ident: str, title: str) -> dict[str, Any] | None:
    """Lanes, legend, axis and a sentence for a timeline; None where it is empty.

    Parameters
    ----------
    ident : str
        Identifier of the section.
    title : str
        Its heading.
    """
    if not events:
        return None
    start_s = min(e.start_s for e in events)
    span_s = max(e.end_s for e in events) - start_s
    if span_s <= 0:
        return None
    by_lane: dict[tuple[int, bool, str], list[TimelineEvent]] = {}
    for event in sorted(events, key=lambda e: (e.start_s, e.end_s)):
        by_lane.setdefault((event.rank, not _compute(event.stream), event.stream), []).append(event)
    only_compute = len(by_lane) > MOST_LANES
    keys = [key for key in sorted(by_lane) if not (only_compute and key[1])]
    titled = sum(len(by_lane[key]) for key in keys) <= MOST_TITLED
    lanes = [_lane(key, by_lane[key], start_s, span_s, titled) for key in keys]
    ranks = sorted({e.rank for e in events})
    idle = [1.0 - _busy(by_lane.get((rank, False, "compute"), [])) / span_s for rank in ranks]
    summary = (
        f"{len(ranks)} ranks over {format_seconds(span_s)}; hatched time is idle: "
        f"{format_percent(sum(idle) / len(idle))} of the compute streams, "
        f"{format_percent(min(idle))} to {format_percent(max(idle))} a rank."
    )
    if only_compute:
        summary += " Communication streams are left out here; the trace has them."
    kinds = list(dict.fromkeys(e.kind for key in keys for e in by_lane[key]))
    legend = list(dict.fromkeys((_name(kind), KIND_CLASS.get(kind, OTHER)) for kind in kinds))
    return {
        "id": ident,
        "title": title,
        "summary": summary,
        "legend": [*legend, ("idle", "h7")],
        "lanes": lanes,
        "dense": len(ranks) > 16,
        "ticks": [format_seconds(span_s * i / 4) if i else "0" for i in range(5)],
    }


def _lane(
    key: tuple[int, bool, str], events: Sequence[TimelineEvent], start_s: float, span_s: float, titled: bool
) -> dict[str, Any]:
    rank, comm, stream = key
    boxes = _boxes(events, start_s, span_s)
    return {
        "name": stream if comm else f"rank {rank}",
        "comm": comm,
        "title": f"rank {rank}, {stream}: {len(events)} events, busy {format_percent(_busy(events) / span_s)}",
        "boxes": boxes if titled else [],
        "paths": [] if titled else _paths(boxes),
    }
