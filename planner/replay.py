"""replay: one layout played event by event, with contention, jitter and stragglers where asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from hwmodels.cluster import Cluster
from planner.layout import Layout, LayoutBatch
from planner.mixed import Arrangement, in_order, is_plain
from planner.mixed.replay import replay as replay_arrangement
from planner.model.spec import ModelSpec
from planner.plan import Workload
from planner.priced import price_model
from planner.results import TimelineEvent
from planner.simulate import timeline
from planner.simulate.dag import build_dag, durations
from planner.simulate.events import simulate_events
from planner.step.assemble import assemble, dag_groups


@dataclass(frozen=True, slots=True)
class Replay:
    """One simulated step.

    Attributes
    ----------
    step_s : float
        Seconds.
    idle_fraction : float
        Idle share of the compute streams, mean over ranks. Waits for communication are in it, so it is
        no less than `planner.results.Step.bubble_fraction`, which counts the phase ``bubble`` alone.
    timeline : list of TimelineEvent
    """

    step_s: float
    idle_fraction: float
    timeline: list[TimelineEvent]


def replay(
    model: ModelSpec,
    cluster: Cluster,
    workload: Workload,
    layout: Layout,
    *,
    contention: bool = False,
    jitter: float = 0.0,
    stragglers: Mapping[int, float] | None = None,
    seed: int = 0,
    arrangement: Arrangement | None = None,
) -> Replay:
    """Simulate one step with the event engine on the DAG and durations of `planner.predict`.

    Without contention, jitter and stragglers the step time is that of `predict` (to 1e-9).

    Parameters
    ----------
    contention, jitter, stragglers, seed
        As `planner.simulate.events.simulate_events`; a straggler slows its pipeline rank in every kind of replica.
    arrangement : Arrangement or None
        As `planner.predict.predict`.

    Raises
    ------
    hwmodels.errors.InputError
        For a negative jitter, a straggler rank beyond pp or a factor that is not positive.
    """
    if arrangement is not None or cluster.mixed:
        found = arrangement or in_order(cluster, layout, workload.gbs)
        if not is_plain(found, cluster):
            return Replay(
                *replay_arrangement(
                    model, cluster, workload, found,
                    contention=contention, jitter=jitter, stragglers=stragglers, seed=seed,
                )
            )  # fmt: skip
    priced = price_model(model, workload, LayoutBatch.of([layout]), cluster)
    group = assemble(priced, *next(dag_groups(priced, np.arange(1))))
    dag = build_dag(group.schedule, group.pp, int(group.microbatches[0]), group.vpp, group.comm)
    timing = simulate_events(
        dag, durations(dag, group.costs), contention=contention, jitter=jitter, stragglers=stragglers, seed=seed
    )
    return Replay(float(timing.step_s[0]), timeline.bubble_fraction(dag, timing, 0), timeline.events(dag, timing, 0))
