"""What must hold of any prediction, checked in plain arithmetic and by brute force, without the product's arrays."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from hwmodels.cluster import Cluster
from planner import frameworks
from planner.layout import Layout, RuleContext, faults
from planner.memory import HEADROOM
from planner.plan import Workload
from planner.predict import predict
from planner.schedule import get as get_schedule
from planner.search import Space, search
from tests.reference.cases import CASES, Case, cluster_of, found, model_of, wanted
from tests.reference.step import reference

ROUNDING = 1.0 + 1e-9
some = pytest.mark.parametrize("case", CASES[::3], ids=lambda case: case.name)


@some
def test_bounds_and_phases(case: Case) -> None:
    step, expected = found(case), wanted(case)
    seconds = step.step_s.mid
    assert step.lower_bound_s <= seconds * ROUNDING
    assert seconds <= step.upper_bound_s * ROUNDING
    assert step.step_s.low <= seconds <= step.step_s.high
    for phases in step.phases:
        assert sum(phases.values()) == pytest.approx(seconds, rel=1e-9)
        assert min(phases.values()) >= -1e-12
    # No step is shorter than the busiest rank's compute, nor longer than everything on every rank in a row.
    lay, count = case.layout, case.layout.microbatches(case.workload.gbs)
    schedule = get_schedule(lay.schedule)
    compute = [
        count / schedule.directions * sum(
            expected.forward_s[s] + expected.backward_s[s]
            for s in range(len(expected.forward_s)) if schedule.rank_of(s, lay.pp) == r
        )
        for r in range(lay.pp)
    ]
    assert max(compute) <= seconds * ROUNDING
    # with all transfers hidden, the compute of the busiest rank is left
    kernels = [sum(phases[name] for name in ("forward", "backward", "recompute", "host")) for phases in step.phases]
    assert max(kernels) <= step.lower_bound_s * ROUNDING
    assert max(expected.played.busy) <= seconds * ROUNDING
    assert seconds <= expected.played.everything * ROUNDING


def wider(cluster: Cluster, factor: float) -> Cluster:
    """The same cluster with every link `factor` times as wide."""
    fabric = cluster.fabric
    inter = replace(fabric.inter, bandwidth=fabric.inter.bandwidth * factor) if fabric.inter else None
    intra = replace(fabric.intra, bandwidth=fabric.intra.bandwidth * factor)
    return replace(cluster, fabric=replace(fabric, intra=intra, inter=inter))


@some
def test_wider_links_never_slow_a_step(case: Case) -> None:
    model, cluster, workload, layout = case.parts
    now, then = found(case), predict(model, wider(cluster, 2.0), workload, layout)
    assert then.step_s.mid <= now.step_s.mid * ROUNDING
    assert [m.by_category for m in then.memory] == [m.by_category for m in now.memory]


AXES: dict[str, tuple[int, ...] | tuple[str, ...]] = {
    "tp": (1, 2, 4),
    "sp": (0, 1),
    "cp": (1,),
    "fsdp": (0,),
    "pp": (1, 2, 4),
    "vpp": (1, 2),
    "zero_stage": (0, 3),
    "mbs": (2,),
    "recompute": ("none", "full"),
    "schedule": ("1f1b", "gpipe", "interleaved-1f1b"),
}


def test_search_counts_every_candidate_and_finds_the_best() -> None:
    model, cluster, world = model_of("llama-3.1-8b"), cluster_of("dgx-h100:1"), 8
    workload = Workload(4096, 32)
    result = search(model, cluster, workload, Space(**AXES), top=5)  # type: ignore[arg-type]
    assert sum(result.dropped.values()) + result.priced == result.considered

    limit = cluster.device.memory_bytes * (1.0 - HEADROOM)
    context = RuleContext(model, workload.gbs, workload.seq_len, world, frameworks.get("generic"))
    considered, too_large, fitting = 0, 0, []
    for values in product(*AXES.values()):
        layout = Layout(**dict(zip(AXES, values, strict=True)))  # type: ignore[arg-type]
        layout = replace(layout, dp=max(world // (layout.tp * layout.pp), 1))
        # One way of writing each layout: no second schedule without a pipeline, no sp without tp.
        twice = (layout.pp == 1 and (layout.schedule, layout.vpp) != ("1f1b", 1)) or layout.sp > layout.tp - 1
        if twice or (layout.pp > 1 and (layout.schedule == "interleaved-1f1b") != (layout.vpp > 1)):
            continue
        considered += 1
        if faults(layout, context):
            continue
        expected = reference(model, cluster, workload, layout)
        if max(sum(stage.by_category.values()) for stage in expected.memory) > limit:
            too_large += 1
        else:
            fitting.append(expected.step_s)
    assert (result.considered, result.screened) == (considered, too_large + len(fitting))
    # a bound may keep a layout out of the answer before its memory is looked at
    assert 0 < result.dropped["memory"] <= too_large
    assert result.priced <= len(fitting)
    assert [row.step.step_s.mid for row in result.rows] == pytest.approx(sorted(fitting)[:5], rel=1e-9)
