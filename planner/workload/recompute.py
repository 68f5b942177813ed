"""Which ops of a layer recomputation runs again, and which saved bytes it drops, module by module.

Modules are those of Megatron-Core's ``--recompute-modules`` (`planner.layout.recompute.MODULES`), told by the
names of the ops. What each drops (`megatron/core/transformer/transformer_layer.py`, `moe/moe_layer.py`,
`moe/experts.py`, `multi_latent_attention.py`):

* core_attn, mlp, moe, shared_experts: plain checkpoints. All that is saved inside goes; the input stays, which for
  mlp and moe is the output of the norm in the compute dtype.
* layernorm: the output of a norm, which the projections behind it would keep; dropped after they have used it. A
  norm that is fused into the projection (Transformer Engine's ``LayerNormLinear``, which Megatron-Core uses
  before a grouped-query projection and a dense feed-forward) is no module of its own and stays.
* moe_act: the output of the expert activation, input of the down projection.
* mla_up_proj: query, key and value that the up projections and the rotary op make of the latents.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hwmodels.records import dataclass
from planner.layout.recompute import Policy
from planner.model.spec import DecoderLayer, LatentAttention, Moe, Weight
from planner.workload.context import Shapes
from planner.workload.dense import activation_width
from planner.workload.moe import expert_rows
from planner.workload.op import Block, Op, Piece

FloatArray = NDArray[np.float64]

_PREFIXES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("moe.shared.", ("moe", "shared_experts")),
    ("moe.expert.activation", ("moe", "moe_act")),
    ("moe.", ("moe",)),
    ("mlp.", ("mlp",)),
)
_UP_PROJECTIONS = ("attention.q_b", "attention.q.", "attention.kv_b", "attention.latent", "attention.rotary")
_LAST = ("mlp.down", "mlp.down.lora_b", "mlp.down.lora_add", "mlp.down.all_reduce", "mlp.down.reduce_scatter",
         "ffn.residual")  # fmt: skip
"""Forward ops of a dense layer behind the last one that saves anything."""


@dataclass(frozen=True, slots=True, eq=False)
class SavedParts:
    """What a layer saves, by the part that saves it: bytes of a micro-batch.

    Attributes
    ----------
    attention, core, feed : ndarray
        As `attention_ops`, `moe_ops` and `mlp_ops` return them.
    other : ndarray
        Inputs of norms, masks, and what branches share.
    """

    attention: FloatArray
    core: FloatArray
    feed: FloatArray
    other: FloatArray


def tagged(ops: Iterable[Op], layer: DecoderLayer, s: Shapes) -> list[Op]:
    """The ops of a layer with their modules, and with the share of each that whole-layer policies run again.

    Non-reentrant checkpoints of PyTorch stop once everything saved is there again
    (`torch.utils.checkpoint.set_checkpoint_early_stop`, on by default): what comes last in a layer is not run.
    """
    shares = _op_shares(layer, s)
    last = _LAST if s.preset.recompute_stops_early and not (layer.is_moe or layer.parallel) else ()
    found = []
    for op in ops:
        if op.phase != "forward":
            found.append(op)
            continue
        whole = 0.0 if op.name in last and not (op.name == "ffn.residual" and s.preset.dropout) else 1.0
        again = min(whole, shares.get(op.name, 0.0 if _keeps_output(op) else 1.0))
        found.append(replace(op, modules=_modules(op, layer, s), full_share=whole, op_share=again))
    return found


def _modules(op: Op, layer: DecoderLayer, s: Shapes) -> tuple[str, ...]:
    """Modules that hold a forward op."""
    if op.rerun == "selective":
        return ("core_attn",)
    if op.name.startswith("norm_"):
        return ("layernorm",) if op.name in own_norms(layer, s.preset.norm_in_linear) else ()
    if isinstance(layer.attention, LatentAttention) and f"{op.name}.".startswith(_UP_PROJECTIONS):
        return ("mla_up_proj",)
    return next((modules for prefix, modules in _PREFIXES if op.name.startswith(prefix)), ())


def own_norms(layer: DecoderLayer, fused: bool) -> tuple[str, ...]:
    """Names of the norms before attention and feed-forward that are modules of their own; not a recurrent mixer's.

    `fused` is `FrameworkPreset.norm_in_linear`.
    """
    found: tuple[str, ...] = ()
    if layer.softmax is not None and (isinstance(layer.softmax, LatentAttention) or not fused):
        found = ("norm_0",)
    if layer.ffn is None or (fused and not layer.is_moe):
        return found
    if layer.attention is None:
        return ("norm_0",)
    return (*found, "norm_1") if layer.n_norms > 1 else found


def _keeps_output(op: Op) -> bool:
    """Whether ``op`` keeps what this op made whatever its place: attention and reduce-scatter."""
    return op.kind == "attention" or op.collective == "reduce_scatter"


def _products(layer: DecoderLayer, s: Shapes) -> list[Weight]:
    """Matrix products of a layer in the order in which PyTorch meets them; experts run in grouped ones.

    torchtitan has no recurrent mixers: ``op`` keeps nothing of them.
    """
    hidden = s.model.hidden
    mixer = layer.softmax.parameters(hidden) if layer.softmax is not None else ()
    feed = layer.ffn.parameters(hidden) if layer.ffn is not None else ()
    return [p for p in (*mixer, *feed) if isinstance(p, Weight) and not p.expert]


def _op_name(weight: Weight, layer: DecoderLayer, s: Shapes) -> str:
    """Name of the op that runs a weight's product, alone or with others."""
    if layer.softmax is not None and weight in layer.softmax.parameters(s.model.hidden):
        return f"attention.{weight.fused_with or weight.name}"
    if weight.name == "router":
        return "moe.router"
    block, role = ("moe.shared", weight.name.removeprefix("shared_")) if layer.is_moe else ("mlp", weight.name)
    return f"{block}.{'up' if role == 'gate' else role}"


def _op_shares(layer: DecoderLayer, s: Shapes) -> dict[str, float]:
    """Share of each product's columns that ``op`` computes again: every second product in order."""
    whole: dict[str, float] = {}
    again: dict[str, float] = {}
    for number, weight in enumerate(_products(layer, s), start=1):
        name = _op_name(weight, layer, s)
        whole[name] = whole.get(name, 0.0) + weight.n_out
        again[name] = again.get(name, 0.0) + (weight.n_out if number % 2 == 0 else 0.0)
    return {name: again[name] / columns for name, columns in whole.items()}


def saved_by_op(layer: DecoderLayer, s: Shapes) -> FloatArray:
    """Bytes that a layer keeps under ``op``: its input and what the kept ops made.

    Attention keeps its output and the statistics of its rows (4 bytes a row and head); a reduce-scatter its shard.
    """
    a, w = layer.softmax, s.width
    row = np.asarray(s.tokens_sp * s.model.hidden * w)
    total = row
    if a is not None:
        total = row + s.tokens * np.asarray(a.n_heads / s.tp) * (a.v_dim * w + 4.0)
    for number, weight in enumerate(_products(layer, s), start=1):
        if number % 2:
            rows = s.tokens_sp if weight.shard == "replicated" else s.tokens
            total = total + rows * s.local_out(weight) * w
    exits = layer.ffn is not None and (not isinstance(layer.ffn, Moe) or layer.ffn.shared_ffn_hidden > 0)
    shards = float(layer.attention is not None) + float(exits)
    return np.asarray(total + np.where(s.sp, shards, 0.0) * row)


def pieces(layer: DecoderLayer, parts: SavedParts, s: Shapes) -> tuple[Piece, ...]:
    """What a layer saves, cut by the modules that drop it."""
    found = [Piece(parts.core, ("core_attn",)), Piece(parts.other)]
    if layer.parallel:  # one norm feeds both branches, which share what they keep of it
        found += [Piece(parts.attention), Piece(parts.feed, () if layer.is_moe else ("mlp",))]
        return tuple(found)
    norms = own_norms(layer, s.preset.norm_in_linear)
    before_feed = "norm_1" if layer.attention is not None else "norm_0"
    found += _mixer_pieces(layer, parts, ("layernorm",) if "norm_0" in norms else (), s)
    if layer.ffn is None:
        return tuple(found)
    norm = ("layernorm",) if before_feed in norms else ()
    checkpoint = np.asarray(s.tokens_saved * float(s.model.hidden) * s.width)
    found.append(Piece(checkpoint, norm, ("moe" if layer.is_moe else "mlp",)))
    return (*found, *(_moe_pieces(layer.ffn, parts, norm, s) if isinstance(layer.ffn, Moe)
                      else _mlp_pieces(parts, norm, s)))  # fmt: skip


def _mixer_pieces(layer: DecoderLayer, parts: SavedParts, norm: tuple[str, ...], s: Shapes) -> list[Piece]:
    a = layer.softmax
    if a is None:
        return [Piece(parts.attention)]
    entering = s.keeps_input("attention.qkv", s.tokens_saved, float(s.model.hidden))
    found, inner = [Piece(entering, norm)], parts.attention - entering
    if isinstance(a, LatentAttention):
        heads, kv = a.n_heads / s.tp, np.maximum(a.n_kv_heads / s.tp, 1.0)
        made = np.asarray(s.width * s.tokens * (heads * a.qk_dim + kv * (a.qk_dim + a.v_dim)))
        found.append(Piece(made, ("mla_up_proj",)))
        inner = inner - made
    return [*found, Piece(np.asarray(inner))]


def _mlp_pieces(parts: SavedParts, norm: tuple[str, ...], s: Shapes) -> list[Piece]:
    entering = s.keeps_input("mlp.up", s.tokens_saved, float(s.model.hidden))
    return [Piece(entering, ("mlp", *norm)), Piece(np.asarray(parts.feed - entering), ("mlp",))]


def _moe_pieces(ffn: Moe, parts: SavedParts, norm: tuple[str, ...], s: Shapes) -> list[Piece]:
    hidden = float(s.model.hidden)
    entering = s.keeps_input("moe.router", s.tokens_sp, hidden, quantised=False)
    rows = expert_rows(ffn, s)
    made = s.keeps_input("moe.expert.down", rows.all, rows.width)
    found = [Piece(made, ("moe", "moe_act"))]
    rest = parts.feed - made
    if ffn.shared_ffn_hidden:
        entering = entering + s.keeps_input("moe.shared.up", s.tokens_saved, hidden, shared=s.lora is None)
        width = np.asarray(ffn.shared_ffn_hidden / s.tp)
        inside = activation_width(ffn.gated, s) * s.tokens * width * (2.0 if ffn.gated else 1.0)
        inside = inside + s.keeps_input("moe.shared.down", s.tokens, width)
        found.append(Piece(np.asarray(inside), ("moe", "shared_experts")))
        rest = rest - inside
    found.append(Piece(np.asarray(entering), ("moe", *norm)))
    return [*found, Piece(np.asarray(rest - entering), ("moe",))]


def kept_bytes(block: Block, policy: Policy) -> FloatArray:
    """Bytes that a block keeps for the backward under a policy that works on it."""
    if policy.kind == "none" or not block.pieces:
        return block.saved_bytes
    if policy.kind == "selective":
        return np.asarray(sum(piece.nbytes for piece in block.pieces if piece.kept(policy.modules)))
    return block.saved_op_bytes if policy.kind == "op" else block.saved_full_bytes


def rebuilt_bytes(block: Block, policy: Policy) -> FloatArray:
    """Bytes that the backward of a block has rebuilt at a time: of one module, or of the whole layer."""
    if policy.kind == "none" or not block.pieces:
        return np.zeros(())
    if policy.kind == "selective":
        own = [piece for piece in block.pieces if not piece.kept_for]  # an input of a checkpoint is one of these too
        dropped = [
            sum((piece.nbytes for piece in own if module in piece.dropped_by), start=np.zeros(()))
            for module in policy.modules
        ]
        return np.asarray(np.maximum.reduce(np.broadcast_arrays(*dropped)))
    kept = block.saved_op_bytes if policy.kind == "op" else np.zeros(())
    return np.asarray(np.maximum(block.saved_bytes - kept, 0.0))


def rerun_share(op: Op, policy: Policy) -> float:
    """How much of a forward op the backward runs again under a policy that works on its layer."""
    if policy.kind == "none" or op.rerun == "never":
        return 0.0
    if policy.kind == "selective":
        return float(any(module in policy.modules for module in op.modules))
    return op.op_share if policy.kind == "op" else op.full_share
