"""Plans that cannot run are refused by name before anything starts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from executor import support
from executor.launch import run_plans
from hwmodels.errors import InputError
from planner.layout import Layout
from planner.model import read_config
from planner.plan import Documents, Lora, Plan
from tests.executor.conftest import GPT2, LLAMA, MIXTRAL, make_plan


def rules(plan: Plan) -> set[str]:
    return {fault.rule for fault in support.check(plan, read_config(plan.model, plan.model_name))}


def moved(plan: Plan) -> Plan:
    """A plan with its first two ranks on each other's GPU."""
    first, second, *rest = plan.placement
    swapped = (replace(first, gpu=second.gpu), replace(second, gpu=first.gpu))
    return replace(plan, placement=(*swapped, *rest))


def trained(name: str, **changes: object) -> Plan:
    """A plan that runs but for what is trained."""
    plan = make_plan(name, Layout(dp=2))
    return replace(plan, workload=replace(plan.workload, **changes))  # type: ignore[arg-type]


def test_what_is_not_executed_says_why() -> None:
    found = support.check(trained("lora", kind="lora", lora=Lora(4, base="nf4")), read_config(LLAMA, "x"))
    assert [f.what for f in found] == ["LoRA of rank 4 on a nf4 base"]
    assert found[0].why == "every weight is trained; adapters are predicted only"
    (fault,) = support.check(trained("fp8", precision="mxfp8"), read_config(LLAMA, "x"))
    assert "no scaled 8- or 4-bit kernels" in fault.why and fault.fix == "fp32 or bf16"


def test_supported_plans_have_no_faults() -> None:
    for layout in (Layout(dp=2), Layout(tp=2, sp=1), Layout(pp=2), Layout(dp=2, zero_stage=3),
                   Layout(pp=2, dp=2, order="tp-cp-pp-dp"),
                   Layout(pp=2, dp=2, zero_stage=1, mbs=2, schedule="zb-h1"),
                   Layout(pp=2, stage_layers=(0, 4))):  # fmt: skip
        assert rules(make_plan("fine", layout)) == set()


@pytest.mark.parametrize(
    ("plan", "rule"),
    [
        (make_plan("cp", Layout(cp=2)), "executor-cp"),
        (make_plan("ep", Layout(dp=2, ep=2), MIXTRAL), "executor-ep"),
        (make_plan("moe-tp", Layout(tp=2), MIXTRAL), "executor-moe-tp"),
        (make_plan("kv", Layout(tp=4)), "executor-kv-copies"),
        (make_plan("vocab", Layout(tp=2), {**GPT2, "vocab_size": 257}), "executor-vocab"),
        (make_plan("positions", Layout(dp=2), GPT2, seq_len=128), "executor-positions"),
        (make_plan("zero1", Layout(dp=4, zero_stage=1, fsdp=2)), "executor-zero1-group"),
        (make_plan("again", Layout(pp=2, mbs=2, schedule="zb-h1", recompute="full")), "executor-split-recompute"),
        (make_plan("dual", Layout(pp=2, mbs=2, schedule="dualpipe")), "executor-bidirectional"),
        (make_plan("fp16", Layout(dp=2), precision="fp16"), "executor-precision"),
        (trained("fp8", precision="fp8-current"), "executor-precision"),
        (trained("tf32", precision="tf32"), "executor-precision"),
        (trained("muon", optimizer="muon"), "executor-optimizer"),
        (trained("lora", kind="lora"), "executor-lora"),
        (trained("qlora", kind="lora", lora=Lora(base="nf4")), "executor-lora"),
        (trained("packed", documents=Documents(8.0, 128.0)), "executor-documents"),
        (trained("steps", mtp_layers=1), "executor-mtp"),
        (trained("seen", images=1.0), "executor-images"),
        (trained("grad", precision="bf16", grad_dtype="bf16"), "executor-grad-dtype"),
        (trained("main", precision="bf16", main_dtype="remainder"), "executor-main-dtype"),
        (moved(make_plan("moved", Layout(dp=2))), "executor-placement"),
        (replace(make_plan("share", Layout(dp=2)), batch_share=(5, 3)), "executor-batch-share"),
        (replace(make_plan("actions", Layout(pp=2)), actions=()), "executor-actions"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_refused_by_name(plan: Plan, rule: str) -> None:
    assert rule in rules(plan)


def test_all_faults_at_once_and_nothing_starts(tmp_path: object) -> None:
    plans = [make_plan("a", Layout(cp=2)), make_plan("b", Layout(dp=2), precision="fp16")]
    with pytest.raises(InputError) as caught:
        run_plans(plans, str(tmp_path), repeats=1)
    found = str(caught.value)
    assert "executor-cp" in found and "executor-precision" in found and "repeats is 1" in found
    assert caught.value.exit_code == 2


def test_plans_of_one_launch_share_the_world(tmp_path: object) -> None:
    with pytest.raises(InputError, match=r"\[2, 4\]"):
        run_plans([make_plan("a", Layout(dp=2)), make_plan("b", Layout(dp=4))], str(tmp_path))
    with pytest.raises(InputError, match="share a name"):
        run_plans([make_plan("a", Layout(dp=2)), make_plan("a", Layout(tp=2), LLAMA)], str(tmp_path))


def test_more_ranks_than_the_host_takes_are_refused_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    plan = make_plan("large", Layout(dp=16), gbs=16)
    with pytest.raises(InputError, match="at most 8") as caught:
        run_plans([plan], tmp_path)
    assert [f.rule for f in caught.value.faults] == ["executor-world"]
    assert list(tmp_path.iterdir()) == []
