"""Words of a published row about the software that ran: switches of the preset, and what is not modelled.

`other_flags` holds words of torchtitan, SimuMax, BigScience and llm-foundry, and flags of Megatron-Core and
Megatron-Bridge, parted by semicolons. Flags about experts are in `planner.compare.moe_flags`, others of Megatron-Core
in `planner.compare.flags`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from planner.compare import flags as megatron
from planner.compare.moe_flags import moe_switches_of
from planner.compare.parallel_flags import parallel_switches_of
from planner.layout import Layout

_ON = ("true", "1", "yes", "")

WORDS: dict[str, tuple[tuple[str, str], ...]] = {
    "torch.compile": (("torch_compile", "true"),),
    "eager": (("torch_compile", "false"),),
    "float8": (("torch_compile", "true"),),
    "async tp": (("torch_compile", "true"),),
    "no tp/pp comm overlap": (("tp_backward_overlap", "false"), ("p2p_overlap", "false")),
    "fused softmax kernel": (("attention", "unfused-fused-softmax"),),
    "flash attention": (("attention", "flash"),),
    "cross_entropy_loss_fusion": (("fused_cross_entropy", "true"),),
    "no_bias_gelu_fusion": (("fused_elementwise", "false"),),
    "no_bias_swiglu_fusion": (("fused_elementwise", "false"),),
}
"""A word, or a flag that is on (dashes as underscores) -> switches. torchtitan refuses async TP without torch.compile
(`torchtitan/distributed/tensor_parallel.py` ``maybe_enable_async_tp``) and warns of float8 without it
(docs/float8.md: compiled for the casts to be fused)."""

VALUES: dict[str, dict[str, tuple[str, str]]] = {
    "mp_mode": {"default": ("grad_dtype", "fp32"), "pure": ("grad_dtype", "same")},
}
"""Flag -> value -> switch. Composer's FSDP reduces in fp32 by ``DEFAULT`` and in the compute dtype by ``PURE``
(`composer/distributed/mosaic_fsdp_utils.py` ``get_mixed_precision``; earlier releases reduced in it by both)."""

OFFLOADS: dict[str, tuple[str, int]] = {
    "optimizer offload": ("offload_optimizer", 100),
    "parameter offload": ("offload_parameters", 1),
    "optimizer_cpu_offload": ("offload_optimizer", 100),
}
"""A word, or a flag that is on -> field of the layout and its value."""

STATED_ELSEWHERE: tuple[str, ...] = (
    "account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split", "attention_backend",
    "bf16", "cp a2a", "cuda_graph_impl", "cuda_graph_scope", "decoder_first_pipeline_num_layers",
    "decoder_last_pipeline_num_layers", "earlier doc version of the same row", "float8", "float8 linear",
    "float8 tensorwise", "fp8_format", "fp8_params", "fp8_recipe", "grad_accum", "hf transformers + deepspeed zero",
    "last layers bf16", "megatron + deepspeed", "megatron-deepspeed", "megatron-lm", "megatron-lm commit 23e00ed0",
    "moe_grouped_gemm", "mtp_num_layers", "mxfp8", "mxfp8_cublas", "mxfp8_cublas_rceil", "nvfp4", "pp_layout",
    "pipeline_model_parallel_layout", "precision", "recompute_modules", "sequence_parallel", "te 2.11",
    "zero optimizer-state sharding",
)  # fmt: skip
"""Words that say again what columns of the row say, or that other readers of this package take."""


def _parts(flags: str) -> list[tuple[str, str, str]]:
    """(name, value, text) of each word or flag, in lower case; names of flags with underscores for dashes.

    Words may also have commas between; a flag's value may hold them.
    """
    found = []
    for part in flags.lower().split(";"):
        for text in [part] if "=" in part else part.split(","):
            name, equals, value = (piece.strip() for piece in text.partition("="))
            if name:
                found.append((name.replace("-", "_") if equals else name, value.strip("'\""), text.strip()))
    return found


def switches_of(flags: str) -> dict[str, str]:
    """Switches that the words of a row set, by name; other words are passed over."""
    found: dict[str, str] = {}
    for name, value, _ in _parts(flags):
        if value in _ON:
            found |= dict(WORDS.get(name, ()))
        if value in VALUES.get(name, {}):
            switch, word = VALUES[name][value]
            found[switch] = word
    return found


def offloads_of(flags: str) -> dict[str, int]:
    """Fields of the layout about host memory that the words of a row set, by name."""
    return dict(OFFLOADS[name] for name, value, _ in _parts(flags) if name in OFFLOADS and value in _ON)


def with_offloads(layout: Layout, flags: str) -> Layout:
    """The layout with what the words of a row put into host memory."""
    given: dict[str, Any] = offloads_of(flags)
    return replace(layout, **given)


def not_modelled(flags: str) -> tuple[str, ...]:
    """A remark for each word or flag that changes nothing in the prediction."""
    found = []
    for name, value, text in _parts(flags):
        known = name in WORDS or name in VALUES or name in OFFLOADS or name in STATED_ELSEWHERE
        known = known or bool(moe_switches_of(text) or megatron.switches_of(text) or parallel_switches_of(text))
        if not known and value not in ("false", "0", "none"):
            found.append(f"flag {name}{'=' * bool(value)}{value} not modelled")
    return tuple(dict.fromkeys(found))
