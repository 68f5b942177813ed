"""Adapters, packed documents and what a workload refuses, by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hwmodels.cluster import load as load_cluster
from hwmodels.errors import InputError
from planner import frameworks
from planner.adapters import adapter_weights
from planner.flops import model_flops
from planner.layout import Layout, LayoutBatch
from planner.model.shape import from_shape
from planner.model.spec import ModelSpec, Weight
from planner.plan import Documents, Lora, Workload
from planner.predict import predict
from planner.state import block_parameters
from planner.workload.lower import lower
from planner.workload.op import Op

S, H, FFN, V = 512, 1024, 4096, 8192


def llama(layers: int = 4) -> ModelSpec:
    return from_shape(
        name="l", layers=layers, hidden=H, heads=16, kv_heads=4, ffn_hidden=FFN, vocab=V, seq_len=S, gated=True,
        norm="rms", bias=False, learned_positions=False, tied=False,
    )  # fmt: skip


def work(lora: Lora | None = None, precision: str = "bf16", framework: str = "megatron", **rest: object) -> Workload:
    return Workload(S, 8, precision, "adamw", framework, "lora" if lora else "pretrain", lora, **rest)  # type: ignore[arg-type]


def ops_of(workload: Workload) -> list[Op]:
    lowered = lower(llama(), workload, LayoutBatch.of(Layout()), frameworks.get(workload.framework))
    return [op for block in (lowered.embedding, *lowered.layers, lowered.head) for op in block.ops]


def test_frozen_weights_have_no_weight_gradient() -> None:
    ops = ops_of(work(Lora(8, ("o",))))
    weight = [op for op in ops if op.phase == "backward_weight" and op.kind == "gemm"]
    # of the output projection alone: dA is H x 8 and dB 8 x H, over all tokens
    assert sorted(tuple(float(op.dims[d]) for d in "mnk") for op in weight) == [(8, H, S), (H, 8, S)]
    dgrad = [op.name for op in ops if op.name.endswith(".dgrad") and "lora" not in op.name]
    assert dgrad == ["attention.qkv.dgrad", "attention.o.dgrad", "mlp.up.dgrad", "mlp.down.dgrad", "head.dgrad"]


def test_parameters_of_adapters() -> None:
    # qkv is one GEMM of 1024 -> 1024 + 256 + 256: A 1024 x 16, B 16 x 1536; up and gate 1024 -> 8192; down 4096 -> 1024
    expected = {"qkv": 16 * (H + 1536), "o": 16 * 2 * H, "up": 16 * (H + 2 * FFN), "down": 16 * (FFN + H)}
    for module, elements in expected.items():
        found = adapter_weights(llama().layers[0], H, Lora(16, (module,)))
        assert sum(w.parameters for w in found) == elements, module
    # over tp 2, A of a column split and B of a row split stay whole
    batch = LayoutBatch.of(Layout(tp=2))
    _, (layer,), _ = block_parameters(llama(), batch, work(Lora(16, ("qkv", "o"))))
    trained = float(layer.dense - layer.frozen_dense)
    assert trained == 16 * (H + 1536 / 2) + 16 * (H / 2 + H)


def test_state_is_the_adapters_alone() -> None:
    lora = Lora(16, ("qkv", "o"))
    step = predict(llama(), load_cluster("dgx-a100:1"), work(lora), Layout(dp=8))
    n = 4 * (16 * (H + 1536) + 16 * 2 * H)
    held, memory = llama().parameters, step.memory[0].by_category
    assert memory["gradients"] == 4 * n  # fp32
    assert memory["optimizer"] == 12 * n
    assert memory["parameters"] == 2 * (held + n)
    packed = predict(llama(), load_cluster("dgx-a100:1"), work(Lora(16, ("qkv", "o"), base="nf4")), Layout(dp=8))
    matrices = 4 * (H * 1536 + H * H + 3 * H * FFN)
    saved = memory["parameters"] - packed.memory[0].by_category["parameters"]
    assert saved == pytest.approx(matrices * (2 - (0.5 + 1 / 64 + 4 / (64 * 256))), abs=2)


def test_activations_of_frozen_layers() -> None:
    # Kept: the norms' inputs (2 x 2H), q, k, v (2 x 1536), the core's output (2H) and statistics (4 x 16), both
    # halves of the activation's input (2 x 2 FFN). Adapters on o read the core's output: 8 x 2 bytes more.
    lowered = lower(llama(), work(Lora(8, ("o",))), LayoutBatch.of(Layout()), frameworks.get("megatron"))
    per_token = 4 * H + 2 * 1536 + 2 * H + 4 * 16 + 4 * FFN + 2 * 8
    assert float(lowered.layers[0].saved_bytes) == S * per_token
    # dropout keeps its own copy and a mask
    dropped = lower(llama(), work(Lora(8, ("o",), 0.1)), LayoutBatch.of(Layout()), frameworks.get("megatron"))
    assert float(dropped.layers[0].saved_bytes) == S * (per_token + 3 * H)


def test_flops_of_frozen_training_are_four_a_parameter() -> None:
    lora = Lora(16, ("o",))
    matrices = 4 * (H * 1536 + H * H + 3 * H * FFN) + H * V
    attention = 4 * 6 * S * 16 * 128  # 6 s heads (64 + 64)
    tokens = 8 * S
    assert model_flops(llama(), work(lora)) == tokens * (4 * matrices + 6 * 4 * 16 * 2 * H + attention)
    assert model_flops(llama(), work()) == tokens * (6 * matrices + attention)


def test_padded_sequences_run_their_padding_and_thd_ones_do_not() -> None:
    # documents of 100 and 300 tokens in sequences of 512: 200 on average, 61 % padding
    lengths, size = [100, 300], 512
    padded = Workload(size, 8, documents=Documents.of(lengths, "padded"))
    bare = Workload(size, 8, documents=Documents.of(lengths, "thd"))
    assert (padded.tokens_per_sequence, padded.attended_tokens) == (512.0, 512.0)
    assert padded.padding_share == 1.0 - 200.0 / 512.0
    assert (bare.tokens_per_sequence, bare.attended_tokens, bare.padding_share) == (200.0, 250.0, 0.0)
    # tokens: linear work is 200/512; attention E[L²] of each sequence = 50,000 pairs against 512²
    model = llama()
    matrices = model_flops(model, Workload(1, 1)) - 6 * model.n_layers * pairs(model)
    assert model_flops(model, bare) == pytest.approx(8 * (200 * matrices + 6 * model.n_layers * pairs(model) * 50_000))
    assert model_flops(model, padded) == model_flops(model, Workload(size, 8))
    with pytest.raises(InputError, match="packed or padded or thd"):
        Documents(100.0, 20_000.0, "ragged")  # type: ignore[arg-type]


def pairs(model: ModelSpec) -> float:
    """heads (d_qk + d_v) of a layer."""
    a = model.layers[0].softmax
    assert a is not None
    return float(a.n_heads * (a.qk_dim + a.v_dim))


def test_packed_documents_cost_their_own_pairs() -> None:
    # Documents of 100 and 300 tokens: mean 200, mean square 50,000: as equal ones of 250; S/250 of them: S·250/2 pairs
    documents = Documents.of([100, 300])
    assert (documents.mean_tokens, documents.attended_tokens) == (200.0, 250.0)
    core = next(op for op in ops_of(work(documents=documents)) if op.name == "attention.core")
    pairs = S / 250 * 250**2 / 2
    assert float(core.flops()) == pytest.approx(2 * 16 * pairs * (64 + 64), rel=1e-12)
    # 400 documents summed one by one: sum L²/2 over the tokens they have
    lengths = [int(n) for n in np.random.default_rng(1).integers(1, S, 400)]
    own = sum(n * n / 2 for n in lengths) / sum(lengths)
    assert Documents.of(lengths).attended_tokens / 2 == pytest.approx(own, rel=1e-12)


@settings(deadline=None, max_examples=40)
@given(lengths=st.lists(st.integers(1, S), min_size=1, max_size=30))
def test_packing_never_costs_more_than_one_document(lengths: list[int]) -> None:
    packed = Documents.of(lengths)
    assert max(packed.mean_tokens, 1.0) <= packed.attended_tokens * (1 + 1e-12)
    assert packed.attended_tokens <= max(lengths) * (1 + 1e-12)
    one, many = (next(op for op in ops_of(w) if op.name == "attention.core") for w in (work(), work(documents=packed)))
    assert float(many.flops()) <= float(one.flops()) * (1 + 1e-12)


@settings(deadline=None, max_examples=20)
@given(
    rank=st.sampled_from([1, 8, 64]), modules=st.sets(st.sampled_from(["qkv", "o", "up", "down"]), min_size=1),
    tp=st.sampled_from([1, 2, 4]), base=st.sampled_from(["", "nf4"]),
)  # fmt: skip
def test_adapters_take_less_memory_than_full_training(rank: int, modules: set[str], tp: int, base: str) -> None:
    layout, cluster = Layout(tp=tp, dp=8 // tp), load_cluster("dgx-a100:1")
    full = predict(llama(), cluster, work(), layout).memory[0].by_category
    small = predict(llama(), cluster, work(Lora(rank, tuple(sorted(modules)), base=base)), layout).memory[0].by_category
    assert small["gradients"] < full["gradients"] and small["optimizer"] < full["optimizer"]


def test_what_is_refused() -> None:
    with pytest.raises(InputError) as caught:
        Lora(0, ("qkv", "router"), 1.0, "int3")
    assert [f.where for f in caught.value.faults] == [
        f"workload.lora.{k}" for k in ("rank", "modules", "dropout", "base")
    ]
    with pytest.raises(InputError, match="kind pretrain trains every weight"):
        Workload(S, 8, lora=Lora())
    with pytest.raises(InputError, match="a document is cut at seq_len=512"):
        work(documents=Documents(600.0, 360_000.0))
    with pytest.raises(InputError, match="at least the square"):
        Documents(100.0, 9_000.0)
    assert Workload(S, 8, kind="lora").lora == Lora()


def test_adapters_lie_on_weights_that_the_model_has() -> None:
    found = adapter_weights(llama().layers[0], H, Lora(4))
    assert all(isinstance(w, Weight) and not w.bias for w in found)
    assert [w.name for w in found] == ["qkv.lora_a", "q.lora_b", "k.lora_b", "v.lora_b", "o.lora_a", "o.lora_b"]
