"""ranking: the goodput of many layouts at once, as a search asks for it, and what of storage bounds one of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hwmodels.cluster import Cluster
from hwmodels.reliability import components, repair_of, storage_of
from planner.frameworks import FrameworkPreset
from planner.frameworks import of as preset_of
from planner.goodput.analytic import best_interval, shares
from planner.goodput.checkpoint import LIMITS, Checkpoints, checkpoints
from planner.goodput.job import Job
from planner.goodput.loading import DataNeed, data_need
from planner.goodput.policy import Policy
from planner.layout import LayoutBatch
from planner.model.spec import ModelSpec
from planner.plan import Workload

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

LONGEST_S = 1e12
"""Seconds between checkpoints of a job in which nothing fails: as good as none."""

OF_A_CHECKPOINT = ("tp", "cp", "pp", "vpp", "dp", "ep", "etp", "schedule", "stage_layers", "order")
"""Fields of a layout that its checkpoints, and so its goodput, depend on."""


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
