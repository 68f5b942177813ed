"""Layouts of one graph that the engine times together: each as alone, in the order asked, however few at a time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hwmodels import cluster as clusters
from planner import model as models
from planner import played as module
from planner.evaluate import overlapped_seconds, serial_seconds, unhidden
from planner.layout import Layout, LayoutBatch
from planner.plan import Workload
from planner.played import played
from planner.priced import price_model
from planner.simulate.dag import build_dag, durations
from planner.simulate.maxplus import step_seconds
from planner.step.assemble import assemble, dag_groups
from planner.step.single import Single


@pytest.fixture(scope="module")
def ones() -> list[Single]:
    """Two graphs, their layouts not side by side."""
    model, cluster = models.load("llama-3-8b")[0], clusters.load("dgx-h100:4")
    layouts = [
        Layout(tp=tp, pp=pp, dp=32 // tp // pp, schedule="1f1b", zero_stage=1, recompute=recompute)
        for recompute in ("none", "full")
        for tp, pp in ((4, 2), (2, 4), (4, 2))
    ]
    priced = price_model(model, Workload(8192, 64, framework="generic"), LayoutBatch.of(layouts), cluster)
    found: dict[int, Single] = {}
    for shape in dag_groups(priced, np.arange(len(layouts))):
        group = assemble(priced, *shape)
        found.update((int(i), group.single(place)) for place, i in enumerate(group.index))
    return [found[i] for i in range(len(layouts))]


def test_each_as_alone_in_the_order_asked(ones: list[Single], monkeypatch: pytest.MonkeyPatch) -> None:
    together = played(ones)
    monkeypatch.setattr(module, "MOST_VALUES", 1)  # one layout at a time
    for one, many, alone in zip(ones, together, played(ones), strict=True):
        dag = build_dag(one.schedule, one.pp, one.microbatches, one.vpp, one.comm)
        assert many.dag is alone.dag is dag
        assert many.step_s == alone.step_s == step_seconds(dag, durations(dag, one.costs))[0]
        assert (many.low_s, many.high_s, many.serial_s) == (alone.low_s, alone.high_s, alone.serial_s)
        np.testing.assert_array_equal(many.timing.end, alone.timing.end)
        assert many.low_s < many.step_s == many.timing.step_s[0] < many.high_s


def test_nothing_overlapped_takes_longest(ones: list[Single]) -> None:
    for one, run in zip(ones, played(ones), strict=True):
        assert serial_seconds(one) == unhidden(one, run.serial_s)
        assert overlapped_seconds(one) <= run.step_s <= serial_seconds(one)


def test_a_later_microbatch_is_another_graph(ones: list[Single]) -> None:
    more = replace(ones[0], microbatches=2 * ones[0].microbatches)
    first, second = played([ones[0], more])
    assert first.dag is not second.dag
    assert second.step_s > first.step_s
