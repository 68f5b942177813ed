"""difference: two predicted steps held against each other by phase, op, byte and category of memory.

The phases of a pipeline rank add up to its step time, so the differences of their means add up to the difference of
the step times: nothing of a gap is left unexplained.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from planner.layout import Layout
from planner.plan import Workload
from planner.results import MEMORY_CATEGORIES, PHASES, LinkBytes, StageMemory, Step
from planner.why.causes import cause

MOST_OPS = 12
"""Ops that are told, those with the largest differences."""


@dataclass(frozen=True, slots=True)
class Told:
    """One of the two: what runs, and its predicted step with the rows of `planner.explain`.

    Attributes
    ----------
    name, model, cluster : str
        What people call them.
    tokens : int
        Of a step.
    """

    name: str
    model: str
    cluster: str
    workload: Workload
    layout: Layout
    step: Step
    tokens: int

    @property
    def microbatches(self) -> int:
        """Of a step."""
        return self.layout.microbatches(self.workload.gbs)

    def fullest(self) -> StageMemory:
        """The pipeline rank with the largest peak."""
        return max(self.step.memory, key=lambda m: m.peak_bytes)


@dataclass(frozen=True, slots=True)
class PhaseGap:
    """A phase of both.

    Attributes
    ----------
    one_s, other_s : float
        Exposed seconds, mean over the pipeline ranks, in the unit of `Difference.unit`.
    gap_s : float
        `one_s` - `other_s`: below zero where the first is faster.
    hidden_s : tuple of float
        Seconds behind compute, of each.
    sent : tuple of LinkBytes
        What a GPU sends in a step, of each.
    why : str
        What of the layouts makes the difference; empty where there is none.
    """

    phase: str
    one_s: float
    other_s: float
    gap_s: float
    hidden_s: tuple[float, float]
    sent: tuple[LinkBytes, LinkBytes]
    why: str = ""


@dataclass(frozen=True, slots=True)
class OpGap:
    """An op of both: exposed seconds (mean over the pipeline ranks), runs a step and seconds of one run."""

    op: str
    phase: str
    one_s: float
    other_s: float
    runs: tuple[float, float]
    each_s: tuple[float, float]

    @property
    def gap_s(self) -> float:
        """Seconds of the first less those of the second."""
        return self.one_s - self.other_s


@dataclass(frozen=True, slots=True)
class Difference:
    """Why the first of two steps takes longer or shorter than the second.

    Attributes
    ----------
    one, other : Told
    per_mtoken : bool
        Whether seconds are of a million tokens over all GPUs together, because the steps have unlike numbers of
        tokens or of GPUs; else of a step.
    fields : list of (name, str, str)
        What differs of model, cluster, workload and layout.
    seconds : tuple of float
        Of each, in that unit.
    phases : list of PhaseGap
        Largest difference first; the gaps add up to that of `seconds`.
    ops : list of OpGap
    memory : list of (category, int, int)
        Bytes at the peak of the fullest rank of each.
    """

    one: Told
    other: Told
    per_mtoken: bool
    fields: list[tuple[str, str, str]]
    seconds: tuple[float, float]
    phases: list[PhaseGap]
    ops: list[OpGap]
    memory: list[tuple[str, int, int]]

    @property
    def unit(self) -> str:
        """What seconds are counted for."""
        return "GPU-seconds a million tokens" if self.per_mtoken else "seconds a step"

    @property
    def gap(self) -> float:
        """Seconds of the first over those of the second, less 1."""
        return self.seconds[0] / self.seconds[1] - 1.0

    @property
    def certain(self) -> bool:
        """Whether the intervals of the two are apart."""
        first, second = self.one.step.step_s, self.other.step.step_s
        scales = self.seconds[0] / first.mid, self.seconds[1] / second.mid
        return first.high * scales[0] < second.low * scales[1] or second.high * scales[1] < first.low * scales[0]

    def to_dict(self) -> dict[str, Any]:
        """The JSON object of ``why --json``."""
        return {
            "schema": 1,
            "unit": self.unit,
            "plans": [
                {"name": told.name, "layout": asdict(told.layout), "seconds": seconds, "step_s": told.step.step_s.mid}
                for told, seconds in zip((self.one, self.other), self.seconds, strict=True)
            ],
            "gap_pct": 100.0 * self.gap,
            "intervals_apart": self.certain,
            "fields": [{"field": name, "values": [a, b]} for name, a, b in self.fields],
            "phases": [
                {
                    "phase": p.phase, "seconds": [p.one_s, p.other_s], "gap_s": p.gap_s, "hidden_s": list(p.hidden_s),
                    "sent_bytes": [asdict(s) for s in p.sent], "why": p.why,
                }
                for p in self.phases
            ],
            "ops": [
                {"op": o.op, "phase": o.phase, "seconds": [o.one_s, o.other_s], "gap_s": o.gap_s,
                 "runs_per_step": list(o.runs), "seconds_each": list(o.each_s)}
                for o in self.ops
            ],
            "memory": [{"category": name, "bytes": [a, b]} for name, a, b in self.memory],
        }  # fmt: skip


def difference(one: Told, other: Told) -> Difference:
    """Hold two predicted steps against each other.

    Steps of equal tokens on equal numbers of GPUs are compared as they are; others by the GPU-seconds of a million
    tokens, which is what a run costs.
    """
    apart = (one.tokens, one.layout.world) != (other.tokens, other.layout.world)
    scale = tuple(told.layout.world * 1e6 / told.tokens if apart else 1.0 for told in (one, other))
    return Difference(
        one,
        other,
        apart,
        _fields(one, other),
        (one.step.step_s.mid * scale[0], other.step.step_s.mid * scale[1]),
        _phases(one, other, (scale[0], scale[1])),
        _ops(one, other, (scale[0], scale[1])),
        _memory(one, other),
    )


def _fields(one: Told, other: Told) -> list[tuple[str, str, str]]:
    """What differs, in words."""
    found = [
        (name, getattr(one, name), getattr(other, name))
        for name in ("model", "cluster")
        if getattr(one, name) != getattr(other, name)
    ]
    for first, second in ((one.workload, other.workload), (one.layout, other.layout)):
        left, right = asdict(first), asdict(second)
        found += [(name, _word(left[name]), _word(right[name])) for name in left if left[name] != right[name]]
    if one.microbatches != other.microbatches:
        found.append(("micro-batches", str(one.microbatches), str(other.microbatches)))
    return found


def _word(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{k}={_word(v)}" for k, v in value.items()) or "none"
    if isinstance(value, list | tuple):
        return ",".join(map(_word, value)) or "default"
    return str(value) if value not in ("", None) else "default"


def _mean(step: Step, phase: str) -> float:
    return sum(rank.get(phase, 0.0) for rank in step.phases) / len(step.phases)


def _phases(one: Told, other: Told, scale: tuple[float, float]) -> list[PhaseGap]:
    found = []
    for phase in PHASES:
        seconds = _mean(one.step, phase) * scale[0], _mean(other.step, phase) * scale[1]
        hidden = tuple(t.step.hidden_comm_s.get(phase, 0.0) * s for t, s in zip((one, other), scale, strict=True))
        if not any(seconds) and not any(hidden):
            continue
        none = LinkBytes(0.0, 0.0)
        sent = one.step.traffic.get(phase, none), other.step.traffic.get(phase, none)
        gap = PhaseGap(phase, *seconds, seconds[0] - seconds[1], (hidden[0], hidden[1]), sent, cause(phase, one, other))
        found.append(gap)
    return sorted(found, key=lambda p: -abs(p.gap_s))


def _by_op(told: Told, scale: float) -> dict[tuple[str, str], tuple[float, float, float]]:
    """Exposed seconds, runs and seconds of a run of each op, mean over the ranks of the pipeline.

    Rows count the layers of all stages; what runs on a stream of its own has no exposed seconds by itself and is told
    by its phase.
    """
    found: dict[tuple[str, str], tuple[float, float, float]] = {}
    for row in told.step.explain:
        if row["exposed_s"] is None:
            continue
        ranks = 1.0 if row["block"] == "step" else float(told.layout.pp)
        key = f"{row['block']} {row['op']}", row["phase"]
        seconds, runs, _ = found.get(key, (0.0, 0.0, 0.0))
        mine = row["exposed_s"] * scale / ranks, row["runs_per_step"] / ranks
        found[key] = seconds + mine[0], runs + mine[1], row["seconds_each"]
    return found


def _ops(one: Told, other: Told, scale: tuple[float, float]) -> list[OpGap]:
    first, second = _by_op(one, scale[0]), _by_op(other, scale[1])
    none = (0.0, 0.0, 0.0)
    gaps = []
    for key in dict.fromkeys((*first, *second)):
        a, b = first.get(key, none), second.get(key, none)
        gaps.append(OpGap(*key, a[0], b[0], (a[1], b[1]), (a[2], b[2])))
    told = sorted(gaps, key=lambda gap: -abs(gap.gap_s))[:MOST_OPS]
    least = 1e-9 * max(one.step.step_s.mid * scale[0], other.step.step_s.mid * scale[1])
    return [gap for gap in told if abs(gap.gap_s) > least]


def _memory(one: Told, other: Told) -> list[tuple[str, int, int]]:
    first, second = one.fullest().by_category, other.fullest().by_category
    both: Sequence[str] = [name for name in MEMORY_CATEGORIES if first.get(name) or second.get(name)]
    return [(name, first.get(name, 0), second.get(name, 0)) for name in both]
