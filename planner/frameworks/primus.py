"""AMD Primus."""

from __future__ import annotations

from dataclasses import replace

from planner.frameworks.megatron import MEGATRON

PRESETS = (
    replace(
        MEGATRON,
        name="primus",
        fused_grad_accumulation=False,
        notes="AMD Primus with the Megatron backend: the switches of megatron on ROCm, without the GEMM that adds "
        "into the main gradient.",
        source="github AMD-AGI/Primus examples/megatron/configs (gradient_accumulation_fusion: false)",
    ),
)
