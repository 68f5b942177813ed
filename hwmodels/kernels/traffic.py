"""What memory-bound kernels move: bytes and launches of each kind, fused and as eager operators.

A kind moves, for each element of its main tensor (tokens x width), a number of words in the compute dtype and a
number of bytes in formats of its own (masks, fp32 states, 8-bit values). Fused is one kernel that reads its
inputs and writes its results once; unfused is what PyTorch's eager operators do, each of which
reads and writes memory. `seconds` prices the sum by the stream law (`hwmodels.kernels.memory`), with the
kind's name as `impl`, so that a calibrated device may know a share of the bandwidth for it.

Counts are read off the kernels' own loops: Apex and Transformer Engine (norms, softmax, SwiGLU, rotary, Adam),
Liger Kernel (cross-entropy, SwiGLU: Hsu et al. 2024, arXiv 2410.10989), vLLM's ``csrc`` (quantisation, routing,
permutation), and for eager operators from PyTorch's decompositions (``torch/_decomp``).
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import ArrayLike

from hwmodels.device import DTYPE_BYTES, Device
from hwmodels.errors import Fault, InputError
from hwmodels.estimate import Estimate, FloatArray
from hwmodels.kernels.memory import memory_seconds
from hwmodels.records import dataclass


@dataclass(frozen=True, slots=True)
class Moved:
    """Traffic of one kind in one form.

    Attributes
    ----------
    words : float
        Elements of the compute dtype read and written, for each element of the main tensor.
    extra : float
        Bytes in other formats for each element.
    kernels : float
        Launches.
    """

    words: float
    extra: float = 0.0
    kernels: float = 1.0

    def __post_init__(self) -> None:
        if self.words < 0 or self.extra < 0 or self.words + self.extra <= 0 or self.kernels < 1:
            raise InputError(Fault("a kernel moves something in at least one launch", "memory traffic", f"{self}"))


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of memory-bound kernel.

    Attributes
    ----------
    name : str
        As `impl` of the stream law.
    fused, unfused : Moved
        Forward (or the only direction).
    backward_fused, backward_unfused : Moved or None
        None where there is nothing to differentiate.
    element : str
        What one element of the main tensor is.
    source : str
    """

    name: str
    fused: Moved
    unfused: Moved
    backward_fused: Moved | None
    backward_unfused: Moved | None
    element: str
    source: str


def _kind(
    name: str,
    fused: Moved,
    unfused: Moved,
    back: tuple[Moved, Moved] | None,
    element: str,
    source: str,
) -> tuple[str, Kind]:
    forth, apart = back or (None, None)
    return name, Kind(name, fused, unfused, forth, apart, element, source)


M = Moved
KINDS: Mapping[str, Kind] = MappingProxyType(
    dict(
        (
            # x read, y written; dy and x read, dx written. Eager RMS norm: cast up (w read, 4 written), pow (4, 4),
            # mean (4), rsqrt-scale (4, 4), cast down (4, w), weight (w, w).
            _kind("rmsnorm", M(2), M(4, 28, 6), (M(3), M(7, 0, 7)), "token x hidden",
                  "Apex fused_layer_norm; torch/_decomp, HF LlamaRMSNorm"),
            _kind("layernorm", M(2), M(4, 28, 7), (M(3), M(7, 0, 7)), "token x hidden",
                  "Apex fused_layer_norm; torch/_decomp native_layer_norm"),
            # residual add and norm in one kernel: branch and residual read, sum and norm written.
            _kind("add_rmsnorm", M(4), M(7, 28, 7), (M(5), M(10, 0, 8)), "token x hidden",
                  "vLLM csrc/layernorm_kernels.cu fused_add_rms_norm; add (3) and norm apart"),
            _kind("add", M(3), M(3), (M(3), M(3)), "token x hidden", "two inputs read, the sum written"),
            # dropout keeps one byte of mask an element.
            _kind("dropout", M(2, 1), M(2, 1), (M(2, 1), M(2, 1)), "element", "torch native_dropout"),
            _kind("bias_dropout_add", M(3, 1), M(7, 1, 3), (M(2, 1), M(4, 1, 2)), "token x hidden",
                  "Megatron-LM fused_bias_dropout; bias add (2), dropout (2), add (3) apart"),
            # q and k read and written; eager rotate_half: halves joined (2), two products (2 + 2), a sum (3).
            _kind("rotary", M(2), M(9, 0, 4), (M(2), M(9, 0, 4)), "token x (query and key) head width",
                  "Transformer Engine fused_rope; HF apply_rotary_pos_emb"),
            # one element is one of the result: gate and up read, result written.
            _kind("silu_mul", M(3), M(5, 0, 2), (M(5), M(8, 0, 3)), "token x ffn width",
                  "Liger Kernel swiglu.py; silu (2) and product (3), backward product (5) and silu (3)"),
            _kind("gelu", M(2), M(2), (M(3), M(3)), "token x ffn width", "torch gelu: one operator in either form"),
            # scores read, probabilities written; eager: scale (2), mask (2 and a byte), cast up and softmax and down.
            _kind("softmax", M(2), M(6, 17, 5), (M(3), M(5, 16, 4)), "query x key",
                  "Megatron-LM scaled_masked_softmax; torch scale, masked_fill, float, softmax, to"),
            # logits read, gradient written in place of them by the fused kernel; eager in fp32.
            _kind("cross_entropy", M(2), M(1, 12, 3), (M(2), M(1, 16, 3)), "token x vocabulary",
                  "Liger Kernel cross_entropy.py; torch float, log_softmax, nll_loss"),
            _kind("embedding", M(2), M(2), (M(2, 0), M(2, 0)), "token x hidden", "a row read, a row written"),
            # AdamW in mixed precision: gradient read, fp32 weight and two moments read and written, copy written.
            _kind("adamw", M(2, 24), M(2, 84, 9), None, "parameter",
                  "Apex multi_tensor_adam; torch foreach AdamW: mul, lerp, mul, addcmul, sqrt, div, add, addcdiv"),
            _kind("sgd", M(2, 8), M(2, 12, 3), None, "parameter",
                  "torch fused SGD; foreach: weight and gradient in fp32"),
            _kind("grad_norm", M(1), M(1, 0, 2), None, "parameter",
                  "Apex multi_tensor_l2norm: every gradient read once"),
            _kind("accumulate", M(1, 8), M(1, 8), None, "parameter", "gradient read, fp32 sum read and written"),
            # 16 bits to 8: a static scale needs one pass; a scale of the tensor or row a second read for the maximum.
            _kind("quantise_static", M(1, 1), M(3, 1, 2), None, "element",
                  "vLLM csrc/quantization/fp8 static_scaled_fp8_quant"),
            _kind("quantise_token", M(1, 1.002), M(4, 1, 4), None, "token x hidden",
                  "vLLM dynamic_per_token_scaled_fp8_quant: a row stays in its SM; eager: maximum, divide, clip, cast"),
            _kind("quantise_tensor", M(2, 1), M(5, 1, 4), None, "element",
                  "vLLM dynamic_scaled_fp8_quant: read for the maximum, read again and written"),
            _kind("quantise_block", M(1, 1.03125), M(4, 1.03125, 4), None, "token x hidden",
                  "DeepSeek-V3 report, section 3.3: an fp32 scale for each 128 values of a token"),
            _kind("quantise_fp4", M(1, 0.5625), M(4, 0.5625, 4), None, "token x hidden",
                  "NVFP4: half a byte and an fp8 scale for each 16 values"),
            _kind("dequantise", M(1, 1), M(2, 5, 2), None, "element",
                  "8 bits read, 16 written; eager: cast to fp32, scale, cast"),
            _kind("silu_mul_quantise", M(2, 1), M(6, 1, 3), None, "token x ffn width",
                  "vLLM silu_and_mul_quant: gate and up read, 8 bits written"),
            _kind("rmsnorm_quantise", M(1, 1), M(4, 29, 7), None, "token x hidden",
                  "vLLM rms_norm_static_fp8_quant; norm and quantise apart"),
            # softmax over experts, top-k, renormalise, in fp32.
            _kind("route", M(1, 4), M(1, 24, 6), (M(1, 4), M(1, 24, 6)), "token x expert",
                  "vLLM topk_softmax; torch float, softmax, topk, sum, div, one-hot"),
            # one element is one routed copy: gathered once; eager sorts indices and gathers in two steps.
            _kind("permute", M(2), M(4, 0, 4), (M(2), M(4, 0, 4)), "token x top-k x hidden",
                  "Transformer Engine permutation.py; torch argsort, index_select, and its copy"),
            # copies read, weighted sum written once a token (counted with the copies).
            _kind("unpermute", M(2), M(5, 0, 3), (M(3), M(6, 0, 4)), "token x top-k x hidden",
                  "Transformer Engine permutation.py; torch index, product (2), sum"),
            _kind("cast", M(1, 4), M(1, 4), (M(1, 4), M(1, 4)), "element", "16 bits to fp32 or back"),
            _kind("copy", M(2), M(2), (M(2), M(2)), "element", "read and written"),
            _kind("kv_append", M(2), M(4, 0, 2), None, "token x (key and value) width",
                  "vLLM reshape_and_cache: one pass; eager: two indexed copies through temporaries"),
        )
    )
)  # fmt: skip
"""Name -> kind."""


def kind(name: str) -> Kind:
    """The `Kind` of that name.

    Raises
    ------
    InputError
        For an unknown name, with the nearest known ones.
    """
    if name not in KINDS:
        near = difflib.get_close_matches(name, KINDS, n=4, cutoff=0.4) or list(KINDS)
        fix = "one of " + ", ".join(near)
        raise InputError(Fault(f"memory-bound kernel {name!r} is unknown", "memory traffic", fix=fix))
    return KINDS[name]


def moved(name: str, *, fused: bool = True, backward: bool = False) -> Moved:
    """Traffic of a kind in one form and direction.

    Raises
    ------
    InputError
        For an unknown name, or the backward of a kind that has none.
    """
    one = kind(name)
    if not backward:
        return one.fused if fused else one.unfused
    found = one.backward_fused if fused else one.backward_unfused
    if found is None:
        raise InputError(Fault(f"{name} has no backward", "memory traffic", fix="backward=False"))
    return found


def kernel_bytes(
    name: str, elements: ArrayLike, *, dtype: str = "bf16", fused: bool = True, backward: bool = False
) -> FloatArray:
    """Bytes that a kind moves in all its kernels.

    Parameters
    ----------
    name : str
        A key of `KINDS`.
    elements : array_like
        Elements of its main tensor (`Kind.element`).
    dtype : str
        Compute dtype, of the words that are not of a format of their own.
    fused, backward : bool

    Raises
    ------
    InputError
        For an unknown name or dtype, or the backward of a kind that has none.
    """
    one = moved(name, fused=fused, backward=backward)
    if dtype not in DTYPE_BYTES:
        raise InputError(Fault(f"dtype {dtype!r} is unknown", "memory traffic", fix=", ".join(DTYPE_BYTES)))
    return np.asarray(np.asarray(elements, dtype=np.float64) * (one.words * DTYPE_BYTES[dtype] + one.extra))


def kernel_seconds(
    device: Device, name: str, elements: ArrayLike, *, dtype: str = "bf16", fused: bool = True, backward: bool = False,
    resident: ArrayLike = False,
) -> Estimate:  # fmt: skip
    """Seconds of all kernels of a kind on `elements` elements: its bytes over the stream law, kernel by kernel.

    Parameters
    ----------
    resident : array_like of bool
        The tensor was written by the kernel before and may still lie in the last-level cache.

    Raises
    ------
    InputError
        As `kernel_bytes`; also for a negative or non-finite size.
    """
    one = moved(name, fused=fused, backward=backward)
    nbytes = kernel_bytes(name, elements, dtype=dtype, fused=fused, backward=backward)
    impl = f"{name}_backward" if backward else name
    return memory_seconds(device, nbytes / one.kernels, impl=impl, resident=resident) * one.kernels
