"""The event engine on a real layout: the same step as `predict`, and what disturbs it."""

from __future__ import annotations

import pytest

from hwmodels import cluster as clusters
from hwmodels.errors import InputError
from planner import model as models
from planner.layout import Layout
from planner.plan import Workload
from planner.predict import predict
from planner.replay import replay

MODEL, _ = models.load("llama-3-8b")
CLUSTER = clusters.load("dgx-h100:1")
WORK = Workload(4096, 16)
LAYOUT = Layout(tp=2, sp=1, pp=4, dp=1, mbs=1, schedule="1f1b")


def test_undisturbed_it_is_the_predicted_step() -> None:
    step = predict(MODEL, CLUSTER, WORK, LAYOUT, timeline=True)
    found = replay(MODEL, CLUSTER, WORK, LAYOUT)
    assert found.step_s == pytest.approx(step.step_s.mid, rel=1e-9)
    assert len(found.timeline) == len(step.timeline)


def test_a_straggler_that_computes_twice_as_long() -> None:
    """The slow stage alone is busy twice its time, which is under the step; nothing more than doubles."""
    plain = replay(MODEL, CLUSTER, WORK, LAYOUT)
    slow = replay(MODEL, CLUSTER, WORK, LAYOUT, stragglers={1: 2.0})
    work = [e for e in plain.timeline if e.rank == 1 and e.stream == "compute" and e.kind in ("F", "B")]
    busy = sum(e.end_s - e.start_s for e in work)
    assert len(work) == 2 * 16  # one forward and one backward of each micro-batch
    assert 2.0 * busy < slow.step_s <= 2.0 * plain.step_s
    assert slow.step_s > plain.step_s


def test_jitter_repeats_with_its_seed() -> None:
    one, two, other = (replay(MODEL, CLUSTER, WORK, LAYOUT, jitter=0.1, seed=s).step_s for s in (1, 1, 2))
    assert one == two != other


def test_contention_never_makes_a_step_faster() -> None:
    plain, shared = (replay(MODEL, CLUSTER, WORK, LAYOUT, contention=c).step_s for c in (False, True))
    assert shared >= plain * (1 - 1e-12)


def test_a_straggler_beyond_the_pipeline_is_refused() -> None:
    with pytest.raises(InputError, match="straggler"):
        replay(MODEL, CLUSTER, WORK, LAYOUT, stragglers={4: 2.0})
