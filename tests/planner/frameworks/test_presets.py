"""Presets are complete, checked when built, and found by name or by the source of a row."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hwmodels.errors import InputError
from planner import frameworks

NAMED_BY_THE_DESIGN = ("generic", "megatron", "deepspeed", "fsdp2", "composer", "nemo", "primus", "ours")


def test_every_preset_of_the_design_exists_and_says_where_it_comes_from():
    for name in (*NAMED_BY_THE_DESIGN, *frameworks.names()):
        preset = frameworks.get(name)
        assert preset.name == name
        assert preset.source and preset.notes
        for constant in (preset.kernel_s, preset.microbatch_s, preset.step_s):
            assert constant.source and float(constant) >= 0


def test_unknown_name_lists_the_known_ones():
    with pytest.raises(InputError, match=r"megatorn.*one of generic, bigscience-2022"):
        frameworks.get("megatorn")


def test_faults_are_reported_together():
    with pytest.raises(InputError) as caught:
        replace(
            frameworks.get("generic"),
            attention="fast",
            grad_dtype="fp4",
            zero_stage=4,
            bucket_bytes=0,
            step_s=frameworks.HostConstant(-1.0, "x"),
        )
    assert len(caught.value.faults) == 5


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("Megatron-LM SC21 (Narayanan et al. 2021) Table 1 as republished in the Megatron-LM README", "megatron-2021"),
        ("Korthikanti et al. 2022 Table 5 (iteration time), via Calculon validation", "megatron-2022"),
        ("NVIDIA Megatron-Bridge performance summary, NeMo container 26.08", "megatron-bridge"),
        ("NVIDIA Megatron-Bridge performance summary, NeMo container 25.09", "megatron-bridge-26.04"),
        ("NVIDIA Megatron-Bridge performance summary, NeMo container 26.04.01", "megatron-bridge-26.04"),
        ("Megatron-LM functional-test golden values (x, dev_dgx_a100)", "megatron-defaults"),
        ("MosaicML llm-foundry MPT training benchmarks", "composer"),
        ("torchtitan docs/performance.md 2024 (64 A100)", "fsdp2"),
        ("BigScience BLOOM chronicles-prequel (Jean Zay A100 layout tests)", "bigscience-2022"),
        ("vTrain (VIA-Research), published measured iteration times, MIT", "deepspeed-2022"),
        ("a blog post", "generic"),
    ],
)
def test_source_table(source, name):
    assert frameworks.preset_for_source(source) == name


def test_recipes_for_racks():
    assert frameworks.on_racks("megatron-bridge") == "megatron-bridge-rack"
    assert frameworks.on_racks("megatron") == "megatron"
    rack = frameworks.get("megatron-bridge-rack")
    assert (rack.cuda_graphs, rack.moe_exchange_overlap, rack.moe_dispatcher) == (True, True, "hybridep")


def test_era_is_data():
    then, now = frameworks.get("megatron-2021"), frameworks.get("megatron")
    assert (then.attention, then.dropout, then.distributed_optimizer) == ("unfused-fused-softmax", True, False)
    assert (now.attention, now.dropout, now.distributed_optimizer) == ("flash", False, True)
    # arguments.py of v2.5 forces fp32 accumulation for bf16 only
    assert then.gradient_dtype("fp16") == "fp16"
    assert now.gradient_dtype("bf16") == "fp32"


@pytest.mark.parametrize(
    ("name", "precision", "gradients"),
    [
        ("megatron-2021", "fp16", "fp16"),
        ("megatron-2022", "bf16", "fp32"),  # accumulate_allreduce_grads_in_fp32 is forced for bf16
        ("bigscience-2022", "bf16", "fp32"),  # DeepSpeed's BF16_Optimizer
        ("deepspeed", "bf16", "bf16"),
        ("megatron", "fp16", "fp32"),
    ],
)
def test_gradients_accumulate_in(name, precision, gradients):
    assert frameworks.get(name).gradient_dtype(precision) == gradients
