"""From the raw steps of all ranks to a `Measurement`."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from executor.measure import MAX_DRIFT, Series, drift
from executor.timing import StepTimes
from planner.plan import Plan
from planner.results import PHASES, Measurement, OpRecord, TimelineEvent

SCHEMA = 1


def send_times(series: Series) -> list[dict[tuple[Any, ...], float]]:
    """For each step, when each pipeline send was issued (absolute seconds), by (source, target, number)."""
    return [
        {s["key"][2:]: step.start_s + s["start_s"] for s in step.spans if s["key"][:2] == ("issue", "send")}
        for step in series.steps
    ]


def split_waits(step: StepTimes, sent: dict[tuple[Any, ...], float], offset_s: float = 0.0) -> None:
    """Turn waiting for data that nobody had sent yet from ``pp_comm`` into ``bubble``, in place.

    Of a wait from w0 to w1 for a message whose send was issued at s, ``min(max(s - w0, 0), w1 - w0)``
    is idle time of the pipeline; the rest is transfer.

    Parameters
    ----------
    step : StepTimes
    sent : dict
        (source, target, number) -> absolute time of the issue.
    offset_s : float
        Added to this rank's clock to bring it to the clock of `sent` (0 on one host).
    """
    bubble = 0.0
    for span in step.spans:
        if span["key"][:2] != ("wait", "recv"):
            continue
        issued = sent.get(span["key"][2:])
        if issued is None:
            continue
        start = step.start_s + offset_s + span["start_s"]
        idle = min(max(issued - start, 0.0), span["end_s"] - span["start_s"])
        span["idle_s"] = idle
        bubble += idle
    step.phases["pp_comm"] = step.phases.get("pp_comm", 0.0) - bubble
    step.phases["bubble"] = step.phases.get("bubble", 0.0) + bubble


def rank_phases(series: Series) -> dict[str, float]:
    """Phase -> seconds of one rank, summing to the median step time.

    Each phase is its mean over the steps of the middle half (by step time), then all are scaled
    by one common factor to the median step, since medians of parts do not add up.
    """
    for step, whole in zip(series.steps, series.step_s, strict=True):
        # Until the slowest rank is done, a rank that finished early idles.
        step.phases["bubble"] = step.phases.get("bubble", 0.0) + max(0.0, whole - step.total_s)
    order = np.argsort(series.step_s)
    n = len(order)
    middle = order[n // 4 : max(n - n // 4, n // 4 + 1)]
    means = {p: float(np.mean([series.steps[i].phases.get(p, 0.0) for i in middle])) for p in PHASES}
    factor = statistics.median(series.step_s) / sum(means.values())
    return {p: max(0.0, v) * factor for p, v in means.items()}


def _exclusive(spans: Sequence[dict[str, Any]]) -> list[float]:
    """Seconds of each span without the spans inside it, and without idle waiting."""
    order = sorted(range(len(spans)), key=lambda i: (spans[i]["start_s"], -spans[i]["end_s"]))
    own = [s["end_s"] - s["start_s"] - s.get("idle_s", 0.0) for s in spans]
    stack: list[int] = []
    for i in order:
        while stack and spans[stack[-1]]["end_s"] <= spans[i]["start_s"]:
            stack.pop()
        if stack:
            own[stack[-1]] -= spans[i]["end_s"] - spans[i]["start_s"]
        stack.append(i)
    return own


def _kind(span: dict[str, Any]) -> tuple[str, str, str, str, int]:
    phase = span["phase"]
    if span["group"]:
        return phase, span["op"], span["group"], f"{span['nbytes']} B", span["nbytes"]
    stage = span["name"].split("F")[0].split("B")[0].split("I")[0].split("W")[0].split("R")[0]
    shape = f"stage {stage}" if stage.isdigit() else span["name"]
    return phase, span["op"] if phase == "optimizer" else phase, "", shape, 0


def records(rank: int, series: Series) -> list[OpRecord]:
    """One record for each op, size and group of one rank; seconds are per step."""
    seconds: dict[tuple[Any, ...], list[float]] = defaultdict(lambda: [0.0] * len(series.steps))
    counts: dict[tuple[Any, ...], int] = {}
    for i, step in enumerate(series.steps):
        seen: dict[tuple[Any, ...], int] = defaultdict(int)
        for span, own in zip(step.spans, _exclusive(step.spans), strict=True):
            kind = _kind(span)
            seconds[kind][i] += own
            seen[kind] += 1
        for kind, number in seen.items():
            issued = step.counts.get((kind[1], kind[2], kind[4])) if kind[2] else None
            counts[kind] = number if issued is None else issued
    found = []
    for kind, values in sorted(seconds.items()):
        low, mid, high = (float(q) for q in np.percentile(values, (10, 50, 90)))
        phase, op, group, shape, nbytes = kind
        found.append(
            OpRecord(
                rank,
                phase,
                op or "wait",
                group,
                shape,
                counts[kind],
                nbytes,
                max(mid, 0.0),
                max(low, 0.0),
                max(high, 0.0),
            )
        )
    return found


def timeline(rank: int, step: StepTimes, origin_s: float) -> list[TimelineEvent]:
    """The bars of one rank's step; `origin_s` is the time of the earliest rank's start."""
    shift = step.start_s - origin_s
    return [
        TimelineEvent(
            rank,
            s["stream"],
            s["name"],
            s["op"] if s["phase"] in ("forward", "backward") and s["op"] else s["phase"].upper(),
            shift + s["start_s"],
            shift + s["end_s"],
            {k: v for k, v in (("bytes", s["nbytes"]), ("phase", s["phase"]), ("idle_s", s.get("idle_s"))) if v},
        )
        for s in step.spans
    ]


def measurement(
    plan: Plan,
    ranks: Iterable[dict[str, Any]],
    environment: dict[str, Any],
    correctness: dict[str, Any],
    losses: list[float],
) -> Measurement:
    """Join what every rank reports: its records, phases, timeline and peak."""
    reports = list(ranks)
    step_s = reports[0]["step_s"]
    change = drift(step_s)
    return Measurement(
        schema=SCHEMA,
        plan_name=plan.name,
        plan_hash=plan.digest(),
        environment=environment,
        step_s=step_s,
        median_step_s=statistics.median(step_s),
        cv=statistics.pstdev(step_s) / statistics.fmean(step_s),
        drift=change,
        stable=abs(change) <= MAX_DRIFT,
        records=[r for report in reports for r in report["records"]],
        phases=[report["phases"] for report in reports],
        peak_bytes=[report["peak_bytes"] for report in reports],
        correctness=correctness,
        losses=losses,
        timeline=[e for report in reports for e in report["timeline"]],
    )
