"""What a split backward keeps between a layer's input gradient (I) and its weight gradient (W).

A weight gradient is a product of the input of its matrix and the gradient of its output. Both stay until W
has run, whatever recomputation would drop or rebuild: I has just rebuilt it. What only I needs (softmax,
masks, activation inputs) is free after I. For a GPT layer this is the 32*s*b*h bytes of Qi et al.,
arXiv:2401.10241, table 1: inputs (2 + 2 + 2 + 8)*s*b*h, output gradients (6 + 2 + 8 + 2)*s*b*h. PyTorch's runtime
frees nothing before W (`FrameworkPreset.split_keeps_graph`): there output gradients come on top of all that is saved.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from planner.model.spec import DecoderLayer, LatentAttention, Mamba1, Moe
from planner.workload.context import Shapes
from planner.workload.moe import expert_rows
from planner.workload.op import Op

FloatArray = NDArray[np.float64]


def output_gradients(ops: Iterable[Op], s: Shapes) -> FloatArray:
    """Bytes of the gradients that the weight-gradient GEMMs of a block read: rows x n_out of each."""
    total = np.zeros(())
    for op in ops:
        if op.phase == "backward_weight" and op.kind in ("gemm", "grouped_gemm") and op.impl != "batched":
            rows = op.dims["k"] * op.dims.get("groups", 1.0)
            total = total + rows * op.dims["n"] * s.width
    return np.asarray(total)


def layer_inputs(layer: DecoderLayer, s: Shapes) -> FloatArray:
    """Bytes of the inputs of a layer's matrices, each tensor once."""
    hidden = float(s.model.hidden)
    rows = _mixer_inputs(layer, s)
    ffn = layer.ffn
    if ffn is None:
        return np.asarray(s.width * rows)
    if not isinstance(ffn, Moe):
        return np.asarray(s.width * (rows + s.tokens_saved * hidden + s.tokens * ffn.ffn_hidden / s.tp))
    rows = rows + s.tokens_sp * hidden + expert_rows(ffn, s).all * (hidden + ffn.ffn_hidden / s.etp)
    if ffn.shared_ffn_hidden:
        rows = rows + s.tokens * ffn.shared_ffn_hidden / s.tp
    return np.asarray(s.width * rows)


def _mixer_inputs(layer: DecoderLayer, s: Shapes) -> FloatArray:
    """Elements of the inputs of a mixer's matrices."""
    hidden = s.tokens_saved * float(s.model.hidden)
    if layer.recurrent is not None:
        mixer = layer.recurrent
        inner = s.tokens * mixer.d_inner / s.tp
        small = inner + s.tokens * mixer.dt_rank if isinstance(mixer, Mamba1) else 0.0
        return np.asarray(hidden + inner + small)
    a = layer.softmax
    if a is None:
        return np.zeros(())
    rows = np.asarray(hidden + s.tokens * a.n_heads / s.tp * a.v_dim)
    if isinstance(a, LatentAttention):
        rows = np.asarray(rows + s.tokens_sp * ((a.q_lora_rank or 0) + a.kv_lora_rank))
    return rows
