"""The gated delta rule over chunks: the kernels of flash-linear-attention ``chunk_gated_delta_rule``.

For chunks of C tokens and states of K x V a value head (arXiv 2412.06464, section 3.3, and the WY form of
arXiv 2406.06484, section 3.2): A = the inverse of a triangle of k k^T; w = A k and u = A v; from chunk to chunk
v - w h and h + k^T v; output q h and the masked q k^T times v. Masks skip nothing inside a chunk.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from planner.model.spec import DeltaNet
from planner.workload.context import Shapes
from planner.workload.op import Op, Phase

FloatArray = NDArray[np.float64]

# Products of a chunk and value head by what they make, with sizes (rows, columns, depth) in C, K, V.
FORWARD = {
    "kk": "CCK",
    "w": "CKC",
    "u": "CVC",
    "w_h": "CVK",
    "k_v": "KVC",
    "qk": "CCK",
    "q_h": "CVK",
    "qk_v": "CVC",
}
"""``chunk_scaled_dot_kkt``, ``recompute_w_u``, ``chunk_delta_h``, ``chunk_o``."""
BACKWARD = {
    "w.again": "CKC",
    "u.again": "CVC",
    "w_h.again": "CVK",
    "k_v.again": "KVC",
    "qk.again": "CCK",
    "v.grad": "CVC",
    "k_dh": "CVK",
    "h.grad_q": "KVC",
    "h.grad_w": "KVC",
    "q.grad_h": "CKV",
    "k.grad_h": "CKV",
    "w.grad": "CKV",
    "qk.grad": "CCV",
    "q.grad": "CKC",
    "k.grad": "CKC",
    "a.grad_w": "CCK",
    "a.grad_u": "CCV",
    "k.grad_w": "CKC",
    "v.grad_u": "CVC",
    "a.grad_left": "CCC",
    "a.grad_right": "CCC",
    "kk.grad_left": "CKC",
    "kk.grad_right": "CKC",
}
"""w, u and h again; ``chunk_bwd_dv_local``, ``chunk_bwd_dhu``, ``chunk_bwd_dqkwg``, ``prepare_wy_repr_bwd``."""


def delta_ops(mixer: DeltaNet, s: Shapes) -> list[Op]:
    """Kernels of the rule for one micro-batch, with the norms of q and k before it.

    q and k are normed and copied to the value heads that share them (Megatron-Core ``GatedDeltaNet.forward``); the
    triangle of a chunk is inverted in C³/3 FLOPs (``solve_tril``); states are written once a chunk.
    """
    size = {"C": float(mixer.chunk), "K": float(mixer.key_dim), "V": float(mixer.value_dim)}
    heads = s.tokens * mixer.n_value_heads / s.tp
    chunks = np.asarray(heads / mixer.chunk)
    w = s.width

    def product(name: str, phase: Phase, dims: tuple[float, float, float]) -> Op:
        m, n, k = (np.asarray(v) for v in dims)
        return Op(f"mixer.{name}", "gemm", phase, {"m": m, "n": n, "k": k, "batch": chunks}, s.dtype, impl="batched")

    def products(phase: Phase, table: dict[str, str]) -> list[Op]:
        return [product(name, phase, (size[d[0]], size[d[1]], size[d[2]])) for name, d in table.items()]

    c = size["C"]
    keys = 2.0 * w * s.tokens * mixer.n_key_heads / s.tp * mixer.key_dim
    copies = 2.0 * w * heads * mixer.key_dim
    gates, states, triangle = heads * (2.0 * w + 8.0), w * chunks * size["K"] * size["V"], heads * c * (4.0 + w)
    return [
        s.memory("mixer.qk_norm", "forward", 3.0 * keys + copies, kernels=4.0),
        s.memory("mixer.gates", "forward", gates, kernels=3.0),
        *products("forward", FORWARD),
        product("solve", "forward", (c, c, c / 6.0)),
        s.memory("mixer.triangle", "forward", triangle),
        s.memory("mixer.states", "forward", 2.0 * states),
        s.memory("mixer.states.again", "backward_input", 4.0 * states),
        *products("backward_input", BACKWARD),
        s.memory("mixer.triangle.grad", "backward_input", triangle),
        s.memory("mixer.gates.grad", "backward_input", 2.0 * gates, kernels=4.0),
        s.memory("mixer.qk_norm.grad", "backward_input", 4.0 * keys + copies, kernels=4.0),
    ]


def delta_saved(mixer: DeltaNet, s: Shapes) -> FloatArray:
    """Bytes kept by convolution, rule and gated norm: q, k and v, normed copies of q and k, A, and the output."""
    heads = s.tokens * mixer.n_value_heads / s.tp
    rule = heads * (2.0 * mixer.key_dim + mixer.chunk + mixer.value_dim)
    return np.asarray(s.width * (s.tokens * mixer.conv_dim / s.tp + rule))
