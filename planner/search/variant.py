"""`Variant`: the legal candidates of one workload (precision, switches), and their prices on demand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hwmodels.cluster import Cluster
from hwmodels.records import dataclass
from planner.layout import LayoutBatch
from planner.model.spec import ModelSpec
from planner.plan import Workload
from planner.priced import PricedModel, block_keys, price_model
from planner.search.objective_base import Constraint
from planner.search.screen import Screen, screen_of
from planner.search.space import Space, Survey, survey
from planner.search.uneven.plain import with_balanced_stages

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Variant:
    """The candidates of a workload, whose blocks are priced over their distinct micro-batches.

    Attributes
    ----------
    number : int
        Place among the workloads of a search.
    workload : Workload
    found : Survey
    priced : PricedModel
        Of the distinct micro-batches and recompute policies.
    like : ndarray (n,)
        Which of them each row of `Survey.work` has.
    screen : Screen
    """

    number: int
    workload: Workload
    found: Survey
    priced: PricedModel
    like: IntArray
    screen: Screen

    def of(self, work: IntArray, state: IntArray) -> PricedModel:
        """The candidates of these rows of both tables, as `price_model` would give them; nothing is priced anew."""
        like, few = self.like[work], self.priced
        return with_balanced_stages(
            replace(
                few,
                layouts=self.found.layouts(work, state),
                inverse=few.inverse[like],
                policy=few.policy[like],
                sync_s=np.full(len(work), few.sync_s[0]),  # of the world, which legal layouts share
            )
        )

    def screened(self, work: IntArray, state: IntArray) -> tuple[FloatArray, FloatArray]:
        """Lower bounds of the seconds and of the peak bytes of these candidates: ndarray (n,) each."""
        return self.screen.seconds(work, state), self.screen.peak_bytes(work, state)


def variants_of(
    space: Space, model: ModelSpec, cluster: Cluster, workloads: Sequence[Workload], constraints: Sequence[Constraint]
) -> Iterator[tuple[Workload, Survey, Variant | None]]:
    """Each workload with its candidates, priced where there are any.

    Raises
    ------
    hwmodels.errors.InputError
        Where the framework or the device does not have a workload's precision.
    """
    for number, workload in enumerate(workloads):
        found = survey(space, model, cluster, workload, constraints)
        if not found.pairs:
            yield workload, found, None
            continue
        layouts = LayoutBatch.filled(found.work)
        names = [name for name in (*block_keys(layouts), "recompute", "recompute_modules") if name in found.work]
        first, like = layouts.distinct(names)
        priced = price_model(model, workload, layouts.take(first), cluster)
        yield workload, found, Variant(number, workload, found, priced, like, screen_of(found, priced, like))
