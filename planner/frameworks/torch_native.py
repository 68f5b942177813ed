"""PyTorch's own sharding (FSDP2 as torchtitan uses it), and this project's executor."""

from __future__ import annotations

from planner.frameworks.base import TORCH_SCHEDULES, FrameworkPreset
from planner.frameworks.orders import ONE_ORDER

PRESETS = (
    FrameworkPreset(
        name="fsdp2",
        shard_copies=True,
        cp_kind="all-gather",
        cp_kinds=("all-gather", "ring"),
        orders=ONE_ORDER,
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
