"""assess: the goodput of one layout in full, in closed form and simulated."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hwmodels.cluster import Cluster
from hwmodels.errors import InfeasibleError
from hwmodels.units import format_bytes
from planner.frameworks import of as preset_of
from planner.goodput.analytic import best_interval, daly_interval, shares, spares_for, young_interval
from planner.goodput.checkpoint import LIMITS, checkpoints
from planner.goodput.job import LOSSES
from planner.goodput.loading import DataNeed, data_need
from planner.goodput.policy import Policy
from planner.goodput.ranking import jobs_of, storage_bounds
from planner.goodput.simulate import Simulated, simulate
from planner.layout import Layout, LayoutBatch
from planner.model.spec import ModelSpec
from planner.plan import Workload

WAIT = 0.001
"""Share of the time below which nobody waits for repairs in `Assessment.spares_needed`."""

CURVE = tuple(2.0**k for k in (-3, -2, -1.5, -1, -0.5, 0, 0.5, 1, 1.5, 2, 3))
"""Intervals of a curve over the best one."""


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
