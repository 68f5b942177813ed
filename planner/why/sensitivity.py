"""sensitivity: what a plan, or the best plan of a search, gains from each change, ranked.

A change is tried twice: with the layout as it is, which tells what the layout is bound by, and with the best layout
under the change, which tells what the change is worth to somebody who plans anew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hwmodels.cluster import Cluster
from hwmodels.errors import Fault, InfeasibleError, InputError
from hwmodels.units import format_bytes
from planner.layout import Layout, with_defaults
from planner.memory import HEADROOM
from planner.model.spec import ModelSpec
from planner.plan import Workload
from planner.predict import predict
from planner.results import Step
from planner.why.changes import CHANGES, Change

Search = Callable[[Cluster, Workload], tuple[Layout, Step]]
"""Finds the best layout of the model on a cluster; raises `InfeasibleError` where nothing fits."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A layout under a change.

    Attributes
    ----------
    layout : Layout or None
        None where nothing runs.
    step_s, tokens_per_s : float or None
        Of all GPUs together.
    peak_bytes : int or None
    gain : float or None
        Tokens a second over those without the change, less 1.
    cheaper : float or None
        Tokens a dollar over those without the change, less 1: differs from `gain` where the number of GPUs does.
    why_not : str
        Why nothing runs; empty where it does.
    """

    layout: Layout | None
    step_s: float | None = None
    tokens_per_s: float | None = None
    peak_bytes: int | None = None
    gain: float | None = None
    cheaper: float | None = None
    why_not: str = ""


@dataclass(frozen=True, slots=True)
class Effect:
    """What a change does: to the layout as it is, and with the best layout under it (None where not searched)."""

    change: Change
    same: Outcome
    best: Outcome | None = None

    @property
    def worth(self) -> float:
        """What the effect is ranked by: the gain of tokens a GPU-second; what stops the run comes last."""
        outcome = self.best if self.best is not None else self.same
        return outcome.cheaper if outcome.cheaper is not None else -1.0

    def to_dict(self) -> dict[str, Any]:
        """One entry of ``sensitivity --json``."""

        def told(outcome: Outcome | None) -> dict[str, Any] | None:
            return None if outcome is None else asdict(outcome)

        return {"change": self.change.name, "about": self.change.about, "same_layout": told(self.same),
                "best_layout": told(self.best)}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Base:
    """What outcomes are held against."""

    tokens_per_s: float
    world: int
    share: float
    """Of the device memory that may be taken: as a search has it, or what the layout takes today where that is more."""


def sensitivity(
    model: ModelSpec,
    cluster: Cluster,
    workload: Workload,
    layout: Layout,
    *,
    changes: Sequence[Change] = CHANGES,
    search: Search | None = None,
    progress: Callable[[str], None] | None = None,
) -> list[Effect]:
    """Try every change on a layout, the one that helps most first.

    Parameters
    ----------
    changes : sequence of Change
        Those that have nothing to work on (a network of a single node) are left out.
    search : callable or None
        Also find the best layout under each change.
    progress : callable or None
        Told the name of each change before it is tried.

    Raises
    ------
    hwmodels.errors.InputError
        Where the layout itself breaks a rule on the cluster as it is, and for a cluster of unlike pools: a change of
        "the" device or link would be one of the first pool alone.
    """
    if cluster.mixed:
        why = "its pools have devices and links of their own"
        fix = "a cluster of one of its pools, or why A.json B.json"
        raise InputError(Fault(f"{cluster.name} has unlike pools", "sensitivity", why, fix))
    base = predict(model, cluster, workload, layout)
    taken = max(m.peak_bytes / m.capacity_bytes for m in base.memory)
    was = _Base(_rate(base, layout), layout.world, max(1.0 - HEADROOM, taken))
    found = []
    for change in changes:
        altered = change.apply(cluster, workload)
        if altered is None:
            continue
        if progress is not None:
            progress(change.name)
        best = None if search is None else _best(search, *altered, was)
        found.append(Effect(change, _same(model, *altered, layout, was), best))
    return sorted(found, key=lambda effect: -effect.worth)


def _rate(step: Step, layout: Layout) -> float:
    return step.tokens_per_s_per_gpu * layout.world


def _outcome(layout: Layout, step: Step, was: _Base) -> Outcome:
    rate = _rate(step, layout)
    gain = rate / was.tokens_per_s - 1.0
    cheaper = (1.0 + gain) * was.world / layout.world - 1.0
    return Outcome(layout, step.step_s.mid, rate, max(m.peak_bytes for m in step.memory), gain, cheaper)


def _same(model: ModelSpec, cluster: Cluster, workload: Workload, layout: Layout, was: _Base) -> Outcome:
    """The layout under the change; dp takes what the cluster has more."""
    layout = with_defaults(layout, cluster.n_ranks)
    try:
        step = predict(model, cluster, workload, layout)
    except InputError as error:
        return Outcome(layout, why_not="; ".join(fault.what for fault in error.faults))
    fullest = max(step.memory, key=lambda m: m.peak_bytes / m.capacity_bytes)
    if fullest.peak_bytes > fullest.capacity_bytes * was.share * (1.0 + 1e-12):
        full = f"{format_bytes(fullest.peak_bytes)} of {format_bytes(fullest.capacity_bytes)}"
        return Outcome(layout, why_not=f"stage {fullest.stage} is out of memory: {full}")
    return _outcome(layout, step, was)


def _best(search: Search, cluster: Cluster, workload: Workload, was: _Base) -> Outcome:
    try:
        layout, step = search(cluster, workload)
    except InfeasibleError:
        return Outcome(None, why_not="no layout fits")
    except InputError as error:
        return Outcome(None, why_not="; ".join(fault.what for fault in error.faults))
    return _outcome(layout, step, was)
