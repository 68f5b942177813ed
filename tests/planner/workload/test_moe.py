"""Expert layers: rows, bytes, kernels and partners of each dispatcher, by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hwmodels import collectives
from hwmodels.errors import InputError
from planner import frameworks
from planner.layout import Layout, LayoutBatch
from planner.model.spec import Attention, DecoderLayer, ModelSpec, Moe
from planner.moe_switches import DISPATCHERS
from planner.routing import Routing
from planner.training import Workload
from planner.workload.lower import lower
from planner.workload.op import Block, Op

T, H, K, E, F = 512, 256, 2, 8, 128
"""Tokens of a micro-batch, hidden, chosen experts, experts, expert width."""


def model(shared: int = 0, **more: Any) -> ModelSpec:
    layer = DecoderLayer(Attention(8, 8, H // 8), Moe(E, K, F, shared_ffn_hidden=shared, **more))
    return ModelSpec(name="m", family="llama", hidden=H, vocab=1024, layers=(layer, layer))


def block(
    layout: Layout, framework: str = "generic", spec: ModelSpec | None = None, precision: str = "bf16",
    routing: Routing | None = None, **switches: str,
) -> Block:  # fmt: skip
    work = Workload(
        T, 64, precision, "adamw", framework, routing=routing or Routing(), switches=tuple(switches.items())
    )
    return lower(spec or model(), work, LayoutBatch.of(layout), frameworks.of(work)).layers[0]


def by_name(found: Block, name: str) -> Op:
    return next(op for op in found.ops if op.name == name)


EP = Layout(dp=4, ep=4)


def test_skew_makes_rows_of_the_busiest_rank() -> None:
    # 512 x 2 / 8 = 128 rows an expert from each rank, 4 ranks: 512; half as much again on the busiest.
    up = by_name(block(EP, routing=Routing(skew=1.5)), "moe.expert.up")
    assert float(up.dims["m"]) == 768
    assert by_name(block(EP, routing=Routing(skew=1.5)), "moe.dispatch").dims["skew"] == 1.5
    saved = float(block(EP, routing=Routing(skew=1.5)).saved_bytes) - float(block(EP).saved_bytes)
    # 256 rows more in each of 2 experts: input (H), up and gate (2 F), down's input (F), 2 bytes each.
    assert saved == 256 * 2 * (H + 2 * F + F) * 2


def test_padding_to_capacity_sends_the_padding() -> None:
    found = block(EP, routing=Routing(2.0, 1.25, pad_to_capacity=True))
    assert float(by_name(found, "moe.expert.up").dims["m"]) == 640
    dispatch = by_name(found, "moe.dispatch")
    assert float(dispatch.dims["nbytes"]) == T * K * 1.25 * H * 2
    assert dispatch.dims["skew"] == 1.0


@pytest.mark.parametrize(("precision", "rows"), [("bf16", 5), ("fp8-current", 16), ("mxfp8", 32)])
def test_rows_come_in_whole_blocks_of_a_scaled_format(precision: str, rows: int) -> None:
    # 20 tokens x 2 / 8 = 5 rows an expert.
    work = Workload(20, 8, precision, framework="generic")
    found = lower(model(), work, LayoutBatch.of(Layout()), frameworks.of(work)).layers[0]
    assert float(by_name(found, "moe.expert.up").dims["m"]) == rows


def test_each_framework_launches_experts_in_its_way() -> None:
    def launches(how: str) -> tuple[str, float, float]:
        op = by_name(block(EP, moe_expert_gemm=how), "moe.expert.up")
        return op.kind, float(np.asarray(op.kernels)), float(np.asarray(op.count))

    assert launches("grouped") == ("grouped_gemm", 1.0, 1.0)
    assert launches("streams") == ("grouped_gemm", 2.0, 1.0)  # two local experts
    assert launches("loop") == ("gemm", 1.0, 2.0)
    casts = block(EP, framework="nemo", precision="fp8-current")
    assert float(np.asarray(by_name(casts, "moe.expert.up.quantise").kernels)) == 2 * 2  # amax and cast, each expert


def test_padding_kernels_only_where_neither_router_nor_dispatcher_pads() -> None:
    def names(**switches: str) -> set[str]:
        return {op.name for op in block(EP, framework="nemo", precision="mxfp8", **switches).ops}

    assert {"moe.pad", "moe.unpad.grad"} <= names()
    assert not {n for n in names(moe_router_padding="true") | names(moe_dispatcher="hybridep") if n.endswith("pad")}
    assert "moe.pad" not in {op.name for op in block(EP, framework="nemo").ops}


def test_all_gather_dispatch_moves_every_token_to_every_rank() -> None:
    found = block(Layout(tp=2, sp=1, dp=4, ep=4, etp=2), moe_dispatcher="allgather")
    dispatch, mirror = by_name(found, "moe.dispatch"), by_name(found, "moe.dispatch.grad")
    assert (dispatch.collective, mirror.collective) == ("all_gather", "reduce_scatter")
    assert by_name(found, "moe.combine").collective == "reduce_scatter"
    assert float(dispatch.dims["nbytes"]) == (T / 2) * 8 * H * 2  # each rank's 256 tokens, 8 ranks
    assert dispatch.group == "ep_etp"


def test_deepep_sends_a_token_once_to_each_rank() -> None:
    found = block(EP, moe_dispatcher="deepep")
    dispatch, back = by_name(found, "moe.dispatch"), by_name(found, "moe.dispatch.grad")
    assert (dispatch.collective, back.collective) == ("expert_dispatch", "expert_combine")
    assert (float(dispatch.dims["tokens"]), float(dispatch.dims["topk"]), float(dispatch.dims["experts"])) == (T, K, E)
    assert dispatch.impl == "deepep-normal"


def test_hybridep_permutes_what_arrived_and_sorts_nothing_again() -> None:
    found = block(EP, moe_dispatcher="hybridep")
    assert not any("sort" in op.name for op in found.ops)
    # 2 of 8 experts, two on a rank: a token reaches 4 (1 - C(6, 2) / C(8, 2)) = 13/7 ranks; 1024 rows written.
    read = 512 * 13 / 7
    assert float(by_name(found, "moe.permute").dims["nbytes"]) == pytest.approx((read + 1024) * H * 2)


def test_a_fused_grouped_mlp_has_no_kernels_between_its_products() -> None:
    names = {op.name for op in block(EP, precision="mxfp8", moe_fused_mlp="true").ops}
    plain = {op.name for op in block(EP, precision="mxfp8").ops}
    assert plain - names == {
        "moe.expert.activation", "moe.expert.activation.grad", "moe.expert.down.quantise",
        "moe.expert.up.grad.quantise",
    }  # fmt: skip
    in_bf16 = {op.name for op in block(EP, moe_fused_mlp="true").ops}
    assert "moe.expert.activation" in in_bf16  # no MX scales, no fused kernel


def test_graphs_of_parts_take_their_launches_from_the_host() -> None:
    from planner.cli.inputs import load_cluster
    from planner.frameworks.base import HostConstant
    from planner.priced import price_model

    cluster, layouts = load_cluster("dgx-h100:1"), LayoutBatch.of([Layout(dp=8, ep=8)])
    slow = replace(frameworks.get("megatron"), kernel_s=HostConstant(1e-3, "slow"))

    def forward(**switches: str) -> float:
        work = Workload(T, 64, framework="megatron", switches=tuple(switches.items()))
        with frameworks.instead(slow):
            price = price_model(model(), work, layouts, cluster).layers[0].forward
        return float(price.total_s[0])

    kept = sum(
        float(np.asarray(op.kernels) * np.asarray(op.count))
        for op in block(Layout(dp=8, ep=8), "megatron").ops
        if op.phase == "forward" and op.name.startswith(("attention.", "norm_", "moe.rout"))
    )
    launch = 1e-3 + cluster.device.launch_s
    assert forward() - forward(graphed="attn+moe_router") == pytest.approx(kept * launch, rel=1e-9)
    assert forward(cuda_graphs="true") < 0.1 * forward()


def test_permutation_bytes() -> None:
    # Fused: 512 tokens read, 1024 copies written; by index operators 1024 read as well.
    fused = by_name(block(EP), "moe.permute")
    eager = by_name(block(EP, moe_permute_fusion="false"), "moe.permute")
    assert float(fused.dims["nbytes"]) == (512 + 1024) * H * 2
    assert float(eager.dims["nbytes"]) == 2 * 1024 * H * 2
    # The second sort: 1024 rows of two local experts read and written; none where a rank has one expert.
    assert float(by_name(block(EP), "moe.sort").dims["nbytes"]) == 2 * 1024 * H * 2
    assert not np.any(np.asarray(by_name(block(Layout(dp=8, ep=8)), "moe.sort").count))


def test_probabilities_on_the_outputs_keep_them() -> None:
    kept = float(block(EP, moe_weighted_activation="false").saved_bytes) - float(block(EP).saved_bytes)
    assert kept == T * K * H * 2


def test_router_bytes_and_kernels() -> None:
    # Unfused 6 passes over 512 x 8 fp32 scores, and 4 for the balancing loss; 10 and 8 kernels.
    route = by_name(block(EP), "moe.route")
    assert (float(route.dims["nbytes"]), float(np.asarray(route.kernels))) == (10 * T * E * 4, 18)
    bare = by_name(block(EP, moe_aux_loss="false"), "moe.route")
    assert (float(bare.dims["nbytes"]), float(np.asarray(bare.kernels))) == (6 * T * E * 4, 10)
    fused = by_name(block(EP, moe_router_fusion="true", moe_z_loss="true"), "moe.route")
    assert (float(fused.dims["nbytes"]), float(np.asarray(fused.kernels))) == ((2.25 + 3 + 1) * T * E * 4, 7)
    biased = by_name(block(EP, spec=model(score_correction=True)), "moe.route")
    assert float(biased.dims["nbytes"]) == 14 * T * E * 4


def test_routing_limited_to_groups_reaches_fewer_nodes() -> None:
    spec = model(groups=4, group_limit=2)
    found = by_name(block(EP, moe_dispatcher="deepep", spec=spec), "moe.dispatch")
    assert (found.dims["groups"], found.dims["group_limit"]) == (4, 2)
    # Four ranks of one group each: two groups are drawn, 4 experts in all; a drawn rank's two are both missed
    # with C(2, 2) / C(4, 2) = 1/6: 4 x 2/4 x 5/6 ranks.
    read = by_name(block(EP, moe_dispatcher="deepep", spec=spec), "moe.permute")
    assert float(read.dims["nbytes"]) == pytest.approx((512 * 5 / 3 + 1024) * H * 2)
    route = by_name(block(EP, spec=spec), "moe.route")
    assert (float(route.dims["nbytes"]), float(np.asarray(route.kernels))) == (12 * T * E * 4, 24)


def test_shared_experts_run_beside_the_exchange() -> None:
    found = block(EP, spec=model(shared=F), moe_shared_overlap="true")
    beside = {op.name: op.behind for op in found.ops if op.kind == "collective" and op.name.startswith("moe.dis")}
    assert beside == {"moe.dispatch": "moe.shared.up", "moe.dispatch.grad": "moe.shared.up.dgrad"}
    assert by_name(block(EP, moe_shared_overlap="true"), "moe.dispatch").behind == ""  # there are none


def test_batch_level_overlap_uses_the_four_slots() -> None:
    found = block(EP, moe_exchange_overlap="true", moe_delay_wgrad="true")
    assert by_name(found, "moe.combine.grad").behind == "other:attention:forward"
    assert by_name(found, "moe.dispatch").behind == "other:experts:backward_input"
    assert by_name(found, "moe.dispatch.grad").behind == "other:experts:forward+backward_weight"


@pytest.mark.parametrize(
    ("switches", "word"),
    [
        ((("moe_dispatcher", "carrier pigeon"),), "alltoall"),
        ((("moe_shared_overlap", "true"), ("moe_exchange_overlap", "true")), "moe_shared_overlap"),
        ((("moe_delay_wgrad", "true"),), "moe_exchange_overlap"),
        ((("moe_expert_gemm", "loop"), ("moe_fused_mlp", "true")), "moe_expert_gemm=grouped"),
        ((("graphed", "attn+mlp"),), "moe_router"),
        ((("moe_shared_overlap", "true"), ("moe_dispatcher", "allgather")), "allgather"),
    ],
)
def test_switches_that_contradict_each_other(switches: tuple[tuple[str, str], ...], word: str) -> None:
    with pytest.raises(InputError, match=word):
        frameworks.of(Workload(512, 8, switches=switches))


@pytest.mark.parametrize("dispatcher", DISPATCHERS)
@pytest.mark.parametrize("cluster_name", ["dgx-h100:2", "gb200-nvl72:1"])
def test_every_dispatcher_has_a_price_above_its_bound(dispatcher: str, cluster_name: str) -> None:
    from planner.cli.inputs import load_cluster
    from planner.price import EXPERT, price_op

    cluster, layouts = load_cluster(cluster_name), LayoutBatch.of(Layout(dp=16, ep=16))
    spec = ModelSpec(name="m", family="llama", hidden=2048, vocab=1024, layers=(
        DecoderLayer(Attention(16, 16, 128), Moe(64, 4, 512)),))  # fmt: skip
    work = Workload(4096, 64, framework="nemo", switches=(("moe_dispatcher", dispatcher),))
    ops = lower(spec, work, layouts, frameworks.of(work)).layers[0].ops
    for op in (op for op in ops if op.name.startswith(("moe.dispatch", "moe.combine"))):
        seconds = float(price_op(op, cluster, layouts).mid)
        d, shape = op.dims, layouts.group(op.group, cluster.gpus_per_node)
        if op.collective.startswith(EXPERT):
            bound = collectives.expert_bound(
                cluster, cluster.device, phase=op.collective.removeprefix(EXPERT), tokens_per_rank=d["tokens"],
                hidden=d["hidden"], topk=d["topk"], experts=d["experts"], shape=shape, dtype=op.dtype, impl=op.impl,
            )  # fmt: skip
        else:
            bound = collectives.bound(cluster, op.collective, d["nbytes"], shape)
        assert seconds >= float(bound) > 0.0
