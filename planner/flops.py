"""Model and hardware FLOPs of a step, by one stated formula.

MFU counts what the model needs: 6 FLOPs for each matrix parameter a token meets (2 forward, 4 backward), and
attention over its span: 6·pairs·heads·(d_qk + d_v). HFU adds what recomputation runs again. Which attention and which
head are counted differs between published figures, so both are named (`FlopFormula`):

- ``full``: every query over the whole sequence or window (PaLM, arXiv 2204.02311, appendix B; Megatron-LM of 2021);
- ``causal``: the half of it that a causal mask leaves (Megatron-Core ``num_floating_point_operations``);
- ``no-head`` beside either: without the output matrix. The embedding look-up never counts, a tied head does.

A recurrent mixer counts its matrices, its convolution (2 a tap and channel) and its scan as Megatron-Core
``hybrid_flops`` does: 7·d_inner·d_state (Mamba), 8·heads·d_v² (gated delta rule) forward a token, three times that
with the backward. Prediction layers count with their projection and another pass of the head.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from hwmodels.records import dataclass
from planner.adapters import adapter_weights
from planner.layout import Layout, split_layers
from planner.layout.recompute import DEFAULT_MODULES, recomputes_layer
from planner.model.spec import (
    AnyAttention,
    DecoderLayer,
    DeltaNet,
    LatentAttention,
    Mamba1,
    ModelSpec,
    Moe,
    Recurrent,
    Weight,
    count,
)
from planner.plan import Workload


@dataclass(frozen=True, slots=True)
class FlopFormula:
    """What counts as model FLOPs.

    Attributes
    ----------
    causal : bool
        Causal attention counts half of its square.
    head : bool
        Whether the output matrix counts.
    """

    causal: bool = False
    head: bool = True

    def __str__(self) -> str:
        """The formula in words."""
        head = "head included" if self.head else "without head"
        span = "causal attention: half the square" if self.causal else "full attention, PaLM appendix B"
        return f"6 x matrix parameters met by a token ({head}) + 6*s*heads*(d_qk+d_v) ({span})"


FORMULAS = {
    "full": FlopFormula(),
    "causal": FlopFormula(causal=True),
    "full-no-head": FlopFormula(head=False),
    "causal-no-head": FlopFormula(causal=True, head=False),
}
"""Formulas by name; the first is the default."""
FORMULA = FORMULAS["full"]


def formula_of(workload: Workload) -> FlopFormula:
    """The formula that a workload names."""
    return FORMULAS[workload.flop_formula]


@lru_cache(maxsize=1024)
def _matrix_flops(layer: DecoderLayer, hidden: int) -> float:
    """Forward FLOPs a token of the layer's matrices."""
    return _products(layer, hidden, lambda _: True)


def _products(layer: DecoderLayer, hidden: int, chosen: Callable[[Weight], bool]) -> float:
    """Forward FLOPs a token of the chosen matrices of a layer; routed experts count top_k of them."""
    total = 0.0
    for p in layer.parameters(hidden):
        if isinstance(p, Weight) and chosen(p):
            copies = layer.ffn.top_k if p.expert and isinstance(layer.ffn, Moe) else p.copies
            total += 2.0 * copies * p.n_in * p.n_out
    return total


def span(a: AnyAttention, seq_len: float, formula: FlopFormula = FORMULA) -> float:
    """Keys that a query counts, on average over a sequence of `seq_len` tokens.

    A window counts its width, a chunk its length. Half of it under ``causal``; of a window less than the
    sequence, all but the triangle at its start: w - w²/2s.
    """
    within = min(seq_len, float(a.chunk)) if a.chunk else seq_len
    width = min(within, float(a.window)) if a.window else within
    if not (formula.causal and a.causal):
        return width
    return width - width * width / (2.0 * within)


def _scan_flops(mixer: Recurrent) -> float:
    """Forward FLOPs a token of a convolution and a scan (Megatron-Core ``mamba_layer_flops``, ``gdn_layer_flops``)."""
    if isinstance(mixer, DeltaNet):
        return 2.0 * (mixer.d_conv * mixer.conv_dim + 4.0 * mixer.n_value_heads * mixer.key_dim * mixer.value_dim)
    channels = mixer.d_inner if isinstance(mixer, Mamba1) else mixer.conv_dim
    return 7.0 * mixer.d_inner * mixer.d_state + 2.0 * mixer.d_conv * channels


def _mixing_flops(layer: DecoderLayer, seq_len: float, formula: FlopFormula) -> float:
    """Forward FLOPs a token of scores and weighted values, or of a scan."""
    if layer.recurrent is not None:
        return _scan_flops(layer.recurrent)
    a = layer.softmax
    return 2.0 * span(a, seq_len, formula) * a.n_heads * (a.qk_dim + a.v_dim) if a else 0.0


def _ends_flops(model: ModelSpec, workload: Workload, formula: FlopFormula) -> float:
    """Forward FLOPs a token outside the decoder layers: head, classifier, patches."""
    per_token = 0.0
    if formula.head and model.n_classes:
        per_token += 2.0 * model.hidden * model.n_classes / workload.tokens_per_sequence
    elif formula.head:
        per_token += 2.0 * model.hidden * (model.vocab + (model.hidden if model.head_transform else 0))
    if model.patches is not None:
        weights = [p for p in model.patches.parameters(model.hidden) if isinstance(p, Weight)]
        per_token += 2.0 * sum(p.n_in * p.n_out for p in weights) * model.patches.patches / model.patches.tokens
    return per_token


def _prediction_flops(model: ModelSpec, formula: FlopFormula) -> float:
    """Forward FLOPs a token of a prediction step beside its decoder layer: its projection, and the head again."""
    return 4.0 * model.hidden**2 + (2.0 * model.hidden * model.vocab if formula.head else 0.0)


def _vision_flops(model: ModelSpec, workload: Workload) -> float:
    """FLOPs of a step's images: a frozen tower runs forward alone, its projector is trained but beneath adapters."""
    if model.vision is None or not workload.images:
        return 0.0
    tower, projector = model.vision.forward_flops()
    full = workload.lora is None
    passes = (3.0 if workload.vision == "trained" and full else 1.0), (3.0 if full else 1.0)
    return (passes[0] * tower + passes[1] * projector) * workload.images * workload.gbs


def _layer_flops(layer: DecoderLayer, model: ModelSpec, workload: Workload, formula: FlopFormula) -> float:
    return _matrix_flops(layer, model.hidden) + _mixing_flops(layer, workload.attended_tokens, formula)


def model_flops(model: ModelSpec, workload: Workload, formula: FlopFormula = FORMULA) -> float:
    """FLOPs of one step over all ranks, without recomputation."""
    per_token = _ends_flops(model, workload, formula)
    for layer in (*model.layers, *model.mtp_used(workload.mtp_layers)):
        per_token += _layer_flops(layer, model, workload, formula)
    per_token += workload.mtp_layers * _prediction_flops(model, formula)
    trained = 3.0 * per_token * workload.tokens_per_sequence * workload.gbs
    return trained + _vision_flops(model, workload) - _not_run(model, workload, formula)


def _not_run(model: ModelSpec, workload: Workload, formula: FlopFormula) -> float:
    """Weight gradients of frozen matrices, less the adapters' own products (6 FLOPs a parameter and token)."""
    if workload.lora is None:
        return 0.0
    frozen = _ends_flops(model, workload, formula) + workload.mtp_layers * _prediction_flops(model, formula)
    added = 0.0
    for layer in (*model.layers, *model.mtp_used(workload.mtp_layers)):
        frozen += _matrix_flops(layer, model.hidden)
        added += 6.0 * count(adapter_weights(layer, model.hidden, workload.lora))
    return (frozen - added) * workload.tokens_per_sequence * workload.gbs


def hardware_flops(model: ModelSpec, workload: Workload, layout: Layout, formula: FlopFormula = FORMULA) -> float:
    """FLOPs of one step with what the layout's recomputation runs again.

    Whole layers count in full, also where a framework leaves out their last product; with the layer of a prediction
    step goes its projection.
    """
    shares = layout.stage_layers or split_layers(model.n_layers, layout.pp * layout.vpp) or (model.n_layers,)
    chosen = recomputes_layer(layout.recompute, layout.recompute_layers, shares)
    again = 0.0
    for layer, recomputed in zip(model.layers, chosen, strict=True):
        if recomputed and layout.recompute in ("selective", "op"):
            again += _part_again(layer, model.hidden, workload.attended_tokens, layout, formula)
        elif recomputed:
            again += _layer_flops(layer, model, workload, formula)
    for layer in model.mtp_used(workload.mtp_layers):
        if layout.recompute in ("selective", "op"):
            again += _part_again(layer, model.hidden, workload.attended_tokens, layout, formula)
        elif layout.recompute != "none":
            again += _layer_flops(layer, model, workload, formula) + 4.0 * model.hidden**2
    return model_flops(model, workload, formula) + again * workload.tokens_per_sequence * workload.gbs


def _part_again(layer: DecoderLayer, hidden: int, attended: float, layout: Layout, formula: FlopFormula) -> float:
    """FLOPs a token of what a policy runs again of one layer.

    ``op`` keeps attention and every other product, of a recurrent mixer nothing; of the modules of a selective
    policy those with products count: core_attn, mla_up_proj, mlp, moe and shared_experts.
    """
    mixer = layer.attention.parameters(hidden) if layer.attention else ()
    if layout.recompute == "op":
        inside = mixer if layer.recurrent is not None else ()
        counted = [p for p in layer.parameters(hidden) if isinstance(p, Weight) and not p.expert and p not in inside]
        again = sum(2.0 * p.n_in * p.n_out for p in counted[1::2])
        scan = _mixing_flops(layer, attended, formula) if inside else 0.0
        return again + scan + _products(layer, hidden, lambda p: p.expert or p in inside)
    modules = layout.recompute_modules or DEFAULT_MODULES
    own = layer.ffn.parameters(hidden) if layer.ffn else ()
    core = "core_attn" in modules and layer.softmax is not None
    total = _mixing_flops(layer, attended, formula) if core else 0.0
    if "mla_up_proj" in modules and isinstance(layer.attention, LatentAttention):
        total += _products(layer, hidden, lambda p: p.name in ("q", "q_b", "kv_b"))
    if ("moe" if layer.is_moe else "mlp") in modules:
        total += _products(layer, hidden, lambda p: p in own)
    elif "shared_experts" in modules:
        total += _products(layer, hidden, lambda p: p.name in ("shared_gate", "shared_up", "shared_down"))
    return total
