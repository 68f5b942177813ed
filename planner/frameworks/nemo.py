"""NeMo, NVIDIA's MLPerf submissions and Megatron-Bridge."""

from __future__ import annotations

from dataclasses import replace

from planner.frameworks.base import HostConstant
from planner.frameworks.megatron import BUCKET_BYTES, MEGATRON
from planner.frameworks.switches import Switches

_NEMO = replace(
    MEGATRON,
    name="nemo",
    sequence_parallel=True,
    tp_gemm_overlap=True,
    grad_dtype="bf16",
    bucket_bytes=BUCKET_BYTES // 2,
    bucket_bytes_per_dp=1_000_000 * 2,
    quantised_params=("delayed", "current", "mx"),
    quantised_activation_input=True,
    bf16_ends=False,
    blank_vpp=12,
    notes="NeMo and NVIDIA's MLPerf submissions: Megatron-Core recipes with sequence parallelism "
    "wherever tp > 1 and its collectives in pieces beside GEMMs (not in NVFP4), distributed optimizer, all overlaps "
    "on; pipelines interleaved unless told otherwise; gradients reduced in bf16; weights in fp8 only with tensor-wide "
    "and MX scales, SwiGLU inputs kept in fp8, every decoder layer in the recipe; fp8 is delayed scaling.",
    source="NeMo performance guide; github mlcommons/training_results_v3.1 NVIDIA gpt3 conf/custom.yaml "
    "(virtual_pipeline_model_parallel_size defaults to 12), training_results_v5.0 llama31_405b conf/custom.yaml "
    "(fp8_recipe defaults to delayed, gradient_accumulation_fusion, FP8_PARAM_GATHER)",
)
_BRIDGE = replace(
    _NEMO,
    name="megatron-bridge-26.04",
    fp8_recipe="fp8-current",
    blank_vpp=1,
    config_mtp=True,
    etp_follows_tp=False,
    moe_router_fusion=True,
    kernel_s=HostConstant(
        35e-6,
        "chosen by hand among 30 to 45 us, where signed errors of the rows of megatron_bridge with one sequence a "
        "micro-batch cross zero: planner fit --preset megatron-bridge-26.04 --rows 40 gives 45 us and 290 ms a step "
        "(mean error 14.0%, 17.6% without either), of which the step time has no cause that is known",
        40,
        0.176,
    ),
    notes="Megatron-Bridge's performance recipes: as nemo, but fp8 is current scaling and a pipeline is interleaved "
    "only where its virtual stages are stated.",
    source="github NVIDIA-NeMo/Megatron-Bridge scripts/performance (fp8_cs, virtual_pipeline_model_parallel_size "
    "null), models/conversion/model_bridge.py (num_nextn_predict_layers to mtp_num_layers), "
    "training/mixed_precision.py (grad_reduce_in_fp32, fp8_param_gather, first_last_layers_bf16), CHANGELOG",
)
_BRIDGE_NEWEST = replace(
    _BRIDGE,
    name="megatron-bridge",
    moe_dispatcher="hybridep",
    notes=f"{_BRIDGE.notes} Experts exchange through HybridEP (releases from 26.06 on).",
    source=f"{_BRIDGE.source}; scripts/performance/configs (moe_flex_dispatcher_backend hybridep)",
)
_BRIDGE_RACK = replace(
    _BRIDGE_NEWEST,
    name="megatron-bridge-rack",
    moe_exchange_overlap=True,
    moe_delay_wgrad=True,
    moe_expert_gemm="grouped",
    moe_fused_mlp=True,
    cuda_graphs=True,
    notes=f"{_BRIDGE_NEWEST.notes} On racks of 72 the whole iteration is one graph, experts are one fused kernel, and "
    "their exchange runs beside another micro-batch.",
    source=f"{_BRIDGE.source}; scripts/performance/configs gpt_oss, qwen, deepseek: GB200 and GB300 with "
    "FP8_MX (cuda_graph_impl full_iteration, moe_a2a_overlap, cutedsl_fused_grouped_mlp)",
)

PRESETS = (
    _NEMO,
    _BRIDGE,
    _BRIDGE_NEWEST,
    _BRIDGE_RACK,
)

ON_RACKS = {"megatron-bridge": "megatron-bridge-rack"}
"""Preset -> that of the same framework's recipes for racks."""


ACROSS_NODES: dict[str, Switches] = {
    "megatron-bridge-26.04": (
        ("moe_dispatcher", "deepep"), ("moe_exchange_overlap", "true"), ("moe_delay_wgrad", "true"),
    ),
}  # fmt: skip
"""Preset -> what its recipes set where experts of one group lie on several nodes. github NVIDIA-NeMo/Megatron-Bridge
scripts/performance/configs/deepseek (H100: enable_deepep, set_moe_a2a_overlap_overrides) and configs/qwen (235B on
H100: moe_a2a_overlap)."""
