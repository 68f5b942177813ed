"""Bytes by moment against hand-worked sums: Korthikanti et al. for activations, Megatron's own code for the rest."""

import numpy as np
import pytest

from hwmodels.cluster import load
from planner.layout import Layout, LayoutBatch
from planner.memory import MOMENTS, MemoryEstimate
from planner.model.shape import from_shape
from planner.model.spec import ModelSpec, count
from planner.plan import Workload
from planner.priced import price_model
from planner.results import MEMORY_CATEGORIES
from planner.step.assemble import dag_groups, group_memory

MIB = 2**20


def gpt(layers: int = 8) -> ModelSpec:
    return from_shape(
        name="gpt", layers=layers, hidden=1024, heads=16, ffn_hidden=4096, vocab=8192, seq_len=512, tied=False
    )


def sized(model: ModelSpec, layout: Layout, workload: Workload, cluster: str = "dgx-a100:1") -> MemoryEstimate:
    priced = price_model(model, workload, LayoutBatch.of([layout]), load(cluster))
    index, pp, vpp, schedule, *_ = next(dag_groups(priced, np.arange(1)))
    return group_memory(priced, index, pp, vpp, schedule)


def step_of(found: MemoryEstimate, name: str) -> list[float]:
    return np.asarray(found.by_moment["step"][name])[0].tolist()


ROW = 512 * 1024 * 2
# What one full layer saves without dropout in 16 bits: 2 (norm in) x2 + 2 (qkv in) + 6 + 2 + 2 (up in) + 8 + 8 = 32
# sbh, and 4 bytes of flash statistics for each of 16 heads and 512 tokens.
LAYER = 32 * 512 * 1024 + 4 * 16 * 512
# Its backward begins with the gradient of the residual and of the feed-forward's width: 2 + 8 sbh.
WORKING = 10 * 512 * 1024


def test_1f1b_with_full_recomputation() -> None:
    # 8 layers on 4 stages, 8 micro-batches of one sequence: rank r holds 4 - r micro-batches of 2 layers' inputs.
    workload = Workload(512, 8, "bf16", "adamw", "generic")
    found = sized(gpt(), Layout(pp=4, recompute="full"), workload)
    head, ids = 2 * ROW, 512 * 8
    for rank, flight in enumerate((4, 3, 2, 1)):
        saved = 2 * ROW + (ids if rank == 0 else 0) + (head if rank == 3 else 0)
        assert step_of(found, "activations")[rank] == saved * flight
        # The loss is the larger moment of the last rank where its logits exceed the layer that is rebuilt.
        logits = 512 * 8192 * (2 + 4 + 4 + 4)
        at_loss = rank == 3 and logits > LAYER + WORKING
        assert step_of(found, "recompute")[rank] == (0 if at_loss else LAYER)
        assert step_of(found, "logits")[rank] == (logits if at_loss else 0)
    per_layer = count(gpt().layers[0].parameters(1024))
    assert found.by_category["parameters"][0, 1] == 2 * per_layer * 2
    assert found.by_category["optimizer"][0, 1] == 2 * per_layer * 12


def test_zb_h1_holds_what_waits_for_its_weight_gradient() -> None:
    """8 layers on 2 stages, 3 micro-batches.

    0F0 0F1 0I0 0W0 0F2 0I1 0W1 0I2 0W2: rank 0 holds two whole while I runs, or one whole and one waiting for W.
    """
    workload = Workload(512, 3, "bf16", "adamw", "generic")
    found = sized(gpt(), Layout(pp=2, schedule="zb-h1"), workload)
    late, ids = 32 * 512 * 1024, 512 * 8  # arXiv 2401.10241, table 1: 14 + 18 sbh
    whole, waiting = 4 * LAYER + ids, 4 * late + ids + ROW
    both = step_of(found, "activations")[0] + step_of(found, "temporary")[0]
    assert both == pytest.approx(max(2 * whole + WORKING, whole + waiting), rel=1e-12)


def megatron(**switches: str) -> Workload:
    return Workload(512, 8, "bf16", "adamw", "megatron-defaults", switches=tuple(switches.items()))


def test_megatrons_loss_works_in_place() -> None:
    # fp32 softmax of 512 x 8192 logits beside the bf16 ones (cross_entropy.py); the head's bf16 gradient is smaller.
    found = sized(gpt(), Layout(mbs=1), megatron())
    assert found.moment_name(0, 0) in ("loss", "loss backward")
    assert step_of(found, "logits") == [512 * 8192 * 6]
    fused = sized(gpt(), Layout(mbs=1), megatron(fused_cross_entropy="true"))
    # In place in bf16; then bf16 logit gradients beside the head's weight gradient of 8192 x 1024.
    assert step_of(fused, "logits") == [512 * 8192 * 2 + 8192 * 1024 * 2]


def test_unfused_attention_and_dropout_save_34_sbh_and_5_ass() -> None:
    # arXiv 2205.05198, equation 1, and the masks of the embedding's dropout; final norm and head keep 2 + 2 sbh.
    found = sized(gpt(1), Layout(mbs=4), megatron(attention="unfused-fused-softmax"))
    sbh = 512 * 4 * 1024
    scores = 4 * 16 * 512 * 512
    embedding = 8 * 512 * 4 + sbh
    assert step_of(found, "activations") == [34 * sbh + 5 * scores + embedding + 4 * sbh]


def test_local_attention_has_one_buffer_for_its_scores() -> None:
    engine = sized(gpt(), Layout(mbs=4), megatron(attention="unfused-fused-softmax"))
    local = sized(gpt(), Layout(mbs=4), megatron(attention="unfused-fused-softmax", transformer_engine="false"))
    assert step_of(engine, "comm_buffers") == [0.0]
    assert step_of(local, "comm_buffers") == [2 * 4 * 16 * 512 * 512]


def test_workspaces() -> None:
    # Two of PyTorch's (8.125 MiB before Hopper, 32 MiB from it on or deterministic), Transformer Engine's 4 or 32 MiB,
    # and empty weight gradients of four shapes where the GEMM accumulates: 3 x 1 + 1 + 4 + 4 M elements.
    shapes = (3 + 1 + 4 + 4) * 1024 * 1024 * 2
    for cluster, switches, wanted in (
        ("dgx-a100:1", {}, 2 * 8.125 * MIB + 4 * MIB + shapes),
        ("dgx-a100:1", {"deterministic": "true"}, 2 * 32 * MIB + 4 * MIB + shapes),
        ("dgx-h100:1", {"fused_grad_accumulation": "false"}, 3 * 32 * MIB),
        ("dgx-h100:1", {"transformer_engine": "false"}, 2 * 32 * MIB),
    ):
        found = sized(gpt(), Layout(), megatron(**switches), cluster)
        assert step_of(found, "workspace") == [wanted], (cluster, switches)


def test_deepspeeds_optimizer_copies_its_share_of_the_gradients() -> None:
    # ZeRO-1 over 8 ranks: fp16 parameters and gradients, 12 bytes of a share; while the step runs its gradients flat in
    # fp16 and in fp32, beside one bucket of all gradients (below 5e8 elements here).
    workload = Workload(512, 64, "fp16", "adamw", "deepspeed")
    found = sized(gpt(), Layout(dp=8, zero_stage=1), workload)
    n = gpt().parameters
    moment = found.by_moment["optimizer"]
    assert moment["temporary"][0, 0] == pytest.approx((2 + 4) * n / 8 + 2 * n)
    assert moment["parameters"][0, 0] + moment["gradients"][0, 0] == pytest.approx(4 * n)
    assert found.by_moment["load"]["temporary"][0, 0] == pytest.approx(4 * n / 8)


def test_fsdp_gathers_two_layers_and_keeps_the_root() -> None:
    workload = Workload(512, 8, "bf16", "adamw", "fsdp2")
    found = sized(gpt(), Layout(dp=8, zero_stage=3), workload)
    layer = count(gpt().layers[0].parameters(1024))
    root = gpt().parameters - 8 * layer
    # Backward: both in bf16, the layer's gradients in bf16 and fp32, the root's in bf16.
    assert step_of(found, "gathered") == [2 * (2 * layer + root) + (2 + 4) * layer + 2 * root]


def test_a_model_that_is_built_whole_sets_the_peak() -> None:
    workload = Workload(512, 8, "bf16", "adamw", "fsdp2", switches=(("loads_whole", "true"),))
    found = sized(gpt(64), Layout(dp=8, zero_stage=3, mbs=1, recompute="full"), workload)
    assert found.moment_name(0, 0) == "load"
    load = {name: parts[0, 0] for name, parts in found.by_moment["load"].items()}
    model = load["parameters"] + load["optimizer"] + load["temporary"]  # all of it in fp32, before there are shards
    assert model == pytest.approx(4 * gpt(64).parameters)


def test_every_moment_has_known_categories_and_the_largest_is_the_peak() -> None:
    found = sized(gpt(), Layout(tp=2, sp=1, pp=2, dp=2, zero_stage=1), Workload(512, 16))
    sums = {name: sum(parts.values()) for name, parts in found.by_moment.items()}
    assert tuple(sums) == MOMENTS
    assert all(set(parts) <= set(MEMORY_CATEGORIES) for parts in found.by_moment.values())
    assert found.peak_bytes == pytest.approx(np.max([np.asarray(v) for v in sums.values()], axis=0))
    assert (found.footprint.allocated < found.footprint.reserved).all()
    assert (found.footprint.low < found.footprint.mid).all()
    assert (found.footprint.mid < found.footprint.high).all()


def test_flat_tensors_lie_beside_what_the_step_holds() -> None:
    # The allocator gives a tensor one contiguous block: DeepSpeed's flat gradients reuse none of the activations'.
    workload = Workload(512, 64, "fp16", "adamw", "deepspeed")
    plain = Workload(512, 64, "fp16", "adamw", "deepspeed", switches=(("flat_gradients", "false"),))
    flat, without = (sized(gpt(), Layout(dp=8, zero_stage=1), w) for w in (workload, plain))
    used = sum(float(flat.by_moment["step"][name][0, 0]) for name in ("activations", "logits", "temporary"))
    beside = min(used, float(flat.by_moment["optimizer"]["temporary"][0, 0]))
    more = flat.by_moment["step"]["allocator"][0, 0] - without.by_moment["step"]["allocator"][0, 0]
    # and the parameter gather leaves a bucket (here all of 2 bytes a parameter) in the pool of NCCL's stream
    assert more == pytest.approx(beside + 2 * gpt().parameters, rel=1e-6)


def test_communicators_beyond_tp_pp_and_dp_take_half_of_the_context_each() -> None:
    context = load("dgx-a100:2").context_bytes
    megatron_pipe = sized(gpt(), Layout(tp=2, pp=2, dp=4), Workload(512, 16, framework="megatron"), "dgx-a100:2")
    deepspeed_pipe = sized(gpt(), Layout(tp=2, pp=2, dp=4), Workload(512, 16, framework="deepspeed"), "dgx-a100:2")
    assert megatron_pipe.by_category["nccl"].tolist() == [[0.0, 0.0]]
    # two neighbours, the pipe, the model-parallel group, tied weights
    assert deepspeed_pipe.by_category["nccl"].tolist() == [[5 * context / 2] * 2]
