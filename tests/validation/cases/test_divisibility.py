"""Degrees that divide nothing: what people ran into, and the answer that would have helped.

Each test is named after its case in the collection of reported outcomes; the figures are the reporter's.
"""

from __future__ import annotations

from planner.layout import Layout, RuleContext, faults
from planner.model import load
from planner.model.shape import from_shape
from planner.model.spec import ModelSpec
from planner.plan import Workload
from tests.validation.cases.made import cluster, said, step


def llama(name: str, **shape: int) -> ModelSpec:
    """A model of the Llama line from its figures."""
    return from_shape(
        name=name, seq_len=4096, gated=True, learned_positions=False, norm="rms", bias=False, tied=False, **shape
    )


def broken(model: ModelSpec | str, layout: Layout, world: int, **workload: str) -> dict[str, str]:
    """Rule -> everything that its fault says."""
    spec = load(model)[0] if isinstance(model, str) else model
    context = RuleContext.of(spec, Workload(4096, 64 * layout.dp, **workload), world)  # type: ignore[arg-type]
    return {f.rule: f"{f.what} {f.why} {f.fix}" for f in faults(layout, context, "layout")}


def test_c093_28_heads_on_8_tensor_parallel_ranks_name_the_valid_degrees() -> None:
    found = broken("qwen2-7b", Layout(tp=8), 8)
    assert "28 heads" in found["tp-heads"]
    assert "1, 2, 4, 7, 14, 28" in found["tp-heads"]
    # four replicas of two ranks, or a pipeline of two, use all 8 GPUs
    assert not broken("qwen2-7b", Layout(tp=4, dp=2), 8)
    assert not broken("qwen2-7b", Layout(tp=4, pp=2), 8)


def test_c094_52_heads_take_no_3_and_no_8() -> None:
    model = llama("llama-33b", layers=60, hidden=6656, heads=52, ffn_hidden=17920, vocab=32000)
    for tp in (3, 8):
        assert "1, 2, 4, 13, 26, 52" in broken(model, Layout(tp=tp), tp)["tp-heads"]
    assert not broken(model, Layout(tp=4), 4)


def test_c099_stages_that_train_64_of_80_layers_are_refused() -> None:
    layout = Layout(pp=16, vpp=2, schedule="interleaved-1f1b", stage_layers=(2,) * 32)
    said = broken("llama-3-70b", layout, 16)["layers-stages"]
    assert "64 layers" in said
    assert "80" in said


def test_c100_layers_sum_to_the_model_always() -> None:
    thirty = llama("thirty", layers=30, hidden=1024, heads=16, ffn_hidden=4096, vocab=32000)
    said = broken(thirty, Layout(pp=4, stage_layers=(7,) * 4), 4)["layers-stages"]
    assert "28 layers" in said
    assert "7,8,8,7" in said  # a split that holds all of them
    forty = llama("forty", layers=40, hidden=1024, heads=16, ffn_hidden=4096, vocab=32000)
    assert "32 layers" in broken(forty, Layout(pp=16, stage_layers=(2,) * 16), 16)["layers-stages"]
    twenty = llama("twenty", layers=20, hidden=1024, heads=16, ffn_hidden=4096, vocab=32000)
    assert "1 layers" in broken(twenty, Layout(stage_layers=(1,)), 1)["layers-stages"]


def test_c102_a_shard_of_576_is_no_whole_number_of_blocks_of_128() -> None:
    said = broken("deepseek-r1", Layout(tp=32, sp=1), 32, precision="fp8-block")["precision-block"]
    assert "576" in said
    assert "128" in said
    assert "16" in said.split("tp in")[1]
    assert not broken("deepseek-r1", Layout(tp=16, sp=1, pp=2), 32, precision="fp8-block")
    assert not broken("deepseek-r1", Layout(tp=8, sp=1, pp=4), 32, precision="fp8-block")


def test_c103_an_expert_of_768_cut_in_four_breaks_blocks_of_128() -> None:
    said = broken("qwen3-30b-a3b", Layout(tp=4, sp=1, etp=4), 4, precision="fp8-block")["precision-block"]
    assert "192 of the 768" in said
    assert "etp in 1, 2, 3" in said
    # the three ways out: half the split, experts whole on four ranks, or no blocks
    assert not broken("qwen3-30b-a3b", Layout(tp=2, sp=1, etp=2), 2, precision="fp8-block")
    assert not broken("qwen3-30b-a3b", Layout(tp=4, sp=1, ep=4), 4, precision="fp8-block")
    assert not broken("qwen3-30b-a3b", Layout(tp=4, sp=1, etp=4), 4, precision="bf16")


def test_c105_experts_and_heads_are_two_reasons() -> None:
    found = broken("deepseek-v3", Layout(tp=3, sp=1, ep=3), 3)
    assert "256 experts" in found["ep-experts"]
    assert "1, 2, 4, 8" in found["ep-experts"]
    assert "128 heads" in found["tp-heads"]


def test_c026_the_degrees_need_more_gpus_than_there_are() -> None:
    said = broken("llama-3-70b", Layout(tp=8, pp=2, recompute="full"), 8)["world-product"]
    assert "16" in said
    assert "8 ranks" in said


def test_c096_the_vocabulary_is_checked_too() -> None:
    # 96 heads divide by 6, 151,552 rows leave 4
    model = from_shape(name="glm", layers=4, hidden=5120, heads=96, head_dim=128, ffn_hidden=12288, vocab=151552,
                       seq_len=4096)  # fmt: skip
    found = step(model, cluster("dgx-h100", 1, 6), Workload(4096, 6, framework="generic"), Layout(tp=6))
    notes = said(found, "vocabulary")
    assert "do not divide by tp 6 (remainder 4)" in notes
    assert "151,680 rows (a multiple of 64 x tp)" in notes
    assert "takes tp in 1, 2, 4, 8" in notes
    even = step(model, cluster("dgx-h100", 1, 4), Workload(4096, 6, framework="generic"), Layout(tp=4))
    assert not said(even, "vocabulary:")


def test_c097_the_padded_vocabulary_and_its_memory_are_reported() -> None:
    # 151,669 rows of 2560 on 4 ranks: 128 x 4 is 512, and 297 x 512 = 152,064
    model = from_shape(name="reranker", layers=4, hidden=2560, heads=32, kv_heads=8, head_dim=128, vocab=151669,
                       seq_len=4096, learned_positions=False)  # fmt: skip
    workload = Workload(4096, 4, framework="megatron", switches=(("vocab_multiple", "128"),))
    padded = step(model, cluster("dgx-h100", 1, 4), workload, Layout(tp=4, sp=1))
    assert "151,669 rows padded to 152,064 for tp 4" in said(padded, "vocabulary")
    assert "494 KiB" in said(padded, "vocabulary")  # 395 rows x 2560 x 2 bytes / 4
    bare = step(model, cluster("dgx-h100", 1, 4), Workload(4096, 4, framework="generic"), Layout(tp=4, sp=1))
    assert "remainder 1" in said(bare, "vocabulary")
