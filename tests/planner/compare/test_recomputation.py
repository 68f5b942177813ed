"""Cells about recomputation, and what is taken where a cell is blank."""

from __future__ import annotations

import pytest

from hwmodels.cluster import load as load_cluster
from planner.compare.recomputation import Recomputation, mildest, stated
from planner.compare.software import not_modelled, offloads_of, switches_of
from planner.frameworks import get, of
from planner.layout import Layout
from planner.layout.recompute import DEFAULT_MODULES
from planner.model import load as load_model
from planner.plan import Workload

KINDS = get("generic").recomputes


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("none", Recomputation("none")),
        ("full", Recomputation("full")),
        ("full (uniform, 1 layers)", Recomputation("full")),
        ("full (uniform, 3 layers)", Recomputation("full", layers=(3,))),
        ("full (block, 2 layers)", Recomputation("block", layers=(2,))),
        ("selective", Recomputation("op")),
        ("selective (attention)", Recomputation("selective")),
        ("selective ([moe_act])", Recomputation("selective", ("moe_act",))),
        ("selective ([layernorm mla_up_proj mlp moe_act])",
         Recomputation("selective", ("moe_act", "layernorm", "mla_up_proj", "mlp"))),
        ("modules:mla_up_proj+mlp", Recomputation("selective", ("mla_up_proj", "mlp"))),
        ("selective (op)", Recomputation("op")),
        ("selective (per op)", Recomputation("op")),
        ("selective (every 2nd layer)", Recomputation("every", layers=(2,))),
        ("selective (layer)", Recomputation("every", assumed="recompute every 2nd layer")),
        ("selective (op or layer not stated)", Recomputation("op", assumed="recompute=op")),
        ("sometimes", None),
        ("modules:head", None),
    ],
)  # fmt: skip
def test_cells_are_policies(text: str, found: Recomputation | None) -> None:
    assert stated(text, "op") == found


def test_selective_is_the_attention_core_where_the_framework_means_that() -> None:
    assert stated("selective", get("megatron").selective) == Recomputation("selective")
    assert get("fsdp2").selective == "op"
    assert Recomputation("selective").on(Layout()).recompute_modules == ()
    assert DEFAULT_MODULES == ("core_attn",)


def test_a_blank_cell_is_the_mildest_policy_that_fits() -> None:
    """Llama 3.1 8B on 8 A100 of 80 GiB, ZeRO-1: 16 GiB of weights, 32 of gradients, 12 of states leave 15 or so."""
    model, cluster = load_model("llama-3.1-8b")[0], load_cluster("dgx-a100:1")
    found = []
    for mbs in (1, 16):
        workload = Workload(4096, 128, framework="generic")
        found.append(mildest(model, cluster, workload, Layout(dp=8, zero_stage=3, mbs=mbs), KINDS))
    # mbs 1 saves 32 x 34 x 4096 x 4096 bytes = 18 GiB; 16 of them fit only as inputs
    assert [f.kind for f in found] == ["none", "full"]
    assert "mildest that fits" in found[1].assumed


def test_a_framework_of_selective_ops_tries_those_before_whole_layers() -> None:
    """Llama 3.1 8B, fsdp2 on 8 A100: a sequence of 4,096 fits as it is, 3 by op, 16 as their inputs alone."""
    model, cluster = load_model("llama-3.1-8b")[0], load_cluster("dgx-a100:1")
    workload = Workload(4096, 384, framework="fsdp2", switches=(("fused_cross_entropy", "true"),))
    known = get("fsdp2").recomputes
    found = [mildest(model, cluster, workload, Layout(dp=8, zero_stage=3, mbs=mbs), known) for mbs in (1, 3, 16)]
    assert [f.kind for f in found] == ["none", "op", "full"]


def test_words_about_software_are_switches() -> None:
    assert switches_of("torch.compile; float8") == {"torch_compile": "true"}
    assert switches_of("flash attention; precision=bf16; mp_mode=PURE") == {"attention": "flash", "grad_dtype": "same"}
    words = "Megatron-DeepSpeed, ZeRO optimizer-state sharding, fused softmax kernel"
    assert switches_of(words) == {"attention": "unfused-fused-softmax"}
    found = switches_of("TE 2.11; no tp/pp comm overlap")
    assert found == {"tp_backward_overlap": "false", "p2p_overlap": "false"}
    # torchtitan's async TP needs torch.compile
    assert switches_of("float8; async TP") == {"torch_compile": "true"}
    assert switches_of("") == {}


def test_words_about_host_memory_are_fields_of_the_layout() -> None:
    assert offloads_of("HF Transformers + DeepSpeed ZeRO; optimizer offload") == {"offload_optimizer": 100}
    assert offloads_of("parameter offload; optimizer-cpu-offload=False") == {"offload_parameters": 1}


def test_words_that_change_nothing_are_named() -> None:
    found = not_modelled("torch.compile; scattered embeddings; grad_accum=4; fp8_params=")
    assert found == ("flag scattered embeddings not modelled",)
    remark = ("flag use_nccl_ub=true not modelled",)
    assert not_modelled("use-nccl-ub=True; no-gradient-accumulation-fusion=True") == remark
    assert not_modelled("moe_flex_dispatcher_backend=hybridep; use-x=False") == ()


def test_compiled_layers_are_fused_and_a_run_may_say_otherwise() -> None:
    plain = of(Workload(1024, 8, framework="fsdp2"))
    assert not (plain.fused_elementwise or plain.fused_norm or plain.fused_residual_norm)
    compiled = of(Workload(1024, 8, framework="fsdp2", switches=(("torch_compile", "true"),)))
    assert compiled.fused_elementwise and compiled.fused_norm and compiled.fused_residual_norm
    assert not compiled.fused_cross_entropy
    partly = of(Workload(1024, 8, framework="fsdp2", switches=(("torch_compile", "true"), ("fused_norm", "false"))))
    assert partly.fused_elementwise and not partly.fused_norm
