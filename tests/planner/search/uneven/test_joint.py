"""Split and recomputation together: the memory of windows, every answer there is, and what fits."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, product

import numpy as np
import pytest
from numpy.typing import NDArray

from hwmodels.cluster import Cluster, load
from planner.layout import Layout, LayoutBatch, split_layers
from planner.model import load as load_model
from planner.model.shape import from_shape
from planner.model.spec import ModelSpec
from planner.plan import Workload
from planner.priced import PricedModel, price_model
from planner.search.uneven.joint import EVEN, joint
from planner.search.uneven.room import window_peaks
from planner.search.uneven.seconds import BlockSeconds
from planner.step.assemble import assemble_all, dag_groups, group_memory

FloatArray = NDArray[np.float64]


def small(layers: int = 7, vocab: int = 65536) -> ModelSpec:
    return from_shape(
        name="small", layers=layers, hidden=1024, heads=8, ffn_hidden=4096, vocab=vocab, seq_len=1024
    )


def priced_of(model: ModelSpec, layouts: list[Layout], workload: Workload, cluster: Cluster) -> PricedModel:
    return price_model(model, workload, LayoutBatch.of(layouts), cluster)


def peaks(priced: PricedModel, pp: int, schedule: str = "1f1b") -> FloatArray:
    return group_memory(priced, np.arange(len(priced.layouts)), pp, 1, schedule).peak_bytes


@pytest.mark.parametrize(
    ("name", "framework", "zero", "schedule"),
    [
        ("deepseek-v2-lite", "megatron", 1, "1f1b"),  # a dense layer, then experts
        ("llama-4-scout-17b-16e", "fsdp2", 3, "gpipe"),  # chunked and full attention; parameters gathered
        ("jamba", "generic", 0, "zb-h1"),  # attention, recurrent mixers, experts in turn
        ("gpt2-medium", "deepspeed", 1, "1f1b"),
    ],
)
def test_a_window_weighs_what_its_rank_weighs(name: str, framework: str, zero: int, schedule: str) -> None:
    """Peak of every rank of a real split, against a model that is nothing but that rank's window."""
    model = load_model(name)[0]
    sixth = model.n_layers // 6
    split = (sixth + 2, 2 * sixth - 1, sixth, model.n_layers - 4 * sixth - 1)
    kind = "block" if framework != "fsdp2" else "full"
    counts = (2, 0, sixth, 1) if kind == "block" else ()
    workload = Workload(2048, 64, framework=framework)
    layout = Layout(tp=2, sp=1, pp=4, dp=4, zero_stage=zero, schedule=schedule, recompute=kind)
    real = replace(layout, stage_layers=split, recompute_layers=counts)
    cluster = load("dgx-h100:4")
    whole = peaks(priced_of(model, [real], workload, cluster), 4, schedule)[0]
    priced = priced_of(model, [layout], workload, cluster)
    begins = np.cumsum([0, *split])
    for rank in range(4):
        window = list(model.layers[begins[rank] : begins[rank + 1]])
        tries = range(counts[rank], counts[rank] + 1) if counts else None
        alone = window_peaks(priced, np.arange(1), 4, schedule, window, tries)
        assert alone[0, 0, rank] == pytest.approx(whole[rank], rel=1e-12)


def objective(priced: PricedModel, index: int, shares: tuple[int, ...], counts: tuple[int, ...]) -> float:
    """(M - 1) slowest + sum of the stages + EVEN * squares / mean, summed block by block."""
    pp = len(shares)
    s = BlockSeconds.of(priced, np.asarray([index]), pp, 1, "1f1b")
    load = [sum(s.load[0, sum(shares[:i]) : sum(shares[: i + 1])]) for i in range(pp)]
    mean = (s.load.sum() + s.first[0][0] + s.last[0][0]) / pp
    for i, k in enumerate(counts):
        load[i] += sum(s.again[0, sum(shares[:i]) : sum(shares[:i]) + k])
    load[0] += s.first[0][0]
    load[-1] += s.last[0][0]
    ahead, back = s.hop[0][0, :, 0].sum(), s.hop[1][0, :, 0].sum()
    once = [t + s.blocking * (s.hop[0][0, i, 0] + s.hop[1][0, i, 0]) for i, t in enumerate(load)]
    squares = EVEN * sum(t * t for t in once) / mean
    return float((s.microbatches[0] - 1) * max(once) + sum(load) + ahead + back + squares)


def splits(layers: int, stages: int) -> list[tuple[int, ...]]:
    inner = [c for c in product(range(layers + 1), repeat=stages - 1) if sum(c) <= layers]
    every = [(*c, layers - sum(c)) for c in inner]
    return [s for s in every if min(s[1:-1], default=1) >= 1]


@pytest.mark.parametrize("share", [1.0, 0.5, 0.25, 0.02])
def test_no_split_and_no_recomputation_that_fits_is_better(share: float) -> None:
    """Every split of 7 layers on 3 stages with every number of recomputed layers, sized and summed one by one."""
    model, workload, cluster = small(vocab=4096), Workload(1024, 12), load("dgx-a100:1")
    priced = priced_of(model, [Layout(pp=3, mbs=2, recompute="block")], workload, cluster)
    each = {
        (shares, counts)
        for shares in splits(7, 3)
        for counts in product(*(range(n + 1) for n in shares))
    }
    ordered = sorted(each)
    layouts = [
        Layout(pp=3, mbs=2, recompute="block", stage_layers=shares, recompute_layers=counts)
        for shares, counts in ordered
    ]
    size = peaks(priced_of(model, layouts, workload, cluster), 3).max(axis=1)
    default = split_layers(7, 3)
    assert default is not None
    free = size[ordered.index((default, (0, 0, 0)))]
    limit = size.min() + share * (free - size.min())
    best = min(objective(priced, 0, *ordered[i]) for i in np.flatnonzero(size <= limit))
    found = joint(priced, np.arange(1), 3, "1f1b", limit, fit=True)
    assert found.recomputed is not None
    shares, counts = tuple(found.shares[0].tolist()), tuple(found.recomputed[0].tolist())
    assert size[ordered.index((shares, counts))] <= limit
    assert found.seconds[0] == pytest.approx(best, rel=1e-12)
    assert objective(priced, 0, shares, counts) == pytest.approx(best, rel=1e-12)
    assert share > 0.3 or sum(counts) > 0
    # one number for all stages is never better, and no worse than the best of those that fit
    same = joint(priced, np.arange(1), 3, "1f1b", limit, fit=True, by_stage=False)
    alike = [
        objective(priced, 0, *ordered[i])
        for i in np.flatnonzero(size <= limit)
        if any(ordered[i][1] == tuple(min(k, n) for n in ordered[i][0]) for k in range(8))
    ]
    assert same.seconds[0] == pytest.approx(min(alike), rel=1e-12)
    assert same.seconds[0] >= found.seconds[0] * (1 - 1e-12)


def test_more_memory_is_never_worse() -> None:
    model, workload, cluster = small(12), Workload(1024, 16), load("dgx-a100:1")
    priced = priced_of(model, [Layout(pp=4, mbs=2, recompute="block")], workload, cluster)
    free = float(peaks(priced_of(model, [Layout(pp=4, mbs=2)], workload, cluster), 4).max())
    least = float(peaks(priced, 4).max())
    seconds, layers = [], []
    for share in (-4.0, 0.1, 0.2, 0.4, 0.6, 1.0, 1.5):
        found = joint(priced, np.arange(1), 4, "1f1b", least + share * (free - least), fit=True)
        seconds.append(found.seconds[0])
        layers.append(int(found.recomputed.sum()) if found.recomputed is not None else 0)
    assert np.isinf(seconds[0]) and np.isfinite(seconds[-1])
    assert all(a >= b for a, b in pairwise(seconds))
    assert layers[-1] == 0 and max(layers) > 0


def test_without_blocks_the_policy_of_the_layout_holds() -> None:
    """Of a fixed policy only the split is free: every split, sized and summed."""
    model, workload, cluster = small(6), Workload(1024, 12), load("dgx-a100:1")
    cases: list[tuple[str, tuple[int, ...]]] = [
        ("none", ()), ("full", ()), ("full", (2,)), ("block", (1,)), ("every", ()),
    ]  # fmt: skip
    for kind, numbers in cases:
        layout = Layout(pp=3, mbs=2, recompute=kind, recompute_layers=numbers)
        priced = priced_of(model, [layout], workload, cluster)
        step = {"none": (0, 0, 1), "full": (0, 9, 1), "block": (0, 1, 1), "every": (1, 9, 2)}[kind]
        s = BlockSeconds.of(priced, np.arange(1), 3, 1, "1f1b")
        best = np.inf
        for shares in splits(6, 3):
            begins = np.cumsum([0, *shares])
            held = [slice(begins[i], begins[i + 1]) for i in range(3)]
            seconds = [s.load[0, own].sum() + s.again[0, own][slice(*step)].sum() for own in held]
            seconds[0] += s.first[0][0]
            seconds[-1] += s.last[0][0]
            mean = (s.load.sum() + s.first[0][0] + s.last[0][0]) / 3
            hops = s.hop[0].sum() + s.hop[1].sum()
            total = sum(seconds) + hops + EVEN * sum(t * t for t in seconds) / mean
            best = min(best, (s.microbatches[0] - 1) * max(seconds) + total)
        found = joint(priced, np.arange(1), 3, "1f1b", float("inf"), fit=False)
        assert found.seconds[0] == pytest.approx(best, rel=1e-12), (kind, numbers)


def exact(priced: PricedModel) -> FloatArray:
    from planner.evaluate import exact_seconds

    found = np.zeros(len(priced.layouts))
    for group in assemble_all(priced, list(dag_groups(priced, np.arange(len(priced.layouts))))):
        found[group.index] = exact_seconds(group, np.arange(len(group.index)))
    return found


def test_what_is_minimised_follows_the_engine() -> None:
    """Over the splits of a model with a heavy head the engine's best is within 1% of that of the answer."""
    model, workload, cluster = small(8, vocab=131072), Workload(1024, 32), load("dgx-a100:1")
    every = splits(8, 4)
    layouts = [Layout(pp=4, stage_layers=shares) for shares in every]
    seconds = exact(priced_of(model, layouts, workload, cluster))
    found = joint(priced_of(model, [Layout(pp=4)], workload, cluster), np.arange(1), 4, "1f1b", np.inf, fit=False)
    shares = tuple(found.shares[0].tolist())
    assert seconds[every.index(shares)] <= seconds.min() * 1.01
    assert seconds[every.index(shares)] < seconds[every.index((2, 2, 2, 2))]
