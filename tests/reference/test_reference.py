"""The reference itself against the papers' closed forms, before anything is compared with it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner import frameworks, schedule
from planner.layout import Layout
from planner.plan import Workload
from tests.reference.blocks import decoder_layer
from tests.reference.cases import cluster_of, model_of
from tests.reference.ops import Rank
from tests.reference.step import reference
from tests.reference.timing import Durations, Plan, play

S, B, H, HEADS = 1024, 2, 1024, 16  # sequence, micro-batch, width and heads of the model "gpt"
FP16 = Workload(S, 32, "fp16", framework="megatron-2021")


def saved(**degrees: object) -> float:
    """Bytes that one layer of "gpt" saves."""
    layout = Layout(mbs=B, **degrees)  # type: ignore[arg-type]
    rank = Rank(model_of("gpt"), FP16, layout, cluster_of("dgx-a100"), frameworks.get("megatron-2021"))
    return decoder_layer(rank, model_of("gpt").layers[0]).saved


def test_saved_activations_are_those_of_korthikanti() -> None:
    # arXiv 2205.05198: equations 1, 2 and 4, table 2; 5as/h = 5 x 16 x 1024 / 1024 = 80.
    sbh, scores = S * B * H, 5 * HEADS * S / H
    assert saved() == sbh * (34 + scores)
    assert saved(tp=4) == sbh * (10 + 24 / 4 + scores / 4)
    assert saved(tp=4, sp=1) == sbh / 4 * (34 + scores)
    assert saved(tp=4, sp=1, recompute="selective") == sbh * 34 / 4
    assert saved(recompute="full") == 2 * sbh


def test_state_is_sixteen_bytes_a_parameter_and_zero_divides_it() -> None:
    # ZeRO (arXiv 1910.02054), section 3.1 and figure 1: 2 + 2 + 12 bytes; Pos 2+2+12/N, Pos+g 2+14/N, Pos+g+p 16/N.
    # Gradients in fp16, reduced after every micro-batch where they are sharded (DeepSpeed, FSDP).
    model, cluster = model_of("gpt"), cluster_of("dgx-a100:1")
    for stage, each in ((0, 16.0), (1, 4 + 12 / 8), (2, 2 + 14 / 8), (3, 16 / 8)):
        workload = replace(FP16, framework="deepspeed")
        found = reference(model, cluster, workload, Layout(dp=8, zero_stage=stage)).memory[0].by_category
        assert found["parameters"] + found["gradients"] + found["optimizer"] == pytest.approx(each * model.parameters)
    workload = replace(FP16, framework="composer")
    found = reference(model, cluster, workload, Layout(dp=8, zero_stage=3)).memory[0].by_category
    # one fp32 copy of the weights, fp16 gradients, two moments
    state = found["parameters"] + found["gradients"] + found["optimizer"]
    assert state == pytest.approx((4 + 2 + 8) / 8 * model.parameters)


def even(stages: int, f: float, b: float, **more: object) -> Durations:
    """Equal stages, nothing to communicate unless said."""
    zero, ranks = [0.0] * stages, [0.0] * 4
    base = Durations([[f]] * stages, [[b]] * stages, zero, zero, zero, zero, zero, ranks, ranks, 0.0, 0.0, 0.0)
    return replace(base, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "vpp"), [("gpipe", 1), ("1f1b", 1), ("interleaved-1f1b", 2)])
def test_equal_stages_give_the_closed_form_of_the_bubble(name: str, vpp: int) -> None:
    # arXiv 2104.04473, section 2.2: M micro-batches and (p - 1)/v of bubble: 8 (3 + 6) + 3 (3 + 6)/v.
    plan = Plan(1, "none", 1, "none", True, False, False)
    done = play(schedule.get(name), 4, 8, vpp, plan, even(4 * vpp, 3.0 / vpp, 6.0 / vpp))
    assert done.step_s == 8 * 9 + 3 * 9 / vpp
    assert done.everything == 4 * 8 * 9


def test_zero_bubble_schedules_have_the_papers_bubbles() -> None:
    # F 4, I 5, W 3 of a stage, M=8, pp=4. ZB-H1 (arXiv 2401.10241, table 2): 3 (4 + 5 - 3). ZB-V at F = I = W = 2 of
    # half a stage: 6 x 2 x 8 and the way down the V. DualPipe, M=8: (pp/2 - 1) x 1 with units one after the other.
    plan = Plan(1, "none", 1, "none", False, False, False)
    took = even(4, 4.0, 5.0, weight=[[3.0]] * 4)
    assert play(schedule.get("zb-h1"), 4, 8, 1, plan, took).step_s == 8 * 12 + 3 * 6
    took = even(8, 2.0, 2.0, weight=[[2.0]] * 8)
    assert play(schedule.get("zb-v"), 4, 8, 2, plan, took).step_s == 8 * 12 + 3 * 2
    took = even(8, 1.0, 1.0, weight=[[1.0]] * 8, mirror=[7.0] * 4)
    assert play(schedule.get("dualpipe"), 4, 8, 1, plan, took).step_s == 8 * 3 + 1 + 7


def test_what_waits_for_a_weight_gradient_is_32_sbh() -> None:
    # arXiv 2401.10241, table 1: inputs (2 + 2 + 2 + 8) sbh and output gradients (6 + 2 + 8 + 2) sbh of a GPT layer.
    rank = Rank(
        model_of("gpt"), FP16, Layout(mbs=B), cluster_of("dgx-a100"), frameworks.get("megatron-2021")
    )
    assert decoder_layer(rank, model_of("gpt").layers[0]).waiting == 32 * S * B * H


def test_blocking_sends_and_the_tail_by_hand() -> None:
    # Two stages, one micro-batch, F 3, B 6, sends 1 (forward) and 2 (backward), step 10; every rank reduces 4 after its
    # last backward. 10 + 3 + 1 + 3 + 6 = 23 on rank 1, which then sends until 25; rank 0 ends at 31, reduces until 35.
    # Tied 5, norm 7, optimizer 8 or 9, gather 1: 35 + 5 + 7 + 9 + 1 = 57.
    took = even(2, 3.0, 6.0, reduce=[4.0] * 2, send_forward=[1.0] * 2, send_backward=[2.0] * 2, optimizer=[8.0, 9.0],
                gather=[1.0] * 2, sync=7.0, tied=5.0, step=10.0)  # fmt: skip
    assert play(schedule.get("1f1b"), 2, 1, 1, Plan(1, "none", 1, "end", True, True, True), took).step_s == 57.0


def test_prefetch_and_buckets_by_hand() -> None:
    # One rank, one micro-batch, two buckets, gathers of 5, F 3 and 3, B 6 and 6, reductions of 10.
    # Gathers 0-5 and, prefetched as use 0 is reached, 5-10; F0 5-8, F1 10-13; use 1 is reached at 8: the third runs
    # 10-15; use 2 at 13: the fourth 15-20. B1 15-21 and its reduction until 31, B0 21-27, its reduction until 41.
    took = even(1, 0.0, 0.0, forward=[[3.0, 3.0]], backward=[[6.0, 6.0]], unshard=[5.0], reduce=[10.0])
    took = replace(took, send_forward=[0.0], send_backward=[0.0], optimizer=[0.0], gather=[0.0])
    assert play(schedule.get("1f1b"), 1, 1, 1, Plan(2, "each", 1, "each", True, False, False), took).step_s == 41.0
    # Without prefetch every gather is exposed: 5+3+5+3 + 5+6 (27, reduced until 37) + 5+6 = 38, reduced until 48.
    assert play(schedule.get("1f1b"), 1, 1, 1, Plan(2, "each", 0, "each", True, False, False), took).step_s == 48.0
