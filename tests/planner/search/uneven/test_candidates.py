"""Candidates with other stages: faster when timed, within the memory, and only what a framework runs."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from hwmodels.cluster import load
from planner.evaluate import exact_seconds
from planner.layout import Layout, LayoutBatch, RuleContext, faults, split_layers
from planner.model import load as load_model
from planner.plan import Workload
from planner.priced import PricedModel, price_model
from planner.search.least import peak_bytes
from planner.search.uneven.candidates import balanced_candidates, joined, least_seconds
from planner.step.assemble import assemble_all, dag_groups

FloatArray = NDArray[np.float64]


def exact(priced: PricedModel) -> FloatArray:
    found = np.zeros(len(priced.layouts))
    for group in assemble_all(priced, list(dag_groups(priced, np.arange(len(priced.layouts))))):
        found[group.index] = exact_seconds(group, np.arange(len(group.index)))
    return found


def of(
    name: str, cluster: str, layouts: list[Layout], gbs: int, framework: str = "generic", mtp: int = 0
) -> PricedModel:
    workload = Workload(4096, gbs, framework=framework, mtp_layers=mtp)
    return price_model(load_model(name)[0], workload, LayoutBatch.of(layouts), load(cluster))


def legal(priced: PricedModel) -> bool:
    context = RuleContext.of(priced.model, priced.workload, priced.cluster.n_ranks)
    return all(not faults(priced.layouts.layout(i), context) for i in range(len(priced.layouts)))


def test_a_large_vocabulary_takes_layers_off_the_last_stage() -> None:
    """Gemma 2 27B: 256,000 x 4608 of head weigh as 2 of 46 layers (1.18e9 of 0.56e9 parameters each) and the loss more.

    On four ranks 12 layers each but 10 on the last; the default rule counts the head as one layer: 11, 12, 12, 11.
    """
    layout = Layout(tp=8, sp=1, pp=4, zero_stage=0)
    priced = of("gemma2-27b", "dgx-h100:4", [layout], 128)
    found = balanced_candidates(priced, np.arange(1))
    assert found.layouts.layout(0).stage_layers == (12, 12, 12, 10)
    assert exact(found)[0] < 0.96 * exact(priced)[0]
    assert legal(found)
    # interleaved on two virtual stages a rank: 46 layers and the head on eight stages
    looped = Layout(tp=8, sp=1, pp=4, vpp=2, schedule="interleaved-1f1b")
    priced = of("gemma2-27b", "dgx-h100:4", [looped], 128)
    found = balanced_candidates(priced, np.arange(1))
    assert found.layouts.layout(0).stage_layers == (6, 6, 6, 6, 6, 6, 6, 4)
    assert exact(found)[0] < 0.96 * exact(priced)[0]


def test_even_stages_that_another_split_beats() -> None:
    """80 layers on 8 ranks divide, and a head of 128,256 x 8192 makes 11 of them on one stage the faster ones."""
    priced = of("llama-3-70b", "dgx-a100:8", [Layout(tp=8, sp=1, pp=8, zero_stage=0)], 256)
    found = balanced_candidates(priced, np.arange(1))
    assert found.layouts.layout(0).stage_layers == (10, 11, 10, 10, 10, 10, 10, 9)
    assert exact(found)[0] < exact(priced)[0]
    # a model whose head weighs as good as nothing keeps its even stages: GPT-3's 51,200 x 12288 is 0.35 of a layer
    priced = of("gpt3-175b", "dgx-a100:16", [Layout(tp=8, sp=1, pp=16)], 256)
    assert not len(balanced_candidates(priced, np.arange(1)).layouts)


def test_llama_405b_keeps_the_split_of_its_authors() -> None:
    """126 layers on 16 ranks, one fewer on both ends (arXiv 2407.21783, section 3.3.2): no other is better."""
    layout = Layout(tp=8, sp=1, pp=16, dp=4, zero_stage=1)
    priced = of("llama-3.1-405b", "dgx-h100:64", [layout], 1024)
    assert not len(balanced_candidates(priced, np.arange(1)).layouts)
    split = split_layers(126, 16)
    assert split == (7, *(8,) * 14, 7)


def test_recomputation_is_fitted_to_what_each_stage_holds() -> None:
    """Llama 3.1 405B on 512 H100 with mbs 2: the first stages hold most activations, the last ones recompute none."""
    layout = Layout(tp=8, sp=1, pp=16, dp=4, mbs=2, zero_stage=1, recompute="block")
    priced = of("llama-3.1-405b", "dgx-h100:64", [layout], 1024)
    found = balanced_candidates(priced, np.arange(1), fit=True)
    best = found.layouts.layout(0)
    counts = best.recompute_layers
    assert len(counts) == 16 and counts[0] > 0 and counts[-1] == 0 and sum(counts) < 16
    limit = 0.94 * priced.cluster.device.memory_bytes
    assert peak_bytes(found)[0] <= limit
    # whole recomputation takes a third more than the forward and backward: a quarter of the step at most
    assert 0.72 * exact(priced)[0] < exact(found)[0] < 0.85 * exact(priced)[0]
    assert legal(found)
    # one layer less anywhere does not fit
    for stage in np.flatnonzero(counts):
        fewer = tuple(n - (i == stage) for i, n in enumerate(counts))
        less = Layout(**{f: getattr(best, f) for f in best.__slots__} | {"recompute_layers": fewer})
        assert peak_bytes(of("llama-3.1-405b", "dgx-h100:64", [less], 1024))[0] > limit


def test_a_framework_with_one_number_gets_one() -> None:
    layout = Layout(tp=8, sp=1, pp=16, dp=4, mbs=2, zero_stage=1, recompute="block")
    priced = of("llama-3.1-405b", "dgx-h100:64", [layout], 1024, "megatron")
    found = balanced_candidates(priced, np.arange(1), fit=True)
    assert len(found.layouts.layout(0).recompute_layers) == 1
    assert legal(found) and peak_bytes(found)[0] <= 0.94 * priced.cluster.device.memory_bytes
    assert exact(found)[0] < exact(priced)[0]


def test_a_framework_with_one_split_keeps_it() -> None:
    layouts = [Layout(tp=8, sp=1, pp=4), Layout(tp=8, sp=1, pp=4, recompute="block")]
    priced = of("gemma2-27b", "dgx-h100:4", layouts, 128, "deepspeed")
    assert not len(balanced_candidates(priced, np.arange(2)).layouts)
    # all fit without recomputation, which is a layout of its own there
    assert not len(balanced_candidates(priced, np.arange(2), fit=True).layouts)
    alone = of("gemma2-27b", "dgx-h100:4", layouts[1:], 128, "deepspeed")
    fitted = balanced_candidates(alone, np.arange(1), fit=True).layouts.layout(0)
    assert fitted.stage_layers == () and fitted.recompute_layers == (0,)


@pytest.mark.parametrize(("pp", "vpp", "schedule"), [(16, 1, "1f1b"), (8, 2, "interleaved-1f1b"), (8, 2, "zb-v"),
                                                     (8, 1, "dualpipe")])  # fmt: skip
def test_dense_layers_first_and_a_prediction_step_last(pp: int, vpp: int, schedule: str) -> None:
    """DeepSeek-V3: 3 dense and 58 expert layers, one prediction step beside the head. Never slower than the default."""
    layout = Layout(tp=8, sp=1, pp=pp, vpp=vpp, dp=2048 // 8 // pp, ep=32, zero_stage=1, schedule=schedule)
    priced = of("deepseek-v3", "dgx-h100:256", [layout], 4096, mtp=1)
    found = balanced_candidates(priced, np.arange(1))
    if len(found.layouts):
        shares = found.layouts.layout(0).stage_layers
        assert sum(shares) == 61 and len(shares) == pp * vpp
        assert exact(found)[0] <= exact(priced)[0] * (1 + 1e-12)
    if vpp == 1 and schedule == "1f1b":  # dense layers are lighter, the last stage has a layer and a head more
        assert shares[0] > shares[1] > shares[-1]


def test_interleaved_ranks_recompute_until_they_fit() -> None:
    layout = Layout(tp=8, sp=1, pp=16, vpp=4, dp=4, mbs=2, zero_stage=1, recompute="full", schedule="interleaved-1f1b")
    priced = of("llama-3.1-405b", "dgx-h100:64", [layout], 1024)
    found = balanced_candidates(priced, np.arange(1), fit=True)
    best = found.layouts.layout(0)
    assert best.recompute == "block" and 0 < sum(best.recompute_layers) < 126
    assert peak_bytes(found)[0] <= 0.94 * priced.cluster.device.memory_bytes
    assert exact(found)[0] < exact(priced)[0]
    assert legal(found)


def test_candidates_that_cannot_be_faster_are_left_out() -> None:
    layouts = [Layout(tp=8, sp=1, pp=4), Layout(tp=8, sp=1, pp=4, mbs=2), Layout(tp=8, sp=1, dp=4)]
    priced = of("gemma2-27b", "dgx-h100:4", layouts, 128)
    least = least_seconds(priced, np.arange(3))
    assert (least <= exact(priced)).all()
    found = balanced_candidates(priced, np.arange(3))
    assert (least[:2] <= exact(found)).all()
    assert [found.layouts.layout(i).mbs for i in range(len(found.layouts))] == [1, 2]
    first = balanced_candidates(priced, np.arange(3), limit_s=float(least[:2].max()))
    assert len(first.layouts) == 1
    assert len(joined([found, first, found]).layouts) == 2
