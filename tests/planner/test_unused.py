"""What a run states without effect is said: switches, a recomputed module, kernels that nobody measured."""

from __future__ import annotations

import pytest

from hwmodels import cluster
from planner.layout import Layout
from planner.model import load
from planner.predict import predict
from planner.training import Workload

DENSE, EXPERTS = "llama-3-8b", "mixtral-8x7b"
LAYOUT = Layout(tp=8, sp=1)


def said(model: str, layout: Layout = LAYOUT, framework: str = "megatron", **switches: str) -> list[str]:
    """Notes of a prediction that speak of nothing done or of no measurement by name."""
    work = Workload(4096, 16, framework=framework, switches=tuple(switches.items()))
    notes = predict(load(model)[0], cluster.load("dgx-h100:1"), work, layout).notes
    return [n for n in notes if n.startswith(("no effect", "attention_impl", "gemm_impl"))]


def test_expert_switches_of_a_dense_model() -> None:
    (note,) = said(DENSE, moe_permute_fusion="false", moe_dispatcher="deepep")
    assert note == f"no effect: moe_dispatcher, moe_permute_fusion; {load(DENSE)[0].name} has no experts"
    assert said(EXPERTS, moe_permute_fusion="false") == []
    assert said(DENSE) == said(DENSE, fused_norm="false") == []


def test_shared_experts_that_are_not_there() -> None:
    (note,) = said(EXPERTS, moe_shared_overlap="true")
    assert "moe_shared_overlap" in note and note.endswith("has no shared experts")


def test_norms_that_are_part_of_their_projection() -> None:
    layout = Layout(tp=8, sp=1, recompute="selective", recompute_modules=("core_attn", "layernorm"))
    (note,) = said(DENSE, layout)
    assert "recompute module layernorm; megatron fuses every norm" in note
    # the norm before experts is a module of its own, and so are all of them once the switch says so
    assert said(EXPERTS, layout) == said(DENSE, layout, norm_in_linear="false") == said(DENSE, layout, "generic") == []


@pytest.mark.parametrize(
    ("name", "impl", "stands"),
    [
        ("attention_impl", "vllm-fa9", "not measured on hopper"),
        ("attention_impl", "sglang-fa3", ""),
        ("attention_impl", "flash", ""),
        ("gemm_impl", "cublaslt", "not measured on hopper, priced as the sustained serving"),
        ("gemm_impl", "trtllm", ""),
        ("gemm_impl", "vllm-graph", ""),
    ],
)
def test_kernels_that_nobody_measured(name: str, impl: str, stands: str) -> None:
    found = said(DENSE, **{name: impl})
    assert len(found) == bool(stands) and all(f"{name} {impl}: {stands}" in note for note in found)


def test_an_attention_kernel_beside_unfused_attention() -> None:
    (note,) = said(DENSE, attention="unfused", attention_impl="vllm-fa3")
    assert note == "no effect: attention_impl; attention is unfused, without a fused kernel"
