"""An arrangement played event by event."""

from __future__ import annotations

from collections.abc import Mapping

from hwmodels.cluster import Cluster
from planner.mixed.arrangement import Arrangement
from planner.mixed.pricing import Pieces
from planner.mixed.step import Kind, bars, check, mixture
from planner.model.spec import ModelSpec
from planner.plan import Workload
from planner.results import TimelineEvent
from planner.simulate import timeline
from planner.simulate.dag import durations
from planner.simulate.events import simulate_events
from planner.simulate.timing import Timing


def replay(
    model: ModelSpec,
    cluster: Cluster,
    workload: Workload,
    arrangement: Arrangement,
    *,
    contention: bool = False,
    jitter: float = 0.0,
    stragglers: Mapping[int, float] | None = None,
    seed: int = 0,
) -> tuple[float, float, list[TimelineEvent]]:
    """Play one replica of every kind with the event engine: step seconds, idle share of compute streams, bars.

    Kinds draw their jitter from seeds of their own. Contention is that of the streams of a rank, as everywhere.

    Raises
    ------
    hwmodels.errors.InputError
        As `predict`, and as `planner.simulate.events.simulate_events`.
    """
    check(model, cluster, workload, arrangement)
    mix = mixture(Pieces(model, cluster, workload), arrangement)
    numbers = {id(kind): seed + i for i, kind in enumerate(mix.kinds)}

    def play(kind: Kind) -> Timing:
        return simulate_events(
            kind.dag, durations(kind.dag, kind.costs), contention=contention, jitter=jitter, stragglers=stragglers,
            seed=numbers[id(kind)],
        )  # fmt: skip

    step_s, _, timings = mix.seconds(play)
    busy = [
        (1.0 - timeline.bubble_fraction(kind.dag, timing, 0)) * float(timing.step_s[0]) * kind.replicas.count
        for kind, timing in zip(mix.kinds, timings, strict=True)
    ]
    return step_s, 1.0 - sum(busy) / (step_s * arrangement.layout.dp), bars(mix, timings)
