"""At which number of micro-batches one layout overtakes another.

A pipeline's bubble is paid once a step, what a schedule adds to every micro-batch (sends of more virtual stages,
collectives that a split backward cannot hide) as often as there are micro-batches: of two layouts the one with the
smaller bubble may lose once there are enough of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from hwmodels.cluster import Cluster
from hwmodels.errors import Fault, InputError
from hwmodels.units import format_bytes
from planner.evaluate import exact_seconds
from planner.layout import Layout, LayoutBatch, RuleContext, validate
from planner.model.spec import ModelSpec
from planner.plan import Workload
from planner.predict import predict
from planner.priced import price_model
from planner.step.assemble import assemble, dag_groups

MOST = 256
"""Micro-batches up to which a flip is looked for: beyond it hardly any bubble is left to win."""


@dataclass(frozen=True, slots=True)
class Crossover:
    """Two layouts compared over the number of micro-batches.

    Attributes
    ----------
    one, other : Layout
    few : Layout
        The faster of them with the fewest micro-batches that both can run.
    flips : int or None
        Micro-batches from which the other one of the two is as fast or faster; None: never, up to `MOST`.
    gap : float
        Seconds of `other` over those of `one`, less 1, at the workload's own batch.
    peak_bytes : tuple of int
        Of the fullest rank, `one` and `other`, at the workload's own batch.
    """

    one: Layout
    other: Layout
    few: Layout
    flips: int | None
    gap: float
    peak_bytes: tuple[int, int]

    def described(self) -> str:
        """The comparison in a sentence."""
        names = {layout: f"{layout.schedule} (vpp {layout.vpp})" for layout in (self.one, self.other)}
        many = self.other if self.few == self.one else self.one
        flip = f"at every number of micro-batches up to {MOST}"
        if self.flips is not None:
            flip = f"below {self.flips} micro-batches, {names[many]} from there on"
        memory = " and ".join(format_bytes(peak) for peak in self.peak_bytes)
        return (
            f"{names[self.one]} against {names[self.other]}: {names[self.few]} is faster {flip}; here the second takes "
            f"{self.gap:+.1%} of the step time of the first, at peaks of {memory}"
        )


def crossover(model: ModelSpec, cluster: Cluster, workload: Workload, one: Layout, other: Layout) -> Crossover:
    """Compare two layouts that take the same micro-batches, over the number of them.

    Numbers are multiples of pp, which every schedule runs.

    Raises
    ------
    hwmodels.errors.InputError
        Where the two do not take the same micro-batches, or one breaks a rule.
    """
    if one.mbs * one.dp != other.mbs * other.dp or one.pp != other.pp:
        what = f"pp, mbs and dp are {one.pp}, {one.mbs}, {one.dp} and {other.pp}, {other.mbs}, {other.dp}"
        raise InputError(Fault(what, "against", "their micro-batches differ", "the same pp, mbs and dp"))

    def seconds(rounds: int, layout: Layout) -> float:
        batch = replace(workload, gbs=rounds * layout.pp * layout.mbs * layout.dp)
        validate(layout, RuleContext.of(model, batch, cluster.n_ranks), "against")
        priced = price_model(model, batch, LayoutBatch.of([layout]), cluster)
        group = assemble(priced, *next(dag_groups(priced, np.arange(1))))
        return float(exact_seconds(group, np.arange(1))[0])

    def ahead(rounds: int, first: Layout, second: Layout) -> bool:
        return seconds(rounds, first) < seconds(rounds, second)

    few = one if ahead(1, one, other) else other
    many = other if few == one else one
    low, high = 1, 2
    while high * one.pp <= MOST and ahead(high, few, many):
        low, high = high, 2 * high
    flips = None
    if high * one.pp <= MOST:
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if ahead(middle, few, many) else (low, middle)
        flips = high * one.pp
    own = [predict(model, cluster, workload, layout) for layout in (one, other)]
    peaks = [max(m.peak_bytes for m in found.memory) for found in own]
    gap = own[1].step_s.mid / own[0].step_s.mid - 1.0
    return Crossover(one, other, few, flips, gap, (peaks[0], peaks[1]))
