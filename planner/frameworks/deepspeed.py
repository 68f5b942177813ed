"""DeepSpeed, Megatron-DeepSpeed and how BigScience ran it."""

from __future__ import annotations

from dataclasses import replace

from planner.frameworks.base import MEGATRON_RECOMPUTES, FrameworkPreset, HostConstant
from planner.frameworks.orders import ONE_ORDER

ORDERS = ("tp-cp-dp-pp", "tp-pp-cp-dp", "cp-dp-tp-pp", "cp-dp-pp-tp", "pp-tp-cp-dp", "pp-cp-dp-tp")
"""``ProcessTopology`` takes the axes pipe, data and model in any order (``PipelineModule(topology=...)``); of the mesh
of data and sequence parallelism the latter is the fast one (``deepspeed.initialize(mesh_param=...)``)."""
_DEEPSPEED = FrameworkPreset(
    name="deepspeed",
    cp_kind="ulysses",
    cp_kinds=("ulysses",),
    orders=ORDERS,
    flat_gradients=True,
    pipeline_communicators=5,
    main_grad_buffer=True,
    recomputes=MEGATRON_RECOMPUTES,
    uneven_stages=False,
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
    orders=ONE_ORDER,
    in_place_loss=True,
    zero_stage=0,
    grad_dtype="fp16-else-fp32",
    kernel_s=HostConstant(
        50e-6,
        "least mean absolute error over 32 rows of vtrain_a100_multi and 32 rows of vtrain_a100_single, evenly spaced, "
        "in steps of 5 us (planner fit --preset deepspeed-2022 --rows 32); in sample. Fitted on either group alone: 60 "
        "us and 50 us; a constant a micro-batch or a step beside it gains less than a twentieth",
        64,
        0.078,
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

PRESETS = (
    _DEEPSPEED,
    _DEEPSPEED_2022,
    replace(
        _DEEPSPEED_2022,
        name="bigscience-2022",
        blocking_launches=True,
        kernel_s=HostConstant(
            140e-6,
            "least mean absolute error over 24 evenly spaced rows of bloom_a100, in steps of 5 us (fit --preset "
            "bigscience-2022 --rows 24); in sample, one group; a constant a micro-batch or a step beside it gains less "
            "than a twentieth",
            24,
            0.046,
        ),
        notes="Megatron-DeepSpeed as BigScience ran it on Jean Zay: deepspeed-2022 with CUDA_LAUNCH_BLOCKING=1, "
        "without which large runs hung.",
        source="github bigscience-workshop/bigscience train/tr11-176B-ml/tr11-176B-ml.slurm",
    ),
)
