"""Recipes and optimizers against figures worked out by hand from their papers and manuals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hwmodels import catalog
from hwmodels.errors import InputError
from planner import frameworks, optimizers, precision
from planner.layout import Layout, LayoutBatch
from planner.model.shape import from_shape
from planner.model.spec import ModelSpec
from planner.plan import Lora, Workload
from planner.precision import device_faults, recipe, recipe_of, with_plain_ends, workload_faults
from planner.state import gradient_bytes, main_bytes, state_bytes, weight_bytes
from planner.workload.lower import lower
from planner.workload.op import Op

S, H, FFN = 1024, 1024, 4096
TOKENS = S  # one sequence a micro-batch


def llama(layers: int = 2) -> ModelSpec:
    return from_shape(
        name="l", layers=layers, hidden=H, heads=16, kv_heads=16, ffn_hidden=FFN, vocab=4096, seq_len=S, gated=True,
        norm="rms", bias=False, learned_positions=False, tied=False,
    )  # fmt: skip


def work(name: str, framework: str = "megatron", **rest: object) -> Workload:
    return Workload(S, 8, name, "adamw", framework, **rest)  # type: ignore[arg-type]


def ops_of(workload: Workload, layout: Layout | None = None) -> dict[str, Op]:
    preset = frameworks.get(workload.framework)
    block = lower(llama(), workload, LayoutBatch.of(layout or Layout()), preset).layers[0]
    return {op.name: op for op in block.ops}


def saved(workload: Workload) -> float:
    preset = frameworks.get(workload.framework)
    return float(lower(llama(), workload, LayoutBatch.of(Layout()), preset).layers[0].saved_bytes)


def nbytes(op: Op) -> float:
    return float(op.dims["nbytes"])


def test_every_recipe_and_optimizer_says_where_it_comes_from() -> None:
    for name in precision.names():
        found = recipe(name)
        assert found.source
        assert all(precision.BYTES[f] > 0 for f in (found.compute, found.forward, found.weight_gradient))
        assert set(found.fallback) <= set(precision.names())
    for name in optimizers.names():
        assert optimizers.get(name).source and optimizers.get(name).name == name


def test_bytes_of_an_element_with_its_scales() -> None:
    # 1x128 tile: 4-byte scale; 32 elements: one byte; 16 elements of half a byte: one byte
    assert recipe("fp8-block").element_bytes == 1 + 4 / 128
    assert recipe("mxfp8").element_bytes == 33 / 32
    assert recipe("nvfp4").element_bytes == 9 / 16
    # QLoRA: 4 bits + 0.127 bits of doubly quantised constants (paper, section 3)
    assert precision.BYTES["nf4"] * 8 == pytest.approx(4 + 0.127, abs=5e-4)


def test_which_gemms_are_quantised() -> None:
    ops = ops_of(work("fp8-delayed"))
    for name in ("attention.qkv", "attention.o", "mlp.up", "mlp.down"):
        assert [ops[name + s].dtype for s in ("", ".dgrad", ".wgrad")] == ["fp8"] * 3
    assert ops["attention.core"].dtype == "bf16"
    lowered = lower(llama(), work("fp8-delayed"), LayoutBatch.of(Layout()), frameworks.get("megatron"))
    assert {op.dtype for op in lowered.head.ops if op.kind == "gemm"} == {"bf16"}


def test_bytes_of_the_casts() -> None:
    # Delayed scaling casts and transposes in one pass: read 2, write 1 + 1. The input of up comes out of the norm.
    ops = ops_of(work("fp8-delayed"))
    assert "mlp.up.quantise" not in ops and "attention.qkv.quantise" not in ops
    assert nbytes(ops["mlp.down.quantise"]) == TOKENS * FFN * (2 + 1 + 1)
    assert nbytes(ops["mlp.up.grad.quantise"]) == TOKENS * 2 * FFN * 4
    weight = ops["mlp.down.weight.quantise"]
    assert (nbytes(weight), weight.first_only, weight.rerun) == (FFN * H * 4, True, "never")
    # Current scaling reads once more, in a launch of its own, and no norm knows the scale before.
    ops = ops_of(work("fp8-current"))
    assert nbytes(ops["mlp.up.quantise"]) == TOKENS * H * (2 + 2 + 1 + 1)
    assert ops["mlp.up.quantise"].kernels == 2
    # NVFP4: maxima, rows, transformed columns: three reads; 9/16 of a byte twice
    ops = ops_of(work("nvfp4", "nemo"))
    assert nbytes(ops["mlp.up.quantise"]) == TOKENS * H * (3 * 2 + 2 * 9 / 16)


def test_weights_arrive_quantised_where_the_framework_gathers_them_so() -> None:
    # NeMo keeps MXFP8 weights only: rows arrive, columns are written from them: 33/32 twice
    assert nbytes(ops_of(work("mxfp8", "nemo"))["mlp.down.weight.quantise"]) == FFN * H * 2 * 33 / 32
    # torchao's float8 all-gather: nothing is cast on the way; without it, twice a micro-batch: amax, cast, write
    assert not [name for name in ops_of(work("fp8-current", "fsdp2")) if "weight" in name]
    names = ops_of(replace(work("fp8-delayed"), framework="fsdp2"))
    assert nbytes(names["mlp.down.weight.quantise"]) == nbytes(names["mlp.down.weight.quantise.again"]) == FFN * H * 3


def test_saved_activations_shrink_by_the_linear_inputs() -> None:
    # Inputs of qkv, o and up (H each) and down (FFN) are kept in one byte instead of two; the fused core
    # keeps the input of o in 16 bits besides, so that one is added: -H -H +H... in bytes a token:
    # qkv -1·H, up -1·H, down -1·FFN, o +1·H
    assert saved(work("bf16")) - saved(work("fp8-delayed")) == TOKENS * (H + H + FFN - H)


def test_ends_of_nvfp4_stay_in_bf16() -> None:
    # 62 blocks: the first 2 and the last 8 (arXiv 2509.25149); of 31: 1 and 4
    for layers, first, last in ((62, 2, 8), (31, 1, 4)):
        marked = [layer.high_precision for layer in with_plain_ends(llama(layers), recipe("nvfp4")).layers]
        assert marked == [True] * first + [False] * (layers - first - last) + [True] * last
    assert with_plain_ends(llama(62), recipe("mxfp8")) == llama(62)
    assert not recipe_of(work("nvfp4", "nemo"), frameworks.get("nemo")).last_share


@pytest.mark.parametrize(
    ("name", "framework", "resident"),
    [
        ("bf16", "megatron", 2.0),
        ("fp8-delayed", "megatron", 2.0 + 1.0 + 1.0),  # 16 bits, rows, columns
        ("fp8-delayed", "nemo", 1.0 + 1.0),  # rows and columns alone
        ("mxfp8", "nemo", 2 * 33 / 32),
        ("fp8-block", "nemo", 2.0 + 2 * (1 + 4 / 128)),  # no block-scaled parameters there
        ("nvfp4", "megatron", 2.0 + 2 * 9 / 16),
        ("fp8-current", "fsdp2", 4.0),  # one fp32 shard, cast when it is gathered
    ],
)
def test_resident_copies_of_a_linear_weight(name: str, framework: str, resident: float) -> None:
    workload, preset = work(name, framework), frameworks.get(framework)
    found = weight_bytes(workload, preset)
    assert found.packed == resident
    per = state_bytes(workload, LayoutBatch.of(Layout()), preset, np.asarray(1.0), 1)
    assert float(per.parameters + per.packed) == resident


def test_a_parameter_of_each_main_dtype_and_optimizer() -> None:
    # Adam in mixed precision: 2 + 4 gradients + 4 main + 8; precision-aware: 2 of remainder; bf16 alone: none
    megatron = frameworks.get("megatron")
    for main, rest in (("fp32", 4.0), ("remainder", 2.0), ("bf16", 0.0)):
        assert main_bytes(work("bf16", main_dtype=main), megatron) == rest
    assert gradient_bytes(work("bf16", grad_dtype="bf16"), megatron) == 2.0
    # blocks of 256 share an fp32 scale: two moments of 1 + 4/256
    assert optimizers.get("adamw-8bit").state_bytes == 2.03125


def test_a_device_without_the_format_names_the_nearest_that_works() -> None:
    h100, a100, b200 = (catalog.device(n) for n in ("h100-sxm-80gb", "a100-sxm-80gb", "b200-sxm-180gb"))
    assert not device_faults(recipe("fp8-current"), h100) and not device_faults(recipe("nvfp4"), b200)
    (fault,) = device_faults(recipe("nvfp4"), h100)
    assert (fault.rule, fault.fix) == ("precision-device", "precision fp8-block")
    (fault,) = device_faults(recipe("mxfp8"), h100)
    assert fault.fix == "precision fp8-block" and "scale blocks" in fault.what
    assert device_faults(recipe("fp8-delayed"), a100)[0].fix == "precision bf16"
    v100 = catalog.device("v100-sxm-32gb")
    assert device_faults(recipe("bf16"), v100)[0].fix == "precision fp16"


@pytest.mark.parametrize(
    ("workload", "rule"),
    [
        (work("fp8", "megatron-2021"), "framework-precision"),
        (work("fp32", main_dtype="bf16"), "main-copy"),
        (work("bf16", "fsdp2", main_dtype="remainder"), "main-copy"),
        (work("fp8", kind="lora", lora=Lora(base="nf4")), "lora-base"),
    ],
)
def test_what_contradicts_itself_is_named_with_a_way_out(workload: Workload, rule: str) -> None:
    (fault,) = workload_faults(workload, frameworks.get(workload.framework))
    assert fault.rule == rule and fault.fix and fault.where.startswith("workload.")


def test_unknown_names_list_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"'fp7'.*fp8-block"):
        recipe("fp7")
    with pytest.raises(InputError, match=r"'lion'.*muon"):
        optimizers.get("lion")
    with pytest.raises(InputError) as caught:
        replace(recipe("mxfp8"), forward="fp7", scaling="log", block=0, first_share=0.7, last_share=0.7)
    assert len(caught.value.faults) == 4


def test_sequence_parallel_gathers_and_experts_get_quantised_rows_where_the_framework_does_so() -> None:
    layout = Layout(tp=4, sp=1)
    for framework, width in (("megatron", 1.0), ("composer", 2.0)):
        ops = ops_of(work("fp8-delayed", framework), layout)
        assert nbytes(ops["mlp.up.all_gather"]) == TOKENS * H * width
        assert nbytes(ops["mlp.down.reduce_scatter"]) == TOKENS * H * 2.0
