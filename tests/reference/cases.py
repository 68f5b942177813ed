"""Layouts that the reference and the product are compared on: one of each strategy, and random legal ones."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise

from hypothesis import assume
from hypothesis import strategies as st

from hwmodels.cluster import Cluster
from hwmodels.cluster import load as load_cluster
from planner import frameworks, optimizers
from planner.layout import RECOMPUTE, RESHARDS, Layout, RuleContext, divisors, faults
from planner.layout.recompute import MODULES
from planner.model import load as load_model
from planner.model.shape import from_shape
from planner.model.spec import ModelSpec, Moe
from planner.plan import Documents, Lora, Workload
from planner.precision import device_faults, recipe_of, workload_faults
from planner.predict import predict
from planner.results import Step
from planner.routing import Routing
from planner.schedule import get as get_schedule
from tests.reference.models import SMALL
from tests.reference.step import Reference, reference


@dataclass(frozen=True)
class Case:
    """One prediction to make."""

    name: str
    model: str
    cluster: str
    workload: Workload
    layout: Layout

    @property
    def parts(self) -> tuple[ModelSpec, Cluster, Workload, Layout]:
        return model_of(self.model), cluster_of(self.cluster), self.workload, self.layout


@cache
def found(case: Case) -> Step:
    """What the product predicts."""
    return predict(*case.parts)


@cache
def wanted(case: Case) -> Reference:
    """What the reference finds, known differences imitated."""
    return reference(*case.parts)


@cache
def cluster_of(name: str) -> Cluster:
    return load_cluster(name)


@cache
def model_of(name: str) -> ModelSpec:
    """A catalog model, or one of three shapes made for these tests."""
    gpt = {"hidden": 1024, "heads": 16, "vocab": 51200, "seq_len": 1024}
    if name == "gpt":
        return from_shape(name=name, layers=16, ffn_hidden=4096, tied=True, **gpt)
    if name == "gpt-uneven":  # 14 = 16 - 2 layers: three, four, four, three on four stages
        return from_shape(name=name, layers=14, tied=False, **gpt)
    if name == "moe":  # two dense layers lead, eight experts of two after, one shared
        return from_shape(
            name=name, layers=8, n_experts=8, topk=2, moe_ffn_hidden=1024, shared_experts=1, n_dense_layers=2,
            gated=True, bias=False, norm="rms", learned_positions=False, tied=False, kv_heads=4, **gpt,
        )  # fmt: skip
    return SMALL[name]() if name in SMALL else load_model(name)[0]


def _case(name: str, model: str, cluster: str, framework: str, gbs: int, seq: int, precision: str = "bf16",
          optimizer: str = "adamw", **degrees: object) -> Case:  # fmt: skip
    workload = Workload(seq, gbs, precision, optimizer, framework)
    return Case(name, model, cluster, workload, Layout(**degrees))  # type: ignore[arg-type]


def _trained(name: str, model: str, cluster: str, gbs: int, seq: int, layout: Layout, precision: str = "bf16",
             framework: str = "megatron", optimizer: str = "adamw", **rest: object) -> Case:  # fmt: skip
    """A case about precision, optimizer, adapters or documents."""
    return Case(name, model, cluster, Workload(seq, gbs, precision, optimizer, framework, **rest), layout)  # type: ignore[arg-type]


H, A, CPU, B = "dgx-h100:2", "dgx-a100:1", "cpu-local", "hgx-b200:1"
EVERYWHERE = Lora(8, ("qkv", "o", "up", "down"), 0.1)
INTER = "interleaved-1f1b"
CASES: tuple[Case, ...] = (
    _case("dp", "llama-3.2-1b", H, "generic", 64, 4096, dp=16, mbs=2),
    _case("dp one micro-batch", "gpt", A, "megatron-2021", 8, 1024, "fp16", dp=8),
    _case("zero-1", "llama-3.2-1b", H, "megatron", 64, 4096, dp=16, zero_stage=1),
    _case("zero-1 deepspeed", "gpt", A, "deepspeed", 32, 1024, "fp16", dp=8, zero_stage=1, mbs=2),
    _case("zero-2", "gpt", A, "deepspeed", 32, 1024, dp=8, zero_stage=2, mbs=2),
    _case("zero-2 once a step", "llama-3.1-8b", H, "generic", 32, 4096, dp=16, zero_stage=2),
    _case("zero-3", "llama-3.1-8b", H, "fsdp2", 32, 4096, dp=16, zero_stage=3),
    _case("zero-3 generic", "llama-3.1-8b", H, "generic", 64, 4096, dp=16, zero_stage=3, recompute="full"),
    _case("zero-3 composer", "gpt", A, "composer", 16, 1024, dp=8, zero_stage=3, mbs=2),
    _case("hsdp", "llama-3.1-8b", H, "fsdp2", 32, 4096, dp=16, zero_stage=3, fsdp=8),
    _case("hsdp zero-1", "llama-3.2-1b", H, "megatron", 32, 4096, dp=16, zero_stage=1, fsdp=4),
    _case("tp", "llama-3.1-8b", A, "megatron", 8, 4096, tp=8),
    _case("tp over kv heads", "qwen2.5-1.5b", A, "megatron", 8, 4096, tp=4, dp=2),
    _case("tp sp", "llama-3.1-8b", A, "megatron", 8, 4096, tp=8, sp=1, recompute="selective"),
    _case("tp sp 2022", "gpt", A, "megatron-2022", 8, 1024, "fp16", tp=4, sp=1, dp=2, recompute="selective", mbs=2),
    _case("tp sgd", "gpt", A, "deepspeed-2022", 8, 1024, "fp16", "sgd", tp=2, dp=4, zero_stage=1),
    _case("tp sgd blocking", "gpt", A, "bigscience-2022", 8, 1024, "fp16", "sgd", tp=4, pp=2, mbs=2, recompute="full"),
    _case("tp bf16 blocking", "gpt", A, "bigscience-2022", 16, 1024, tp=2, pp=2, dp=2, zero_stage=1, recompute="full"),
    _case("odd scores", "gpt", A, "deepspeed-2022", 8, 1024, "fp16", tp=8, zero_stage=0, recompute="full"),
    _case("odd vocabulary", "llama-3.1-8b", H, "megatron", 16, 4096, tp=8, sp=1, dp=2, zero_stage=1),
    _case("gpipe", "gpt", A, "generic", 16, 1024, pp=4, dp=2, schedule="gpipe"),
    _case("1f1b", "gpt", A, "megatron-2021", 32, 1024, "fp16", tp=2, pp=4, mbs=2, recompute="full"),
    _case("1f1b uneven", "gpt-uneven", A, "megatron", 16, 1024, pp=4, dp=2, zero_stage=1),
    _case("interleaved", "gpt", H, "megatron-2021", 32, 1024, "fp16", tp=2, pp=4, vpp=2, dp=2, schedule=INTER),
    _case("interleaved sp zero-1", "llama-3.1-8b", H, "megatron", 16, 4096, tp=2, sp=1, pp=4, vpp=4, dp=2,
          zero_stage=1, schedule=INTER, recompute="selective"),
    _case("interleaved zero-3", "gpt", H, "fsdp2", 32, 1024, pp=2, vpp=4, dp=8, zero_stage=3, schedule=INTER),
    _case("zb-h1", "gpt", A, "generic", 32, 1024, tp=2, pp=4, schedule="zb-h1"),
    _case("zb-h1 sp recompute", "llama-3.1-8b", H, "generic", 16, 4096, tp=4, sp=1, pp=4, schedule="zb-h1",
          recompute="full"),
    _case("zb-h1 fsdp", "llama-3.1-8b", H, "fsdp2", 32, 4096, pp=4, dp=4, zero_stage=3, schedule="zb-h1"),
    _case("interleaved zb", "gpt", A, "generic", 32, 1024, pp=4, vpp=2, dp=2, zero_stage=1, schedule="interleaved-zb"),
    _case("zb-v", "llama-3.2-1b", H, "generic", 32, 4096, pp=4, vpp=2, dp=4, schedule="zb-v"),
    _case("zb-v moe", "moe", A, "generic", 16, 1024, pp=4, vpp=2, dp=2, ep=2, schedule="zb-v", recompute="selective"),
    _case("dualpipe-v", "deepseek-v2-lite", H, "fsdp2", 32, 2048, pp=4, vpp=2, dp=4, ep=4, zero_stage=1,
          schedule="dualpipe-v"),
    _case("dualpipe-v node", "moe", A, "generic", 16, 1024, pp=4, vpp=2, dp=2, ep=2, schedule="dualpipe-v"),
    _case("dualpipe", "moe", H, "generic", 32, 1024, pp=4, dp=4, ep=4, zero_stage=1, schedule="dualpipe"),
    _case("dualpipe alone", "gpt", A, "generic", 16, 1024, pp=8, schedule="dualpipe", recompute="full"),
    _case("uneven", "gpt", A, "generic", 16, 1024, pp=4, dp=2, stage_layers=(2, 5, 5, 4)),
    _case("ends alone", "gpt", A, "megatron", 16, 1024, pp=4, dp=2, zero_stage=1, stage_layers=(0, 8, 8, 0),
          recompute="full"),
    _case("uneven interleaved", "moe", A, "generic", 16, 1024, pp=2, vpp=2, dp=4, ep=2, schedule=INTER,
          stage_layers=(1, 2, 3, 2)),
    _case("uneven by default", "deepseek-v2-lite", H, "generic", 32, 2048, pp=4, dp=4, ep=4),
    _case("uneven zb-v", "gpt-uneven", A, "generic", 16, 1024, pp=4, vpp=2, dp=2, schedule="zb-v"),
    _case("zero-3 pipeline", "llama-3.1-8b", H, "fsdp2", 32, 4096, pp=2, tp=2, dp=4, zero_stage=3),
    _case("tied over stages", "llama-3.2-1b", H, "megatron", 32, 4096, pp=4, dp=4, recompute="full"),
    _case("cp", "llama-3.1-8b", H, "megatron", 8, 8192, cp=4, tp=2, dp=2, zero_stage=1),
    _case("cp without dp", "gpt", A, "megatron", 4, 1024, "fp16", cp=2, tp=4),
    _trained("tp pieces", "llama-3.1-8b", A, 8, 4096, Layout(tp=8, sp=1, recompute="selective"),
             switches=(("tp_gemm_overlap", "true"),)),
    _trained("tp pieces zb", "gpt", A, 32, 1024, Layout(tp=2, sp=1, pp=4, schedule="zb-h1"), framework="generic",
             switches=(("tp_gemm_overlap", "true"),)),
    _trained("tp pieces mla", "deepseek-v2-lite", A, 8, 4096, Layout(tp=2, sp=1, dp=4, ep=8, zero_stage=1),
             switches=(("tp_gemm_overlap", "true"),)),
    _case("fsdp never resharded", "llama-3.1-8b", H, "fsdp2", 64, 4096, dp=16, zero_stage=3, reshard="never"),
    _case("fsdp resharded in a pipeline", "gpt", A, "fsdp2", 32, 1024, dp=2, pp=4, zero_stage=3, reshard="always"),
    _case("megatron fsdp never resharded", "gpt", A, "megatron", 32, 1024, dp=2, pp=4, zero_stage=3, reshard="never"),
    _case("hsdp never resharded", "moe", H, "composer", 32, 1024, dp=16, fsdp=8, zero_stage=3, reshard="never"),
    _case("fsdp of megatron", "llama-3.1-8b", H, "megatron", 64, 4096, dp=16, zero_stage=3),
    _case("fsdp of megatron pipeline", "gpt", A, "megatron", 32, 1024, dp=2, pp=4, zero_stage=3),
    _case("zero-2 of megatron pipeline", "gpt", A, "megatron", 32, 1024, dp=2, pp=4, zero_stage=2),
    _case("cp all-gather", "llama-3.1-8b", H, "fsdp2", 16, 8192, cp=4, dp=4, zero_stage=3),
    _case("cp ring", "llama-3.1-8b", H, "megatron", 16, 8192, cp=8, dp=2, zero_stage=1, recompute="selective"),
    _case("cp ring over nodes", "gpt", H, "generic", 2, 1024, tp=2, sp=1, cp=8, recompute="full"),
    _case("cp ulysses", "llama-3.1-8b", H, "deepspeed", 16, 8192, tp=2, sp=1, cp=4, dp=2, zero_stage=1),
    _case("cp hierarchical", "llama-3.1-8b", H, "megatron", 16, 8192, tp=2, cp=8, cp_kind="hierarchical",
          cp_ulysses=2, recompute="selective"),
    _case("cp window", "gemma2-2b", H, "megatron", 16, 8192, cp=4, dp=4, zero_stage=1),
    _case("cp near window", "gemma2-2b", H, "megatron", 16, 32768, cp=8, dp=2, cp_kind="hierarchical", cp_ulysses=2),
    _case("cp mla", "deepseek-v2-lite", A, "megatron", 8, 4096, cp=4, dp=2, ep=8, zero_stage=1),
    _case("cp ulysses zb", "gpt", A, "generic", 32, 1024, cp=2, pp=4, schedule="zb-h1", cp_kind="ulysses"),
    _case("moe ep", "moe", H, "megatron", 32, 1024, dp=16, ep=8, zero_stage=1),
    _case("moe ep etp", "moe", H, "megatron", 32, 1024, tp=2, sp=1, dp=8, ep=4, etp=2, recompute="full"),
    _case("moe pipeline", "moe", A, "generic", 16, 1024, pp=4, dp=2, ep=2, recompute="full"),
    _case("moe hsdp", "moe", H, "fsdp2", 32, 1024, dp=16, ep=2, zero_stage=3, fsdp=4),
    _case("moe tp alone", "moe", A, "megatron", 8, 1024, tp=8, sp=1),
    _case("moe etp within tp", "moe", A, "generic", 8, 1024, tp=4, etp=4, sp=1, dp=2),
    _case("mixtral", "mixtral-8x7b", H, "megatron", 16, 4096, tp=2, sp=1, pp=2, dp=4, ep=8, zero_stage=1),
    _case("mla", "deepseek-v2-lite", A, "megatron", 8, 4096, tp=2, sp=1, dp=4, ep=8, zero_stage=1),
    _case("qk norm", "qwen3-0.6b", A, "fsdp2", 8, 4096, dp=8, zero_stage=3),
    _case("window softcap", "gemma2-2b", A, "nemo", 8, 8192, tp=4, sp=1, dp=2),
    _case("parallel block", "phi-2", A, "generic", 8, 2048, dp=8),
    _case("fp32", "gpt", A, "generic", 8, 1024, "fp32", tp=2, dp=4, zero_stage=2),
    _case("mesh", "llama-3.2-1b", "mi300x:1", "primus", 16, 4096, tp=4, sp=1, dp=2, zero_stage=1),
    _case("ours dp", "tiny-llama", CPU, "ours", 8, 128, "fp32", dp=2, mbs=2),
    _case("ours zero-1", "tiny-llama", CPU, "ours", 8, 128, "fp32", dp=2, zero_stage=1),
    _case("ours zero-3", "tiny-llama", CPU, "ours", 8, 128, "fp32", dp=2, zero_stage=3, recompute="full"),
    _case("ours pp", "tiny-llama", CPU, "ours", 8, 128, "fp32", "sgd", pp=2, schedule="gpipe"),
    _case("ours interleaved", "tiny-llama", CPU, "ours", 8, 128, "bf16", pp=2, vpp=2, schedule=INTER),
    _case("ours tp sp", "tiny-llama", CPU, "ours", 4, 128, "fp32", tp=2, sp=1),
)  # fmt: skip

ZERO1, SPLIT = Layout(dp=8, zero_stage=1), Layout(tp=4, sp=1, dp=2, zero_stage=1, recompute="selective")
SHARDED, EXPERTS = Layout(dp=8, zero_stage=3), Layout(tp=2, sp=1, dp=4, ep=4, zero_stage=1)
EXPERTS_H = Layout(tp=2, sp=1, dp=8, ep=4, zero_stage=1)
NARROW = [
    _trained(f"{precision} {framework} {label}", model, B, 16, 1024, layout, precision, framework)
    for precision, framework, label, model, layout in (
        ("fp8", "megatron", "zero-1", "llama-3.2-1b", ZERO1),
        ("fp8-delayed", "nemo", "tp sp", "gpt", SPLIT),
        ("fp8-current", "megatron", "tp sp", "llama-3.1-8b", SPLIT),
        ("fp8-current", "fsdp2", "zero-3", "llama-3.2-1b", SHARDED),
        ("fp8-delayed", "composer", "zero-3", "gpt", SHARDED),
        ("fp8-block", "generic", "experts", "moe", EXPERTS),
        ("fp8-block", "generic", "zero-3", "llama-3.2-1b", SHARDED),
        ("mxfp8", "nemo", "experts", "moe", EXPERTS),
        ("mxfp8", "nemo", "mla", "deepseek-v2-lite", EXPERTS),
        ("mxfp8", "generic", "parallel", "phi-2", ZERO1),
        ("nvfp4", "megatron", "zero-1", "gpt", ZERO1),
        ("nvfp4", "generic", "pipeline", "gpt", Layout(pp=4, dp=2, recompute="full")),
        ("nvfp4", "fsdp2", "zero-3", "llama-3.2-1b", SHARDED),
        ("tf32", "generic", "zero-2", "gpt", Layout(dp=8, zero_stage=2)),
        ("tf32", "fsdp2", "zero-3", "gpt", SHARDED),
    )
]
V_OF_4 = Layout(pp=4, vpp=2, dp=2, schedule="dualpipe-v")
NORMS_AGAIN = Layout(dp=8, recompute="selective", recompute_modules=("layernorm",))
ADAPTED = [
    _trained("lora", "llama-3.1-8b", A, 16, 1024, ZERO1, kind="lora"),
    _trained("lora tp sp", "llama-3.1-8b", A, 16, 1024, SPLIT, kind="lora", lora=EVERYWHERE),
    _trained("lora tp", "gpt", A, 16, 1024, Layout(tp=4, dp=2), "fp16", "megatron-2022", kind="lora", lora=EVERYWHERE),
    _trained("lora fp8", "llama-3.1-8b", B, 16, 1024, SPLIT, "fp8", "nemo", kind="lora"),
    _trained("lora pipeline", "llama-3.2-1b", B, 16, 1024, Layout(pp=4, dp=2), "mxfp8", kind="lora", lora=EVERYWHERE),
    _trained("lora experts", "moe", A, 16, 1024, EXPERTS, kind="lora", lora=EVERYWHERE),
    _trained("lora dualpipe-v", "gpt", A, 16, 1024, V_OF_4, framework="generic", kind="lora", lora=EVERYWHERE),
    _trained("lora layernorm", "moe", A, 16, 1024, NORMS_AGAIN, framework="megatron", kind="lora"),
    _trained("lora mla", "deepseek-v2-lite", A, 16, 1024, EXPERTS, kind="lora", lora=Lora(4, ("qkv",))),
    _trained("lora zero-3", "llama-3.1-8b", A, 16, 1024, SHARDED, framework="fsdp2", kind="lora"),
    _trained("lora parallel", "phi-2", A, 16, 1024, ZERO1, kind="lora", lora=Lora(4, ("qkv", "down"))),
    _trained("qlora", "llama-3.1-8b", A, 16, 1024, ZERO1, kind="lora", lora=Lora(base="nf4", dropout=0.05)),
    _trained("qlora zero-3", "gpt", A, 16, 1024, SHARDED, framework="fsdp2", kind="lora", lora=Lora(base="nf4")),
]
OTHERS = [
    *(
        _trained(f"{optimizer} {label}", model, A, 16, 1024, layout, "bf16", framework, optimizer)
        for optimizer, framework, label, model, layout in (
            ("adamw-bf16", "megatron", "zero-1", "gpt", ZERO1),
            ("adamw-8bit", "fsdp2", "zero-3", "gpt", SHARDED),
            ("sgd-momentum", "composer", "zero-3", "gpt", SHARDED),
            ("muon", "megatron", "tp sp", "llama-3.1-8b", SPLIT),
            ("muon", "generic", "experts", "moe", EXPERTS),
            ("muon", "megatron", "pipeline", "gpt-uneven", Layout(pp=4, dp=2)),
            ("muon", "composer", "eager", "gpt", Layout(dp=8)),
        )
    ),
    _trained("sft packed", "llama-3.1-8b", A, 16, 1024, ZERO1, kind="sft", documents=Documents(300.0, 150_000.0)),
    _trained("packed cp", "llama-3.1-8b", A, 16, 1024, Layout(tp=2, cp=4), documents=Documents(200.0, 60_000.0)),
    _trained("packed window", "gemma2-2b", A, 16, 8192, Layout(tp=4, dp=2), documents=Documents(5e3, 3e7)),
    _trained("sft padded", "llama-3.1-8b", A, 16, 1024, ZERO1, kind="sft",
             documents=Documents(300.0, 150_000.0, "padded")),
    _trained("sft thd", "llama-3.1-8b", A, 16, 1024, ZERO1, kind="sft", documents=Documents(300.0, 150_000.0, "thd")),
    _trained("thd cp", "hybrid", A, 16, 1024, Layout(cp=2, dp=4, recompute="full"),
             documents=Documents(512.0, 300_000.0, "thd")),
    _trained("bf16 gradients", "gpt", A, 16, 1024, ZERO1, grad_dtype="bf16"),
    _trained("fp32 gradients", "gpt", A, 16, 1024, ZERO1, "fp16", "deepspeed", grad_dtype="fp32"),
    _trained("bf16 main", "gpt", A, 16, 1024, SHARDED, framework="fsdp2", main_dtype="bf16"),
    _trained("bf16 main copy", "gpt", A, 16, 1024, ZERO1, main_dtype="bf16"),
    _trained("remainder", "gpt", A, 16, 1024, ZERO1, main_dtype="remainder"),
]
_OVERLAP = (("moe_exchange_overlap", "true"),)
_MIXED = Layout(tp=2, sp=1, dp=8, ep=4, etp=2, zero_stage=1)
_INTERLEAVED = Layout(pp=2, vpp=2, dp=8, ep=8, zero_stage=1, schedule=INTER)
ROUTED = [
    _trained(f"experts {label}", model, H, 32, 1024, layout, precision, framework, **rest)
    for label, model, layout, precision, framework, rest in (
        ("deepep", "moe", _MIXED, "bf16", "nemo", {"switches": (("moe_dispatcher", "deepep"),)}),
        ("deepep narrow", "moe", EXPERTS_H, "fp8-block", "generic", {"switches": (("moe_dispatcher", "deepep"),)}),
        ("hybridep overlap", "moe", _INTERLEAVED, "bf16", "nemo",
         {"switches": (*_OVERLAP, ("moe_dispatcher", "hybridep"), ("moe_delay_wgrad", "true"))}),
        ("overlap", "deepseek-v2-lite", Layout(dp=16, ep=8, zero_stage=1), "bf16", "megatron", {"switches": _OVERLAP}),
        ("overlap dualpipe", "moe", Layout(pp=4, dp=4, ep=4, schedule="dualpipe"), "bf16", "generic",
         {"switches": _OVERLAP}),
        ("allgather", "mixtral-8x7b", Layout(tp=2, sp=1, dp=8, ep=8, etp=2, zero_stage=1), "bf16", "megatron",
         {"switches": (("moe_dispatcher", "allgather"), ("moe_permute_fusion", "false"))}),
        ("shared overlap", "moe", EXPERTS_H, "bf16", "megatron", {"switches": (("moe_shared_overlap", "true"),)}),
        ("loop", "moe", EXPERTS_H, "fp8-current", "nemo", {"switches": (("moe_expert_gemm", "loop"),)}),
        ("graphed", "moe", EXPERTS_H, "bf16", "megatron", {"switches": (("graphed", "attn+moe_router"),)}),
        ("losses", "deepseek-v2-lite", EXPERTS_H, "bf16", "generic",
         {"switches": (("moe_z_loss", "true"), ("moe_router_fusion", "true"))}),
        ("skewed", "moe", _MIXED, "bf16", "generic", {"routing": Routing(skew=1.7)}),
        ("dropping", "moe", _MIXED, "bf16", "megatron", {"routing": Routing(1.7, 1.25)}),
        ("padded", "moe", _MIXED, "fp8-current", "generic",
         {"routing": Routing(1.7, 1.5, pad_to_capacity=True)}),
    )
]
ENCODERS = [
    Case(f"{model} {label}", model, A, Workload(seq, 16, precision, "adamw", framework, **rest), layout)
    for model, seq, label, layout, precision, framework, rest in (
        ("vit-like", 256, "dp", Layout(dp=8, zero_stage=1, mbs=2), "bf16", "megatron", {}),
        ("vit-like", 256, "tp sp", Layout(tp=2, sp=1, dp=4, recompute="full"), "fp16", "megatron-2022", {}),
        ("vit-like", 256, "pipeline", Layout(pp=4, dp=2, schedule="zb-h1"), "bf16", "generic", {}),
        ("seeing", 1024, "frozen", Layout(dp=8, zero_stage=1, mbs=2), "bf16", "megatron", {"images": 3.0}),
        ("seeing", 1024, "trained", Layout(tp=2, sp=1, dp=4, recompute="full"), "bf16", "megatron",
         {"images": 1.5, "vision": "trained"}),
        ("seeing", 1024, "pipeline", Layout(pp=2, cp=2, dp=2), "bf16", "generic", {"images": 2.0}),
        ("seeing", 1024, "zero-3", SHARDED, "bf16", "fsdp2", {"images": 2.0}),
        ("seeing", 1024, "lora", Layout(dp=8), "bf16", "generic", {"images": 2.0, "kind": "lora", "lora": EVERYWHERE}),
        ("bert-like", 512, "cp", Layout(cp=2, dp=4, zero_stage=1), "bf16", "megatron", {}),
        ("bert-like", 512, "unfused", Layout(tp=2, sp=1, pp=2, dp=2), "fp16", "megatron-2022", {}),
        ("bert-like", 512, "zb", Layout(pp=2, dp=4, schedule="zb-h1"), "bf16", "fsdp2", {}),
        ("bert-like", 512, "lora", Layout(dp=8), "bf16", "generic", {"kind": "lora", "lora": EVERYWHERE}),
    )
]
STEPS = [
    _trained(f"prediction {label}", model, A, 16, 1024, layout, precision, framework, mtp_layers=depth, **rest)
    for label, model, layout, precision, framework, depth, rest in (
        ("zero-1", "moe", EXPERTS, "bf16", "megatron", 1, {}),
        ("pipeline", "moe", Layout(pp=4, dp=2, ep=2, recompute="full"), "bf16", "generic", 1, {}),
        ("tied", "gpt", Layout(tp=2, pp=2, dp=2, recompute="selective"), "fp16", "megatron-2022", 2, {}),
        ("zb", "llama-3.2-1b", Layout(pp=2, dp=4, schedule="zb-h1"), "bf16", "generic", 1, {}),
        ("zero-3", "deepseek-v2-lite", SHARDED, "bf16", "fsdp2", 1, {}),
        ("lora", "llama-3.1-8b", SPLIT, "bf16", "nemo", 1, {"kind": "lora", "lora": EVERYWHERE}),
    )
]
KINDS = [
    _trained(f"{model} {label}", model, cluster, 16, 1024, layout, precision, framework, **rest)
    for model, label, cluster, layout, precision, framework, rest in (
        ("hybrid", "dp", A, ZERO1, "bf16", "megatron", {}),
        ("hybrid", "tp sp cp", A, Layout(tp=2, sp=1, cp=2, dp=2), "bf16", "megatron", {}),
        ("hybrid", "cp copies groups", A, Layout(tp=2, cp=4), "bf16", "megatron", {}),
        ("hybrid", "pp full", A, Layout(pp=4, dp=2, recompute="full"), "bf16", "generic", {}),
        ("hybrid", "zb", A, Layout(pp=2, dp=4, schedule="zb-h1"), "bf16", "generic", {}),
        ("hybrid", "zero-3", A, SHARDED, "bf16", "fsdp2", {}),
        ("hybrid", "fp8", B, ZERO1, "fp8", "megatron", {}),
        ("hybrid", "lora", A, ZERO1, "bf16", "generic", {"kind": "lora", "lora": EVERYWHERE}),
        ("jamba-like", "ep", A, Layout(dp=8, ep=4, zero_stage=1), "bf16", "megatron", {}),
        ("jamba-like", "tp", A, Layout(tp=4, sp=1, dp=2, recompute="full"), "bf16", "megatron", {}),
        ("jamba-like", "zb", A, Layout(pp=2, dp=4, schedule="zb-h1"), "bf16", "generic", {}),
        ("delta", "cp ep", A, Layout(cp=2, dp=4, ep=4, zero_stage=1), "bf16", "megatron", {}),
        ("delta", "tp sp", A, Layout(tp=4, sp=1, dp=2, ep=2), "bf16", "megatron", {}),
        ("delta", "zero-3", A, SHARDED, "bf16", "fsdp2", {}),
        ("mixed", "tp cp", A, Layout(tp=2, cp=2, dp=2), "bf16", "megatron", {}),
        ("mixed", "unfused", A, Layout(tp=2, dp=4), "fp16", "megatron-2022", {}),
        ("mixed", "dropout", A, Layout(dp=8), "fp16", "megatron-2021", {}),
    )
]  # fmt: skip
MLA, MOE = "deepseek-v2-lite", "moe"
PP4 = {"pp": 4, "dp": 2}
RECOMPUTED = [
    _case(f"recompute {name}", model, B if "fp8" in precision else A, framework, 16, 1024, precision, **degrees)
    for name, model, framework, precision, degrees in (
        ("mlp", "gpt", "megatron", "bf16", {"tp": 2, "dp": 4, "recompute": "selective", "recompute_modules": ("mlp",)}),
        ("mlp layernorm", "llama-3.2-1b", "generic", "bf16", {"tp": 2, "sp": 1, "dp": 4, "recompute": "selective",
                                                             "recompute_modules": ("layernorm", "mlp")}),
        ("moe parts", MOE, "megatron", "bf16", {"dp": 8, "ep": 4, "recompute": "selective", "recompute_modules": (
            "core_attn", "moe_act", "layernorm", "shared_experts")}),
        ("moe", MOE, "generic", "fp8-block", {"dp": 8, "ep": 2, "recompute": "selective", "recompute_modules": (
            "layernorm", "mlp", "moe")}),
        ("mla", MLA, "megatron", "bf16", {"tp": 2, "sp": 1, "dp": 4, "ep": 4, "recompute": "selective",
                                          "recompute_modules": ("layernorm", "mla_up_proj", "mlp", "moe_act")}),
        ("parallel", "phi-2", "generic", "bf16", {"dp": 8, "recompute": "selective",
                                                  "recompute_modules": ("layernorm", "mlp")}),
        ("uniform 3", "gpt", "megatron", "bf16", {**PP4, "recompute": "full", "recompute_layers": (3,)}),
        ("uniform 8", MOE, "generic", "bf16", {"dp": 8, "ep": 2, "recompute": "full", "recompute_layers": (8,)}),
        ("block 1", MOE, "megatron", "bf16", {**PP4, "recompute": "block", "recompute_layers": (1,)}),
        ("block by stage", "gpt", "generic", "fp16", {**PP4, "recompute": "block", "recompute_layers": (3, 2, 1, 0)}),
        ("block all", "gpt", "generic", "bf16", {"pp": 2, "vpp": 2, "dp": 4, "schedule": INTER, "recompute": "block"}),
        ("every 2", "llama-3.2-1b", "fsdp2", "bf16", {"dp": 8, "zero_stage": 3, "recompute": "every"}),
        ("every 3", "gpt-uneven", "fsdp2", "bf16", {**PP4, "recompute": "every", "recompute_layers": (3,)}),
        ("early full", "llama-3.2-1b", "fsdp2", "bf16", {"dp": 8, "zero_stage": 3, "recompute": "full"}),
        ("op", "llama-3.2-1b", "fsdp2", "bf16", {"tp": 2, "sp": 1, "dp": 4, "zero_stage": 3, "recompute": "op"}),
        ("op moe", MOE, "fsdp2", "bf16", {"dp": 8, "ep": 2, "zero_stage": 3, "recompute": "op"}),
        ("op gpt", "gpt", "fsdp2", "fp32", {"dp": 8, "zero_stage": 3, "recompute": "op"}),
        ("op mla", MLA, "generic", "bf16", {"tp": 2, "sp": 1, "dp": 4, "recompute": "op"}),
    )
]
ROUTED.append(_trained("experts fused", "moe", B, 16, 1024, EXPERTS, "mxfp8", "nemo", switches=(
    ("moe_expert_gemm", "grouped"), ("moe_fused_mlp", "true"))))  # fmt: skip
COMPILED = [
    _trained(f"compiled {label}", "llama-3.2-1b", A, 16, 1024, layout, framework=framework,
             switches=(("torch_compile", "true"), *more))
    for label, layout, framework, more in (
        ("fsdp2", Layout(dp=8, zero_stage=3, recompute="op"), "fsdp2", ()),
        ("tp", Layout(tp=2, sp=1, dp=4, zero_stage=3), "fsdp2", (("fused_cross_entropy", "true"),)),
        ("dropout", Layout(dp=8), "composer", (("dropout", "true"),)),
    )
]
_APART = (("apart_gradients", "true"), ("unpads_attention", "true"), ("logged_losses", "2"))
EAGER = [
    _trained(f"eager {label}", model, A, 16, 1024, layout, precision, framework=framework,
             switches=(*_APART, *more), **rest)
    for label, model, layout, precision, framework, more, rest in (
        ("tp", "gpt", Layout(tp=2, sp=1, dp=4), "bf16", "megatron", (), {}),
        ("grouped queries", "llama-3.2-1b", Layout(dp=8, zero_stage=3), "fp32", "fsdp2", (), {}),
        ("latent experts", "deepseek-v2-lite", Layout(tp=2, sp=1, dp=4, ep=2), "bf16", "generic", (), {}),
        ("compiled", "llama-3.2-1b", Layout(dp=8), "bf16", "generic", (("torch_compile", "true"),), {}),
        ("adapters", "gpt", Layout(dp=8), "bf16", "generic", (), {"kind": "lora", "lora": EVERYWHERE}),
        ("flat", "gpt", Layout(dp=8, zero_stage=3), "bf16", "generic", (("flat_parameters", "true"),), {}),
    )
]
OFFLOADED = [
    _case(f"offload {name}", model, cluster, framework, 16, 1024, **degrees)
    for name, model, cluster, framework, degrees in (
        ("optimizer", "gpt", A, "megatron", {"dp": 8, "zero_stage": 1, "offload_optimizer": 60}),
        ("optimizer zero-2", "gpt", A, "deepspeed", {"dp": 8, "zero_stage": 2, "offload_optimizer": 100}),
        ("parameters", "moe", B, "fsdp2", {"dp": 8, "ep": 2, "zero_stage": 3, "offload_optimizer": 100,
                                          "offload_parameters": 1}),
        ("activations", "gpt", A, "megatron", {"tp": 2, "dp": 4, "offload_activations": 5}),
        ("activations stages", "moe", A, "generic", {"pp": 4, "dp": 2, "offload_activations": 1}),
    )
]
UPDATED = [
    _case(f"updates {name}", model, A, framework, 16, 512, **degrees)
    for name, model, framework, degrees in (
        ("experts one by one", "jamba-like", "megatron-2021", {"tp": 2, "dp": 4}),
        ("experts together", "jamba-like", "primus", {"dp": 8, "ep": 2}),
    )
]
"""Where the largest weight gradient on its way to a main gradient is that of experts."""
ORDERED = [
    _case(f"order {name}", model, cluster, framework, 32, 1024, order=order, **degrees)
    for name, model, cluster, framework, order, degrees in (
        ("pipeline in a node", "gpt", H, "megatron", "tp-cp-pp-dp", {"tp": 2, "pp": 4, "dp": 2, "zero_stage": 1}),
        ("pipeline over nodes", "gpt", H, "megatron", "tp-cp-pp-dp", {"tp": 4, "pp": 4}),
        ("experts", "moe", H, "megatron", "tp-cp-pp-dp",
         {"tp": 2, "sp": 1, "pp": 2, "dp": 4, "ep": 2, "zero_stage": 1}),
        ("shards in two ways", "gpt", H, "generic", "tp-cp-pp-dp", {"tp": 2, "cp": 2, "pp": 2, "dp": 2,
                                                                  "zero_stage": 3, "cp_kind": "ring"}),
        ("hybrid shards in two ways", "gpt", H, "generic", "cp-pp-tp-dp", {"cp": 2, "pp": 2, "dp": 4, "fsdp": 2,
                                                                         "zero_stage": 3}),
        ("tensor parallel over nodes", "gpt", H, "deepspeed", "cp-dp-tp-pp", {"tp": 4, "dp": 4, "zero_stage": 1}),
        ("pipeline first", "gpt-uneven", H, "generic", "pp-dp-cp-tp", {"tp": 2, "sp": 1, "pp": 4, "dp": 2}),
        ("mirrored pipelines", "gpt", H, "generic", "tp-cp-pp-dp",
         {"tp": 4, "pp": 4, "schedule": "dualpipe", "mbs": 2}),
        ("ring over nodes", "gpt", H, "generic", "dp-tp-cp-pp", {"tp": 2, "cp": 4, "dp": 2, "cp_kind": "ring"}),
        ("experts over data parallelism", "moe", H, "generic", "dp-tp-cp-pp",
         {"tp": 2, "sp": 1, "dp": 8, "ep": 8, "fsdp": 2, "zero_stage": 2}),
    )
]  # fmt: skip
CASES += (*EAGER, *UPDATED, *ORDERED)
CASES += (*OFFLOADED, *COMPILED, *NARROW, *ADAPTED, *OTHERS, *ROUTED, *KINDS, *STEPS, *ENCODERS, *RECOMPUTED)

_PRECISIONS = ("bf16", "bf16", "fp16", "fp32", "tf32", "fp8", "fp8-delayed", "fp8-current", "fp8-block")
_MODELS = ("gpt", "gpt-uneven", "moe", "llama-3.2-1b", "qwen3-0.6b", "deepseek-v2-lite", "gemma2-2b", "phi-2",
           "hybrid", "jamba-like", "delta", "mixed")


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """A random layout that keeps every rule."""
    name = draw(st.sampled_from(_MODELS))
    cluster = draw(st.sampled_from((A, H, "mi300x:1", "aws-p4d:2", B)))
    framework = draw(st.sampled_from([n for n in frameworks.names() if n != "ours"]))
    model, world, preset = model_of(name), cluster_of(cluster).n_ranks, frameworks.get(framework)
    tp = draw(st.sampled_from(divisors(world, 8)))
    cp = draw(st.sampled_from(divisors(world // tp, 2)))
    pp = draw(st.sampled_from(divisors(world // tp // cp, 8)))
    dp = world // (tp * cp * pp)
    schedule = draw(st.sampled_from(preset.schedules)) if pp > 1 else "1f1b"
    plan = get_schedule(schedule)
    vpp = plan.vpp_only or (draw(st.sampled_from((2, 4))) if plan.interleaved else 1)
    zero = draw(st.sampled_from(preset.zero_stages)) if dp * cp > 1 else 0
    ep = etp = 1
    if any(isinstance(layer.ffn, Moe) for layer in model.layers):
        ep = draw(st.sampled_from(divisors(tp * cp * dp, 8)))
        etp = draw(st.sampled_from(divisors(tp * cp * dp // ep, 4)))
    mbs = draw(st.sampled_from((1, 2)))
    kinds = ("", *(kind for kind in preset.cp_kinds if kind != "hierarchical")) if cp > 1 else ("",)
    gbs = mbs * dp * pp * draw(st.integers(2, 3))
    stage_layers: tuple[int, ...] = ()
    if pp > 1 and draw(st.booleans()) and model.n_layers >= pp * vpp:
        cuts = sorted(draw(st.permutations(range(1, model.n_layers)))[: pp * vpp - 1])
        stage_layers = tuple(b - a for a, b in pairwise([0, *cuts, model.n_layers]))
    layout = Layout(
        tp=tp, sp=draw(st.integers(0, 1)) if tp > 1 else 0, cp=cp, pp=pp, vpp=vpp, dp=dp, ep=ep, etp=etp,
        zero_stage=zero, fsdp=draw(st.sampled_from((0, *divisors(dp)))) if zero else 0, mbs=mbs,
        recompute=draw(st.sampled_from(RECOMPUTE)), schedule=schedule, stage_layers=stage_layers,
        cp_kind=draw(st.sampled_from(kinds)), order=draw(st.sampled_from((preset.orders[0], *preset.orders))),
        reshard=draw(st.sampled_from(RESHARDS)) if zero == 3 else "default",
    )  # fmt: skip
    if layout.recompute == "selective":
        layout = replace(layout, recompute_modules=draw(st.sampled_from(((), *((m,) for m in MODULES), MODULES))))
    elif layout.recompute in ("full", "block", "every"):
        layout = replace(layout, recompute_layers=draw(st.sampled_from(((), (1,), (2,)))))
    seq = draw(st.sampled_from((512, 1024)))
    lora = draw(st.sampled_from((None, None, None, Lora(), EVERYWHERE, Lora(base="nf4"))))
    documents = draw(st.sampled_from((None, None, Documents(128.0, 2.5e4))))
    precisions = (*_PRECISIONS, "mxfp8", "nvfp4") if cluster == B else _PRECISIONS
    workload = Workload(
        seq, gbs, draw(st.sampled_from(precisions)), draw(st.sampled_from(optimizers.names())), framework,
        "lora" if lora else draw(st.sampled_from(("pretrain", "sft"))), lora, documents,
        draw(st.sampled_from(("", "", "fp32", "bf16"))), draw(st.sampled_from(("fp32", "fp32", "bf16", "remainder"))),
    )  # fmt: skip
    device = cluster_of(cluster).device
    assume(not [*workload_faults(workload, preset), *device_faults(recipe_of(workload, preset), device)])
    assume(not faults(layout, RuleContext.of(model, workload, world)))
    return Case("random", name, cluster, workload, layout)
