"""Recompute policies against hand-worked bytes, layers and shares."""

from __future__ import annotations

import numpy as np
import pytest

from hwmodels.cluster import load
from hwmodels.errors import InputError
from planner import frameworks
from planner.flops import hardware_flops, model_flops
from planner.frameworks.base import RECOMPUTES
from planner.layout import RECOMPUTE, Layout, LayoutBatch
from planner.layout.recompute import (
    MODULES,
    Policy,
    is_stage_word,
    modules_code,
    modules_of,
    parse_layers,
    parse_modules,
    policies,
    recomputed_layers,
    recomputes_layer,
    stage_words,
)
from planner.model import load as load_model
from planner.model.shape import from_shape
from planner.model.spec import ModelSpec
from planner.plan import Workload
from planner.predict import predict
from planner.priced import price_model
from planner.recompute import Stages
from planner.search import Space
from planner.search.space import enumerate_layouts
from planner.step.assemble import lowered_for
from planner.workload.lower import lower
from planner.workload.op import Block, Op
from planner.workload.recompute import kept_bytes, rebuilt_bytes, rerun_share

S, H, F, V = 512, 1024, 4096, 8192
ROW = S * H * 2
STATISTICS = 4 * 16 * S


def gpt(layers: int = 8) -> ModelSpec:
    return from_shape(name="gpt", layers=layers, hidden=H, heads=16, ffn_hidden=F, vocab=V, seq_len=S, tied=False)


def moe() -> ModelSpec:
    """Eight experts of two, 512 wide, and a shared one."""
    return from_shape(
        name="moe", layers=4, hidden=H, heads=16, vocab=V, seq_len=S, n_experts=8, topk=2, moe_ffn_hidden=512,
        shared_experts=1, gated=True, bias=False, norm="rms", learned_positions=False, tied=False,
    )  # fmt: skip


def block(model: ModelSpec, framework: str = "generic", layout: Layout | None = None) -> Block:
    """The first kind of layer, one sequence."""
    workload = Workload(S, 8, "bf16", "adamw", framework)
    return lower(model, workload, LayoutBatch.of(layout or Layout()), frameworks.get(framework)).layers[0]


def kept(found: Block, *modules: str) -> float:
    return float(kept_bytes(found, Policy("selective", modules)))


def op(found: Block, name: str) -> Op:
    return next(op for op in found.ops if op.name == name)


def test_names_are_the_same_everywhere() -> None:
    assert RECOMPUTES == RECOMPUTE
    assert all(set(frameworks.get(name).recomputes) <= set(RECOMPUTE) for name in frameworks.names())
    assert [modules_of(modules_code((m,))) for m in MODULES] == [(m,) for m in MODULES]
    assert modules_of(0) == ()


def test_modules_of_a_gpt_layer_drop_what_megatron_drops() -> None:
    # In rows of s h 2 bytes: norm inputs 2, norm outputs 2, qkv 3, attention output 1, up's output 4, down's input 4,
    # and the statistics of the core; together 16 rows.
    found = block(gpt())
    assert float(found.saved_bytes) == 16 * ROW + STATISTICS
    assert kept(found, "core_attn") == 16 * ROW
    # output-discarding: the two norm outputs go
    assert kept(found, "layernorm") == 14 * ROW + STATISTICS
    # a plain checkpoint: 8 rows inside go, the input stays
    assert kept(found, "mlp") == 8 * ROW + STATISTICS
    assert kept(found, "mlp", "layernorm") == 6 * ROW + STATISTICS
    assert float(rebuilt_bytes(found, Policy("selective", ("mlp", "core_attn")))) == 9 * ROW
    assert float(rebuilt_bytes(found, Policy("selective", ("layernorm",)))) == 2 * ROW
    assert float(kept_bytes(found, Policy("full"))) == ROW
    assert float(rebuilt_bytes(found, Policy("full"))) == 16 * ROW + STATISTICS


def test_transformer_engine_fuses_the_norms_of_a_gpt_layer() -> None:
    found = block(gpt(), "megatron")
    assert kept(found, "layernorm") == float(found.saved_bytes)
    assert rerun_share(op(found, "norm_0"), Policy("selective", ("layernorm",))) == 0.0
    # before experts a norm stands alone: its output is the router's and the shared expert's input, once
    experts = block(moe(), "megatron")
    assert float(experts.saved_bytes) - kept(experts, "layernorm") == ROW


def test_modules_of_an_expert_layer() -> None:
    # Each token has two experts of 512: 1024 features a token is one row.
    found = block(moe())
    whole = float(found.saved_bytes)
    assert whole - kept(found, "moe_act") == ROW
    # shared expert of 512: gate and up 1024 features, product 512
    assert whole - kept(found, "shared_experts") == 1.5 * ROW
    # all of it: two rows into the experts, their gate and up, products, of the router input, scores (9 bytes each:
    # scores, map and the scores of the auxiliary loss), the shared part; the checkpoint keeps one row
    inside = 2 * ROW + 2 * ROW + ROW + ROW + S * 8 * 9 + 1.5 * ROW
    assert whole - kept(found, "moe") == inside - ROW
    assert kept(found, "moe", "moe_act", "shared_experts") == kept(found, "moe")


def test_latent_up_projections_drop_query_key_and_value() -> None:
    model = load_model("deepseek-v2-lite")[0]
    found = block(model, "megatron")
    # 16 heads of 128 + 64 (q, k) and 128 (v)
    assert float(found.saved_bytes) - kept(found, "mla_up_proj") == 2 * S * 16 * (2 * 192 + 128)
    policy = Policy("selective", ("mla_up_proj",))
    again = {o.name for o in found.ops if o.phase == "forward" and rerun_share(o, policy)}
    assert {"attention.q", "attention.kv_b", "attention.rotary"} <= again
    assert not again & {"attention.kv_a", "attention.core", "attention.o"}


def test_every_second_product_runs_again_under_op() -> None:
    # torchtitan: wq, wv, w1 (gate) and w2 (down) are kept, wk, wo and w3 (up) run again.
    model = load_model("llama-3.1-8b")[0]
    found, policy = block(model, "fsdp2"), Policy("op")
    names = ("attention.qkv", "attention.o", "mlp.up", "mlp.down", "attention.core", "norm_0", "mlp.activation")
    share = {name: rerun_share(op(found, name), policy) for name in names}
    assert share == {"attention.qkv": 1024 / 6144, "attention.o": 1.0, "mlp.up": 0.5, "mlp.down": 0.0,
                     "attention.core": 0.0, "norm_0": 1.0, "mlp.activation": 1.0}  # fmt: skip
    # input, q, v, attention output with statistics of 32 heads, gate, down
    h, kv, f = 4096, 1024, 14336
    assert float(found.saved_op_bytes) == 2 * S * (h + h + kv + h + f + h) + 4 * 32 * S


def test_pytorch_stops_before_the_down_projection() -> None:
    model = load_model("llama-3.1-8b")[0]
    for framework, share in (("fsdp2", 0.0), ("generic", 1.0)):
        found = block(model, framework)
        assert rerun_share(op(found, "mlp.down"), Policy("full")) == share
        assert rerun_share(op(found, "mlp.up"), Policy("full")) == 1.0


def test_layers_that_a_policy_works_on() -> None:
    assert recomputed_layers("full", 0, 3) == [[0], [1], [2]]
    assert recomputed_layers("full", 2, 5) == [[0, 1], [2, 3], [4]]
    assert recomputed_layers("block", 2, 5) == [[0], [1]]
    assert recomputed_layers("block", 0, 2) == [[0], [1]]
    assert recomputed_layers("every", 0, 5) == [[1], [3]]
    assert recomputes_layer("block", (2, 0), (3, 3)) == [True, True, False, False, False, False]
    assert recomputes_layer("every", (3,), (4, 4)) == [False, False, True, False] * 2


def activations(model: ModelSpec, layout: Layout) -> list[float]:
    """Bytes of what two ranks hold, two micro-batches and one, and rebuild at a time."""
    priced = price_model(model, Workload(S, 8, "bf16"), LayoutBatch.of([layout]), load("dgx-a100:1"))
    low = lowered_for(priced, np.arange(1))
    whole, kept_of, rebuilt = (
        [getattr(b, name) for b in low.layers] for name in ("saved_bytes", "kept_bytes", "rebuilt_bytes")
    )
    stages = Stages(model, priced.layouts, layout.pp, layout.vpp, layout.schedule)
    saved = stages.saved(whole, kept_of, low.embedding.kept_bytes, low.head.kept_bytes)[0, :, 0]
    return list(saved * np.asarray([2.0, 1.0]) + stages.rebuilt(whole, rebuilt)[0])


def test_memory_of_chunks_blocks_and_frequencies_by_hand() -> None:
    """8 layers on 2 stages, 8 micro-batches: rank 0 holds two of them, rank 1 one."""
    layer, ids, head = 16 * ROW + STATISTICS, S * 8, 2 * ROW
    # chunks of three: two inputs a stage, three layers rebuilt at a time
    found = activations(gpt(), Layout(pp=2, recompute="full", recompute_layers=(3,)))
    assert found == pytest.approx([2 * (2 * ROW + ids) + 3 * layer, 2 * ROW + head + 3 * layer], rel=1e-12)
    # the first of four layers: when it is rebuilt the three behind it are free
    found = activations(gpt(), Layout(pp=2, recompute="block", recompute_layers=(1,)))
    assert found == pytest.approx([2 * (3 * layer + ROW + ids), 3 * layer + ROW + head], rel=1e-12)
    # by stage: all four of the first, none of the second
    found = activations(gpt(), Layout(pp=2, recompute="block", recompute_layers=(4, 0)))
    assert found == pytest.approx([2 * (4 * ROW + ids) + layer, 4 * layer + head], rel=1e-12)
    # every second: the last layer is one of them
    found = activations(gpt(), Layout(pp=2, recompute="every"))
    assert found == pytest.approx([2 * (2 * layer + 2 * ROW + ids) + layer, 2 * layer + 2 * ROW + head + layer])


def test_selective_recomputation_saves_next_to_nothing_with_flash_attention() -> None:
    """NVIDIA/Megatron-LM issue 1225: 24.94 GB with it, 25.52 without."""
    model = load_model("llama-3.2-1b")[0]
    cluster, workload = load("dgx-a100:1"), Workload(4096, 8, "bf16", framework="megatron")
    without, selective = (
        max(s.peak_bytes for s in predict(model, cluster, workload, Layout(dp=8, recompute=kind)).memory)
        for kind in ("none", "selective")
    )
    assert 0.97 < selective / without <= 1.0


def test_time_of_a_block_lies_between_none_and_all() -> None:
    model, cluster, workload = gpt(), load("dgx-a100:1"), Workload(S, 64, "bf16")
    seconds = [
        predict(model, cluster, workload, Layout(dp=8, mbs=8, recompute=kind, recompute_layers=layers)).step_s.mid
        for kind, layers in (("none", ()), ("block", (2,)), ("every", ()), ("block", (6,)), ("full", ()))
    ]
    assert seconds == sorted(seconds) and len(set(seconds)) == 5
    # two, four, six of eight layers
    rest = [(s - seconds[0]) / (seconds[4] - seconds[0]) for s in seconds[1:4]]
    assert rest == pytest.approx([0.25, 0.5, 0.75], abs=0.02)


def test_hardware_flops_of_each_policy() -> None:
    model, workload = gpt(), Workload(S, 8)
    tokens = S * 8
    plain = model_flops(model, workload)

    def again(**layout: object) -> float:
        return (hardware_flops(model, workload, Layout(**layout)) - plain) / tokens  # type: ignore[arg-type]

    layer, core = 2 * 12 * H * H, 4 * S * H
    assert again(recompute="block", recompute_layers=(3,)) == pytest.approx(3 * (layer + core))
    assert again(recompute="every") == pytest.approx(4 * (layer + core))
    assert again(recompute="selective", recompute_modules=("mlp",)) == pytest.approx(8 * 2 * 8 * H * H)
    assert again(recompute="selective", recompute_modules=("layernorm",)) == pytest.approx(0.0, abs=1.0)
    # k, o and down: the second, fourth and sixth product
    assert again(recompute="op") == pytest.approx(8 * 2 * (1 + 1 + 4) * H * H)


def test_distinct_policies_of_many_layouts() -> None:
    many = [
        Layout(), Layout(recompute="full"), Layout(recompute="block", recompute_layers=(2,)),
        Layout(recompute="selective"), Layout(recompute="selective", recompute_modules=("core_attn",)),
        Layout(recompute="selective", recompute_modules=("mlp", "layernorm")),
    ]  # fmt: skip
    batch = LayoutBatch.of(many)
    found, own = policies(batch.recompute, batch.recompute_modules)
    assert [found[i] for i in own] == [
        Policy("none"), Policy("full"), Policy("full"), Policy("selective", ("core_attn",)),
        Policy("selective", ("core_attn",)), Policy("selective", ("layernorm", "mlp")),
    ]  # fmt: skip
    assert [batch.layout(i) for i in range(5)] == many[:5]


def test_many_layouts_are_sized_as_each_alone() -> None:
    many = [
        Layout(pp=2, recompute=kind, recompute_modules=modules, recompute_layers=layers)
        for kind, modules, layers in (
            ("none", (), ()), ("full", (), ()), ("full", (), (2,)), ("block", (), (1,)), ("block", (), (2, 0)),
            ("every", (), (3,)), ("op", (), ()), ("selective", ("mlp",), ()), ("selective", ("layernorm",), ()),
        )
    ]  # fmt: skip
    priced = price_model(gpt(), Workload(S, 8, "bf16"), LayoutBatch.of(many), load("dgx-a100:1"))
    low = lowered_for(priced, np.arange(len(many)))
    stages = Stages(gpt(), priced.layouts, 2, 1, "1f1b")
    whole, kept_of, rebuilt = (
        [getattr(b, name) for b in low.layers] for name in ("saved_bytes", "kept_bytes", "rebuilt_bytes")
    )
    saved = stages.saved(whole, kept_of, low.embedding.kept_bytes, low.head.kept_bytes)[:, :, 0]
    found = saved * np.asarray([2.0, 1.0]) + stages.rebuilt(whole, rebuilt)
    for row, layout in zip(found, many, strict=True):
        assert list(row) == pytest.approx(activations(gpt(), layout), rel=1e-12)


def test_words_of_a_plan_and_of_options() -> None:
    assert stage_words("block", (), (2, 0), 2) == ["block 2", "none"]
    assert stage_words("selective", ("mlp", "moe"), (), 1) == ["selective mlp moe"]
    assert stage_words("full", (), (), 2) == ["full", "full"]
    assert all(map(is_stage_word, ("none", "selective", "selective mlp", "full 2", "every 2", "op")))
    assert not any(map(is_stage_word, ("", "some", "selective head", "op 2", "full two")))
    assert parse_modules("moe_act,layernorm", "--x") == ("moe_act", "layernorm")
    assert parse_layers("4, 2,0", "--x") == (4, 2, 0)
    with pytest.raises(InputError, match="'head' is no module"):
        parse_modules("head", "--x")
    with pytest.raises(InputError, match="'two' is no number"):
        parse_layers("two", "--x")


def test_a_search_tries_what_it_is_told() -> None:
    space = Space(
        tp=(1,), pp=(1,), mbs=(1,), zero_stage=(0,), recompute=("none", "selective", "block"),
        recompute_modules=("mlp", "layernorm+mlp"), recompute_layers=(0, 2),
    )  # fmt: skip
    found = enumerate_layouts(space, gpt(), load("dgx-a100:1"), Workload(S, 8))
    labels = {found.layouts.layout(i).label() for i in range(len(found.layouts))}
    assert labels == {"dp8 mbs1", "dp8 mbs1 selective mlp", "dp8 mbs1 selective layernorm+mlp", "dp8 mbs1 block",
                      "dp8 mbs1 block 2"}  # fmt: skip
