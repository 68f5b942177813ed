"""Costs and cases that the tests of the two engines share."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
from hypothesis import strategies as st

from planner.schedule import get, names
from planner.simulate.costs import CommPlan, StageCosts
from planner.simulate.dag import Dag, build_dag


def costs_of(
    pp: int, vpp: int = 1, buckets: int = 1, batch: int = 1, *, seed: int | None = None, **given_s: float
) -> StageCosts:
    """Costs that are the named ones everywhere and else zero; drawn where there is a seed."""
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys((f.name for f in fields(StageCosts)), (batch, pp, vpp, buckets))
    shapes |= dict.fromkeys(("send_forward_s", "send_backward_s"), (batch, pp, vpp))
    shapes |= dict.fromkeys(("optimizer_s", "gather_s", "mirror_s"), (batch, pp))
    shapes |= dict.fromkeys(("sync_s", "tied_s", "step_s"), (batch,))
    if seed is None:
        return StageCosts(**{name: np.full(shape, given_s.get(name, 0.0)) for name, shape in shapes.items()})
    rng = np.random.default_rng(seed)
    # Each field on a scale of its own, so that now one, now another stream is the bottleneck.
    return StageCosts(**{
        name: rng.uniform(0.0, 1.0, shape) * rng.choice([0.0, 0.1, 1.0, 5.0]) for name, shape in shapes.items()
    })


plans = st.builds(
    CommPlan,
    buckets=st.integers(1, 3),
    unshard=st.sampled_from(["none", "once", "forward", "each"]),
    prefetch=st.integers(0, 3),
    reduce=st.sampled_from(["none", "end", "bucketed", "each"]),
    p2p_blocking=st.booleans(),
    gather_after_step=st.booleans(),
    tied_embedding=st.booleans(),
)


@st.composite
def degrees(draw: st.DrawFn) -> tuple[str, int, int, int]:
    """Name, pp, micro-batches and vpp that some registered schedule accepts."""
    name = draw(st.sampled_from(names()))
    schedule = get(name)
    pp = schedule.pp_multiple * draw(st.integers(1, 5 // schedule.pp_multiple))
    vpp = schedule.vpp_only or (draw(st.integers(2, 3)) if schedule.interleaved else 1)
    multiple = schedule.microbatch_multiple(pp)
    least = -(-schedule.least_microbatches(pp) // multiple)
    return name, pp, multiple * draw(st.integers(least, max(least + 1, 10 // multiple))), vpp


def chunks_of(case: tuple[str, int, int, int]) -> int:
    """Virtual stages of a rank: the third axis of its costs."""
    return get(case[0]).chunks(case[3])


@st.composite
def runs(draw: st.DrawFn) -> tuple[Dag, StageCosts]:
    """A DAG and random costs of two candidates."""
    case, plan = draw(degrees()), draw(plans)
    costs = costs_of(case[1], chunks_of(case), plan.buckets, 2, seed=draw(st.integers(0, 2**32 - 1)))
    return build_dag(*case, plan), costs
