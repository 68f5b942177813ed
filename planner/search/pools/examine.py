"""Candidates of the forms as arrangements: shares and splits found exactly, sized, and timed by the engine."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from hwmodels.errors import InputError
from planner.layout import Layout
from planner.mixed import Arrangement, Mixture, Pieces, Replicas, check, mixture
from planner.mixed.apportion import apportioned, shared
from planner.mixed.split import split_over
from planner.mixed.step import full_ranks, priced_kind
from planner.search.pools.bases import Speed
from planner.search.pools.forms import Form

FloatArray = NDArray[np.float64]
MOST_REPAIRS = 6
"""How often a split that does not fit is cut anew with fewer layers where memory is short."""


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """An arrangement that was timed: its price, and which base it is made from."""

    mix: Mixture
    seconds: float
    base: int

    @property
    def arrangement(self) -> Arrangement:
        """What was timed."""
        return self.mix.arrangement


@dataclass(slots=True, eq=False)
class Examiner:
    """Turns rows of forms into timed arrangements.

    Attributes
    ----------
    pieces : Pieces
        With all bases.
    speeds : list of Speed
        Of each pool.
    headroom : float
        Share of every device's memory that must stay free.
    dropped : dict of str to int
        Why candidates were refused.
    """

    pieces: Pieces
    speeds: list[Speed]
    headroom: float
    dropped: dict[str, int] = field(default_factory=dict)

    def __call__(self, form: Form, row: int) -> Found | None:
        """The candidate, timed; None where it breaks a rule or does not fit."""
        base = int(form.base[row])
        layout = replace(self._base(base), dp=int(form.dp[row]))
        try:
            if form.kind == "shares":
                return self._with_shares(form, row, layout, base)
            return self._with_split(form, row, layout, base)
        except InputError as error:
            self._drop(error.faults[0].rule or "pools")
            return None

    def _base(self, base: int) -> Layout:
        bases = self.pieces.bases
        if bases is None:
            raise ValueError("the pieces have no bases")
        return bases.layout(base)

    def _drop(self, why: str) -> None:
        self.dropped[why] = self.dropped.get(why, 0) + 1

    def _timed(self, arrangement: Arrangement, base: int, fits: bool = False) -> Found | None:
        """The arrangement, timed; None where it does not fit, which `fits` says was looked at."""
        check(self.pieces.model, self.pieces.cluster, self.pieces.workload, arrangement)
        if not fits and full_ranks(self.pieces, arrangement, self.headroom, base):
            self._drop("memory")
            return None
        mix = mixture(self.pieces, arrangement, base)
        return Found(mix, mix.seconds()[0], base)

    def _with_shares(self, form: Form, row: int, layout: Layout, base: int) -> Found | None:
        """Replicas in their pools, with the shares of which the slowest is the fastest by the engine."""
        counts = tuple(int(n) for n in form.parts[row])
        total, unit = self.pieces.workload.gbs // layout.mbs, layout.pp if layout.vpp > 1 else 1
        start = tuple(int(m) for m in form.microbatches[row])
        plain = self._dealt(form.pools, layout, counts, start, total, unit)
        first = self._timed(plain, base)
        if first is None or len(counts) == 1:
            return first
        seconds: dict[tuple[int, int], float] = {}

        def timed(kind: int, m: int) -> float:
            if (kind, m) not in seconds:
                each = Replicas(counts[kind], (form.pools[kind],) * layout.pp, m)
                seconds[kind, m] = priced_kind(self.pieces, plain, each, base).seconds()
            return seconds[kind, m]

        best = apportioned(timed, counts, total, unit, start)
        other = self._timed(self._dealt(form.pools, layout, counts, best, total, unit), base)
        return other if other is not None and other.seconds < first.seconds else first

    def _dealt(
        self, pools: tuple[int, ...], layout: Layout, counts: tuple[int, ...], most: tuple[int, ...], total: int,
        unit: int,
    ) -> Arrangement:  # fmt: skip
        dealt = shared(counts, most, total, unit)
        return Arrangement(layout, tuple(Replicas(n, (pools[k],) * layout.pp, m) for k, n, m in dealt))

    def _with_split(self, form: Form, row: int, layout: Layout, base: int) -> Found | None:
        """Pipelines over the pools, with the split of which the slowest stage is the fastest and that fits."""
        pools = tuple(p for p, n in zip(form.pools, form.parts[row], strict=True) for _ in range(int(n)))
        total, dp = self.pieces.workload.gbs // layout.mbs, layout.dp
        most, fewer = -(-total // dp), -(-total // dp) * dp - total
        replicas = [Replicas(dp - fewer, pools, most)] + ([Replicas(fewer, pools, most - 1)] if fewer else [])
        costs = np.stack([self.speeds[p].layer[base] for p in pools])
        first, last = float(self.speeds[pools[0]].first[base]), float(self.speeds[pools[-1]].last[base])
        limits = [costs.shape[1]] * len(pools)
        for _ in range(MOST_REPAIRS):
            split = split_over(costs, first, last, limits)
            if split is None:
                break
            arrangement = Arrangement(replace(layout, stage_layers=split), tuple(replicas))
            full = full_ranks(self.pieces, arrangement, self.headroom, base)
            if not full:
                return self._timed(arrangement, base, fits=True)
            for stage, need in full.items():
                limits[stage] = min(limits[stage], split[stage] - max(1, round(split[stage] * (1.0 - 1.0 / need))))
        self._drop("memory")
        return None
