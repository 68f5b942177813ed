"""Recurrent mixers: projections, causal convolution, scan and gated norm, and the collectives around them.

Mamba-2 and the gated delta rule run as products over chunks of the sequence (arXiv 2405.21060, section 6;
arXiv 2412.06464, section 3.3), priced as batched GEMMs of a chunk's size; Mamba's scan moves bytes. Context
parallelism exchanges sequence shards for heads before the convolution and back after the scan (Megatron-Core
``mamba_context_parallel.py``, ``gated_delta_net``): each rank runs the whole sequence over its heads, which is as
much work as its tokens over all heads.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from planner.model.spec import DeltaNet, Mamba1, Mamba2, Recurrent
from planner.workload.context import Shapes
from planner.workload.delta_rule import delta_ops, delta_saved
from planner.workload.op import Op, Phase

FloatArray = NDArray[np.float64]


def mixer_ops(mixer: Recurrent, s: Shapes) -> tuple[list[Op], FloatArray]:
    """Ops of one recurrent mixer of a micro-batch, and the bytes it saves for backward.

    Input projection, convolution with SiLU, scan, gated norm (Mamba: gate), output projection. What is saved is the
    input projection's output, which convolution and scan read again, what the scan keeps, and the inputs of both
    projections; chunk states are computed again in the backward (mamba_ssm ``ssd_combined.py``).
    """
    weight = mixer.parameters(s.model.hidden)[0]
    columns = np.asarray(weight.parameters / s.model.hidden / s.tp)
    inner = np.asarray(mixer.d_inner / s.tp)
    ops = s.enter_tp("mixer.in")
    ops += s.linear("mixer.in", s.tokens, np.asarray(float(s.model.hidden)), columns, after_norm=True)
    ops += _exchange(mixer, columns, inner, s)
    ops += _convolution(mixer, s)
    if isinstance(mixer, Mamba1):
        scan, kept = _selective_scan(mixer, s)
    elif isinstance(mixer, Mamba2):
        scan, kept = _chunked_scan(mixer, s), s.width * s.tokens * inner
    else:
        scan, kept = delta_ops(mixer, s), delta_saved(mixer, s)
    ops += scan
    if not isinstance(mixer, Mamba1):  # Mamba's scan applies its gate itself
        ops.append(s.memory("mixer.gated_norm", "forward", 3.0 * s.width * s.tokens * inner))
        ops.append(s.memory("mixer.gated_norm.grad", "backward_input", 5.0 * s.width * s.tokens * inner, kernels=2.0))
    ops += s.linear("mixer.o", s.tokens, inner, np.asarray(float(s.model.hidden)))
    ops += s.leave_tp("mixer.o")
    ends = s.keeps_input("mixer.in", s.tokens_saved, float(s.model.hidden)) + s.keeps_input("mixer.o", s.tokens, inner)
    return ops, np.asarray(ends + s.width * s.tokens * columns + kept)


def _channels(mixer: Recurrent, s: Shapes) -> FloatArray:
    """Channels of the convolution for each of the rank's tokens; groups fewer than cp are copied to the ranks."""
    if isinstance(mixer, Mamba1):
        return np.asarray(mixer.d_inner / s.tp)
    if isinstance(mixer, DeltaNet):
        return np.asarray(mixer.conv_dim / s.tp)
    return np.asarray(mixer.d_inner / s.tp + 2.0 * _groups(mixer, s) * mixer.d_state)


def _groups(mixer: Mamba2, s: Shapes) -> FloatArray:
    """Groups for each of the rank's tokens: those of its tp shard, each on as many cp ranks as it has to be."""
    return np.asarray(np.maximum(mixer.n_groups / s.tp, s.cp))


def _exchange(mixer: Recurrent, columns: FloatArray, inner: FloatArray, s: Shapes) -> list[Op]:
    """All-to-alls over cp: z, x, B, C and dt apart for Mamba-2, one for the delta rule; and the output back.

    On both sides the ranks' chunks, dealt for causal attention, are put in the order of the sequence and back:
    read and written once.
    """
    if isinstance(mixer, Mamba1):  # has no context parallelism: rule "cp-mamba1"
        return []
    wide = columns
    if isinstance(mixer, Mamba2):
        wide = columns + 2.0 * mixer.d_state * (_groups(mixer, s) - mixer.n_groups / s.tp)
    pieces = 5.0 if isinstance(mixer, Mamba2) else 1.0
    there, back = s.width * s.tokens * wide, s.width * s.tokens * inner
    split = np.where(s.cp > 1, 1.0, 0.0)

    def move(name: str, phase: Phase, nbytes: FloatArray, times: float) -> Op:
        dims = {"nbytes": np.asarray(nbytes / times)}
        return Op(name, "collective", phase, dims, s.dtype, "cp", "all_to_all", split * times)

    def reorder(name: str, phase: Phase, nbytes: FloatArray) -> Op:
        return replace(s.memory(name, phase, 2.0 * nbytes), count=split)

    return [
        move("mixer.to_heads", "forward", there, pieces),
        reorder("mixer.to_order", "forward", there),
        reorder("mixer.from_order", "forward", back),
        move("mixer.to_tokens", "forward", back, 1.0),
        move("mixer.to_tokens.grad", "backward_input", back, 1.0),
        reorder("mixer.from_order.grad", "backward_input", back),
        reorder("mixer.to_order.grad", "backward_input", there),
        move("mixer.to_heads.grad", "backward_input", there, pieces),
    ]


def _convolution(mixer: Recurrent, s: Shapes) -> list[Op]:
    """Causal depthwise convolution with SiLU: read and write; backward reads input and gradient, writes one.

    The Mamba kernels keep its input alone and run it again in the backward (``mamba_split_conv1d_scan_combined``,
    ``mamba_inner_fn`` with checkpoint_lvl 1). Its few FLOPs (2 a tap) hide behind the bytes.
    """
    nbytes = s.width * s.tokens * _channels(mixer, s)
    again = 0.0 if isinstance(mixer, DeltaNet) else 2.0
    return [
        s.memory("mixer.conv", "forward", 2.0 * nbytes),
        s.memory("mixer.conv.grad", "backward_input", (3.0 + again) * nbytes, kernels=1.0 + again / 2.0),
    ]


def _selective_scan(mixer: Mamba1, s: Shapes) -> tuple[list[Op], FloatArray]:
    """Mamba's own scan between its small projections (``mamba_inner_fn`` of mamba_ssm), and what it saves.

    x -> (dt, B, C) is split by rows and summed over tp, dt by columns. The scan reads x, dt and z and writes two
    outputs; backward reads these with the gradient and writes three; dt is projected again. States stay on chip.
    """
    inner, rank = np.asarray(mixer.d_inner / s.tp), np.asarray(float(mixer.dt_rank))
    small = np.asarray(float(mixer.dt_rank + 2 * mixer.d_state))
    row, w = s.tokens * inner * s.width, s.width
    ops = [*s.linear("mixer.x", s.tokens, inner, small), *s.linear("mixer.dt", s.tokens, rank, inner)]
    summed = {"nbytes": np.asarray(w * s.tokens * small)}
    phases: tuple[Phase, ...] = ("forward", "backward_input")
    for name, phase in zip(("mixer.x.all_reduce", "mixer.dt.grad_all_reduce"), phases, strict=True):
        count = np.where(s.tp > 1, 1.0, 0.0)
        ops.append(Op(name, "collective", phase, summed, s.dtype, "tp", "all_reduce", count))
    if mixer.inner_norms:
        ops.append(s.memory("mixer.inner_norms", "forward", 2.0 * w * s.tokens * small, kernels=3.0))
        ops.append(s.memory("mixer.inner_norms.grad", "backward_input", 3.0 * w * s.tokens * small, kernels=6.0))
    again = {"m": s.tokens, "n": inner, "k": rank}
    ops += [
        s.memory("mixer.scan", "forward", 5.0 * row),
        Op("mixer.dt.again", "gemm", "backward_input", again, s.dtype, impl=s.preset.gemm_impl),
        s.memory("mixer.scan.grad", "backward_input", 8.0 * row),
    ]
    kept = s.keeps_input("mixer.x", s.tokens, inner) + s.keeps_input("mixer.dt", s.tokens, rank)
    states = 8.0 * mixer.d_state * inner * s.tokens / 2048.0  # running pairs at the end of each 2048 tokens, fp32
    return ops, np.asarray(kept + w * s.tokens * (small - rank) + row + states)


def _chunked_scan(mixer: Mamba2, s: Shapes) -> list[Op]:
    """Kernels of the state-space dual scan (mamba_ssm ``ssd_combined.py``), forward and backward.

    For chunks of Q tokens, heads of P and states of N (arXiv 2405.21060, section 6): C B^T for each group, its
    product with x, the states B^T x, and C times the state before the chunk; states pass from chunk to chunk in
    fp32. Backward computes states and C B^T again, and has products for x (two), the states, B, C, C B^T, and both
    factors of the latter.
    """
    q, p, n = float(mixer.chunk), float(mixer.head_dim), float(mixer.d_state)
    chunks = np.asarray(s.tokens / q)
    heads, groups = chunks * mixer.n_heads / s.tp, chunks * _groups(mixer, s)
    states, steps = heads * p * n, s.tokens * mixer.n_heads / s.tp

    def product(name: str, phase: Phase, m: float, cols: float, k: float, batch: FloatArray) -> Op:
        dims = {"m": np.asarray(m), "n": np.asarray(cols), "k": np.asarray(k), "batch": batch}
        return Op(f"mixer.{name}", "gemm", phase, dims, s.dtype, impl="batched")

    forward: Phase = "forward"
    backward: Phase = "backward_input"
    return [
        s.memory("mixer.decay", forward, steps * (s.width + 8.0)),
        product("scores", forward, q, q, n, groups),
        product("states", forward, p, n, q, heads),
        s.memory("mixer.pass", forward, states * (4.0 + s.width)),
        product("within", forward, q, p, q, heads),
        product("across", forward, q, p, n, heads),
        s.memory("mixer.decay.again", backward, steps * (s.width + 8.0)),
        product("scores.again", backward, q, q, n, groups),
        product("states.again", backward, p, n, q, heads),
        s.memory("mixer.pass.again", backward, states * (4.0 + s.width)),
        product("states.grad", backward, p, n, q, heads),
        s.memory("mixer.pass.grad", backward, states * 12.0),
        product("within.x_grad", backward, q, p, q, heads),
        product("across.x_grad", backward, q, p, n, heads),
        product("b_grad", backward, q, n, p, heads),
        product("c_grad", backward, q, n, p, heads),
        product("scores.grad", backward, q, q, p, heads),
        product("scores.b_grad", backward, q, n, q, groups),
        product("scores.c_grad", backward, q, n, q, groups),
        s.memory("mixer.decay.grad", backward, steps * 16.0, kernels=2.0),
    ]
