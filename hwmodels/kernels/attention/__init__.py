"""Fused attention: FlashAttention-2 to -4, cuDNN, FlashInfer, TensorRT-LLM and Triton kernels, decode over a
paged cache, and CPU SDPA.

    area = visible (query, key) pairs of one head: all, the causal half, or a window
    flop = 2 (qk_dim + v_dim) area n_heads batch            forward (QK^T and PV); backward 2.5 x

`prefill` holds the law of kernels over many queries, `decode` that of a decode step, `coefficients` what
each kernel of each generation takes, and which one stands in for a kernel that was not measured.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hwmodels.device import Device
from hwmodels.errors import Fault, InputError
from hwmodels.estimate import Estimate
from hwmodels.kernels.attention import cpu, decode, prefill
from hwmodels.kernels.attention.coefficients import (
    ATTENTION_DEFAULTS,
    REFERENCE_IMPL,
    attention_coefficient,
    choose,
    mode_of,
)
from hwmodels.kernels.attention.prefill import BACKWARD_FLOP_RATIO
from hwmodels.kernels.attention.shapes import Hardware, Shapes, element_bytes, visible_pairs
from hwmodels.kernels.gemm import _positive

__all__ = [
    "ATTENTION_DEFAULTS", "BACKWARD_FLOP_RATIO", "attention_coefficient", "attention_seconds", "visible_pairs",
]  # fmt: skip

DECODE_QUERIES = 16
"""Queries a sequence up to which a kernel may still be a decode kernel (speculative tokens fill one tile)."""
FEW_QUERIES = 128
"""Queries a sequence (a tile of a prefill kernel) up to which a call takes at least the decode step of one query.

The two laws were fitted on different kernels, so the prefill law may undercut the decode law at their seam; a caller
who does not say which kernel runs gets times that do not fall as the queries grow."""
PHASES = ("", "prefill", "decode")
LONG = 1024.0
"""Queries from which a prefill has the spread of long ones."""
CHUNK = 8192
"""Calls worked on at a time: the temporaries stay in the core's cache."""
NO_WINDOW = 1e18
"""Keys of a window that hides nothing."""


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
    kv_dtype: str | None = None,
    shared_kv: ArrayLike = False,
    phase: str = "",
) -> Estimate:
    """Time of one fused attention kernel over `batch` sequences.

    Parameters
    ----------
    device : Device
    batch, q_len, kv_len, n_heads, n_kv_heads, qk_dim, v_dim, causal : array_like
        Broadcast against each other. Queries are the last `q_len` of `kv_len` positions (a chunk of a
        prefill has ``q_len < kv_len``); latent attention has unequal `qk_dim` and `v_dim`.
    direction : {'forward', 'backward'}
        ``backward`` is the backward alone.
    dtype : str
        Number format of the products.
    impl : str
        ``"flash"`` (the reference kernels of the generation), ``"sdpa-cpu"``, or the key of an implementation
        (``"vllm-fa3"``; `hwmodels.implementations`); one that was not measured on the generation is
        priced as the nearest (`coefficients.nearest`) with a wider spread.
    window : array_like, optional
        Keys that a query sees at most (sliding window).
    kv_dtype : str, optional
        Number format of K and V in memory; that of `dtype` by default.
    shared_kv : array_like of bool
        V is the leading part of K (latent attention in absorbed form: one KV head, `qk_dim` 576, `v_dim`
        512): the cache is read once.
    phase : {'', 'prefill', 'decode'}
        Which kernel; by default one query is a decode step, more are a prefill, a few (to 16) whichever is faster,
        and up to `FEW_QUERIES` no less than the step of one.

    Returns
    -------
    Estimate
        Seconds; the spread is the residual of the class (prefill from 1,024 queries on, shorter, decode, backward).

    Raises
    ------
    InputError
        For an unknown direction or phase, a negative or non-finite size, or a dtype without a peak.
    """
    _known(direction, phase)
    names = ("batch", "q_len", "kv_len", "n_heads", "n_kv_heads", "qk_dim", "v_dim")
    given = (batch, q_len, kv_len, n_heads, n_kv_heads, qk_dim, v_dim)
    reach = NO_WINDOW if window is None else window
    if np.issubdtype(np.asarray(reach).dtype, np.number):  # what is no number is refused below
        reach = np.minimum(np.asarray(reach, dtype=np.float64), NO_WINDOW)
    *sizes, reach = _positive(**dict(zip(names, given, strict=True)), window=reach)
    words = (np.asarray(causal, dtype=bool), np.asarray(shared_kv, dtype=bool))
    b, q, kv, h, hkv, dqk, dv, reach, masked, shared = np.broadcast_arrays(*sizes, reach, *words)
    kv_dtype = kv_dtype or dtype
    s = Shapes(b, q, kv, h, hkv, dqk, dv, masked, reach, shared, element_bytes(dtype), element_bytes(kv_dtype))
    if device.kind == "cpu":
        return cpu.estimate(device, s, direction, dtype, "" if impl == REFERENCE_IMPL else impl)
    return _gpu(device, s, Hardware.of(device, dtype, kv_dtype), (impl, mode_of(dtype, kv_dtype)), direction, phase)


def _gpu(
    device: Device, s: Shapes, hardware: Hardware, kernel: tuple[str, str], direction: str, phase: str
) -> Estimate:
    """Both laws, each on its calls, a slice at a time; `kernel` is implementation and mode."""
    some = (s.batch * s.q_len * s.kv_len * s.n_heads * s.dim > 0) & (s.window > 0)
    stepping = some & _decodes(s, direction, phase)
    many = some & ~(stepping & ((s.q_len <= 1.0) | (phase == "decode")))
    mid, spread = np.zeros(s.q_len.shape), np.zeros(s.q_len.shape)
    backward = direction == "backward"
    for which, its in (("backward" if backward else "forward", many), ("decode", stepping)):
        if not its.any():
            continue
        chosen = choose(device, *kernel, which)
        part = s.take(its)
        slices = [slice(at, at + CHUNK) for at in range(0, part.q_len.size, CHUNK)]
        if which == "decode":
            seconds = np.concatenate([decode.seconds(part.take(x), hardware, chosen.values) for x in slices])
            seconds = np.where(many[its], np.minimum(mid[its], seconds), seconds)
        else:
            seconds = np.concatenate([prefill.seconds(part.take(x), hardware, chosen.values, backward) for x in slices])
        mid[its] = seconds
        short = (part.q_len < LONG) & (which == "forward")
        spread[its] = np.where(short, chosen.short_spread, chosen.spread)
    few = many & (s.q_len <= FEW_QUERIES)
    if not phase and not backward and few.any():
        step = replace(s.take(few), q_len=np.ones(int(few.sum())))
        chosen = choose(device, *kernel, "decode")
        mid[few] = np.maximum(mid[few], decode.seconds(step, hardware, chosen.values))
    return Estimate.of(mid, spread)


def _known(direction: str, phase: str) -> None:
    faults = []
    if direction not in ("forward", "backward"):
        faults.append(Fault(f"direction is {direction!r}", where="attention", fix="forward or backward"))
    if phase not in PHASES:
        faults.append(Fault(f"phase is {phase!r}", where="attention", fix="prefill, decode, or nothing"))
    if faults:
        raise InputError(faults)


def _decodes(s: Shapes, direction: str, phase: str) -> NDArray[np.bool_]:
    """Calls that a decode kernel may serve."""
    if direction == "backward" or phase == "prefill":
        return np.zeros(s.q_len.shape, dtype=np.bool_)
    if phase == "decode":
        return np.ones(s.q_len.shape, dtype=np.bool_)
    return np.asarray(s.q_len <= DECODE_QUERIES)
