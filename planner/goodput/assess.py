"""assess: one layout's goodput in full, and the effective step seconds of many layouts for a search."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hwmodels.cluster import Cluster
from hwmodels.errors import InfeasibleError
from hwmodels.reliability import components, repair_of, storage_of
from hwmodels.units import format_bytes
from planner.frameworks import FrameworkPreset
from planner.frameworks import of as preset_of
from planner.goodput.analytic import best_interval, daly_interval, shares, spares_for, young_interval
from planner.goodput.checkpoint import LIMITS, Checkpoints, checkpoints
from planner.goodput.job import LOSSES, Job
from planner.goodput.loading import DataNeed, data_need
from planner.goodput.policy import Policy
from planner.goodput.simulate import Simulated, simulate
from planner.layout import Layout, LayoutBatch
from planner.model.spec import ModelSpec
from planner.plan import Workload

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

WAIT = 0.001
"""Share of the time below which nobody waits for repairs in `Assessment.spares_needed`."""

LONGEST_S = 1e12
"""Seconds between checkpoints of a job in which nothing fails: as good as none."""

OF_A_CHECKPOINT = ("tp", "cp", "pp", "vpp", "dp", "ep", "etp", "schedule", "stage_layers", "order")
"""Fields of a layout that its checkpoints, and so its goodput, depend on."""

CURVE = tuple(2.0**k for k in (-3, -2, -1.5, -1, -0.5, 0, 0.5, 1, 1.5, 2, 3))
"""Intervals of a curve over the best one."""


def jobs_of(
    cluster: Cluster, layouts: LayoutBatch, found: Checkpoints, policy: Policy
) -> Iterator[tuple[IntArray, Job]]:
    """Layouts that fail alike, as positions with their `Job`: those of one size, and with `elastic` of one dp."""
    dp = layouts.dp if policy.elastic else np.zeros_like(layouts.dp)
    _, inverse = np.unique(np.stack([layouts.world, dp]), axis=1, return_inverse=True)
    inverse = inverse.reshape(-1)
    blocked, lag, load = found.blocked_s(policy), found.lag_s(policy), found.load_s
    for group in range(int(inverse.max()) + 1 if len(layouts) else 0):
        at = np.flatnonzero(inverse == group)
        world, replicas = int(layouts.world[at[0]]), int(dp[at[0]])
        nodes = -(-world // cluster.gpus_per_node)
        yield at, Job(
            blocked_s=blocked[at],
            lag_s=lag[at],
            restart_s=load[at] + policy.warm_up_s,
            detect_s=policy.detect_s,
            reschedule_s=policy.reschedule_s,
            components=components(cluster, world),
            nodes=nodes,
            spares=cluster.reliability.spares,
            repair_s=repair_of(cluster).value,
            weibull_shape=policy.weibull_shape,
            straggler_rate=nodes / policy.straggler_node_s,
            straggler_factor=policy.straggler_factor,
            straggler_detect_s=policy.straggler_detect_s,
            dp=replicas if replicas > 1 else 0,
            nodes_per_replica=world / max(replicas, 1) / cluster.gpus_per_node,
        )


def goodput_of(
    step_s: ArrayLike, model: ModelSpec, workload: Workload, cluster: Cluster, layouts: LayoutBatch,
    preset: FrameworkPreset | None = None, policy: Policy | None = None,
) -> FloatArray:  # fmt: skip
    """Share of a run that is kept, at each layout's best checkpoint interval: ndarray (n,).

    It does not depend on the step but where the best interval is shorter than one, and then it falls with it: a lower
    bound of the step gives an upper bound of this.

    Parameters
    ----------
    step_s : array (n,)
        Seconds of a step, or a bound of them.
    layouts : LayoutBatch, shape (n,)
    preset : FrameworkPreset or None
        None is the workload's.
    policy : Policy or None
        None is the default.
    """
    policy = policy or Policy()
    seconds = _with_data(step_s, model, workload, cluster, layouts)
    first, same = layouts.distinct(OF_A_CHECKPOINT)
    few = layouts.take(first)
    found = checkpoints(model, workload, cluster, few, preset or preset_of(workload), policy)
    good, place = np.zeros(len(layouts)), np.zeros(len(few), np.int64)
    for at, job in jobs_of(cluster, few, found, policy):
        place[at] = np.arange(len(at))
        members = np.flatnonzero(np.isin(same, at))
        kind = place[same[members]]
        best = np.broadcast_to(best_interval(job), (len(at),))[kind]
        here = replace(
            job, blocked_s=job.blocked_s[kind], lag_s=job.lag_s[kind], restart_s=job.restart_s[kind]
        )
        good[members] = shares(here, np.clip(best, seconds[members], LONGEST_S))["goodput"]
    return good


def _with_data(
    step_s: ArrayLike, model: ModelSpec, workload: Workload, cluster: Cluster, layouts: LayoutBatch
) -> FloatArray:
    """The step, or what storage takes for its data where that is longer."""
    reads = data_need(model, workload, cluster, layouts, np.ones(len(layouts))).read_s
    return np.asarray(np.maximum(np.asarray(step_s, np.float64), reads))


def effective_seconds(
    step_s: ArrayLike, model: ModelSpec, workload: Workload, cluster: Cluster, layouts: LayoutBatch,
    preset: FrameworkPreset | None = None, policy: Policy | None = None,
) -> FloatArray:  # fmt: skip
    """Seconds of a run for each step that it keeps: ndarray (n,); parameters as of `goodput_of`.

    The step, or what storage takes for its data where that is longer, over the goodput: a lower bound of the step
    gives a lower bound of this. Infinite where nothing is ever kept.
    """
    good = goodput_of(step_s, model, workload, cluster, layouts, preset, policy)
    with np.errstate(divide="ignore"):
        return np.asarray(_with_data(step_s, model, workload, cluster, layouts) / good)


@dataclass(frozen=True, slots=True)
class Point:
    """One interval of a curve; `simulated` is None where nothing was simulated."""

    interval_s: float
    goodput: float
    simulated: float | None = None
    half_width: float | None = None


@dataclass(frozen=True, slots=True)
class Assessment:
    """The goodput of one layout.

    Attributes
    ----------
    step_s : float
        Of the step, or of its data where reading takes longer.
    mtbf_s : float
        Mean seconds between failures of the job.
    failures_per_day : dict
        By kind of component.
    interval_s, best_interval_s, young_s, daly_s : float
        Seconds of training between checkpoints: those of the figures, the best of the full model, Young's and Daly's.
    checkpoint_bytes, node_bytes : float
    blocked_s, lag_s, load_s : float
    write_limit, load_limit : str
    goodput : float
    losses : dict
        Share of the time by cause; with the goodput they sum to 1.
    simulated : Simulated or None
    spares_needed : int
        Spare nodes that keep the wait for repairs below `WAIT`.
    simulated_best_s : float or None
        Interval of the curve with the highest simulated goodput.
    curve : tuple of Point
    data : DataNeed
    bounds : tuple of str
        What of storage bounds the step, in sentences.
    """

    step_s: float
    mtbf_s: float
    failures_per_day: dict[str, float]
    interval_s: float
    best_interval_s: float
    young_s: float
    daly_s: float
    checkpoint_bytes: float
    node_bytes: float
    blocked_s: float
    lag_s: float
    load_s: float
    write_limit: str
    load_limit: str
    goodput: float
    losses: dict[str, float]
    simulated: Simulated | None
    spares_needed: int
    simulated_best_s: float | None
    curve: tuple[Point, ...]
    data: DataNeed
    bounds: tuple[str, ...]


def assess(
    model: ModelSpec, cluster: Cluster, workload: Workload, layout: Layout, step_s: float, policy: Policy,
    *, interval_s: float | None = None, days: float = 30.0, replications: int = 20, seed: int = 0,
    token_bytes: float | None = None,
) -> Assessment:  # fmt: skip
    """Goodput of one layout by the closed form and, with `replications`, by simulation.

    Parameters
    ----------
    step_s : float
        Predicted seconds of a step.
    interval_s : float or None
        Seconds of training between checkpoints; None is the best.
    replications : int
        Of a simulation; 0 for none.

    Raises
    ------
    hwmodels.errors.InfeasibleError
        Where host memory does not hold the copy of an asynchronous checkpoint.
    """
    batch = LayoutBatch.of([layout])
    found = checkpoints(model, workload, cluster, batch, preset_of(workload), policy)
    if policy.mode == "async" and not bool(found.fits_host[0]):
        raise InfeasibleError(
            f"The copy of a checkpoint takes {format_bytes(float(found.node_bytes[0]))} of host memory a node.",
            f"host memory of {format_bytes(cluster.host_memory_bytes or 0.0)}", "--checkpoint sync",
        )  # fmt: skip
    job = next(jobs_of(cluster, batch, found, policy))[1]
    need = data_need(model, workload, cluster, batch, [step_s], token_bytes)
    whole_s = max(step_s, float(need.read_s[0]))  # checkpoints are written between steps
    best = max(float(best_interval(job)[0]), whole_s)
    chosen = best if interval_s is None else interval_s
    at = chosen if math.isfinite(chosen) else days * 86400.0
    parts = {name: float(value[0]) for name, value in shares(job, [at]).items()}
    played, points = None, []
    centre = best if math.isfinite(best) else at
    for factor in (*(f for f in CURVE if centre * f >= whole_s), None):
        tau = at if factor is None else centre * factor
        run = simulate(job, tau, days=days, replications=replications, seed=seed) if replications else None
        if factor is None:
            played = run
            continue
        said = (run.goodput, run.half_width) if run else (None, None)
        points.append(Point(tau, float(shares(job, [tau])["goodput"][0]), *said))
    top = max(points, key=lambda p: p.simulated or 0.0) if replications else None
    return Assessment(
        step_s=whole_s,
        mtbf_s=job.mtbf_s,
        failures_per_day={c.kind: c.rate * 86400.0 for c in job.components},
        interval_s=at,
        best_interval_s=best,
        young_s=float(young_interval(job.blocked_s, job.mtbf_s)[0]),
        daly_s=float(daly_interval(job.blocked_s, job.mtbf_s)[0]) if job.rate else math.inf,
        checkpoint_bytes=float(found.total_bytes[0]),
        node_bytes=float(found.node_bytes[0]),
        blocked_s=float(job.blocked_s[0]),
        lag_s=float(job.lag_s[0]),
        load_s=float(found.load_s[0]),
        write_limit=LIMITS[int(found.write_limit[0])],
        load_limit=LIMITS[int(found.load_limit[0])],
        goodput=parts.pop("goodput"),
        losses={name: parts[name] for name in LOSSES},
        simulated=played,
        spares_needed=spares_for(job, WAIT),
        simulated_best_s=top.interval_s if top else None,
        curve=tuple(points),
        data=need,
        bounds=tuple(storage_bounds(cluster, found, job, need, step_s, at)),
    )


NOTABLE = 0.05
"""Share of the time from which checkpoints are said to bound training."""


def storage_bounds(
    cluster: Cluster, found: Checkpoints, job: Job, need: DataNeed, step_s: float, interval_s: float
) -> list[str]:
    """What of storage bounds a run of one layout, in sentences with what it would take."""
    storage, said = storage_of(cluster), []
    read_s = float(need.read_s[0])
    if read_s > step_s:
        said.append(
            f"data loading bounds the step: storage takes {read_s:.3g} s for its {need.sequence_bytes:,.0f} bytes a "
            f"sequence, {need.total_bytes_per_s[0] / 1e9:.3g} GB/s in total and "
            f"{need.node_bytes_per_s[0] / 1e9:.3g} GB/s a node are needed ({storage.source})"
        )
    blocked = float(shares(job, [interval_s])["checkpoint"][0])
    limit = LIMITS[int(found.write_limit[0])]
    if float(job.lag_s[0]) > interval_s * 1.000001:
        said.append(
            f"checkpoint storage bounds the interval: a checkpoint takes {float(job.lag_s[0]):.3g} s to write ({limit})"
        )
    if float(found.load_s[0]) > job.mtbf_s:
        limit_of_load = LIMITS[int(found.load_limit[0])]
        said.append(
            f"loading a checkpoint takes {float(found.load_s[0]):.3g} s ({limit_of_load}), longer than the "
            f"{job.mtbf_s:.3g} s between failures"
        )
    if blocked > NOTABLE:
        said.append(f"checkpoints hold up training for {blocked:.1%} of the time; {limit} bounds them")
    return said
