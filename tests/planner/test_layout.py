"""Degrees and rules: arithmetic by hand, each rule with a layout that breaks it and one that its remedy gives."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hwmodels.errors import InputError
from planner import frameworks
from planner.cli.list import KINDS
from planner.layout import (
    ORDERS,
    RECOMPUTE,
    RULES,
    SCHEDULES,
    Layout,
    LayoutBatch,
    RuleContext,
    check,
    divisors,
    faults,
    parse_split,
    split_faults,
    split_layers,
    split_text,
    validate,
    with_defaults,
)
from planner.layout.splits import megatron_split
from planner.model import load
from planner.model.shape import from_shape
from planner.model.spec import Attention, DecoderLayer, Mamba1, Mamba2, Mlp, ModelSpec
from planner.plan import Workload
from planner.routing import Routing

# 12 query and 4 key-value heads, feed-forward 96, 4 layers
DENSE = from_shape(name="dense", layers=4, hidden=96, heads=12, kv_heads=4, ffn_hidden=96, vocab=128, seq_len=64)
# 5 layers, which divide by nothing but themselves
ODD = from_shape(name="odd", layers=5, hidden=96, heads=12, kv_heads=4, ffn_hidden=96, vocab=128, seq_len=64)
# 4 experts of width 24; one shared expert
MOE = from_shape(
    name="moe",
    layers=4,
    hidden=96,
    heads=12,
    vocab=128,
    seq_len=64,
    n_experts=4,
    topk=2,
    moe_ffn_hidden=24,
    shared_experts=1,
)
# a dense width of 90, and a shared expert of 18
NARROW = from_shape(name="narrow", layers=4, hidden=96, heads=12, ffn_hidden=90, vocab=8, seq_len=64)
# one layer of Mamba-2 with 6 heads in 2 groups, and one of Mamba
RECURRENT = ModelSpec("recurrent", "mamba2", 96, 128, (DecoderLayer(Mamba2(6, 32, 2, 16, 4), None, n_norms=1),) * 4)
SCAN = ModelSpec("scan", "mamba", 96, 128, (DecoderLayer(Mamba1(192, 16, 4, 6), None, n_norms=1),) * 4)
SEEING = RuleContext.of(load("qwen3-vl-30b-a3b")[0], Workload(4096, 32, images=1.0), 32)
SHARED = from_shape(
    name="shared",
    layers=4,
    hidden=96,
    heads=12,
    vocab=8,
    seq_len=64,
    n_experts=4,
    topk=1,
    moe_ffn_hidden=18,
    shared_experts=1,
)


@dataclass(frozen=True)
class Case:
    """A layout that breaks exactly one rule, a piece of the remedy, and the layout after it."""

    rule: str
    bad: Layout
    remedy: str
    good: Layout
    context: RuleContext
    mended: RuleContext | None = None
    """Where the remedy changes the run and not the layout: the run after it."""


def on(world: int, model: object = DENSE, gbs: int = 16, seq_len: int = 64, framework: str = "") -> RuleContext:
    preset = frameworks.get(framework) if framework else None
    return RuleContext(model, gbs, seq_len, world, preset)  # type: ignore[arg-type]


BLOCKS = ModelSpec("blocks", "llama", 512, 100, (DecoderLayer(Attention(8, 8, 64), Mlp(2048)),) * 4)


def precise(world: int, precision: str, optimizer: str) -> RuleContext:
    return RuleContext.of(BLOCKS, Workload(256, 16, precision, optimizer), world)


def overlapping(world: int) -> RuleContext:
    """MOE in a framework whose exchanges run beside another micro-batch."""
    return RuleContext.of(MOE, Workload(64, 16, switches=(("moe_exchange_overlap", "true"),)), world)


def padded(dispatcher: str) -> RuleContext:
    """MOE with every expert padded to its capacity."""
    switches = (("moe_dispatcher", dispatcher),)
    return RuleContext.of(MOE, Workload(64, 16, routing=Routing(1.0, 1.25, True), switches=switches), 2)


CASES = (
    Case("moe-overlap-stages", Layout(pp=2), "vpp=2 with interleaved-1f1b",
         Layout(pp=2, vpp=2, schedule="interleaved-1f1b"), overlapping(2)),
    Case("moe-overlap-recompute", Layout(recompute="full"), "recompute=selective",
         Layout(recompute="selective"), overlapping(1)),
    Case("moe-capacity-dispatcher", Layout(dp=2, ep=2), "moe_dispatcher=alltoall", Layout(dp=2, ep=2),
         padded("allgather"), padded("alltoall")),
    Case("degrees-positive", Layout(dp=0), "1 for a degree", Layout(dp=1), on(1)),
    Case("degrees-positive", Layout(sp=2), "", Layout(), on(1)),
    Case("degrees-positive", Layout(dp=2, zero_stage=4), "", Layout(dp=2, zero_stage=3), on(2)),
    Case("world-product", Layout(tp=2, dp=2), "dp=4", Layout(tp=2, dp=4), on(8)),
    Case("world-product", Layout(pp=3), "tp*cp*pp in 1, 2, 4", Layout(pp=2, dp=2), on(4)),
    # tp 24 divides no head count but is a multiple of 4 kv heads and divides 96
    Case("tp-heads", Layout(tp=24), "tp in 1, 2, 3, 4, 6, 12", Layout(tp=12, dp=2), on(24)),
    # 6 divides 12 heads; 4 kv heads are neither divisible by 6 nor 6 by 4
    Case("tp-kv-heads", Layout(tp=6), "tp in 1, 2, 4", Layout(tp=2, dp=3), on(6, gbs=3)),
    Case("tp-ffn", Layout(tp=4), "tp in 1, 2", Layout(tp=2, dp=2), on(4, NARROW)),
    Case("tp-ffn", Layout(tp=4, sp=1), "tp in 1, 2, 3, 6", Layout(tp=2, sp=1, dp=2), on(4, SHARED)),
    Case("sp-needs-tp", Layout(sp=1), "sp=0", Layout(), on(1)),
    # 66 tokens do not divide by 4; the next multiple of the remedy is 4*2*1
    Case("seq-split", Layout(tp=4, sp=1), "multiple of 8", Layout(tp=4), on(4, seq_len=66)),
    Case("seq-split", Layout(cp=2), "multiple of 4", Layout(dp=2), on(2, seq_len=62)),
    Case("layers-stages", Layout(pp=8), "pp*vpp <= 7", Layout(pp=4, dp=2), on(8, ODD)),
    # 5 layers: the layers of a given split sum to them, one entry a stage, none empty between the ends
    Case("layers-stages", Layout(pp=2, stage_layers=(2, 2)), "stage_layers 3,2", Layout(pp=2, stage_layers=(1, 4)),
         on(2, ODD)),
    Case("layers-stages", Layout(pp=3, stage_layers=(2, 3)), "stage_layers 1,3,1",
         Layout(pp=3, stage_layers=(0, 5, 0)), on(3, ODD, gbs=15)),
    Case("layers-stages", Layout(pp=4, stage_layers=(2, 0, 2, 1)), "stage_layers 1,1,2,1",
         Layout(pp=4, stage_layers=(0, 2, 2, 1)), on(4, ODD)),
    Case("layers-stages", Layout(pp=2, vpp=4, schedule="interleaved-1f1b"), "vpp in 1, 2, 3",
         Layout(pp=2, vpp=2, schedule="interleaved-1f1b"), on(2)),
    Case("gbs-microbatch", Layout(mbs=3), "mbs in 1, 2, 4, 8, 16", Layout(mbs=2), on(1)),
    Case("gbs-microbatch", Layout(dp=3), "gbs=15", Layout(dp=3), on(3)),
    Case("vpp-needs-pp", Layout(pp=2, vpp=2), "vpp=1 with 1f1b or dualpipe or gpipe", Layout(pp=2), on(2)),
    Case("vpp-needs-pp", Layout(pp=2, schedule="zb-v"), "vpp=2 with zb-v", Layout(pp=2, vpp=2, schedule="zb-v"),
         on(2)),
    Case("vpp-needs-pp", Layout(schedule="interleaved-1f1b"), "vpp=1", Layout(schedule="1f1b"), on(1)),
    # 15 micro-batches: no rounds of 2, and 15 // 2 = 7 equal rounds have no whole number of them
    Case("interleave-rounds", Layout(pp=2, vpp=2, schedule="interleaved-1f1b"), "multiple of 2", Layout(pp=2),
         on(2, gbs=15, framework="megatron-2022")),
    Case("interleave-rounds", Layout(pp=2, vpp=2, schedule="interleaved-zb"), "multiple of 2",
         Layout(pp=2, schedule="zb-h1"), on(2, gbs=15, framework="fsdp2")),
    # 16 / (2 * 8) = 1 micro-batch, a round holds 2
    Case("schedule-microbatches", Layout(pp=2, vpp=2, dp=8, mbs=2, schedule="interleaved-1f1b"), "or vpp=1",
         Layout(pp=2, vpp=2, dp=8, mbs=1, schedule="interleaved-1f1b"), on(16)),
    # 16 / 8 = 2 micro-batches, 2*pp = 4 are needed; and 15 of one sequence are no pairs
    Case("schedule-microbatches", Layout(pp=2, dp=8, schedule="dualpipe"), "4 or more micro-batches",
         Layout(pp=2, dp=8, schedule="1f1b"), on(16)),
    Case("schedule-microbatches", Layout(pp=2, schedule="dualpipe"), "a multiple of 2",
         Layout(pp=2, schedule="1f1b"), on(2, gbs=15)),
    Case("schedule-microbatches", Layout(pp=2, vpp=2, dp=8, schedule="dualpipe-v"), "schedule interleaved-1f1b",
         Layout(pp=2, vpp=2, dp=8, schedule="interleaved-1f1b"), on(16)),
    Case("schedule-pp", Layout(pp=3, schedule="dualpipe"), "an even pp", Layout(pp=3, schedule="1f1b"), on(3)),
    Case("framework-schedule", Layout(pp=2, schedule="zb-h1"), "schedule 1f1b or gpipe", Layout(pp=2),
         on(2, framework="megatron")),
    Case("framework-schedule", Layout(pp=2, schedule="dualpipe"), "framework generic", Layout(pp=2, schedule="zb-h1"),
         on(2, framework="fsdp2")),
    Case("reshard-stage", Layout(dp=2, zero_stage=2, reshard="never"), "zero_stage=3",
         Layout(dp=2, zero_stage=3, reshard="never"), on(2)),
    Case("framework-cp", Layout(cp=2), "cp=1, or framework generic", Layout(dp=2), on(2, framework="composer")),
    Case("framework-cp", Layout(cp=2, cp_kind="ring"), "cp_kind ulysses", Layout(cp=2), on(2, framework="deepspeed")),
    Case("cp-hierarchy", Layout(cp=4, cp_kind="hierarchical"), "cp_ulysses in 2",
         Layout(cp=4, cp_kind="hierarchical", cp_ulysses=2), on(4)),
    Case("cp-hierarchy", Layout(cp=4, cp_ulysses=2), "cp_ulysses=0", Layout(cp=4), on(4)),
    # 8 divide neither 12 query nor 4 key-value heads; 2 and 4 divide both
    Case("cp-heads", Layout(cp=8, cp_kind="ulysses"), "cp_kind hierarchical with cp_ulysses in 2, 4",
         Layout(cp=8, cp_kind="hierarchical", cp_ulysses=4), on(8)),
    # DeepSpeed has no other kind; 2 heads a rank are left for 2 of the 4
    Case("cp-heads", Layout(tp=2, cp=4), "cp in 1, 2", Layout(tp=2, cp=2, dp=2),
         on(8, framework="deepspeed")),
    Case("cp-attention", Layout(cp=2), "cp_kind ulysses or all-gather", Layout(cp=2, cp_kind="ulysses"),
         RuleContext(DENSE, 16, 64, 2, replace(frameworks.get("megatron"), attention="unfused"))),
    Case("framework-split-recompute", Layout(pp=2, schedule="zb-h1", recompute="full"), "recompute=none",
         Layout(pp=2, schedule="zb-h1"), on(2, framework="fsdp2")),
    Case("framework-recompute", Layout(recompute="every"), "recompute=none or selective or full or block",
         Layout(recompute="block"), on(1, framework="megatron")),
    Case("recompute-modules", Layout(recompute="full", recompute_modules=("mlp",)), "recompute=selective",
         Layout(recompute="selective", recompute_modules=("mlp",)), on(1)),
    Case("recompute-modules", Layout(recompute="selective", recompute_modules=("moe_act", "mla_up_proj")),
         "out of core_attn, layernorm, mlp", Layout(recompute="selective", recompute_modules=("layernorm",)), on(1)),
    Case("recompute-layers", Layout(recompute="op", recompute_layers=(2,)), "no recompute_layers",
         Layout(recompute="every", recompute_layers=(2,)), on(1)),
    # 5 layers on two stages: three and two
    Case("recompute-layers", Layout(pp=2, recompute="block", recompute_layers=(4,)), "1 to 3",
         Layout(pp=2, recompute="block", recompute_layers=(3,)), on(2, ODD)),
    Case("recompute-layers", Layout(pp=2, recompute="full", recompute_layers=(1, 0)), "1 to 3",
         Layout(pp=2, recompute="block", recompute_layers=(1, 0)), on(2, ODD)),
    Case("framework-order", Layout(dp=2, pp=2, order="tp-cp-pp-dp"), "order=tp-cp-dp-pp", Layout(dp=2, pp=2),
         on(4, framework="fsdp2")),
    Case("framework-order", Layout(tp=2, dp=2, order="cp-dp-tp-pp"), "or order=tp-cp-pp-dp", Layout(tp=2, dp=2),
         on(4, framework="megatron")),
    # two of the four ranks of a stage follow one another
    Case("order-experts", Layout(tp=2, sp=1, dp=2, pp=2, ep=4, order="tp-cp-pp-dp"), "ep*etp = 2",
         Layout(tp=2, sp=1, dp=2, pp=2, ep=2, order="tp-cp-pp-dp"), on(8, MOE)),
    Case("placement-seats", Layout(dp=2, placement=(3, 3)), "2 different GPUs", Layout(dp=2, placement=(3, 1)), on(2)),
    Case("order-groups", Layout(cp=2, dp=2, pp=2, order="tp-cp-pp-dp"), "cp=1",
         Layout(dp=4, pp=2, order="tp-cp-pp-dp"), on(8, framework="megatron")),
    Case("order-groups", Layout(dp=2, pp=2, zero_stage=3, order="tp-cp-pp-dp"), "zero_stage=1",
         Layout(dp=2, pp=2, zero_stage=1, order="tp-cp-pp-dp"), on(4, framework="megatron")),
    # Megatron-LM of 2022 divides the layers or refuses; recent ones have --pipeline-model-parallel-layout
    Case("framework-stages", Layout(pp=2, stage_layers=(3, 1)), "stage_layers 2x2", Layout(pp=2, stage_layers=(2, 2)),
         on(2, framework="megatron-2022")),
    Case("framework-stages", Layout(pp=2, stage_layers=(3, 1)), "stage_layers 2x2", Layout(pp=2, stage_layers=(2, 2)),
         on(2, framework="deepspeed")),
    Case("framework-recompute-stages", Layout(pp=2, recompute="block", recompute_layers=(2, 1)), "recompute_layers 2",
         Layout(pp=2, recompute="block", recompute_layers=(2,)), on(2, framework="megatron")),
    Case("offload-amounts", Layout(offload_optimizer=101), "0 to 100", Layout(offload_optimizer=100), on(1)),
    Case("offload-parameters", Layout(dp=2, zero_stage=2, offload_parameters=1), "zero_stage=3",
         Layout(dp=2, zero_stage=3, offload_parameters=1), on(2)),
    # 5 layers on two stages: three and two; one of a stage stays
    Case("offload-activations", Layout(pp=2, offload_activations=3), "0 to 2",
         Layout(pp=2, offload_activations=2), on(2, ODD)),
    # 131072 sequences one by one on one stage; 65536 of two are few enough
    Case("step-length", Layout(), "gbs <= 65536", Layout(mbs=2), on(1, gbs=131072)),
    Case("ep-experts", Layout(dp=2, ep=2), "ep=1 etp=1", Layout(dp=2), on(2)),
    Case("ep-experts", Layout(dp=8, ep=8), "ep in 1, 2, 4", Layout(dp=8, ep=4), on(8, MOE)),
    Case("ep-grid", Layout(dp=6, ep=4), "ep in 1, 2", Layout(dp=6, ep=2), on(6, MOE, gbs=12)),
    Case("ep-grid", Layout(dp=3, etp=2), "etp in 1, 3", Layout(dp=3, etp=3), on(3, MOE, gbs=12)),
    Case("etp-width", Layout(dp=16, etp=16), "etp=1", Layout(dp=16), on(16, MOE)),
    Case("fsdp-divides-dp", Layout(dp=4, zero_stage=3, fsdp=3), "fsdp in 1, 2, 4",
         Layout(dp=4, zero_stage=3, fsdp=2), on(4)),
    Case("fsdp-stage", Layout(dp=4, fsdp=2), "zero_stage=3 or zero_stage=2", Layout(dp=4, zero_stage=3, fsdp=2), on(4)),
    # DeepSpeed runs stage 1 at most with a pipeline
    Case("fsdp-stage", Layout(pp=2, dp=4, fsdp=2), "zero_stage=1, or fsdp=0",
         Layout(pp=2, dp=4, zero_stage=1, fsdp=2), on(8, framework="deepspeed")),
    Case("zero-needs-dp", Layout(tp=2, zero_stage=1), "zero_stage=0", Layout(tp=2), on(2)),
    Case("moe-tp-needs-sp", Layout(tp=2, dp=2, ep=2), "sp=1", Layout(tp=2, sp=1, dp=2, ep=2), on(4, MOE)),
    Case("framework-zero-stage", Layout(dp=2, zero_stage=3), "zero_stage in 0", Layout(dp=2),
         on(2, framework="megatron-2022")),
    # 512 features over tp 8 leave 64, half a block of 128; 4 leave one block
    Case("precision-block", Layout(tp=8), "tp in 1, 2, 4,", Layout(tp=4, dp=2),
         precise(8, "fp8-block", "adamw")),
    # 256 tokens over cp 4 leave 64; over 2 one block
    Case("precision-rows", Layout(cp=4), "multiple of 512", Layout(cp=2, dp=2), precise(4, "fp8-block", "adamw")),
    Case("optimizer-whole-matrices", Layout(dp=2, zero_stage=2), "zero_stage<=1", Layout(dp=2, zero_stage=1),
         precise(2, "bf16", "muon")),
    # a tower of 16 heads and 4304 features; the text has 32 heads
    Case("tp-vision", Layout(tp=32, sp=1), "tp in 1, 2, 4, 8, 16", Layout(tp=16, sp=1, dp=2), SEEING),
    Case("tp-recurrent", Layout(tp=4), "tp in 1, 2", Layout(tp=2, dp=2), on(4, RECURRENT)),
    Case("cp-recurrent", Layout(cp=4), "cp=1", Layout(dp=4), on(4, SCAN)),
    # 6 heads over tp 1 and cp 4
    Case("cp-recurrent", Layout(cp=4), "cp in 1, 2, 3", Layout(cp=2, dp=2), on(4, RECURRENT)),
    Case("framework-zero-pipeline", Layout(pp=2, dp=2, zero_stage=2), "zero_stage<=1", Layout(pp=2, dp=2, zero_stage=1),
         on(4, framework="deepspeed")),
)  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.rule}: {case.bad.label()}")
def test_each_rule_is_broken_alone_and_its_remedy_works(case: Case) -> None:
    found = faults(case.bad, case.context, "here")
    assert [fault.rule for fault in found] == [case.rule]
    assert case.remedy in found[0].fix
    assert found[0].what and found[0].why and found[0].where == "here"
    context = case.mended or case.context
    if case.remedy == "gbs=15":
        context = replace(context, gbs=15)
    assert faults(case.good, context) == []
    with pytest.raises(InputError) as error:
        validate(case.bad, case.context)
    assert f"[{case.rule}]" in str(error.value)
    assert error.value.exit_code == 2
    validate(case.good, context)


def test_every_rule_has_a_case_and_says_its_sentence() -> None:
    assert {case.rule for case in CASES} == {rule.id for rule in RULES}
    assert len({rule.id for rule in RULES}) == len(RULES)
    assert all(rule.sentence.endswith(".") for rule in RULES)


def test_every_identifier_that_a_fault_carries_is_listed_with_its_sentence() -> None:
    _, rows, _ = KINDS["rules"]()
    listed = {row["name"]: row["about"] for row in rows}
    assert len(listed) == len(rows) and all(about.endswith(".") for about in listed.values())
    words = Layout(recompute="a", schedule="b", cp_kind="c", reshard="d", order="f", recompute_modules=("e",))
    named = {fault.rule for fault in faults(words, on(1))}
    assert named == {"recompute-known", "schedule-known", "cp_kind-known", "reshard-known", "order-known",
                     "recompute-modules-known"}  # fmt: skip
    carried = named | {rule.id for rule in RULES} | {"precision-device", "framework-precision", "main-copy"}
    assert carried <= set(listed)


def test_unknown_names_are_refused_first() -> None:
    found = faults(Layout(recompute="some", schedule="1f1d"), on(1))
    assert [fault.rule for fault in found] == ["recompute-known", "schedule-known"]
    assert "none or selective or full" in found[0].fix


@pytest.mark.parametrize("number", [2**30 + 1, 10**30, -(10**30)])
def test_numbers_that_no_array_holds_are_refused_by_field(number: int) -> None:
    with pytest.raises(InputError) as error:
        Layout(tp=number, mbs=number)
    assert [fault.where for fault in error.value.faults] == ["layout.tp", "layout.mbs"]
    assert "1,073,741,824 at most" in str(error.value)
    assert Layout(dp=2**30).dp == 2**30


def test_several_broken_rules_come_together() -> None:
    found = faults(Layout(tp=5, dp=3, mbs=7), on(8))
    assert {fault.rule for fault in found} == {"world-product", "tp-heads", "tp-kv-heads", "tp-ffn", "gbs-microbatch"}


small = st.integers(-1, 6)
layouts = st.builds(
    Layout, tp=small, sp=st.integers(-1, 2), cp=small, pp=small, vpp=small, dp=small, ep=small, etp=small,
    zero_stage=st.integers(-1, 4), fsdp=small, mbs=small, recompute=st.sampled_from(RECOMPUTE),
    schedule=st.sampled_from(SCHEDULES), stage_layers=st.sampled_from(((), (2, 2), (1, 4), (0, 5, 0), (5,))),
    order=st.sampled_from(ORDERS),
)  # fmt: skip


@settings(deadline=None, max_examples=120)
@given(st.lists(layouts, min_size=1, max_size=20), st.sampled_from((DENSE, ODD, MOE)), st.integers(1, 64),
       st.sampled_from(("", "megatron", "deepspeed", "ours")))  # fmt: skip
def test_many_at_once_is_one_by_one(many: list[Layout], model: object, gbs: int, framework: str) -> None:
    context = on(8, model, gbs, 48, framework)
    together = check(LayoutBatch.of(many), context)
    for i, layout in enumerate(many):
        alone = check(LayoutBatch.of(layout), context)
        for rule in RULES:
            assert alone[rule.id].shape == ()
            assert together[rule.id].shape == (len(many),)
            assert bool(alone[rule.id]) == bool(together[rule.id][i])
        kept = {rule.id for rule in RULES if alone[rule.id]}
        told = {fault.rule for fault in faults(layout, context)}
        # what is told is broken; what is broken is told unless its cause is told already
        assert not told & kept
        assert bool(told) == (len(kept) < len(RULES))


@settings(deadline=None, max_examples=60)
@given(st.lists(layouts, min_size=1, max_size=8))
def test_a_batch_gives_its_layouts_back(many: list[Layout]) -> None:
    batch = LayoutBatch.of(many)
    assert [batch.layout(i) for i in range(len(batch))] == many
    assert LayoutBatch.of(many[0]).layout(0) == many[0]
    picked = batch.take(np.asarray([0]))
    assert len(picked) == 1 and picked.layout(0) == many[0]


def test_world_microbatches_and_defaults() -> None:
    layout = Layout(tp=2, cp=3, pp=5, dp=7, mbs=2)
    assert layout.world == 210
    assert layout.microbatches(28) == 2  # 28 / (2 * 7)
    assert int(LayoutBatch.of(layout).world) == 210
    assert with_defaults(Layout(tp=4, pp=2), 64).dp == 8
    assert with_defaults(Layout(tp=5, dp=3), 64).dp == 3  # 5 does not divide 64: left for the rule to tell
    assert with_defaults(Layout(pp=2, vpp=2), 8).schedule == "interleaved-1f1b"
    assert with_defaults(Layout(pp=2, schedule="zb-v"), 8).vpp == 2
    assert with_defaults(Layout(schedule="zb-v"), 8).vpp == 1


def axes(layout: Layout) -> dict[str, tuple[int, int]]:
    batch = LayoutBatch.of(layout)
    names = ("tp", "cp", "dp", "dp_cp", "fsdp", "replica", "etp", "ep", "edp", "pp", "world")
    return {name: (int(batch.axis(name)[0]), int(batch.axis(name)[1])) for name in names}


def test_axis_sizes_and_strides() -> None:
    # order from the fastest: tp 2, cp 2, dp 8, pp 2 -> 64 ranks; experts fold 32 ranks as etp 1, ep 8, edp 4
    assert axes(Layout(tp=2, cp=2, dp=8, pp=2, ep=8, zero_stage=3, fsdp=4)) == {
        "tp": (2, 1), "cp": (2, 2), "dp": (8, 4), "dp_cp": (16, 2), "fsdp": (8, 2), "replica": (2, 16),
        "etp": (1, 1), "ep": (8, 1), "edp": (4, 8), "pp": (2, 32), "world": (64, 1),
    }  # fmt: skip


def test_blank_fsdp_is_all_of_dp() -> None:
    found = axes(Layout(tp=2, dp=8, zero_stage=3))
    assert found["fsdp"] == (8, 2)
    assert found["replica"] == (1, 16)


@pytest.mark.parametrize(
    ("axis", "per_node", "nodes", "stride"),
    [
        # tp8 dp16 on 8-GPU nodes: tp fills a node, each dp group has one rank in each of 16 nodes
        ("tp", 8, 1, 1),
        ("dp", 1, 16, 8),
        ("world", 8, 16, 1),
    ],
)
def test_groups_of_tp8_dp16(axis: str, per_node: int, nodes: int, stride: int) -> None:
    shape = LayoutBatch.of(Layout(tp=8, dp=16)).group(axis, 8)
    assert (int(shape.ranks_per_node), int(shape.nodes), int(shape.stride)) == (per_node, nodes, stride)


def test_groups_that_share_nodes() -> None:
    batch = LayoutBatch.of([Layout(tp=2, pp=4, dp=8), Layout(tp=4, pp=2, dp=8), Layout(tp=16, dp=4)])
    dp = batch.group("dp", 8)
    # stride 2: four members a node, 8/4 = 2 nodes; stride 4: two a node, 4 nodes; stride 16: one a node, 4 nodes
    assert dp.ranks_per_node.tolist() == [4, 2, 1]
    assert dp.nodes.tolist() == [2, 4, 4]
    assert dp.size.tolist() == [8, 8, 4]
    pp = batch.group("pp", 8)
    assert (pp.ranks_per_node.tolist(), pp.nodes.tolist()) == ([1, 1, 1], [4, 2, 1])
    tp = batch.group("tp", 8)
    assert (tp.ranks_per_node.tolist(), tp.nodes.tolist()) == ([2, 4, 8], [1, 1, 2])


def test_divisors_small_and_large() -> None:
    assert divisors(12) == [1, 2, 3, 4, 6, 12]
    assert divisors(12, 5) == [1, 2, 3, 4]
    assert divisors(2**20, 16) == [1, 2, 4, 8, 16]
    assert divisors(360_360)[:5] == [1, 2, 3, 4, 5]
    assert len(divisors(360_360)) == 192  # 2^3 3^2 5 7 11 13: 4*3*2*2*2*2


def test_layers_split_evenly_or_around_embedding_and_head() -> None:
    assert split_layers(8, 4) == (2, 2, 2, 2)
    # Llama 3.1 405B: 126 layers on 16 stages, 7 on the ends and 8 between (arXiv 2407.21783)
    assert split_layers(126, 16) == (7, *(8,) * 14, 7)
    # embedding and loss alone: 126 + 2 units on 16 ranks of 8 (Megatron-Core, both ends counted: 1 - 1 layers there)
    assert split_layers(126, 128) == (0, *(1,) * 126, 0) == megatron_split(126, 16, 8, embedding=True, loss=True)
    assert split_layers(4, 5) == (1, 1, 1, 1, 0)
    assert split_layers(4, 7) is None


def test_the_rest_goes_before_the_last_stage() -> None:
    # 61 + 2 units on 16 stages: three each and 15 left, for stages 14 .. 1 and then 0; ends hold one layer fewer
    assert split_layers(61, 16) == (3, *(4,) * 14, 2)
    # 61 + 2 on 8: seven each, seven left, for stages 6 .. 1 and 0: 8 - 1 with the embedding, 7 - 1 with the head
    assert split_layers(61, 8) == (7, *(8,) * 6, 6)
    # 126 + 2 on 12: ten each and eight left, for stages 10 .. 3
    assert split_layers(126, 12) == (9, 10, 10, *(11,) * 8, 9)
    assert split_layers(5, 2) == (3, 2)
    # one unit a stage would leave the ends empty: the six layers alone, the odd one late
    assert split_layers(6, 5) == (1, 1, 1, 2, 1)


def test_megatrons_options() -> None:
    # Megatron-Core arguments.py: first and last rank as told, the others equal shares of the rest
    assert megatron_split(61, 16, first=3, last=2) == (3, *(4,) * 14, 2)
    assert megatron_split(30, 4, last=6) == (8, 8, 8, 6)
    assert megatron_split(20, 1, last=20) == (20,)
    assert megatron_split(16, 2, 2, first=4) == (2, 6, 2, 6)  # a rank's layers over its vpp chunks
    assert megatron_split(126, 16, embedding=True, loss=True) == (7, *(8,) * 14, 7)
    assert megatron_split(31, 4, loss=True) == (8, 8, 8, 7)
    for wrong in ({}, {"first": 7}, {"first": 40, "last": 40}, {"embedding": True}):
        with pytest.raises(InputError, match="layers-stages"):
            megatron_split(61, 16, **wrong)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="either"):
        megatron_split(61, 16, first=3, embedding=True)


def test_splits_are_written_and_read() -> None:
    assert split_text((3, *(4,) * 14, 2)) == "3,14x4,2"
    assert parse_split("3,14x4,2", "here", 61, 16, 1) == (3, *(4,) * 14, 2)
    assert parse_split("first=3, last=2", "here", 61, 16, 1) == (3, *(4,) * 14, 2)
    assert parse_split("embedding,loss", "here", 126, 16, 1) == split_layers(126, 16)
    with pytest.raises(InputError) as error:
        parse_split("3,four,last=2,first", "here", 61, 16, 1)
    assert [f.what for f in error.value.faults] == ["'four'", "'first'", "'3,four,last=2,first' mixes both"]


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(0, 30), min_size=1, max_size=12))
def test_any_split_is_read_back(split: list[int]) -> None:
    assert parse_split(split_text(tuple(split)), "here", 400, len(split), 1) == tuple(split)


@settings(deadline=None, max_examples=100)
@given(st.integers(1, 200), st.integers(1, 70))
def test_a_split_holds_every_layer(layers: int, stages: int) -> None:
    shares = split_layers(layers, stages)
    if shares is None:
        assert stages > layers + 2
        return
    assert len(shares) == stages and sum(shares) == layers and min(shares[1:-1], default=1) >= 1
    assert min(shares) >= 1 or stages > layers
    # embedding and head counted, no stage holds two units more than another
    units = [shares[0] + 1, *shares[1:-1], shares[-1] + 1] if stages > 1 else [layers]
    assert max(units) - min(units) <= (1 if layers % stages else 2)


def test_labels_name_what_is_not_one() -> None:
    assert Layout().label() == "mbs1"
    every = Layout(tp=8, sp=1, pp=4, vpp=2, dp=16, zero_stage=1, mbs=2, schedule="interleaved-1f1b", recompute="full")
    assert every.label() == "tp8 sp pp4 vpp2 dp16 zero1 mbs2 full interleaved-1f1b"
    assert "fsdp4" in Layout(dp=8, zero_stage=3, fsdp=4).label()


def test_groups_whose_stride_does_not_divide_a_node_stay_within_their_block() -> None:
    # 2 racks of 72: dp 18 over tp 8 lies in one block of 144 ranks, 2 nodes of 9 members each
    shape = LayoutBatch.of(Layout(tp=8, dp=18)).group("dp", 72)
    assert (int(shape.nodes), int(shape.ranks_per_node)) == (2, 9)
    # tp 16 on one rack; pairs a whole node apart lie on two
    assert int(LayoutBatch.of(Layout(tp=16, dp=9)).group("tp", 72).nodes) == 1
    assert int(LayoutBatch.of(Layout(tp=8, pp=2)).group("pp", 8).nodes) == 2


@pytest.mark.parametrize(
    ("text", "layers", "pp", "vpp", "remedy"),
    [
        # 34 units on 4 stages do not divide; 32 layers do
        ("embedding,loss", 32, 4, 1, "--stage-layers 4x8"),
        # 32 - first layers for three ranks: 29 leaves one each; 99 is beyond them all
        ("first=99", 32, 4, 1, "--stage-layers first=29"),
        # 27 for two ranks do not divide; 4 + 2 and 3 + 3 leave 26, 3 + 1 and 2 + 2 leave 28: the fuller ends are named
        ("first=3,last=2", 32, 4, 1, "--stage-layers first=3,last=3"),
        # two virtual stages a rank: first is even, and 24 - 6 = 18 for three ranks are 6 each
        ("first=5", 24, 4, 2, "--stage-layers first=6"),
        ("first=3,last=3", 32, 1, 1, "--stage-layers 32"),
    ],
)
def test_a_refused_split_names_one_that_works(text: str, layers: int, pp: int, vpp: int, remedy: str) -> None:
    with pytest.raises(InputError) as error:
        parse_split(text, "--stage-layers", layers, pp, vpp)
    (fault,) = error.value.faults
    assert remedy in fault.fix.split(", or ") and "-" not in fault.why.replace("Megatron-Core", "")
    for way in fault.fix.split(", or "):
        split = parse_split(way.removeprefix("--stage-layers "), "--stage-layers", layers, pp, vpp)
        assert not split_faults(split, layers, pp * vpp)
