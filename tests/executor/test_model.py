"""The executor's model against its spec, and its pieces against PyTorch and hand values."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from executor.check import reduced  # noqa: E402
from executor.device import Backend, rms_norm  # noqa: E402
from executor.layers import rotary_table, rotate  # noqa: E402
from executor.memory_count import StorageCount  # noqa: E402
from executor.model import Decoder, batch, initialise  # noqa: E402
from executor.timing import Recorder  # noqa: E402
from planner.layout import Layout  # noqa: E402
from planner.model import read_config  # noqa: E402
from tests.executor.conftest import GPT2, LLAMA, MIXTRAL, make_plan  # noqa: E402

QWEN3 = {**LLAMA, "model_type": "qwen3", "head_dim": 32, "tie_word_embeddings": True, "attention_bias": False}
PHI = {**LLAMA, "model_type": "phi", "hidden_act": "gelu_new", "layer_norm_eps": 1e-5, "partial_rotary_factor": 0.5,
       "num_key_value_heads": 4}  # fmt: skip


@pytest.mark.parametrize("config", [LLAMA, GPT2, MIXTRAL, QWEN3, PHI], ids=lambda c: c["model_type"])
def test_parameter_count_is_the_specs(config: dict[str, Any]) -> None:
    spec = read_config(config)
    model = Decoder(spec, 32)
    assert sum(p.numel() for p in model.parameters()) == spec.parameters


def test_gpt2_small_count() -> None:
    # 124,439,808: the count of GPT-2 small in its model card's checkpoint.
    config = {
        **GPT2,
        "n_embd": 768,
        "n_layer": 12,
        "n_head": 12,
        "vocab_size": 50257,
        "n_positions": 1024,
        "n_ctx": 1024,
    }
    with torch.device("meta"):
        model = Decoder(read_config(config), 128)
    assert sum(p.numel() for p in model.parameters()) == 124_439_808


def test_stages_compose_to_the_whole_model() -> None:
    spec = read_config(GPT2)
    whole = Decoder(spec, 32)
    first, last = Decoder(spec, 32, [0, 1], head=False), Decoder(spec, 32, [2, 3], embedding=False)
    for model in (whole, first, last):
        initialise(model, 3)
    tokens, _ = batch(spec, 2, 32, 0)
    torch.testing.assert_close(last(first(tokens)), whole(tokens))
    # The last stage has its own copy of the tied table.
    assert last.holds_tied_copy and first.holds_tied_copy and not whole.holds_tied_copy


def test_rms_norm_equals_torch() -> None:
    x = torch.randn(3, 5, 16, dtype=torch.float64, requires_grad=True)
    w = torch.randn(16, dtype=torch.float64, requires_grad=True)
    upstream = torch.randn_like(x)
    ours = torch.autograd.grad(rms_norm(x, w, 1e-5), (x, w), upstream)
    theirs = torch.autograd.grad(torch.nn.functional.rms_norm(x, (16,), w, 1e-5), (x, w), upstream)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)


def test_rotary_keeps_relative_positions() -> None:
    # q at i and k at j meet as if at i+5 and j+5; position 0 is not turned.
    cos, sin = rotary_table(16, 8, 10000.0)
    q, k = torch.randn(1, 1, 1, 8).expand(1, 1, 16, 8), torch.randn(1, 1, 1, 8).expand(1, 1, 16, 8)
    a, b = rotate(q, cos, sin)[0, 0], rotate(k, cos, sin)[0, 0]
    torch.testing.assert_close(a[3] @ b[1], a[8] @ b[6])
    torch.testing.assert_close(a[0], q[0, 0, 0])


@torch.no_grad()
def test_moe_equals_a_loop_over_tokens() -> None:
    spec = read_config(MIXTRAL)
    model = Decoder(spec, 8, [0], embedding=False, head=False)
    initialise(model, 1)
    experts = model.layers["0"].ffn
    x = torch.randn(1, 8, 64)
    wanted = []
    for t in x[0]:
        scores = experts.router.weight @ t
        best = sorted(range(4), key=lambda e: -float(scores[e]))[:2]
        share = torch.softmax(scores[best], 0)
        wanted.append(
            sum(
                s
                * (
                    experts.expert_down[e]
                    @ (torch.nn.functional.silu(experts.expert_gate[e] @ t) * (experts.expert_up[e] @ t))
                )
                for s, e in zip(share, best, strict=True)
            )
        )
    torch.testing.assert_close(experts(x)[0], torch.stack(wanted), rtol=1e-4, atol=1e-6)


def test_storage_count_by_hand() -> None:
    held = torch.zeros(1000)
    with StorageCount([held, held.view(10, 100)]) as count:
        assert count.current_bytes == 4000
        other = held + 1
        third = other * 2
        assert count.current_bytes == 12000
        del other
        assert count.current_bytes == 8000
        fourth = third.view(-1)[:10]
        assert count.current_bytes == 8000
        third.untyped_storage().resize_(0)
        assert count.current_bytes == 4000
        del third, fourth
    assert count.peak_bytes == 12000


def test_phases_add_up_and_nest() -> None:
    recorder = Recorder(Backend(torch.device("cpu"), "gloo"))
    recorder.begin()
    with recorder.span("forward", "0F0"), recorder.span("tp_comm", "all_reduce", "tp"):
        assert not recorder.in_backward
    with recorder.span("backward", "0B0"):
        assert recorder.in_backward
    times = recorder.finish()
    assert sum(times.phases.values()) == pytest.approx(times.total_s)
    assert set(times.phases) == {"host", "forward", "tp_comm", "backward"}
    outer, inner = times.spans[0], times.spans[1]
    assert outer["start_s"] <= inner["start_s"] <= inner["end_s"] <= outer["end_s"]


def test_a_large_model_is_checked_as_a_narrow_copy() -> None:
    config = {
        **LLAMA,
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 14336,
    }
    plan, spec = make_plan("big", Layout(tp=2), config), read_config(config)
    small, small_plan = reduced(spec, plan, 1_000_000)
    assert small.parameters < 1_000_000 and small.n_layers == spec.n_layers
    assert small_plan.layout == plan.layout and small_plan.workload.gbs == plan.workload.gbs
    assert reduced(spec, plan, 10**12) == (spec, plan)
    model = Decoder(small, small_plan.workload.seq_len)
    assert sum(p.numel() for p in model.parameters()) == small.parameters
