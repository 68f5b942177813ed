"""MosaicML Composer with llm-foundry."""

from __future__ import annotations

from planner.frameworks.base import MEGATRON_RECOMPUTES, FrameworkPreset

PRESETS = (
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
)
