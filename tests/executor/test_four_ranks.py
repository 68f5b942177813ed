"""Combined layouts on four processes (two on each of this machine's two cores) against one."""

from __future__ import annotations

from pathlib import Path

import pytest

from executor.launch import run_plans
from planner.layout import Layout
from tests.executor.conftest import GPT2, LLAMA, make_plan

FOUR_RANKS = {
    "tp-dp": (Layout(tp=2, dp=2, mbs=4), LLAMA),
    "tp-sp-fsdp": (Layout(tp=2, sp=1, dp=2, mbs=4, zero_stage=3), LLAMA),
    "tp-zero1-gpt2": (Layout(tp=2, dp=2, mbs=4, zero_stage=1), GPT2),
    "pp-dp": (Layout(pp=2, dp=2, mbs=2), LLAMA),
    "pp-fsdp-gpt2": (Layout(pp=2, dp=2, mbs=2, zero_stage=3), GPT2),
    "pp-tp-sp-gpt2": (Layout(pp=2, tp=2, sp=1, mbs=4), GPT2),
    "pp-in-dp": (Layout(pp=2, dp=2, mbs=2, order="tp-cp-pp-dp"), GPT2),
    "dp-in-tp-sp": (Layout(tp=2, sp=1, dp=2, mbs=4, order="dp-tp-cp-pp", zero_stage=3), LLAMA),
    "hsdp": (Layout(dp=4, mbs=2, zero_stage=3, fsdp=2), LLAMA),
    "pp4-interleaved-off": (Layout(pp=4, mbs=2), LLAMA),
    "pp4-zb-h1": (Layout(pp=4, mbs=1, schedule="zb-h1"), LLAMA),
    "zb-h1-dp": (Layout(pp=2, dp=2, mbs=1, schedule="zb-h1"), LLAMA),
    "zb-v-zero1": (Layout(pp=2, vpp=2, dp=2, mbs=1, zero_stage=1, schedule="zb-v"), LLAMA),
    "zb-v-fsdp-gpt2": (Layout(pp=2, vpp=2, dp=2, mbs=1, zero_stage=3, schedule="zb-v"), GPT2),
    "zb-h1-tp-sp-gpt2": (Layout(pp=2, tp=2, sp=1, mbs=2, schedule="zb-h1"), GPT2),
    "dualpipe-v-dp-uneven": (
        Layout(pp=2, vpp=2, dp=2, mbs=1, schedule="dualpipe-v", stage_layers=(0, 1, 2, 1)), LLAMA,
    ),
}


@pytest.mark.slow
def test_combined_layouts_equal_a_single_process(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    plans = [make_plan(name, layout, config) for name, (layout, config) in FOUR_RANKS.items()]
    for measured in run_plans(plans, tmp_path, repeats=2, warmup=1, timeout_s=400, device="cpu"):
        assert measured.correctness["passed"], measured.plan_name
        assert measured.correctness["grad_rel_err"] < 1e-4
        assert measured.correctness["actions_executed"]
        assert len(measured.phases) == 4
        assert all(sum(p.values()) == pytest.approx(measured.median_step_s, rel=1e-6) for p in measured.phases)


@pytest.mark.slow
def test_bf16_is_close(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    plans = [
        make_plan("ddp", Layout(dp=2, mbs=4), gbs=8, precision="bf16"),
        make_plan("fsdp", Layout(dp=2, mbs=4, zero_stage=3), gbs=8, precision="bf16"),
        make_plan("pp", Layout(pp=2, mbs=4), gbs=8, precision="bf16"),
    ]
    for measured in run_plans(plans, tmp_path, repeats=2, warmup=1, timeout_s=300, device="cpu"):
        # 8 bits of mantissa: a rounding is 2^-9 = 0.2 %, some tens of them add up along a gradient.
        assert measured.correctness["passed"] and measured.correctness["tolerance"] == 5e-2
        assert measured.correctness["grad_rel_err"] > 1e-5, "bf16 was really used"
