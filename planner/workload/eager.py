"""What eager PyTorch runs around the products of a layer beside what it computes: sums, joins and gathers.

None of it is part of the arithmetic of a model, and frameworks with kernels of their own go without it
(`FrameworkPreset.apart_gradients`, `unpads_attention`).
"""

from __future__ import annotations

import numpy as np

from planner.model.spec import AnyAttention, DecoderLayer, Moe, Weight
from planner.workload.context import Shapes
from planner.workload.op import Op


def apart_ops(layer: DecoderLayer, s: Shapes) -> list[Op]:
    """Gradients of biases, and the joining of those of queries, keys and values; nothing without `apart_gradients`.

    A bias of a linear layer is added by its product, but its gradient is a sum over the rows of the output's gradient
    (PyTorch ``tools/autograd/derivatives.yaml``, addmm): one pass. Queries, keys and values that come out of one
    product are views of its output (``chunk``), whose gradients are written into one tensor: two passes.
    """
    if not s.preset.apart_gradients:
        return []
    weights: list[Weight] = []
    for part in (layer.softmax, None if isinstance(layer.ffn, Moe) else layer.ffn):
        if part is not None:
            weights += [w for w in part.parameters(s.model.hidden) if isinstance(w, Weight)]
    biased = [w for w in weights if w.bias] if s.lora is None else []
    joined = [w for w in weights if w.fused_with == "qkv"]
    found = []
    if biased:
        kernels = float(len({w.fused_with or w.name for w in biased}))
        found.append(s.memory("bias.grad", "backward_weight", _outputs(biased, s), kernels=kernels))
    if joined:
        found.append(s.memory("attention.joined.grad", "backward_input", 2.0 * _outputs(joined, s)))
    return found


def _outputs(weights: list[Weight], s: Shapes) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Bytes of what linear layers make of a micro-batch on one rank."""
    sizes = [(s.tokens_sp if w.shard == "replicated" else s.tokens) * s.local_out(w) for w in weights]
    return np.asarray(s.width * sum(sizes))


def unpad_ops(a: AnyAttention, s: Shapes) -> list[Op]:
    """Gathers before and a scatter behind a kernel for ragged batches; nothing without `unpads_attention`.

    flash-attn ``bert_padding.py``: ``unpad_input`` indexes the tokens of query, key and value (two passes each),
    ``pad_input`` writes the output into zeros (three); backward the other way round.
    """
    if not s.preset.unpads_attention:
        return []
    kv = np.maximum(a.n_kv_heads / s.tp, 1.0)
    inputs = s.width * s.tokens * (a.qk_dim * (a.n_heads / s.tp + kv) + a.v_dim * kv)
    output = s.width * s.tokens * a.v_dim * a.n_heads / s.tp
    return [
        s.memory("attention.unpad", "forward", 2.0 * inputs + 3.0 * output, kernels=5.0),
        s.memory("attention.unpad.grad", "backward_input", 3.0 * inputs + 2.0 * output, kernels=7.0),
    ]
