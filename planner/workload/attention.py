"""Attention blocks: projections, core, and the collectives around them."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from planner.model.spec import AnyAttention, LatentAttention, Weight
from planner.workload.context import Shapes
from planner.workload.context_parallel import Split, exchange_ops, fused_core
from planner.workload.eager import unpad_ops
from planner.workload.op import Op, Phase

FloatArray = NDArray[np.float64]


def attention_ops(a: AnyAttention, s: Shapes) -> tuple[list[Op], FloatArray, FloatArray, FloatArray]:
    """Ops of one attention part, and the bytes it saves for backward or holds for a moment.

    Returns
    -------
    ops : list of Op
    saved : ndarray
        Bytes a micro-batch saves besides the core.
    saved_core : ndarray
        Bytes of the core (scores, masks, outputs that selective recomputation drops).
    transient : ndarray
        Bytes that context parallelism holds while the core runs.
    """
    ops = projection_ops(a, s)
    split = Split.of(a, s)
    core, saved_core = core_ops(split)
    out = next(w for w in _weights(a, s) if w.name == "o")
    ops += [*core, *unpad_ops(a, s)]
    if a.gated:
        gated = s.width * s.tokens * a.n_heads / s.tp * a.v_dim
        ops.append(s.memory("attention.gate", "forward", 3.0 * gated))
        ops.append(s.memory("attention.gate.grad", "backward_input", 5.0 * gated))
    ops += s.linear("attention.o", s.tokens, s.local_in(out), s.local_out(out), cut="row")
    ops += s.leave_tp("attention.o", cut=True)
    ops += exchange_ops(split)
    return ops, saved_projections(a, s) + split.halo_bytes, saved_core, split.transient_bytes


def _weights(a: AnyAttention, s: Shapes) -> list[Weight]:
    return [w for w in a.parameters(s.model.hidden) if isinstance(w, Weight)]


def projection_ops(a: AnyAttention, s: Shapes) -> list[Op]:
    """Query, key and value projections, grouped as the kernels run them, and the rotary op."""
    ops = _entrance(a, s)
    groups: dict[str, list[Weight]] = {}
    for w in _weights(a, s):
        if w.name != "o":
            groups.setdefault(w.fused_with or w.name, []).append(w)
    for name, members in groups.items():
        n_out = np.asarray(sum(s.local_out(w) for w in members))
        rows = s.tokens_sp if members[0].shard == "replicated" else s.tokens
        cut: Literal["", "column"] = "column" if name == "qkv" else ""
        ops += s.linear(f"attention.{name}", rows, s.local_in(members[0]), n_out, after_norm=True, cut=cut)
    rotated = _qk_bytes(a, s) * s.model.rotary_fraction
    if a.rotary and not s.model.learned_positions:
        kernels = 2.0 if s.preset.fused_elementwise else 8.0
        # eager in 16 bits: to fp32 (3 passes), a complex product (4), and back (3)
        passes = 2.0 if s.preset.fused_elementwise else (10.0 if s.width == 2.0 else 5.0)
        ops.append(s.memory("attention.rotary", "forward", passes * rotated, kernels=kernels))
        ops.append(s.memory("attention.rotary.grad", "backward_input", passes * rotated, kernels=kernels))
    if getattr(a, "qk_norm", None):
        ops.append(s.memory("attention.qk_norm", "forward", 2.0 * _qk_bytes(a, s), kernels=2.0))
        ops.append(s.memory("attention.qk_norm.grad", "backward_input", 3.0 * _qk_bytes(a, s), kernels=2.0))
    return ops


def _entrance(a: AnyAttention, s: Shapes) -> list[Op]:
    """Collectives before the column-split projections.

    Latent attention splits its up-projections only, so what enters is the latents (and the
    rotary key), which every tp rank has computed from its own rows.
    """
    if not isinstance(a, LatentAttention):
        return s.enter_tp("attention.qkv", cut=True)
    entering = (a.q_lora_rank or s.model.hidden) + a.kv_lora_rank + a.rope_dim
    return s.enter_tp("attention.latent", "attention.kv_b", entering)


def _qk_bytes(a: AnyAttention, s: Shapes) -> FloatArray:
    kv_heads = np.maximum(a.n_kv_heads / s.tp, 1.0)
    return np.asarray(s.width * s.tokens * a.qk_dim * (a.n_heads / s.tp + kv_heads))


def core_ops(split: Split) -> tuple[list[Op], FloatArray]:
    """Scores, softmax and weighted values, fused or not, and the bytes they save.

    Unfused attention (Megatron before FlashAttention) materialises b·a/tp·s·s scores: softmax
    output and dropout output in the compute dtype and a one-byte mask are saved, the
    5·a·s/h term of arXiv 2205.05198, equation 1. Fused: the fp32 softmax statistics of each row.
    """
    if split.s.preset.attention in ("flash", "sdpa-cpu"):
        return fused_core(split), np.asarray(4.0 * split.documents * split.own * split.heads)
    return _unfused_core(split)


def _unfused_core(split: Split) -> tuple[list[Op], FloatArray]:
    a, s = split.attention, split.s
    batch = np.asarray(s.sequences * split.heads)
    kv, rows = float(s.seq_len), np.asarray(s.seq * s.cp_inner)
    scores = np.asarray(batch * rows * kv)
    w, drop = s.width, s.preset.dropout

    def product(name: str, phase: Phase, m: FloatArray | float, n: FloatArray | float, k: FloatArray | float) -> Op:
        dims = {"m": m, "n": n, "k": k, "batch": batch}
        return Op(name, "gemm", phase, dims, s.dtype, rerun="selective", impl="batched")

    ops = [
        *_softmax_ops(s, batch, rows, scores, kv),
        product("attention.scores", "forward", rows, kv, float(a.qk_dim)),
        product("attention.values", "forward", rows, float(a.v_dim), kv),
        product("attention.values.dgrad", "backward_input", rows, kv, float(a.v_dim)),
        product("attention.values.kv_grad", "backward_input", kv, float(a.v_dim), rows),
        product("attention.scores.dgrad", "backward_input", rows, float(a.qk_dim), kv),
        product("attention.scores.kv_grad", "backward_input", kv, float(a.qk_dim), rows),
    ]
    if a.softcap:  # tanh(x / cap) * cap: three elementwise kernels, which no fused softmax does
        ops.append(s.memory("attention.softcap", "forward", 6.0 * w * scores, kernels=3.0, rerun="selective"))
        ops.append(s.memory("attention.softcap.grad", "backward_input", 7.0 * w * scores, kernels=3.0))
    if drop:
        ops.append(s.memory("attention.dropout", "forward", (2.0 * w + 1.0) * scores, rerun="selective"))
        ops.append(s.memory("attention.dropout.grad", "backward_input", (2.0 * w + 1.0) * scores))
    # softmax output; of a cap tanh's output, which is what the softmax read; dropout's output and its mask
    saved = scores * (w + (w if a.softcap else 0.0) + ((w + 1.0) if drop else 0.0))
    return ops, np.asarray(saved)


def _softmax_ops(s: Shapes, batch: FloatArray, rows: FloatArray, scores: FloatArray, keys: float) -> list[Op]:
    """Scale, mask and softmax of the scores: one kernel where the fused one runs, else eager operators.

    Megatron-LM's fused kernel takes 16-bit scores of 17 to `fused_softmax_keys` keys, with queries and
    sequences times heads of a rank that are multiples of 4 (``FusedScaleMaskSoftmax.is_kernel_available``,
    megatron/model/fused_softmax.py). It reads and writes them once, and twice and once backward.
    Otherwise a cast to fp32, scale, mask, softmax and a cast back go through memory one after the other
    (``forward_torch_softmax``: w + 4, 8, 8, 8 and 4 + w bytes a score), and so do their gradients (12 for softmax).
    """
    w, preset = s.width, s.preset
    allowed = preset.attention == "unfused-fused-softmax" and w < 4.0 and 16 < keys <= preset.fused_softmax_keys
    fused = (batch % 4.0 == 0.0) & (rows % 4.0 == 0.0) & allowed
    casts = 0.0 if w == 4.0 else 2.0 * (w + 4.0)
    kernels = 3.0 if w == 4.0 else 5.0
    eager = replace(
        s.memory("attention.softmax.eager", "forward", (24.0 + casts) * scores, kernels=kernels, rerun="selective"),
        count=np.where(fused, 0.0, 1.0),
    )
    eager_grad = replace(
        s.memory("attention.softmax.eager.grad", "backward_input", (28.0 + casts) * scores, kernels=kernels),
        count=np.where(fused, 0.0, 1.0),
    )
    once = np.where(fused, 1.0, 0.0)
    return [
        replace(s.memory("attention.softmax", "forward", 2.0 * w * scores, rerun="selective"), count=once),
        replace(s.memory("attention.softmax.grad", "backward_input", 3.0 * w * scores), count=once),
        eager,
        eager_grad,
    ]


def saved_projections(a: AnyAttention, s: Shapes) -> FloatArray:
    """Bytes saved by the projections: their input, q, k, v, and the input of the output projection.

    The fused core keeps its output, which is the input of the output projection, anyway.
    """
    kv_heads = np.maximum(a.n_kv_heads / s.tp, 1.0)
    qkv = s.tokens * (a.n_heads / s.tp * a.qk_dim + kv_heads * (a.qk_dim + a.v_dim))
    fused = s.preset.attention in ("flash", "sdpa-cpu")
    width = a.n_heads / s.tp * a.v_dim
    # What comes back from head shards is another tensor than the core's own output.
    shared = s.keeps_input("attention.o", s.tokens, width, shared=fused)
    kept = np.where(s.cp_inner > 1, s.keeps_input("attention.o", s.tokens, width), shared)
    out = kept + (s.width * s.tokens * width if fused else 0.0)
    normed: FloatArray | float = 0.0
    if getattr(a, "qk_norm", None):  # the norms keep their inputs, the core their outputs
        normed = s.tokens * a.qk_dim * (a.n_heads / s.tp + kv_heads)
    latent: FloatArray | float = 0.0
    if isinstance(a, LatentAttention):  # norms keep their inputs, the up-projections their own
        ranks = float((a.q_lora_rank or 0) + a.kv_lora_rank)
        latent = s.width * s.tokens_sp * ranks + s.keeps_input("attention.kv_b", s.tokens_sp, ranks)
    gated = 2.0 * s.tokens * width if a.gated else 0.0  # the gate, and the core's output before it
    entering = s.keeps_input("attention.qkv", s.tokens_saved, float(s.model.hidden))
    return np.asarray(s.width * (qkv + normed + gated) + entering + out + latent)
