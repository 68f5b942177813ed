"""Lowered ops against counts and bytes worked out by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.frameworks import get
from planner.layout import Layout, LayoutBatch
from planner.layout.recompute import DEFAULT_MODULES, Policy
from planner.model.shape import from_shape
from planner.model.spec import Attention, DecoderLayer, Mlp, ModelSpec, Moe, Weight
from planner.plan import Workload
from planner.workload.lower import lower
from planner.workload.op import Op
from planner.workload.recompute import kept_bytes


def gpt(layers: int = 2, hidden: int = 1024, heads: int = 16, vocab: int = 4096) -> ModelSpec:
    return from_shape(
        name="gpt", layers=layers, hidden=hidden, heads=heads, ffn_hidden=4 * hidden, vocab=vocab, seq_len=512
    )


def llama(hidden: int = 512, heads: int = 8, kv_heads: int = 2, ffn: int = 1024, moe: Moe | None = None) -> ModelSpec:
    layer = DecoderLayer(Attention(heads, kv_heads, hidden // heads), moe or Mlp(ffn))
    return ModelSpec("llama", "llama", hidden, 1000, (layer,) * 2)


def ops_of(
    model: ModelSpec, layout: Layout, seq_len: int = 512, framework: str = "generic", precision: str = "bf16"
) -> list[Op]:
    lowered = lower(model, Workload(seq_len, 8, precision, "adamw", framework), LayoutBatch.of(layout), get(framework))
    return [*lowered.layers[0].ops]


def runs(op: Op) -> float:
    return float(np.asarray(op.count))


def total_flops(ops: list[Op], phase: str, kinds: tuple[str, ...] = ("gemm", "grouped_gemm")) -> float:
    return sum(float(op.flops()) * runs(op) for op in ops if op.phase == phase and op.kind in kinds)


def test_gemm_flops_of_a_gpt_layer_are_two_per_parameter_and_token() -> None:
    # h=1024: qkv 3h^2, out h^2, up 4h^2, down 4h^2 = 12 h^2 parameters; 2 sequences x 512 tokens.
    ops = ops_of(gpt(), Layout(mbs=2))
    expected = 2 * 12 * 1024**2 * (2 * 512)
    assert total_flops(ops, "forward") == expected
    assert total_flops(ops, "backward_input") == expected
    assert total_flops(ops, "backward_weight") == expected


def test_causal_flash_attention_counts_half_of_the_square() -> None:
    # forward 2 products x 2 FLOPs x 16 heads x 512*512/2 pairs x 64 dims; backward 2.5 times that.
    ops = ops_of(gpt(), Layout(mbs=1))
    forward = 2 * 2 * 16 * (512 * 512 / 2) * 64
    assert total_flops(ops, "forward", ("attention",)) == forward
    assert total_flops(ops, "backward_input", ("attention",)) == 2.5 * forward


def test_unfused_attention_is_two_batched_products_each_way() -> None:
    # 2 x (2*s*s*d) x heads forward over the whole square; twice that backward.
    ops = [op for op in ops_of(gpt(), Layout(mbs=1), framework="megatron-2021") if op.impl == "batched"]
    one = 2 * 512 * 512 * 64 * 16
    assert total_flops(ops, "forward") == 2 * one
    assert total_flops(ops, "backward_input") + total_flops(ops, "backward_weight") == 4 * one


@pytest.mark.parametrize(
    ("mbs", "tp", "seq", "kernels", "nbytes"),
    [
        (1, 4, 512, 1, 4.0),  # 4 sequences x heads on a rank: one kernel reads and writes 2 bytes
        (1, 8, 512, 5, 36.0),  # 2: to fp32 (6), scale, mask, softmax (8 each), back (6)
        (2, 8, 512, 1, 4.0),
        (1, 4, 4096, 5, 36.0),  # the kernel of 2021 ends at 2048 keys
    ],
)
def test_the_fused_softmax_takes_four_score_matrices_at_a_time(mbs, tp, seq, kernels, nbytes) -> None:
    work = Workload(seq, 8, "fp16", framework="megatron-2021")
    layouts = LayoutBatch.of(Layout(tp=tp, mbs=mbs))
    ops = lower(gpt(), work, layouts, get("megatron-2021")).layers[0].ops
    ran = [op for op in ops if op.name.startswith("attention.softmax") and op.phase == "forward" and np.any(op.count)]
    assert [op.kernels for op in ran] == [kernels]
    assert float(ran[0].dims["nbytes"]) == nbytes * mbs * 16 / tp * seq**2


@pytest.mark.parametrize("sp", [0, 1])
def test_saved_bytes_follow_korthikanti(sp: int) -> None:
    # arXiv 2205.05198, equations 1, 2 and 4: sbh(34 + 5as/h) bytes a layer in 16 bits with dropout;
    # t-way: sbh(10 + 24/t + 5as/(ht)); with sequence parallel: sbh/t (34 + 5as/h).
    s, b, h, a, t = 512, 2, 1024, 16, 4
    model = gpt()
    lowered = lower(
        model,
        Workload(s, 8, "fp16", "adamw", "megatron-2022"),
        LayoutBatch.of(Layout(tp=t, sp=sp, mbs=b)),
        get("megatron-2022"),
    )
    expected = s * b * h / t * (34 + 5 * a * s / h) if sp else s * b * h * (10 + 24 / t + 5 * a * s / (h * t))
    assert float(lowered.layers[0].saved_bytes) == pytest.approx(expected, rel=1e-12)
    # Section 5: recomputing the attention core drops 5as/h, its scores, their mask and what dropout leaves of them.
    core = 5 * a * s * s * b / t
    kept = kept_bytes(lowered.layers[0], Policy("selective", DEFAULT_MODULES))
    assert float(kept) == pytest.approx(expected - core, rel=1e-12)


@pytest.mark.parametrize(
    ("sp", "kinds"),
    [(0, {"all_reduce": 4}), (1, {"all_gather": 6, "reduce_scatter": 4})],
)
def test_tensor_parallel_collectives_of_a_layer(sp: int, kinds: dict[str, int]) -> None:
    # Megatron: 2 all-reduces forward and 2 backward; with sequence parallel 2 gathers + 2 scatters forward,
    # 2 + 2 backward and 2 more gathers of the saved inputs.
    ops = [op for op in ops_of(gpt(), Layout(tp=4, sp=sp, mbs=2)) if op.kind == "collective" and runs(op)]
    found: dict[str, int] = {}
    for op in ops:
        found[op.collective] = found.get(op.collective, 0) + int(runs(op))
        assert float(op.dims["nbytes"]) == 2 * 512 * 1024 * 2  # tokens x hidden x 2 bytes
    assert found == kinds


def test_grouped_kv_heads_are_copied_beyond_their_number() -> None:
    # 2 kv heads of 64 with tp 4: q 512/4 = 128 columns, k and v one whole head of 64 each -> 256.
    qkv = next(op for op in ops_of(llama(), Layout(tp=4)) if op.name == "attention.qkv")
    assert float(qkv.dims["n"]) == 128 + 64 + 64


def test_experts_get_their_share_of_rows() -> None:
    # 512 tokens x top 2 over 8 experts = 128 rows an expert; ep 4: each rank holds 2 experts and gets 4 ranks' rows.
    moe = Moe(8, 2, 256)
    ops = ops_of(llama(moe=moe), Layout(dp=4, ep=4))
    up = next(op for op in ops if op.name == "moe.expert.up")
    assert float(up.dims["groups"]) == 2
    assert float(up.dims["m"]) == 512 * 2 * 4 / 8
    dispatch = next(op for op in ops if op.name == "moe.dispatch")
    assert float(dispatch.dims["nbytes"]) == 512 * 2 * 512 * 2  # rows x hidden x 2 bytes
    assert runs(dispatch) == 1.0


@settings(deadline=None, max_examples=40)
@given(
    tp=st.sampled_from([1, 2, 4, 8]),
    sp=st.sampled_from([0, 1]),
    mbs=st.integers(1, 4),
    ep=st.sampled_from([1, 2, 4]),
    framework=st.sampled_from(["generic", "megatron-2021", "fsdp2"]),
)
def test_work_is_conserved_over_tensor_and_expert_parallel_ranks(
    tp: int, sp: int, mbs: int, ep: int, framework: str
) -> None:
    """Column and row GEMM FLOPs of all ranks add up to those of one rank (kv heads divide here)."""
    moe = Moe(8, 2, 256, shared_ffn_hidden=512)
    model = llama(kv_heads=8, moe=moe)
    sp = sp if tp > 1 else 0
    one = ops_of(model, Layout(mbs=mbs), framework=framework)
    many = ops_of(model, Layout(tp=tp, sp=sp, mbs=mbs, ep=ep), framework=framework)
    for phase in ("forward", "backward_input", "backward_weight"):
        for a, b in zip(one, many, strict=True):
            if a.phase != phase or a.kind != "gemm" or a.name.startswith(("moe.router", "moe.expert")):
                continue
            assert float(b.flops()) * tp == pytest.approx(float(a.flops()), rel=1e-12), a.name


@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.tuples(st.sampled_from([1, 2, 4]), st.sampled_from([0, 1]), st.integers(1, 3)), min_size=1, max_size=6)
)
def test_a_batch_lowers_like_each_layout_alone(rows: list[tuple[int, int, int]]) -> None:
    layouts = [Layout(tp=tp, sp=sp if tp > 1 else 0, mbs=mbs) for tp, sp, mbs in rows]
    model, preset = gpt(), get("generic")
    workload = Workload(512, 8)
    together = lower(model, workload, LayoutBatch.of(layouts), preset).layers[0]
    for i, layout in enumerate(layouts):
        alone = lower(model, workload, LayoutBatch.of(layout), preset).layers[0]
        assert float(np.broadcast_to(together.saved_bytes, (len(layouts),))[i]) == float(alone.saved_bytes)
        for a, b in zip(together.ops, alone.ops, strict=True):
            assert float(np.broadcast_to(a.flops(), (len(layouts),))[i]) == float(b.flops())


def test_weights_are_the_gemms() -> None:
    """Every matrix of a dense layer appears in exactly one forward GEMM."""
    model = llama()
    weights = [w for w in model.layers[0].parameters(model.hidden) if isinstance(w, Weight)]
    gemms = [op for op in ops_of(model, Layout()) if op.kind == "gemm" and op.phase == "forward"]
    assert sum(float(op.dims["n"] * op.dims["k"]) for op in gemms) == sum(w.parameters for w in weights)
