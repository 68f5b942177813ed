"""Model and hardware FLOPs of a step, by one stated formula.

MFU counts what the model needs: 6 FLOPs for each matrix parameter a token meets (2 forward, 4
backward; head included, embedding look-up not), and 6·s·heads·(d_qk + d_v) for attention over
the full sequence (PaLM, arXiv 2204.02311, appendix B; windows count their width). HFU adds
what recomputation runs again.
"""

from __future__ import annotations

from planner.adapters import adapter_weights
from planner.layout import Layout
from planner.model.spec import DecoderLayer, ModelSpec, Moe, Weight, count
from planner.plan import Workload

FORMULA = "6 x matrix parameters met by a token (head included) + full attention 6*s*heads*(d_qk+d_v), PaLM appendix B"


def _matrix_flops(layer: DecoderLayer, hidden: int) -> float:
    """Forward FLOPs a token of the layer's matrices; routed experts count top_k of them."""
    total = 0.0
    for p in layer.parameters(hidden):
        if isinstance(p, Weight):
            copies = layer.ffn.top_k if p.expert and isinstance(layer.ffn, Moe) else p.copies
            total += 2.0 * copies * p.n_in * p.n_out
    return total


def _attention_flops(layer: DecoderLayer, seq_len: float) -> float:
    """Forward FLOPs a token of scores and weighted values."""
    a = layer.attention
    span = min(seq_len, a.window) if a.window else seq_len
    return 2.0 * span * a.n_heads * (a.qk_dim + a.v_dim)


def model_flops(model: ModelSpec, workload: Workload) -> float:
    """FLOPs of one step over all ranks, without recomputation."""
    per_token = 2.0 * model.hidden * model.vocab
    for layer in model.layers:
        per_token += _matrix_flops(layer, model.hidden) + _attention_flops(layer, workload.attended_tokens)
    return 3.0 * per_token * workload.seq_len * workload.gbs - _not_run(model, workload)


def _not_run(model: ModelSpec, workload: Workload) -> float:
    """Weight gradients of frozen matrices, less the adapters' own products (6 FLOPs a parameter and token)."""
    if workload.lora is None:
        return 0.0
    frozen = 2.0 * model.hidden * model.vocab
    added = 0.0
    for layer in model.layers:
        frozen += _matrix_flops(layer, model.hidden)
        added += 6.0 * count(adapter_weights(layer, model.hidden, workload.lora))
    return (frozen - added) * workload.seq_len * workload.gbs


def hardware_flops(model: ModelSpec, workload: Workload, layout: Layout) -> float:
    """FLOPs of one step with what `layout.recompute` runs again."""
    again = 0.0
    if layout.recompute != "none":
        for layer in model.layers:
            again += _attention_flops(layer, workload.attended_tokens)
            if layout.recompute == "full":
                again += _matrix_flops(layer, model.hidden)
    return model_flops(model, workload) + again * workload.seq_len * workload.gbs
