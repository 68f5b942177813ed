"""lower: model x layouts -> the ops of each block of one micro-batch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hwmodels.records import dataclass
from planner.frameworks import FrameworkPreset
from planner.layout import LayoutBatch
from planner.model.spec import DecoderLayer, ModelSpec, Moe
from planner.plan import Workload
from planner.vocabulary import padded_vocab
from planner.workload.attention import attention_ops
from planner.workload.context import Shapes
from planner.workload.dense import mlp_ops
from planner.workload.eager import apart_ops
from planner.workload.encoder import classifier, image_embedding, transform
from planner.workload.moe import moe_ops
from planner.workload.op import Block, Op
from planner.workload.prediction import with_prediction
from planner.workload.recompute import SavedParts, pieces, saved_by_op, tagged
from planner.workload.split import layer_inputs, output_gradients
from planner.workload.state_space import mixer_ops
from planner.workload.vision import with_images
from planner.workload.working import backward_bytes, loss_bytes, score_buffer_bytes, weight_gradient_bytes

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
    shared_bytes: FloatArray
    """Bytes of a buffer that all layers share: scores of unfused attention before the softmax."""


def lower(model: ModelSpec, workload: Workload, layouts: LayoutBatch, preset: FrameworkPreset) -> Lowered:
    """Ops of every block of one micro-batch, for all layouts at once.

    No hardware is involved: the result is the same on any cluster.
    """
    s = Shapes.of(model, workload, layouts, preset)
    blocks = tuple(_layer(layer, index, s) for index, layer in enumerate(model.layer_kinds()))
    boundary = np.asarray(s.tokens_sp * model.hidden * s.width)
    further = model.mtp_used(workload.mtp_layers)
    head = with_prediction(
        _head(s), further, s, lambda layer: _layer(layer, 0, s), lambda name: _norm_ops(name, s)
    )
    embedding = _embedding(s)
    if model.vision is not None and workload.images:
        embedding = with_images(embedding, model.vision, workload, s, lambda layer, inside: _layer(layer, 0, inside))
    return Lowered(embedding, blocks, head, boundary, score_buffer_bytes(model, s))


def _norm_ops(name: str, s: Shapes) -> list[Op]:
    """A norm over the residual width: read and write forward; read x and dy, write dx backward.

    An eager layer norm in low precision takes seven kernels each way: a norm (1 pass) and two products (2 each)
    forward; a product (3), two sums (1 each), a scale (2), an addcmul (3) and a scale (2) backward. An eager RMS norm
    computes in fp32 and in 16-bit training goes through it twice as wide (PyTorch ``rms_norm`` before its kernel,
    `aten/src/ATen/native/layer_norm.cpp`; a cast, a square, a mean, a product, a cast, the weight): 36 bytes an
    element forward; backward the weight (8) and its own gradient (4), casts (6, 6), both sides of the product
    (12, 8), the square (8) and a sum (12): 64.
    """
    n = s.tokens_sp * s.model.hidden * s.width
    fused = s.preset.fused_norm
    impl = "rmsnorm" if s.model.norm == "rms" else "layernorm"
    passes, kernels = ((2.0, _fused_gradient_passes(s)), (1.0, 2.0)) if fused else ((5.0, 12.0), (7.0, 7.0))
    if not fused and s.model.norm == "rms" and s.width == 2.0:
        passes, kernels = (18.0, 32.0), (7.0, 9.0)
    return [
        s.memory(name, "forward", n * passes[0], kernels=kernels[0], impl=impl),
        s.memory(f"{name}.grad", "backward_input", n * passes[1], kernels=kernels[1], impl=f"{impl}_backward"),
    ]


def _fused_gradient_passes(s: Shapes) -> float:
    """Passes of the backward of a fused norm: read x and dy, write dx; and where the gradient of its weights is a
    kernel apart (PyTorch `aten/src/ATen/native/cuda/layer_norm_kernel.cu`, GammaBetaBackward), read x and dy again.
    """
    return 5.0 if s.preset.apart_gradients else 3.0


def _residual_ops(name: str, s: Shapes) -> list[Op]:
    """Bias, dropout and residual add: read branch and residual, write the sum (and the mask)."""
    n = s.tokens_sp * s.model.hidden
    w, mask = s.width, (1.0 if s.preset.dropout else 0.0)
    eager = not s.preset.fused_elementwise and s.preset.dropout
    forward = n * (3.0 * w + mask) + (2.0 * w * n if eager else 0.0)
    return [
        s.memory(name, "forward", forward, kernels=2.0 if eager else 1.0, impl="add"),
        s.memory(f"{name}.grad", "backward_input", n * (2.0 * w + mask if s.preset.dropout else 3.0 * w), impl="add"),
    ]


def _joined(ops: list[Op], s: Shapes) -> list[Op]:
    """The ops of a layer with the sum behind attention in the kernel of the norm that reads it.

    The norm does not read the sum again forward; its gradient and that of the residual meet in one kernel, which
    writes their sum once: a pass less of three and of two.
    """
    summed = {op.phase: op for op in ops if op.name in ("attention.residual", "attention.residual.grad")}
    found = []
    for op in ops:
        if op is summed.get(op.phase):
            continue
        if op.name in ("norm_1", "norm_1.grad"):
            row = _pass_bytes(op, s)
            apart = float(op.phase == "forward") + 2.0 * float(op.phase != "forward")
            nbytes = op.dims["nbytes"] + summed[op.phase].dims["nbytes"] - apart * row
            op = replace(op, dims={"nbytes": np.asarray(nbytes)})
        found.append(op)
    return found


def _pass_bytes(norm: Op, s: Shapes) -> FloatArray:
    """Bytes of one pass of a fused norm, which makes two forward."""
    return np.asarray(norm.dims["nbytes"] / (2.0 if norm.phase == "forward" else _fused_gradient_passes(s)))


def _mixer(layer: DecoderLayer, s: Shapes) -> tuple[list[Op], FloatArray, FloatArray, FloatArray]:
    """Ops of a layer's mixer, bytes saved besides its core, those of the core, and those that an exchange of context
    parallelism holds; nothing where it has none.
    """
    exchanged = np.zeros(())
    if layer.softmax is not None:
        ops, saved, core, exchanged = attention_ops(layer.softmax, s)
    elif layer.recurrent is not None:
        (ops, saved), core = mixer_ops(layer.recurrent, s), np.zeros(())
    else:
        return [], np.zeros(()), np.zeros(()), exchanged
    return [*ops, *_residual_ops("attention.residual", s)], saved, core, exchanged


def _feed(layer: DecoderLayer, s: Shapes) -> tuple[list[Op], FloatArray]:
    """Ops of a layer's feed-forward part and the bytes it saves; nothing where it has none."""
    if layer.ffn is None:
        return [], np.zeros(())
    ops, saved = moe_ops(layer.ffn, s) if isinstance(layer.ffn, Moe) else mlp_ops(layer.ffn, s)
    return [*ops, *_residual_ops("ffn.residual", s)], saved


def _layer(layer: DecoderLayer, index: int, s: Shapes) -> Block:
    s = s.within(layer)
    mixer, saved_attention, saved_core, exchanged = _mixer(layer, s)
    saved_core = np.zeros(()) if s.preset.offload_core else saved_core
    feed, saved_feed = _feed(layer, s)
    ops: list[Op] = []
    for i in range(layer.n_norms):
        ops += _norm_ops(f"norm_{i}", s)
    ops += [*mixer, *feed, *apart_ops(layer, s)]
    if s.preset.fused_residual_norm and s.preset.fused_norm and layer.attention and layer.ffn and layer.n_norms == 2:
        ops = _joined(ops, s)
    row = s.tokens_sp * s.model.hidden
    parts = (layer.attention is not None) + (layer.ffn is not None)
    masks = parts * row if s.preset.dropout else 0.0
    shared_input = np.zeros(())
    if layer.parallel and layer.n_norms == 1:  # both branches read one normalised tensor
        hidden = float(s.model.hidden)
        branches = (s.keeps_input(name, s.tokens_sp, hidden) for name in ("attention.qkv", "mlp.up"))
        shared_input = np.minimum(*branches)
    other = np.asarray(row * s.width * layer.n_norms + masks - shared_input)
    outside = np.asarray(saved_attention + saved_feed + other)
    return Block(
        name=_name(layer) + (f"_{index}" if index else ""),
        ops=tuple(tagged(ops, layer, s)),
        saved_bytes=np.asarray(outside + saved_core),
        saved_full_bytes=np.asarray(row * s.width),
        saved_op_bytes=saved_by_op(layer, s),
        pieces=pieces(layer, SavedParts(saved_attention, saved_core, saved_feed, other), s),
        weight_bytes=_waiting(layer, outside, saved_core, ops, s),
        exchange_bytes=exchanged,
        backward_bytes=backward_bytes(layer, ops, s),
    )


def _name(layer: DecoderLayer) -> str:
    """What a layer is, in a word: of its feed-forward part, or of a mixer that is no attention or stands alone."""
    if layer.is_moe:
        return "moe" if layer.recurrent is None else "recurrent_moe"
    if layer.recurrent is not None:
        return "recurrent"
    return "dense" if layer.ffn is not None else ("attention" if layer.attention is not None else "empty")


def _waiting(layer: DecoderLayer, outside: FloatArray, core: FloatArray, ops: list[Op], s: Shapes) -> FloatArray:
    """Bytes of a layer between I and W; beneath adapters all inputs are counted, though few are read again."""
    inputs = outside if s.lora is not None else layer_inputs(layer, s)
    return np.asarray((outside + core if s.preset.split_keeps_graph else inputs) + output_gradients(ops, s))


def _kept(ops: list[Op]) -> tuple[Op, ...]:
    """Ops outside the decoder layers, which no recompute policy runs again (arXiv 2205.05198, section 5)."""
    return tuple(replace(op, rerun="never") for op in ops)


def _embedding(s: Shapes) -> Block:
    """Token lookup (vocabulary-parallel over tp), positions and dropout; scatter-add backward unless frozen."""
    if s.model.patches is not None:
        return image_embedding(s.model.patches, s)
    n = s.tokens * s.model.hidden * s.width
    ops = [
        s.memory("embedding.lookup", "forward", 2.0 * n),
        *s.leave_tp("embedding", quantised=False),
    ]
    if s.lora is None:
        ops.append(s.memory("embedding.grad", "backward_weight", 3.0 * n))
    saved: FloatArray = np.asarray(s.tokens * 8.0 * float(s.lora is None))
    if s.model.learned_positions or s.preset.dropout:
        mask = 1.0 if s.preset.dropout else 0.0
        row = s.tokens_sp * s.model.hidden
        ops.append(s.memory("embedding.positions", "forward", row * (3.0 * s.width + mask), kernels=2.0))
        if s.lora is None:
            ops.append(s.memory("embedding.positions.grad", "backward_input", row * (2.0 * s.width + mask)))
            saved = np.asarray(saved + row * mask)
    if s.model.embedding_norm:  # not trained beneath adapters, where nothing before the layers needs a gradient
        normed = _norm_ops("embedding.norm", s)
        ops += normed if s.lora is None else normed[:1]
        saved = np.asarray(saved + s.tokens_sp * s.model.hidden * s.width * float(s.lora is None))
    # The scatter-add of the weight gradient reads the gradient of every row.
    waiting = (saved if s.preset.split_keeps_graph else s.tokens * 8.0) + n if s.lora is None else np.zeros(())
    return Block("embedding", _kept(ops), saved, weight_bytes=np.asarray(waiting))


def _head(s: Shapes) -> Block:
    """Final norm, output projection (vocabulary-parallel) and cross-entropy.

    The loss reads the fp32 logits and writes log-probabilities, and reads both of them and
    writes a gradient backward; casts to and from fp32 come on top. What stands around the loss:
    `planner.workload.working.loss_bytes`.
    """
    if s.model.n_classes:
        return classifier(_norm_ops("final_norm", s) if s.model.final_norm else [], s)
    vocab = np.asarray(padded_vocab(s.model, s.preset, s.tp) / s.tp)
    hidden = np.asarray(float(s.model.hidden))
    logits = np.asarray(s.tokens * vocab)
    fused = s.preset.fused_cross_entropy
    wide = s.width == 4.0
    cast = 0.0 if wide else s.width + 4.0
    forward = logits * (s.width * 2.0 if fused else 8.0 + cast)
    backward = logits * (s.width * 2.0 if fused else 12.0 + cast)
    kernels = 1.0 if fused else (2.0 if wide else 3.0)
    before, more = (_norm_ops("final_norm", s) if s.model.final_norm else []), np.zeros(())
    if s.model.head_transform:
        added, more = transform(_norm_ops("head.norm", s), s)
        before += added
    ops = [
        *before,
        *s.enter_tp("head", quantised=False),
        *s.linear("head", s.tokens, hidden, vocab, quantised=False),
        s.memory("loss", "forward", forward, kernels=kernels, impl="cross_entropy"),
        s.memory("loss.grad", "backward_input", backward, kernels=kernels, impl="cross_entropy_backward"),
    ]
    if again := float(s.preset.logged_losses):  # each casts the logits to fp32 and reads and writes log-probabilities
        passes, each = (8.0, 2.0) if wide else (s.width + 12.0, 3.0)
        ops.append(
            s.memory("loss.logged", "forward", again * passes * logits, kernels=again * each, impl="cross_entropy")
        )
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
    kept, forward_most, backward_most = loss_bytes(logits, s)
    # the loss is done when the projection's gradients are made: the logits' gradient, and its weight's before adding
    backward_most = np.maximum(backward_most, logits * s.width + weight_gradient_bytes(ops, s))
    normed = float(s.lora is None)  # what the norm reads, and what a trained head reads
    reads = float(s.model.final_norm) + normed
    saved = np.asarray(reads * s.tokens_sp * s.model.hidden * s.width + more)
    inputs = saved + kept if s.preset.split_keeps_graph else s.tokens_saved * s.model.hidden * s.width * normed
    if s.model.head_transform and not s.preset.split_keeps_graph:
        inputs = inputs + s.keeps_input("head.transform", s.tokens_sp, float(s.model.hidden), quantised=False)
    waiting = np.asarray(inputs + output_gradients(ops, s))
    return Block(
        "head", _kept(ops), saved, logits_bytes=kept, weight_bytes=waiting, logits_forward_bytes=forward_most,
        logits_backward_bytes=np.asarray(backward_most),
    )
