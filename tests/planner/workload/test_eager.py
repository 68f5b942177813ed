"""What eager PyTorch runs beside the products of a layer, against hand calculation for GPT-2 medium."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner import frameworks
from planner.layout import Layout, LayoutBatch
from planner.model import load as load_model
from planner.plan import Workload
from planner.workload.lower import lower

HIDDEN, TOKENS, VOCAB = 1024, 1024, 50257
MODEL = load_model("gpt2-medium")[0]


def bytes_of(switches: dict[str, str], layout: Layout, model=MODEL) -> dict[str, float]:
    """Bytes of each memory op of the first layer and of the head, by name and phase."""
    workload = Workload(TOKENS, 8, "bf16", framework="generic", switches=tuple(switches.items()))
    found = lower(model, workload, LayoutBatch.of([layout]), frameworks.of(workload))
    return {
        f"{op.name}:{op.phase}": float(np.max(op.dims["nbytes"]))
        for op in (*found.layers[0].ops, *found.head.ops)
        if op.kind == "memory"
    }


def test_gradients_of_biases_and_of_query_key_and_value() -> None:
    # outputs with a bias: 3h + h + 4h + h = 9h numbers a token, read once; 3h are read and written in one tensor
    found = bytes_of({"apart_gradients": "true"}, Layout(mbs=1))
    assert found["bias.grad:backward_weight"] == 9 * HIDDEN * TOKENS * 2
    assert found["attention.joined.grad:backward_input"] == 2 * 3 * HIDDEN * TOKENS * 2
    # a norm's backward reads x and dy, writes dx; and reads x and dy again
    assert found["norm_0.grad:backward_input"] == 5 * HIDDEN * TOKENS * 2


def test_tensor_parallelism_cuts_columns_only() -> None:
    # 3h/2 + h + 4h/2 + h
    found = bytes_of({"apart_gradients": "true"}, Layout(tp=2, mbs=1))
    assert found["bias.grad:backward_weight"] == (3 / 2 + 1 + 4 / 2 + 1) * HIDDEN * TOKENS * 2


def test_tokens_are_gathered_and_scattered_around_the_kernel() -> None:
    # q, k, v read and written, output zeroed, read and written: 3 x 2 + 3 = 9 passes; backward 3 x 3 + 2 = 11
    found = bytes_of({"unpads_attention": "true"}, Layout(mbs=1))
    assert found["attention.unpad:forward"] == 9 * HIDDEN * TOKENS * 2
    assert found["attention.unpad.grad:backward_input"] == 11 * HIDDEN * TOKENS * 2


@pytest.mark.parametrize("times", [1, 2])
def test_a_logged_loss_casts_and_normalises_the_logits(times: int) -> None:
    # bf16 in, fp32 out, fp32 in, fp32 out: 14 bytes a logit
    found = bytes_of({"logged_losses": str(times)}, Layout(mbs=1))
    assert found["loss.logged:forward"] == times * 14 * VOCAB * TOKENS


def test_nothing_of_it_runs_unless_switched_on() -> None:
    found = bytes_of({}, Layout(mbs=1))
    assert not {"bias.grad:backward_weight", "attention.unpad:forward", "loss.logged:forward"} & set(found)
    assert found["norm_0.grad:backward_input"] == 3 * HIDDEN * TOKENS * 2


def test_a_model_without_biases_sums_none() -> None:
    layers = tuple(replace(layer, attention=replace(layer.attention, qkv_bias=False, out_bias=False),
                           ffn=replace(layer.ffn, bias=False)) for layer in MODEL.layers)  # fmt: skip
    found = bytes_of({"apart_gradients": "true"}, Layout(mbs=1), replace(MODEL, layers=layers))
    assert "bias.grad:backward_weight" not in found
    assert "attention.joined.grad:backward_input" in found
