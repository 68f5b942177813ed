"""What a backward holds for a moment: gradients of activations, weight gradients on their way, logits in the loss."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from planner.frameworks import FrameworkPreset
from planner.model.spec import DecoderLayer, ModelSpec, Moe
from planner.workload.context import Shapes
from planner.workload.moe import expert_rows
from planner.workload.op import Op

FloatArray = NDArray[np.float64]


def weight_gradient_bytes(ops: Iterable[Op], s: Shapes) -> FloatArray:
    """Bytes of the largest weight gradient of a block on its way to a persistent main gradient.

    Megatron's own linear layers make a tensor of the weight's size in any case: the gradient that is added, or, where
    the GEMM has added it itself, an empty one that lets the backward hooks run (megatron/core/tensor_parallel/
    layers.py, ``grad_added_to_main_grad``). A grouped linear layer makes those of all its experts before their GEMMs
    (transformer_engine/pytorch/module/grouped_linear.py, ``wgrad_list``). 0 where autograd keeps the gradient as it is.
    """
    if not s.preset.main_grad_buffer or s.lora is not None:
        return np.zeros(())
    most = np.zeros(())
    for op in ops:
        if op.phase == "backward_weight" and op.kind in ("gemm", "grouped_gemm") and op.impl != "batched":
            elements = op.dims["m"] * op.dims["n"] * op.dims.get("groups", 1.0)
            most = np.maximum(most, elements * s.width)
    return np.asarray(most)


def empty_gradients(preset: FrameworkPreset) -> bool:
    """Whether empty weight gradients are kept, one of each shape.

    Transformer Engine's linear layers hand autograd a cached empty tensor where the GEMM has added to the main
    gradient (transformer_engine/pytorch/module/base.py, ``get_dummy_wgrad``).
    """
    return preset.transformer_engine and preset.main_grad_buffer and preset.fused_grad_accumulation


def backward_bytes(layer: DecoderLayer, ops: Iterable[Op], s: Shapes) -> FloatArray:
    """Bytes that the backward of a layer holds beside what the layer saved.

    It begins at the layer's end, with everything saved still there: the gradient of the residual stream, those of
    the feed-forward part, and the weight gradient that is being added.
    """
    ffn = layer.ffn
    row = s.tokens_sp * s.model.hidden
    wide: FloatArray = np.zeros(())
    if isinstance(ffn, Moe):
        rows = expert_rows(ffn, s)
        wide = np.asarray(rows.all * rows.width)
    elif ffn is not None:
        wide = np.asarray(s.tokens * ffn.ffn_hidden / s.tp)
    columns = 2.0 if ffn is not None and ffn.gated else 1.0
    added = np.zeros(()) if empty_gradients(s.preset) else weight_gradient_bytes(ops, s)
    # Down: its input's gradient beside everything saved. Activation: the gradient of its input too, without that input.
    return np.asarray(s.width * (row + wide * columns) + added)


def loss_bytes(logits: FloatArray, s: Shapes) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Bytes around the loss for `logits` elements: kept until its backward, most forward, most backward.

    * A fused loss reads the logits in the compute dtype and writes their gradient, in place in Transformer Engine's
      (transformer_engine/pytorch/triton/cross_entropy.py) and beside them otherwise.
    * Megatron's vocabulary-parallel loss casts the logits to fp32, turns the copy into softmax and, backward, into
      their gradient in place, and autograd casts that to the compute dtype (megatron/core/tensor_parallel/
      cross_entropy.py): 4 kept, width + 4 both ways.
    * PyTorch's operators keep the logits and fp32 log-probabilities; forward the fp32 copy stands beside both, backward
      the gradients of both operators (aten/src/ATen/native/cuda/SoftMax.cu, NLLLoss2d.cu).
    """
    width, wide = s.width, s.width == 4.0
    if s.preset.fused_cross_entropy:
        own = (width, width, width if s.preset.transformer_engine else 2.0 * width)
    elif s.preset.in_place_loss:
        own = (4.0, width + 4.0, 4.0 if wide else width + 4.0)
    else:
        own = (width + 4.0, width + (4.0 if wide else 8.0), width + 12.0)
    kept, forward, backward = own
    return np.asarray(logits * kept), np.asarray(logits * forward), np.asarray(logits * backward)


def score_buffer_bytes(model: ModelSpec, s: Shapes) -> FloatArray:
    """Bytes of the buffer into which Megatron's own unfused attention writes its scores, once for all layers.

    ``get_global_memory_buffer`` keeps it (megatron/core/transformer/dot_product_attention.py); Transformer Engine's
    unfused attention takes a new tensor each time.
    """
    if s.preset.attention in ("flash", "sdpa-cpu") or s.preset.transformer_engine:
        return np.zeros(())
    heads = max((layer.softmax.n_heads for layer in model.layer_kinds() if layer.softmax is not None), default=0)
    return np.asarray(s.width * s.sequences * heads / s.tp * s.seq * s.seq_len)
