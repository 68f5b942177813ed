"""Bytes by link, against hand arithmetic."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hwmodels import cluster as clusters
from planner.layout import Layout
from planner.model.shape import from_shape
from planner.plan import Workload
from planner.predict import predict
from planner.results import LinkBytes

MODEL = from_shape(
    name="m", layers=8, hidden=1024, heads=16, ffn_hidden=4096, vocab=32000, seq_len=512, learned_positions=False,
    norm="rms", bias=False,
)  # fmt: skip
PARAMETERS = 8 * (4 * 1024**2 + 2 * 1024 * 4096 + 2 * 1024) + 32000 * 1024 + 1024


def _sent(cluster: str, layout: Layout, workload: Workload) -> dict[str, LinkBytes]:
    return predict(MODEL, clusters.load(cluster), workload, layout).traffic


def test_full_sharding_rings_over_nodes() -> None:
    # two gathers of 16-bit weights and a reduction of fp32 gradients over 16 ranks; one of the 8 rings of a node
    # crosses at each GPU
    work = Workload(512, 16, framework="fsdp2")
    found = _sent("dgx-a100:2", Layout(dp=16, zero_stage=3), work)
    whole = (2 * 2 + 4) * PARAMETERS * 15 / 16
    assert found.keys() == {"dp_comm"}
    assert found["dp_comm"].inter_node == pytest.approx(whole / 8)
    assert found["dp_comm"].intra_node == pytest.approx(whole * 7 / 8)


def test_hybrid_sharding_gathers_in_the_node_and_reduces_shards_between_nodes() -> None:
    work = Workload(512, 16, framework="fsdp2")
    found = _sent("dgx-a100:2", Layout(dp=16, zero_stage=3, fsdp=8), work)["dp_comm"]
    assert found.intra_node == pytest.approx((2 * 2 + 4) * PARAMETERS * 7 / 8)
    assert found.inter_node == pytest.approx(2 * (2 - 1) / 2 * 4 * PARAMETERS / 8)


def test_plain_data_parallel_all_reduces_twice_its_gradients() -> None:
    work = Workload(512, 8, framework="megatron-2022", precision="fp16")
    found = _sent("dgx-a100", Layout(dp=8), work)["dp_comm"]
    assert found == LinkBytes(pytest.approx(2 * 7 / 8 * 2 * PARAMETERS), 0.0)  # fp16 gradients, nothing leaves the node


def test_tensor_parallel_and_recomputation() -> None:
    # four all-reduces a layer and micro-batch (Megatron-LM, arXiv 1909.08053, figure 4), one at each end; recomputation
    # of a whole layer runs its two forward ones again
    work = Workload(512, 4, framework="megatron-2022", precision="fp16")
    activation = 512 * 1024 * 2
    plain = _sent("dgx-a100", Layout(tp=8), work)["tp_comm"].intra_node
    again = _sent("dgx-a100", Layout(tp=8, recompute="full"), work)["tp_comm"].intra_node
    assert again - plain == pytest.approx(4 * 8 * 2 * activation * 2 * 7 / 8)
    assert plain == pytest.approx(4 * (8 * 4 + 2) * activation * 2 * 7 / 8, rel=0.01)  # and the loss's small ones


@pytest.mark.parametrize(("cluster", "inside", "between"), [("dgx-a100", 1.0, 0.0), ("dgx-a100:2", 0.0, 1.0)])
def test_a_pipeline_sends_each_boundary_forth_and_back(cluster: str, inside: float, between: float) -> None:
    dp = 4 if cluster == "dgx-a100" else 8
    work = Workload(512, 4 * dp, framework="megatron-2022", precision="fp16")
    found = _sent(cluster, Layout(pp=2, dp=dp), work)["pp_comm"]
    whole = 2 * 4 * 512 * 1024 * 2 / 2  # of two ranks each sends one way
    assert found == LinkBytes(pytest.approx(inside * whole), pytest.approx(between * whole))


def test_an_all_to_all_sends_to_every_rank_alike() -> None:
    moe = replace(
        from_shape(
            name="moe", layers=2, hidden=1024, heads=16, vocab=32000, seq_len=512, n_experts=16, topk=2, tied=False,
            moe_ffn_hidden=1024, gated=True, learned_positions=False, norm="rms", bias=False,
        ),
        notes=(),
    )  # fmt: skip
    work = Workload(512, 16, framework="megatron", switches=(("moe_dispatcher", "alltoall"),))
    found = predict(moe, clusters.load("dgx-a100:2"), work, Layout(dp=16, ep=16, zero_stage=1)).traffic["ep_comm"]
    whole = 2 * 4 * 512 * 2 * 1024 * 2  # two layers, dispatch and combine forth and back, two copies of a token
    assert found.intra_node == pytest.approx(whole * 7 / 16)
    assert found.inter_node == pytest.approx(whole * 8 / 16)
