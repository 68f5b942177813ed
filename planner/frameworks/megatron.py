"""Megatron-LM and Megatron-Core, today and at the time of their papers."""

from __future__ import annotations

from dataclasses import replace

from planner.frameworks.base import MEGATRON_RECOMPUTES, FrameworkPreset, HostConstant
from planner.frameworks.orders import ONE_ORDER

ORDERS = (*ONE_ORDER, "tp-cp-pp-dp")
"""Of ``initialize_model_parallel``; the second is ``--use-tp-pp-dp-mapping``."""
BUCKET_BYTES = 40_000_000 * 4
MEGATRON = FrameworkPreset(
    name="megatron",
    in_place_loss=True,
    transformer_engine=True,
    logs_memory="allocated",
    main_grad_buffer=True,
    fused_grad_accumulation=True,
    norm_in_linear=True,
    recomputes=MEGATRON_RECOMPUTES,
    orders=ORDERS,
    order_keeps_groups=True,
    zero_stage=1,
    reduce_each_microbatch=True,
    pipeline_keeps_gathered=False,
    bucket_bytes=BUCKET_BYTES,
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
    MEGATRON,
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
    uneven_stages=False,
    prefetch_params=False,
    interleaved_rounds="pp",
    cp_kinds=(),
    orders=ONE_ORDER,
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
    bucket_bytes=BUCKET_BYTES,
    notes="Megatron-LM of spring 2021 (SC21 paper): batched-GEMM attention with the fused scale-mask-softmax kernel, "
    "dropout 0.1, gradients in fp16 with fp16 compute (accumulate_allreduce_grads_in_fp32 is forced for bf16 "
    "only), one all-reduce after the last backward, no sharded optimizer, blocking pipeline sends. Its "
    "unpipelined SC21 runs used torch's DDP, which overlaps; that is not told apart here.",
    source="Narayanan et al. 2021 (arXiv 2104.04473) section 4; github NVIDIA/Megatron-LM tag v2.5 megatron/model, "
    "megatron/arguments.py, examples/sc21/run_table_1.sh",
)

PRESETS = (
    replace(
        MEGATRON,
        kernel_s=HostConstant(
            35e-6, "that of megatron-bridge, not fitted: the same modules of Transformer Engine, started alike", 0, 0.3
        ),
        step_s=HostConstant(
            0.04,
            "chosen by hand: least mean absolute error over the 17 dense rows of simumax_b200, in steps of 10 ms, with "
            "35 us a kernel. All three constants fitted on its 23 rows (fit --preset megatron): 40 us a kernel, "
            "3 ms a micro-batch, 20 ms a step, 3.9% in sample; three constants for one group say little",
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
)
