"""Flags of a measured run as switches of its framework's preset.

A row's `other_flags` names flags in the words of the framework, parted by semicolons; those known here say what a
run set otherwise than the preset (`planner.frameworks.switches`). Others describe the layout or the software
and are no switch.
"""

from __future__ import annotations

_TRUE = ("true", "1", "yes")

_SWITCHES: dict[str, tuple[str, str]] = {
    "no-gradient-accumulation-fusion": ("fused_grad_accumulation", "false"),
    "overlap-grad-reduce": ("overlap_grad_reduce", "true"),
    "overlap-param-gather": ("overlap_param_gather", "true"),
    "deterministic-mode": ("deterministic", "true"),
    "fine-grained-activation-offloading": ("offload_core", "true"),
    "tp-comm-overlap": ("userbuffers", "true"),
    "te fused cross-entropy": ("fused_cross_entropy", "true"),
}
"""Flag that is on -> switch and its word. Megatron-Core: megatron/training/arguments.py."""

_VALUES: dict[str, tuple[str, dict[str, str]]] = {
    "attention-backend": ("attention", {"unfused": "unfused-fused-softmax", "flash": "flash", "fused": "flash"}),
    "hidden-dropout": ("dropout", {"0.0": "false", "0": "false", "0.1": "true"}),
}
"""Flag with a value -> switch and the word of each value."""


def switches_of(flags: str, precision: str = "bf16") -> dict[str, str]:
    """Switches that the flags of a row set, by name; flags that are no switch are passed over.

    Megatron-Core refuses flash attention in deterministic mode (`validate_args`: ``deterministic_mode`` with
    ``use_flash_attn``), so that a deterministic run which names no attention backend had the local, unfused one;
    Transformer Engine's deterministic kernels have to be named, except in 8 bits and with grouped expert GEMMs, which
    the local layers do not have (megatron/core/models/gpt/moe_module_specs.py, ``TEGroupedMLP``).
    """
    engine = precision.lower().startswith("fp8") or "moe-grouped-gemm=true" in flags.lower()
    found: dict[str, str] = {}
    for part in flags.lower().split(";"):
        name, _, value = (text.strip() for text in part.partition("="))
        if name in _SWITCHES and (not value or value in _TRUE):
            switch, word = _SWITCHES[name]
            found[switch] = word
        elif name in _VALUES and value in _VALUES[name][1]:
            found[_VALUES[name][0]] = _VALUES[name][1][value]
    if found.get("deterministic") == "true" and "attention" not in found and not engine:
        found |= {"attention": "unfused-fused-softmax", "transformer_engine": "false"}
    return found
