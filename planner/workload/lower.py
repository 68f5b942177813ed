"""lower: model x layouts -> the ops of each block of one micro-batch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.layout import LayoutBatch
from planner.model.spec import DecoderLayer, ModelSpec, Moe
from planner.plan import Workload
from planner.presets import FrameworkPreset
from planner.workload.attention import attention_ops
from planner.workload.context import Shapes
from planner.workload.feedforward import mlp_ops, moe_ops
from planner.workload.op import Block, Op

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Lowered:
    """One micro-batch as blocks: embedding, each distinct decoder layer, head.

    `layers` is in the order of `ModelSpec.layer_kinds()`.
    """

    embedding: Block
    layers: tuple[Block, ...]
    head: Block
    boundary_bytes: FloatArray
    """Bytes of the activation that passes from one stage to the next (per rank)."""


def lower(model: ModelSpec, workload: Workload, layouts: LayoutBatch, preset: FrameworkPreset) -> Lowered:
    """Ops of every block of one micro-batch, for all layouts at once.

    No hardware is involved: the result is the same on any cluster.
    """
    s = Shapes.of(model, workload, layouts, preset)
    blocks = tuple(_layer(layer, index, s) for index, layer in enumerate(model.layer_kinds()))
    boundary = np.asarray(s.tokens_sp * model.hidden * s.width)
    return Lowered(_embedding(s), blocks, _head(s), boundary)


def _norm_ops(name: str, s: Shapes) -> list[Op]:
    """A norm over the residual width: read and write forward; read x and dy, write dx backward."""
    n = s.tokens_sp * s.model.hidden * s.width
    fused = s.preset.fused_norm
    return [
        s.memory(name, "forward", n * (2.0 if fused else 6.0), kernels=1.0 if fused else 4.0),
        s.memory(f"{name}.grad", "backward_input", n * (3.0 if fused else 10.0), kernels=2.0 if fused else 8.0),
    ]


def _residual_ops(name: str, s: Shapes) -> list[Op]:
    """Bias, dropout and residual add: read branch and residual, write the sum (and the mask)."""
    n = s.tokens_sp * s.model.hidden
    w, mask = s.width, (1.0 if s.preset.dropout else 0.0)
    eager = not s.preset.fused_elementwise and s.preset.dropout
    forward = n * (3.0 * w + mask) + (2.0 * w * n if eager else 0.0)
    return [
        s.memory(name, "forward", forward, kernels=2.0 if eager else 1.0),
        s.memory(f"{name}.grad", "backward_input", n * (2.0 * w + mask if s.preset.dropout else 3.0 * w), kernels=1.0),
    ]


def _layer(layer: DecoderLayer, index: int, s: Shapes) -> Block:
    attention, saved_attention, saved_core = attention_ops(layer, s)
    feed, saved_feed = moe_ops(layer.ffn, s) if isinstance(layer.ffn, Moe) else mlp_ops(layer.ffn, s)
    ops: list[Op] = []
    for i in range(layer.n_norms):
        ops += _norm_ops(f"norm_{i}", s)
    ops += attention
    ops += _residual_ops("attention.residual", s)
    ops += feed
    ops += _residual_ops("ffn.residual", s)
    row = s.tokens_sp * s.model.hidden
    masks = 2.0 * row if s.preset.dropout else 0.0
    outside = saved_attention + saved_feed + row * s.width * layer.n_norms + masks
    return Block(
        name=("moe" if layer.is_moe else "dense") + (f"_{index}" if index else ""),
        ops=tuple(ops),
        saved_bytes=np.asarray(outside + saved_core),
        saved_selective_bytes=np.asarray(outside),
        saved_full_bytes=np.asarray(row * s.width),
    )


def _embedding(s: Shapes) -> Block:
    """Token lookup (vocabulary-parallel over tp), positions and dropout; scatter-add backward."""
    n = s.tokens * s.model.hidden * s.width
    ops = [
        s.memory("embedding.lookup", "forward", 2.0 * n),
        *s.leave_tp("embedding"),
        s.memory("embedding.grad", "backward_weight", 3.0 * n),
    ]
    saved: FloatArray = np.asarray(s.tokens * 8.0)
    if s.model.learned_positions or s.preset.dropout:
        mask = 1.0 if s.preset.dropout else 0.0
        row = s.tokens_sp * s.model.hidden
        ops.append(s.memory("embedding.positions", "forward", row * (3.0 * s.width + mask), kernels=2.0))
        ops.append(s.memory("embedding.positions.grad", "backward_input", row * (2.0 * s.width + mask)))
        saved = np.asarray(saved + row * mask)
    return Block("embedding", tuple(ops), saved, saved, saved)


def _head(s: Shapes) -> Block:
    """Final norm, output projection (vocabulary-parallel) and cross-entropy.

    Around the loss the logits stand in the compute dtype, as fp32 log-probabilities and as
    their fp32 gradient; a fused loss keeps the first and writes the gradient beside it.
    """
    vocab = np.asarray(s.model.vocab / s.tp)
    hidden = np.asarray(float(s.model.hidden))
    logits = np.asarray(s.tokens * vocab)
    fused = s.preset.fused_cross_entropy
    passes_forward = logits * (s.width * 2.0 if fused else s.width + 4.0 * 5.0)
    passes_backward = logits * (s.width * 2.0 if fused else 4.0 * 3.0 + s.width)
    ops = [
        *_norm_ops("final_norm", s),
        *s.enter_tp("head"),
        *s.linear("head", s.tokens, hidden, vocab),
        s.memory("loss", "forward", passes_forward, kernels=1.0 if fused else 6.0, rerun="never"),
        s.memory("loss.grad", "backward_input", passes_backward, kernels=1.0 if fused else 3.0),
    ]
    loss_rows = np.asarray(s.tokens * 4.0)
    ops.append(
        Op(
            "loss.all_reduce",
            "collective",
            "forward",
            {"nbytes": loss_rows},
            "fp32",
            group="tp",
            collective="all_reduce",
            count=np.where(s.tp > 1, 3.0, 0.0),
            rerun="never",
        )
    )
    copies = 2.0 * s.width if fused else s.width + 4.0 + 4.0
    saved = np.asarray(2.0 * s.tokens_sp * s.model.hidden * s.width)
    return Block("head", tuple(ops), saved, saved, saved, np.asarray(logits * copies))
