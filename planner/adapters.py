"""Weights of low-rank adapters, and which weights of a layer a recipe or an adapter covers."""

from __future__ import annotations

from dataclasses import replace

from planner.model.spec import DecoderLayer, Shard, Weight
from planner.training import Lora

_FEED: dict[str, str] = {
    "gate": "up", "up": "up", "down": "down", "shared_gate": "up", "shared_up": "up", "shared_down": "down",
}  # fmt: skip
"""Feed-forward weight -> adapter module; routed experts and routers have none."""


def linear_weights(layer: DecoderLayer, hidden: int) -> tuple[Weight, ...]:
    """Matrices of the layer that a quantised recipe covers: all but router and gates of shared experts."""
    high = ("router", "shared_expert_gate")
    return tuple(p for p in layer.parameters(hidden) if isinstance(p, Weight) and p.name not in high)


def adapter_weights(layer: DecoderLayer, hidden: int, lora: Lora) -> tuple[Weight, ...]:
    """The small matrices of a layer's adapters.

    A of a group of weights that run as one GEMM is one n_in x rank matrix; B has the columns of
    each. A is split where its weight is split by rows, B where by columns; the other is whole.
    """
    mixer = layer.attention.parameters(hidden) if layer.attention else ()
    attention = {p.name for p in mixer if isinstance(p, Weight)}
    found: list[Weight] = []
    begun: set[str] = set()
    for p in linear_weights(layer, hidden):
        module = ("o" if p.name == "o" else "qkv") if p.name in attention else _FEED.get(p.name, "")
        if module not in lora.modules:
            continue
        group = p.fused_with or p.name
        plain = replace(p, bias=False, fused_with="")
        if group not in begun:
            begun.add(group)
            rows: Shard = "row" if p.shard == "row" else "replicated"
            found.append(replace(plain, name=f"{group}.lora_a", n_out=lora.rank, shard=rows, min_out=1))
        columns: Shard = "column" if p.shard == "column" else "replicated"
        found.append(replace(plain, name=f"{p.name}.lora_b", n_in=lora.rank, shard=columns))
    return tuple(found)
