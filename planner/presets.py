"""Framework presets: what a training framework does unless a plan says otherwise.

A preset holds switches (which kernels, which dtypes, what overlaps) and at most three host
constants of its own: per kernel, per micro-batch and per step. It never holds an efficiency
or another coefficient: those describe hardware and live in the device. The state of a code
base at another time is another entry of the table ("megatron-2021"), not a branch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from hwmodels.errors import Fault, InputError
from planner.framework import MEGATRON_RECOMPUTES, TORCH_SCHEDULES, FrameworkPreset, HostConstant
from planner.switches import Switches, applied
from planner.training import Workload

__all__ = ["FrameworkPreset", "HostConstant", "get", "instead", "names", "of", "preset_for_source"]

_MEGATRON_BUCKET = 40_000_000 * 4
_MEGATRON = FrameworkPreset(
    name="megatron",
    in_place_loss=True,
    transformer_engine=True,
    logs_memory="allocated",
    main_grad_buffer=True,
    fused_grad_accumulation=True,
    norm_in_linear=True,
    recomputes=MEGATRON_RECOMPUTES,
    zero_stage=1,
    reduce_each_microbatch=True,
    pipeline_keeps_gathered=False,
    bucket_bytes=_MEGATRON_BUCKET,
    bucket_bytes_per_dp=1_000_000 * 4,
    fp8_recipe="fp8-delayed",
    quantised_tp_gather=True,
    fused_norm_quantise=True,
    user_buffers=True,
    moe_expert_gemm="streams",
    moe_router_padding=False,
    vocab_multiple=128,
    notes="Megatron-Core with Transformer Engine as its own launch recipes run it: flash attention, no dropout, fp32 "
    "main gradients, distributed optimizer with overlapped reduce-scatter and all-gather; buckets of 40 M "
    "gradients.",
    source="github NVIDIA/Megatron-LM README (launch flags), megatron/core/distributed/distributed_data_parallel.py"
    " (bucket size max(40e6, 1e6*dp) parameters)",
)
_MEGATRON_DEFAULTS = replace(
    _MEGATRON,
    name="megatron-defaults",
    dropout=True,
    zero_stage=0,
    overlap_grad_reduce=False,
    overlap_param_gather=False,
    notes="Megatron-Core with every argument that is not stated at its default: dropout 0.1, no distributed optimizer, "
    "gradients reduced and parameters gathered at the end.",
    source="github NVIDIA/Megatron-LM megatron/training/arguments.py (--hidden-dropout, --attention-dropout, "
    "--use-distributed-optimizer, --overlap-grad-reduce, --overlap-param-gather)",
)
_MEGATRON_2021 = FrameworkPreset(
    name="megatron-2021",
    in_place_loss=True,
    logs_memory="allocated",
    main_grad_buffer=True,
    recomputes=MEGATRON_RECOMPUTES,
    prefetch_params=False,
    interleaved_rounds="pp",
    cp_kinds=(),
    zero_stages=(0,),
    scalings=(),
    moe_expert_gemm="loop",
    moe_permute_fusion=False,
    moe_weighted_activation=False,
    scatter_gather_p2p=True,
    attention="unfused-fused-softmax",
    dropout=True,
    grad_dtype="fp16-else-fp32",
    overlap_grad_reduce=False,
    overlap_param_gather=False,
    tp_backward_overlap=False,
    p2p_overlap=False,
    vocab_multiple=128,
    fused_softmax_keys=2048,
    bucket_bytes=_MEGATRON_BUCKET,
    notes="Megatron-LM of spring 2021 (SC21 paper): batched-GEMM attention with the fused scale-mask-softmax kernel, "
    "dropout 0.1, gradients in fp16 with fp16 compute (accumulate_allreduce_grads_in_fp32 is forced for bf16 "
    "only), one all-reduce after the last backward, no sharded optimizer, blocking pipeline sends. Its "
    "unpipelined SC21 runs used torch's DDP, which overlaps; that is not told apart here.",
    source="Narayanan et al. 2021 (arXiv 2104.04473) section 4; github NVIDIA/Megatron-LM tag v2.5 megatron/model, "
    "megatron/arguments.py, examples/sc21/run_table_1.sh",
)
_DEEPSPEED = FrameworkPreset(
    name="deepspeed",
    cp_kind="ulysses",
    cp_kinds=("ulysses",),
    flat_gradients=True,
    pipeline_communicators=5,
    main_grad_buffer=True,
    recomputes=MEGATRON_RECOMPUTES,
    pipeline_zero_max=1,
    grad_dtype="same",
    zero_stage=1,
    zero1_all_reduce=True,
    overlap_grad_reduce=True,
    overlap_param_gather=False,
    reduce_each_microbatch=True,
    p2p_overlap=False,
    moe_expert_gemm="loop",
    moe_permute_fusion=False,
    moe_weighted_activation=False,
    bucket_bytes=500_000_000 * 2,
    notes="DeepSpeed with a recent PyTorch: flash attention, gradients in the compute dtype, overlap_comm on, buckets "
    "of 5e8 elements, FusedAdam.",
    source="DeepSpeed configuration reference: zero_optimization.reduce_bucket_size 5e8, allgather_bucket_size 5e8",
)
_DEEPSPEED_2022 = replace(
    _DEEPSPEED,
    name="deepspeed-2022",
    cp_kinds=(),
    in_place_loss=True,
    zero_stage=0,
    grad_dtype="fp16-else-fp32",
    kernel_s=HostConstant(
        50e-6,
        "least mean absolute error over vtrain_a100_multi and vtrain_a100_single, 47 and 240 rows, in steps of 4 us "
        "(planner.compare.host_fit); a constant a micro-batch or a step beside it gains less than a hundredth",
        287,
        0.092,
    ),
    scalings=(),
    attention="unfused-fused-softmax",
    dropout=True,
    overlap_grad_reduce=False,
    overlap_param_gather=False,
    tp_backward_overlap=False,
    scatter_gather_p2p=True,
    vocab_multiple=128,
    notes="Megatron-DeepSpeed of 2021-2022: Megatron's unfused attention with the fused softmax kernel, "
    "synchronous all-reduces of tensor parallelism, activations and gradients of stages sent in tp pieces "
    "(pipe_partitioned and grad_partitioned), gradients all-reduced after the pipeline has drained, in stage 1 too, "
    "whose optimizer gathers the parameters after its step; bf16 gradients accumulate in fp32; ZeRO is off unless "
    "stated.",
    source="github bigscience-workshop/Megatron-DeepSpeed megatron/mpu/layers.py; DeepSpeed runtime/pipe/engine.py "
    "(is_pipe_partitioned, _exec_reduce_grads), runtime/bf16_optimizer.py, runtime/engine.py "
    "(contiguous_gradients off in stage 1), "
    "runtime/zero/stage_1_and_2.py (buffered_reduce_fallback); DeepSpeed configuration reference (stage 0)",
)
_NEMO = replace(
    _MEGATRON,
    name="nemo",
    sequence_parallel=True,
    tp_gemm_overlap=True,
    grad_dtype="bf16",
    bucket_bytes=_MEGATRON_BUCKET // 2,
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
        "the 38 rows of megatron_bridge that it changes, all with experts, in steps of 5 us: signed errors of the rows "
        "with one sequence a micro-batch cross zero at 30 to 45 us; the mean error goes on falling above, since device "
        "time of narrow experts is short",
        38,
        0.21,
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

_PRESETS: dict[str, FrameworkPreset] = {
    p.name: p
    for p in (
        FrameworkPreset(
            name="generic",
            reduce_each_microbatch=True,
            schedules=(*TORCH_SCHEDULES, "dualpipe"),
            quantised_params=("delayed", "current", "block", "mx"),
            quantised_tp_gather=True,
            quantised_dispatch=True,
            fused_norm_quantise=True,
            notes="A well-made framework: flash attention, fused kernels, fp32 gradients, overlapped reduction in DDP's"
            " 25 MiB buckets. It runs every pipeline schedule; a search tries the zero-bubble and dual ones when "
            "asked, since few frameworks have them.",
            source="PyTorch DistributedDataParallel documentation (bucket_cap_mb=25)",
        ),
        replace(
            _MEGATRON,
            kernel_s=HostConstant(
                35e-6, "that of megatron-bridge: the same modules of Transformer Engine, started alike", 0, 0.3
            ),
            step_s=HostConstant(
                0.04,
                "least mean absolute error over the dense rows of simumax_b200, in steps of 10 ms",
                17,
                0.036,
            ),
        ),
        _MEGATRON_DEFAULTS,
        _MEGATRON_2021,
        replace(
            _MEGATRON_2021,
            name="megatron-2022",
            fused_grad_accumulation=True,
            tp_backward_overlap=True,
            fused_softmax_keys=4096,
            notes="Megatron-LM of 2022 (Korthikanti et al.): as megatron-2021, plus sequence parallelism and selective "
            "recomputation of the attention core, which rows and plans switch on by `sp` and `recompute`.",
            source="Korthikanti et al. 2022 (arXiv 2205.05198) sections 4-5; github NVIDIA/Megatron-LM tag v3.0",
        ),
        _DEEPSPEED,
        _DEEPSPEED_2022,
        replace(
            _DEEPSPEED_2022,
            name="bigscience-2022",
            blocking_launches=True,
            kernel_s=HostConstant(
                130e-6,
                "least mean absolute error over bloom_a100 (planner.compare.host_fit); a "
                "constant a micro-batch or a step beside it gains less than a hundredth",
                81,
                0.045,
            ),
            notes="Megatron-DeepSpeed as BigScience ran it on Jean Zay: deepspeed-2022 with CUDA_LAUNCH_BLOCKING=1, "
            "without which large runs hung.",
            source="github bigscience-workshop/bigscience train/tr11-176B-ml/tr11-176B-ml.slurm",
        ),
        FrameworkPreset(
            name="fsdp2",
            shard_copies=True,
            cp_kind="all-gather",
            cp_kinds=("all-gather", "ring"),
            logs_memory="reserved",
            schedules=TORCH_SCHEDULES,
            searched_schedules=TORCH_SCHEDULES,
            interleaved_rounds="equal",
            split_keeps_graph=True,
            recompute_stops_early=True,
            selective="op",
            compute_copy=False,
            quantised_params=("current",),
            bf16_ends=False,
            grad_dtype="fp32",
            zero_stage=3,
            reduce_each_microbatch=True,
            notes="PyTorch FSDP2 as torchtitan uses it: one group a layer, prefetch of the next group, copies between "
            "its buffers and the parameters, reductions in fp32, reshard after forward without a pipeline, SDPA flash "
            "attention, eager elementwise kernels unless compiled; float8 with dynamic tensor-wide scales and float8 "
            "all-gather.",
            attention_impl="flashattn-fa2",
            fused_elementwise=False,
            fused_norm=False,
            source="PyTorch scaled_dot_product_attention (FlashAttention-2); github pytorch/torchtitan "
            "torchtitan/models/llama3/infra/parallelize.py; MixedPrecisionPolicy(reduce_dtype=float32); "
            "torchtitan docs/float8.md (enable_fsdp_float8_all_gather); pytorch torch/distributed/fsdp/_fully_shard/"
            "_fsdp_collectives.py",
        ),
        FrameworkPreset(
            name="composer",
            cp_kinds=(),
            attention_impl="flashattn-fa2",
            recompute_stops_early=True,
            recomputes=MEGATRON_RECOMPUTES,
            skips_masked=False,
            compute_copy=False,
            fp8_recipe="fp8-delayed",
            grad_dtype="same",
            zero_stage=3,
            fused_elementwise=False,
            fused_norm=False,
            fused_cross_entropy=True,
            reduce_each_microbatch=True,
            fused_optimizer=False,
            notes="MosaicML Composer with llm-foundry: FSDP1, one group a block, FlashAttention-2 with MPT's ALiBi "
            "bias; non-reentrant checkpoints; the masked half is taken as computed, which its own rows of 8,000 tokens "
            "and more suggest and no code was read for; eager elementwise kernels. The passes of eager norms and "
            "activations stand for casts of mixed precision that are not lowered: with those of the code alone its "
            "rows are 10 to 18 % off. Eager decoupled AdamW, flash-attn's cross entropy.",
            source="github mosaicml/llm-foundry scripts/train/benchmarking/submit_benchmarks.py "
            "(activation_checkpointing_reentrant, low_precision_layernorm), llmfoundry/models/layers/norm.py; composer "
            "mixed_precision DEFAULT",
        ),
        _NEMO,
        _BRIDGE,
        _BRIDGE_NEWEST,
        _BRIDGE_RACK,
        replace(
            _MEGATRON,
            name="primus",
            fused_grad_accumulation=False,
            notes="AMD Primus with the Megatron backend: the switches of megatron on ROCm, without the GEMM that adds "
            "into the main gradient.",
            source="github AMD-AGI/Primus examples/megatron/configs (gradient_accumulation_fusion: false)",
        ),
        FrameworkPreset(
            name="ours",
            shard_copies=True,
            cp_kind="all-gather",
            cp_kinds=("all-gather",),
            schedules=TORCH_SCHEDULES,
            searched_schedules=TORCH_SCHEDULES,
            interleaved_rounds="equal",
            split_keeps_graph=True,
            compute_copy=False,
            recomputes=("none", "selective", "full"),
            overlap_param_gather=False,
            sp_saves_gathered=True,
            zero1_all_reduce=True,
            zero1_broadcast=True,
            reduce_each_microbatch=True,
            attention="sdpa-cpu",
            tp_backward_overlap=False,
            clips_gradients=False,
            grad_dtype="same",
            fused_elementwise=False,
            fused_norm=False,
            overlap_split_reduce=False,
            notes="The executor of this project on CPU and gloo: scaled_dot_product_attention, PyTorch's eager "
            "operators, DDP with 25 MiB buckets or FSDP2, torch.distributed.pipelining.",
            source="package executor",
        ),
    )
}

_SOURCES: tuple[tuple[str, str], ...] = (
    ("Megatron-LM SC21", "megatron-2021"),
    ("Korthikanti", "megatron-2022"),
    ("NeMo container 25.", "megatron-bridge-26.04"),
    ("NeMo container 26.02", "megatron-bridge-26.04"),
    ("NeMo container 26.04", "megatron-bridge-26.04"),
    ("Megatron-Bridge", "megatron-bridge"),
    ("NeMo docs", "nemo"),
    ("Megatron-LM functional-test", "megatron-defaults"),
    ("SimuMax", "megatron"),
    ("torchtitan", "fsdp2"),
    ("llm-foundry", "composer"),
    ("BigScience", "bigscience-2022"),
    ("vTrain", "deepspeed-2022"),
    ("MLPerf", "nemo"),
    ("Primus", "primus"),
)
"""Part of a measurement's `source` -> preset; the first that matches, case ignored."""


_ON_RACKS = {"megatron-bridge": "megatron-bridge-rack"}
"""Preset -> that of the same framework's recipes for racks."""


_ACROSS_NODES: dict[str, Switches] = {
    "megatron-bridge-26.04": (
        ("moe_dispatcher", "deepep"), ("moe_exchange_overlap", "true"), ("moe_delay_wgrad", "true"),
    ),
}  # fmt: skip
"""Preset -> what its recipes set where experts of one group lie on several nodes. github NVIDIA-NeMo/Megatron-Bridge
scripts/performance/configs/deepseek (H100: enable_deepep, set_moe_a2a_overlap_overrides) and configs/qwen (235B on
H100: moe_a2a_overlap)."""


def names() -> tuple[str, ...]:
    """Names of all presets."""
    return tuple(_PRESETS)


def get(name: str) -> FrameworkPreset:
    """The preset called `name`; `InputError` with the known names otherwise."""
    try:
        return _PRESETS[name]
    except KeyError:
        what = f"unknown framework preset {name!r}"
        raise InputError(Fault(what, "framework", "", "one of " + ", ".join(_PRESETS))) from None


def of(workload: Workload) -> FrameworkPreset:
    """The preset of a workload's framework, with the workload's switches set; `InputError` as `get`."""
    return applied(get(workload.framework), workload.switches)


@contextmanager
def instead(preset: FrameworkPreset) -> Iterator[None]:
    """`preset` in the place of the known one of its name while the block runs (fits)."""
    known = get(preset.name)
    _PRESETS[preset.name] = preset
    try:
        yield
    finally:
        _PRESETS[preset.name] = known


def preset_for_source(source: str) -> str:
    """Name of the preset that a measurement's `source` speaks of; ``generic`` where none matches.

    The only code that reads `source`. A row that names its framework does not come here.
    """
    text = source.casefold()
    return next((name for part, name in _SOURCES if part.casefold() in text), "generic")


def across_nodes(name: str) -> Switches:
    """Switches that a framework's recipes set where the expert grid leaves the node; none for most."""
    return _ACROSS_NODES.get(name, ())


def on_racks(name: str) -> str:
    """The preset that a framework's recipes for racks of NVLink have (GB200, GB300 NVL72), where they differ."""
    return _ON_RACKS.get(name, name)
