"""Fused attention: FlashAttention-2 and -3, cuDNN and their decode kernels, and CPU SDPA.

    area    = visible (query, key) pairs of one head: all, the causal half, or a window
    flop    = 2 (qk_dim + v_dim) area n_heads batch            forward (QK^T and PV)
    backward = 2.5 x forward (five products instead of two: S again, dV, dP, dQ, dK;
               Dao et al. 2022, FlashAttention, appendix B)
    compute = flop x waves / (peak x efficiency x d_eff x area_eff)
    memory  = (Q + O + K + V read or written once) / (bandwidth x memory_efficiency)
    t = launch + (compute^4 + memory^4)^(1/4)

A decode step (one query a row) reads ``max(kv_len, tile) + pad`` keys of each (sequence, KV head):
a short cache still costs a whole tile and the start of its block.

`waves` rounds the ``n_heads x batch x ceil(q_len / 128)`` blocks up to whole waves over the SMs
(a share `tail` of an unfilled wave is lost); a decode step (few blocks) is spread over the KV
length instead and is bound by reading the cache. Short rows lose a ramp: ``kv + ramp`` steps.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from hwmodels.device import DTYPE_BYTES, Coefficient, Device
from hwmodels.errors import Fault, InputError
from hwmodels.estimate import Estimate, FloatArray
from hwmodels.kernels.gemm import _positive

BACKWARD_FLOP_RATIO = 2.5
"""FLOP of the backward over those of the forward (Dao et al. 2022)."""


def _assumed(value: float, why: str) -> Coefficient:
    return Coefficient(value, f"assumed: {why}", 0, 0.2)


ATTENTION_DEFAULTS = {
    "forward.efficiency": _assumed(0.68, "FlashAttention-2 on A100, FlashAttention-3 on H100: 65-75% of peak"),
    "backward.efficiency": _assumed(0.55, "the backward runs at about 0.8 of the forward rate"),
    "head_dim_half": _assumed(20.0, "head dim 64 runs at about 0.85 of head dim 128"),
    "ramp": _assumed(250.0, "prologue and softmax epilogue of a row of blocks, in keys"),
    "tail": _assumed(0.7, "share of an unfilled last wave that is lost"),
    "memory_efficiency": _assumed(0.80, "streams reach 80-90% of the datasheet bandwidth"),
    "launch": _assumed(8e-6, "shortest kernels take 6-15 us"),
    "decode.efficiency": _assumed(0.75, "paged KV reads reach 70-85% of the datasheet bandwidth"),
    "decode.launch": _assumed(10e-6, "split-KV kernel and its reduction"),
    "decode.tile": _assumed(64.0, "keys that one block reads at least"),
    "decode.pad": _assumed(55.0, "start of a block, in keys"),
}


def attention_coefficient(device: Device, name: str, impl: str = "") -> Coefficient:
    """``attention.<impl>.<name>``, else ``attention.<name>``, else the assumed value."""
    names = [f"attention.{impl}.{name}"] if impl else []
    return device.find(*names, f"attention.{name}", default=ATTENTION_DEFAULTS[name])


def visible_pairs(q_len: ArrayLike, kv_len: ArrayLike, causal: ArrayLike, window: ArrayLike | None) -> FloatArray:
    """Visible (query, key) pairs of one head.

    Queries are the last `q_len` positions of `kv_len`. Causal: ``q kv - q (q - 1) / 2`` pairs,
    which is ``q (q + 1) / 2`` for equal lengths. With a window of `w` keys, query ``i`` sees at
    most `w`: subtract the triangle ``sum max(0, position - w)``.
    """
    q, kv = np.asarray(q_len, dtype=np.float64), np.asarray(kv_len, dtype=np.float64)
    q = np.minimum(q, kv)
    full = q * kv
    masked = full - q * (q - 1.0) / 2.0
    pairs = np.where(np.asarray(causal, dtype=bool), masked, full)
    if window is not None:
        # Positions kv-q+1 .. kv see (position - w) keys too many, where that is positive.
        w = np.asarray(window, dtype=np.float64)
        last = np.maximum(kv - w, 0.0)
        first = np.maximum(kv - q - w, 0.0)
        triangle = (last * (last + 1.0) - first * (first + 1.0)) / 2.0
        pairs = np.where(np.asarray(causal, dtype=bool), masked - triangle, np.minimum(full, q * w))
    return np.asarray(pairs)


def attention_seconds(
    device: Device,
    *,
    batch: ArrayLike,
    q_len: ArrayLike,
    kv_len: ArrayLike,
    n_heads: ArrayLike,
    n_kv_heads: ArrayLike,
    qk_dim: ArrayLike,
    v_dim: ArrayLike,
    causal: ArrayLike,
    direction: str,
    dtype: str = "bf16",
    impl: str = "flash",
    window: ArrayLike | None = None,
) -> Estimate:
    """Time of one fused attention kernel over `batch` sequences.

    Parameters
    ----------
    device : Device
    batch, q_len, kv_len, n_heads, n_kv_heads, qk_dim, v_dim, causal : array_like
        Broadcast against each other. Queries are the last `q_len` of `kv_len` positions; MLA has
        unequal `qk_dim` and `v_dim`.
    direction : {'forward', 'backward'}
        ``backward`` is the backward alone.
    dtype : str
    impl : str
        ``"flash"`` (FlashAttention-2 or -3 by generation), ``"sdpa-cpu"``, or a kernel that has
        coefficients of its own (``attention.<impl>.forward.efficiency``).
    window : array_like, optional
        Keys that a query sees at most (sliding window).

    Raises
    ------
    InputError
        For an unknown direction, a negative or non-finite size, or a dtype without a peak.
    """
    if direction not in ("forward", "backward"):
        raise InputError(Fault(f"direction is {direction!r}", where="attention", fix="forward or backward"))
    b, q, kv, h, hkv, dqk, dv = np.broadcast_arrays(
        *_positive(
            batch=batch, q_len=q_len, kv_len=kv_len, n_heads=n_heads, n_kv_heads=n_kv_heads, qk_dim=qk_dim, v_dim=v_dim
        )
    )
    name = "" if impl == "flash" else impl

    def value(key: str) -> float:
        return attention_coefficient(device, key, name).value

    pairs = visible_pairs(q, kv, causal, window)
    flop = 2.0 * (dqk + dv) * pairs * h * b
    passes = 1.0
    if direction == "backward":
        flop = flop * BACKWARD_FLOP_RATIO
        passes = 2.0  # Q, K, V, O, dO read; dQ, dK, dV written: twice the forward's traffic
    lead = attention_coefficient(device, f"{direction}.efficiency", name)
    size = DTYPE_BYTES[dtype]
    q_bytes = size * b * h * q * (dqk + dv)
    kv_bytes = size * b * hkv * kv * (dqk + dv)
    width = (dqk + dv) / 2.0
    d_eff = width / (width + value("head_dim_half")) * (1.0 + value("head_dim_half") / 128.0)
    rate = device.peak(dtype) * lead.value * d_eff
    compute = np.divide(flop, rate, out=np.zeros(flop.shape), where=rate > 0)
    if device.kind == "cpu":
        seconds = value("launch") + compute + (q_bytes + kv_bytes) * passes / device.memory_bandwidth
        return Estimate.of(np.where(flop > 0, seconds, 0.0), lead.residual)
    rows = np.maximum(pairs / np.maximum(q, 1.0), 1.0)
    compute = compute * (1.0 + value("ramp") / rows)
    if device.n_sm:
        blocks = h * b * np.ceil(q / 128.0)
        waves = np.maximum(blocks / device.n_sm, 1e-9)
        compute = compute * (1.0 + value("tail") * (np.ceil(waves) / waves - 1.0))
    # A decode step has one query in each row: split over the keys, bound by reading the cache.
    decode = q <= 1.0
    read = np.where(decode, value("decode.efficiency"), value("memory_efficiency"))
    keys = np.maximum(kv, value("decode.tile")) + value("decode.pad")
    kv_bytes = np.where(decode, kv_bytes * keys / np.maximum(kv, 1.0), kv_bytes)
    traffic = (q_bytes + kv_bytes) * passes / (device.memory_bandwidth * read)
    # One query fills at most an eighth of a 64-row tensor-core tile, with GQA more; never the bottleneck alone.
    compute = np.where(decode, flop / rate, compute)
    start = np.where(decode, value("decode.launch"), value("launch"))
    seconds = start + np.hypot(compute**2, traffic**2) ** 0.5
    spread = np.where(decode, attention_coefficient(device, "decode.efficiency", name).residual,
                      lead.residual)  # fmt: skip
    return Estimate.of(np.where(flop > 0, seconds, 0.0), spread)
