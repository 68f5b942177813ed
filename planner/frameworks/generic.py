"""What a well-made framework does: the preset without a framework in mind."""

from __future__ import annotations

from planner.frameworks.base import TORCH_SCHEDULES, FrameworkPreset

PRESETS = (
    FrameworkPreset(
        name="generic",
        reduce_each_microbatch=True,
        recompute_by_stage=True,
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
)
