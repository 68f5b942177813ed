"""From the spreads of the laws to the interval of a step."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.simulate.costs import CommPlan, StageCosts
from planner.simulate.dag import build_dag, durations
from planner.simulate.maxplus import step_seconds
from planner.step.intervals import MOVES, Spreads, interval, shifted


def costs(forward: float, backward: float, reduce: float = 0.0, optimizer: float = 0.0) -> StageCosts:
    """One rank, one virtual stage, one bucket."""
    piece, rank, one = (1, 1, 1, 1), (1, 1), (1,)
    zero = np.zeros(piece)
    return StageCosts(
        np.full(piece, forward), np.full(piece, backward), zero, zero, np.zeros((1, 1, 1)), np.zeros((1, 1, 1)), zero,
        np.full(piece, reduce), np.full(rank, optimizer), np.zeros(rank), np.zeros(rank),
        np.zeros(one), np.zeros(one), np.zeros(one),
    )  # fmt: skip


def spreads(**given: float) -> Spreads:
    return Spreads(**{law: np.array([given.get(law, 0.0)]) for law in MOVES})


def timed(c: StageCosts, s: Spreads, comm: CommPlan, microbatches: int) -> tuple[float, float, float]:
    dag = build_dag("1f1b", 1, microbatches, 1, comm)
    return interval(step_seconds(dag, durations(dag, shifted(c, s, 0))))


def test_independent_laws_add_in_quadrature() -> None:
    # 4 x (1 + 2) + 1 = 13 s. Kernels 10%: +1.2 or -(12 - 12/1.1) = -1.0909; optimizer 50%: +0.5 or -1/3;
    # what no law covers 3%: +0.39 or -(13 - 13/1.03) = -0.3786.
    low, mid, high = timed(costs(1.0, 2.0, optimizer=1.0), spreads(kernels=0.1, optimizer=0.5), CommPlan(), 4)
    assert mid == pytest.approx(13.0)
    assert high == pytest.approx(13.0 + np.sqrt(1.2**2 + 0.5**2 + 0.39**2))
    assert low == pytest.approx(13.0 - np.sqrt(1.0909091**2 + 0.3333333**2 + 0.3786408**2))


def test_what_hides_moves_the_step_only_by_what_comes_out() -> None:
    # The one bucket is reduced after the last backward: 2 x (1 + 2) + 1 = 7 s, +100% of the reduction: +1.
    exposed = timed(costs(1.0, 2.0, reduce=1.0), spreads(data_parallel=1.0), CommPlan(reduce="end"), 2)
    assert exposed[2] == pytest.approx(7.0 + np.sqrt(1.0 + 0.21**2))
    # Nothing is reduced: the same spread moves nothing but the 3%.
    none = timed(costs(1.0, 2.0), spreads(data_parallel=1.0), CommPlan(), 2)
    assert none[2] == pytest.approx(6.0 * 1.03)


@settings(deadline=None, max_examples=30)
@given(
    st.floats(0.0, 1.0), st.floats(0.0, 1.0), st.floats(0.0, 3.0), st.floats(1e-3, 10.0), st.floats(0.0, 10.0)
)  # fmt: skip
def test_wider_prices_never_make_a_narrower_step(
    kernels: float, more: float, optimizer: float, forward: float, update: float
) -> None:
    c = costs(forward, 2 * forward, optimizer=update)
    low, mid, high = timed(c, spreads(kernels=kernels, optimizer=optimizer), CommPlan(), 3)
    assert 0.0 <= low <= mid <= high
    wider = timed(c, spreads(kernels=kernels + more, optimizer=optimizer), CommPlan(), 3)
    assert wider[0] <= low + 1e-12
    assert wider[2] >= high - 1e-12
