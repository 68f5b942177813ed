"""Other stages in a search: what they add, that nothing gets worse, and every layout that could have come in."""

from __future__ import annotations

import numpy as np
import pytest

from hwmodels.cluster import load
from planner.layout import Layout, LayoutBatch
from planner.model.shape import from_shape
from planner.model.spec import ModelSpec
from planner.plan import Workload
from planner.predict import predict
from planner.priced import price_model
from planner.search import Space, search
from planner.search.least import peak_bytes
from planner.search.result import SearchResult
from planner.search.space import enumerate_layouts
from planner.search.uneven.candidates import balanced_candidates

WORKLOAD = Workload(1024, 64)
NARROW = {"tp": (1,), "cp": (1,), "pp": (2, 4), "vpp": (1, 2), "mbs": (1,), "zero_stage": (0,)}


def top_heavy(vocab: int = 128000) -> ModelSpec:
    """8 layers of 50.3e6 weights and a head of 262e6 that weighs as five of them."""
    return from_shape(
        name="top heavy", layers=8, hidden=2048, heads=16, ffn_hidden=8192, vocab=vocab, seq_len=1024
    )


def found(**ranges: object) -> SearchResult:
    return search(top_heavy(), load("dgx-a100:1"), WORKLOAD, Space.of(NARROW | ranges), top=3)


def test_each_word_adds_to_the_one_before() -> None:
    even, best, balanced = (found(recompute=("none",), stages=(word,)) for word in ("even", "best", "balanced"))
    fastest = [result.rows[0].step.step_s.mid for result in (even, best, balanced)]
    assert fastest[0] > fastest[1] >= fastest[2] * (1 - 1e-12)
    assert best.considered > even.considered and balanced.considered > even.considered
    for result in (even, best, balanced):
        assert result.considered == sum(result.dropped.values()) + result.priced
        assert result.optimal
    shares = best.rows[0].layout.stage_layers
    assert sum(shares) == 8 and shares[-1] < shares[0]
    # what a row says is what predict says of its layout
    row = balanced.rows[0]
    alone = predict(top_heavy(), load("dgx-a100:1"), WORKLOAD, row.layout)
    assert alone.step_s.mid == pytest.approx(row.step.step_s.mid, rel=1e-12)
    assert found(recompute=("none",)).rows[0].layout == even.rows[0].layout


def test_no_layout_is_missed() -> None:
    """Every legal layout with the stages found for it, predicted alone: none is better than the answer."""
    model, cluster = top_heavy(), load("dgx-a100:1")
    space = Space.of(NARROW | {"recompute": ("none", "block")})
    legal = enumerate_layouts(space, model, cluster, WORKLOAD).layouts
    priced = price_model(model, WORKLOAD, legal, cluster)
    every = [legal.layout(i) for i in range(len(legal))]
    for fit in (False, True):
        more = balanced_candidates(priced, np.arange(len(legal)), fit=fit).layouts
        every += [more.layout(i) for i in range(len(more))]
    steps = {layout: predict(model, cluster, WORKLOAD, layout).step_s.mid for layout in set(every)}
    result = search(model, cluster, WORKLOAD, Space.of(
        NARROW | {"recompute": ("none", "block"), "stages": ("balanced", "fit")}), top=3)  # fmt: skip
    assert [row.step.step_s.mid for row in result.rows] == pytest.approx(sorted(steps.values())[:3], rel=1e-9)


def test_fitted_recomputation_lets_in_what_did_not_fit() -> None:
    """Little free memory: nothing fits without recomputation, and less than all of it does."""
    model, cluster = top_heavy(vocab=4096), load("dgx-a100:1")
    one = NARROW | {"pp": (4,), "vpp": (1,), "mbs": (4,), "schedule": ("1f1b",)}
    layouts = [Layout(pp=4, dp=2, mbs=4, recompute=kind) for kind in ("none", "block")]
    priced = price_model(model, WORKLOAD, LayoutBatch.of(layouts), cluster)
    peaks = peak_bytes(priced)
    headroom = 1.0 - float(peaks[1] + 0.5 * (peaks[0] - peaks[1])) / cluster.device.memory_bytes
    rows = []
    for stages in (("even",), ("even", "fit")):
        space = Space.of(one | {"recompute": ("none", "block"), "stages": stages})
        rows.append(search(model, cluster, WORKLOAD, space, top=1, memory_headroom=headroom).rows[0])
    assert rows[0].layout.recompute == "block" and rows[0].layout.recompute_layers == ()
    assert 0 < sum(rows[1].layout.recompute_layers) < 8
    assert rows[1].step.step_s.mid < rows[0].step.step_s.mid
    assert max(m.peak_bytes for m in rows[1].step.memory) <= (1.0 - headroom) * cluster.device.memory_bytes
