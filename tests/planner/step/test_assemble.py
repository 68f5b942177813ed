"""Durations of nodes: sums of op prices, cuts, data-parallel traffic, and what recomputation adds."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hwmodels import collectives
from hwmodels.cluster import load
from hwmodels.topology import group_shape
from planner.frameworks import get
from planner.layout import Layout, LayoutBatch
from planner.model.shape import from_shape
from planner.model.spec import ModelSpec, count
from planner.plan import Workload
from planner.price import price_op
from planner.priced import price_model
from planner.step.assemble import Group, assemble, dag_groups
from planner.step.data_parallel import bucket_counts, comm_plan


def gpt(layers: int = 8, tied: bool = False) -> ModelSpec:
    return from_shape(
        name="gpt", layers=layers, hidden=1024, heads=16, ffn_hidden=4096, vocab=8192, seq_len=512, tied=tied
    )


def group_of(model: ModelSpec, layout: Layout, framework: str = "generic", gbs: int = 32) -> Group:
    nodes = max(layout.world // 8, 1)
    priced = price_model(
        model, Workload(512, gbs, "bf16", "adamw", framework), LayoutBatch.of([layout]), load(f"dgx-a100:{nodes}")
    )
    return assemble(priced, *next(dag_groups(priced, np.arange(1))))


def test_a_stage_takes_the_sum_of_its_ops() -> None:
    # large rows, so that kernels and not launches decide
    model, layout, workload = gpt(8), Layout(tp=8, sp=1, mbs=128), Workload(512, 128)
    cluster = load("dgx-a100:1")
    priced = price_model(model, workload, LayoutBatch.of([layout]), cluster)
    group = assemble(priced, *next(dag_groups(priced, np.arange(1))))
    batch = LayoutBatch.of([layout])
    forward = 0.0
    for block, copies in ((priced.embedding, 1), (priced.layers[0], 8), (priced.head, 1)):
        ops = [p.op for p in block.ops if p.op.phase == "forward"]
        forward += copies * sum(float(price_op(op, cluster, batch).mid.reshape(-1)[0]) for op in ops)
    assert float(group.costs.forward_s.sum()) == pytest.approx(forward, rel=1e-9)


@settings(deadline=None, max_examples=25)
@given(
    tp=st.sampled_from([1, 2, 4]),
    pp=st.sampled_from([1, 2, 4]),
    vpp=st.sampled_from([1, 2]),
    stage=st.integers(0, 3),
    recompute=st.sampled_from(["none", "selective", "full"]),
    framework=st.sampled_from(["generic", "megatron-2021", "fsdp2", "deepspeed"]),
)
def test_the_phases_of_a_micro_batch_add_up_to_its_compute_nodes(
    tp: int, pp: int, vpp: int, stage: int, recompute: str, framework: str
) -> None:
    vpp = vpp if pp > 1 else 1
    schedule = "interleaved-1f1b" if vpp > 1 else "1f1b"
    group = group_of(
        gpt(), Layout(tp=tp, pp=pp, vpp=vpp, dp=2, zero_stage=stage, recompute=recompute, schedule=schedule), framework
    )
    c = group.costs
    nodes = (c.forward_s + c.backward_input_s + c.backward_weight_s).sum(axis=(2, 3))
    gathered = group.comm.unshard == "each"
    parts = sum(group.parts.values())
    if gathered:  # an overlapped gather takes its share from compute on top
        assert (nodes >= parts - 1e-12).all()
    else:
        np.testing.assert_allclose(nodes, parts, rtol=1e-9)
    assert all((v >= 0).all() for v in group.parts.values())


def test_full_recomputation_adds_a_forward_without_the_loss() -> None:
    plain, full = group_of(gpt(), Layout(mbs=8)), group_of(gpt(), Layout(mbs=8, recompute="full"))
    added = float((full.costs.backward_input_s - plain.costs.backward_input_s).sum())
    assert added == pytest.approx(float(full.parts["recompute"].sum()), rel=1e-9)
    assert 0 < added < float(plain.costs.forward_s.sum())


def test_ddp_reduces_every_gradient_byte_once() -> None:
    # 8 layers in 8 buckets; each bucket is 1/8 of all fp32 gradients over 8 ranks in one node. All but the last
    # have compute beside them, which makes them longer.
    model = gpt(8)
    group = group_of(model, Layout(dp=8))
    assert group.comm.reduce == "bucketed"
    assert group.comm.buckets == 8
    one = collectives.seconds(load("dgx-a100:1"), "all_reduce", model.parameters * 4.0 / 8, group_shape(8, 1, 8))
    slower = float(collectives.beside(load("dgx-a100:1"), "all_reduce", 1).collective)
    assert slower > 1.0
    assert float(group.costs.reduce_s.sum()) == pytest.approx((1 + 7 * slower) * float(one.mid), rel=1e-9)
    assert float(group.costs.gather_s.sum()) == 0.0


def test_zero_1_of_deepspeed_reduces_whole_gradients_and_gathers_parameters() -> None:
    model, cluster = gpt(8), load("dgx-a100:1")
    group = group_of(model, Layout(dp=8, zero_stage=1), "deepspeed-2022")
    gather = collectives.seconds(cluster, "all_gather", model.parameters * 2.0, group_shape(8, 1, 8))
    whole = collectives.seconds(cluster, "all_reduce", model.parameters * 4.0, group_shape(8, 1, 8))  # fp32
    assert float(group.costs.gather_s[0, 0]) == pytest.approx(float(gather.mid), rel=1e-9)
    assert float(group.costs.reduce_s.sum()) == pytest.approx(float(whole.mid), rel=1e-9)


def test_the_optimizer_runs_on_its_shard() -> None:
    whole, shard = group_of(gpt(), Layout(dp=8)), group_of(gpt(), Layout(dp=8, zero_stage=1))
    assert float(shard.costs.optimizer_s[0, 0]) < 0.3 * float(whole.costs.optimizer_s[0, 0])


@pytest.mark.parametrize(
    ("framework", "pp", "stage", "unshard", "reduce", "gathers"),
    [
        ("generic", 1, 0, "none", "bucketed", False),
        ("megatron-2021", 1, 0, "none", "end", False),
        ("megatron", 4, 1, "once", "bucketed", False),
        ("ours", 1, 1, "none", "bucketed", True),
        ("fsdp2", 1, 3, "each", "each", False),
        ("fsdp2", 4, 3, "once", "bucketed", False),
        ("deepspeed", 1, 2, "none", "each", True),
    ],
)
def test_what_a_framework_communicates(
    framework: str, pp: int, stage: int, unshard: str, reduce: str, gathers: bool
) -> None:
    plan = comm_plan(gpt(), get(framework), pp, 1, stage, sharing=True)
    assert (plan.unshard, plan.reduce, plan.gather_after_step) == (unshard, reduce, gathers)


@pytest.mark.parametrize(
    ("framework", "layout", "buckets"),
    [
        # fp32 gradients in 25 MiB: ceil of the bytes, to a power of two, at most one a layer
        ("generic", Layout(dp=2), 16),
        # 40e6 fp32 elements: 16 layers of 12.6e6 are 5.04 buckets
        ("megatron", Layout(dp=2), 8),
        # from 40 ranks on a bucket grows with them: 200e6 elements at dp 200, 1.008 buckets
        ("megatron", Layout(dp=200), 2),
        # 5e8 elements hold the whole model
        ("deepspeed", Layout(dp=2), 1),
        # a quarter of the layers: 50.4e6 elements
        ("megatron", Layout(dp=2, pp=4), 2),
        # the same over tp 4: 12.6e6
        ("megatron", Layout(dp=2, pp=4, tp=4), 1),
    ],
)
def test_buckets_by_their_bytes(framework: str, layout: Layout, buckets: int) -> None:
    # 16 layers of 12 h² + 13 h = 12.6e6 elements
    model = from_shape(name="g", layers=16, hidden=1024, heads=16, ffn_hidden=4096, vocab=512, seq_len=64)
    work = Workload(64, 800, framework=framework)
    assert list(bucket_counts(model, work, LayoutBatch.of([layout]), get(framework))) == [buckets]


def test_one_data_parallel_rank_communicates_nothing() -> None:
    plan = comm_plan(gpt(), get("generic"), 1, 1, 0, sharing=False)
    assert (plan.unshard, plan.reduce, plan.gather_after_step, plan.buckets) == ("none", "none", False, 1)


def test_tied_embedding_is_reduced_between_the_ends() -> None:
    model = gpt(8, tied=True)
    group = group_of(model, Layout(tp=2, pp=4))
    assert group.comm.tied_embedding
    # 8192 x 1024 over tp 2 in fp32, between ranks 0 and 6 of one node
    one = collectives.seconds(load("dgx-a100:1"), "all_reduce", 8192 * 1024 / 2 * 4.0, group_shape(2, 1, 8))
    assert float(group.costs.tied_s[0]) == pytest.approx(float(one.mid), rel=1e-9)


def test_mirror_ranks_reduce_what_both_hold() -> None:
    # 8 layers on 4 ranks of one node each way: ranks 1 and 2 hold stages 1 and 2, four layers, gradients in fp32.
    model = gpt(8)
    group = group_of(model, Layout(pp=4, schedule="dualpipe"))
    nbytes = 4 * count(model.layers[0].parameters(1024)) * 4.0
    one = collectives.seconds(load("dgx-a100:1"), "all_reduce", nbytes, group_shape(2, 1, 8))
    assert group.costs.mirror_s[0, 1:3] == pytest.approx([float(one.mid)] * 2, rel=1e-9)
    assert group.costs.mirror_s[0, 0] == pytest.approx(group.costs.mirror_s[0, 3], rel=1e-12)
    # ZeRO-1 over dp 4 leaves a quarter; ranks 1 and 2, of 4 world ranks each, lie on two nodes.
    sharded = group_of(model, Layout(pp=4, dp=4, zero_stage=1, schedule="dualpipe"))
    across = collectives.seconds(load("dgx-a100:2"), "all_reduce", nbytes / 4, group_shape(2, 8, 8))
    assert sharded.costs.mirror_s[0, 1] == pytest.approx(float(across.mid), rel=1e-9)
    assert not group_of(model, Layout(pp=4)).costs.mirror_s.any()


def test_a_split_backward_cannot_hide_tp_traffic_behind_its_other_half() -> None:
    together, apart = (group_of(gpt(8), Layout(tp=4, pp=2, schedule=name)) for name in ("1f1b", "zb-h1"))
    assert together.hidden["tp_comm"].sum() > 0.0
    assert apart.hidden["tp_comm"].sum() == pytest.approx(0.0, abs=1e-12)
    moved = together.hidden["tp_comm"]
    assert apart.parts["tp_comm"] == pytest.approx(together.parts["tp_comm"] + moved, rel=1e-9)
    for group in (together, apart):
        nodes = (group.costs.forward_s + group.costs.backward_input_s + group.costs.backward_weight_s).sum(axis=(2, 3))
        assert sum(group.parts.values()) == pytest.approx(nodes, rel=1e-9)


def test_stages_in_a_v_send_up_and_down_the_ranks() -> None:
    # 16 ranks, pp 4 of 4 ranks each, 8 a node: hops 0-1 and 2-3 inside, 1-2 across, each way; the turn is on rank 3.
    group = group_of(gpt(8), Layout(tp=4, pp=4, vpp=2, schedule="zb-v"))
    cluster, nbytes = load("dgx-a100:2"), 512 * 1024 * 2.0
    inside = float(collectives.seconds(cluster, "send_recv", nbytes, group_shape(2, 1, 8)).mid)
    across = float(collectives.seconds(cluster, "send_recv", nbytes, group_shape(2, 8, 8)).mid)
    assert group.costs.send_forward_s[0, :, 0].tolist() == pytest.approx([inside, across, inside, 0.0])
    assert group.costs.send_forward_s[0, :, 1].tolist() == pytest.approx([0.0, inside, across, inside])
    assert group.costs.send_backward_s[0, :, 1].tolist() == pytest.approx([inside, across, inside, 0.0])


def test_parameters_of_all_ranks_are_the_models() -> None:
    model = gpt(8)
    priced = price_model(model, Workload(512, 32), LayoutBatch.of([Layout(pp=4)]), load("dgx-a100:1"))
    group = assemble(priced, *next(dag_groups(priced, np.arange(1))))
    assert group.costs.optimizer_s.shape == (1, 4)
    assert count(model.layers[0].parameters(1024)) * 8 + 8192 * 1024 * 2 + 512 * 1024 + 2048 == model.parameters


def test_a_hop_leaves_the_node_where_the_next_stage_begins_on_another() -> None:
    # 16 ranks, pp 4 of 4 ranks each, 8 a node: 0->1 inside, 1->2 across, 2->3 inside; nothing leaves the ends.
    group = group_of(gpt(), Layout(tp=4, pp=4))
    cluster = load("dgx-a100:2")
    nbytes = 512 * 1024 * 2.0
    inside = float(collectives.seconds(cluster, "send_recv", nbytes, group_shape(2, 1, 8)).mid)
    across = float(collectives.seconds(cluster, "send_recv", nbytes, group_shape(2, 8, 8)).mid)
    assert across > inside
    assert group.costs.send_forward_s[0, :, 0].tolist() == pytest.approx([inside, across, inside, 0.0])
    assert group.costs.send_backward_s[0, :, 0].tolist() == pytest.approx([0.0, inside, across, inside])
