"""`Op`: one kernel or collective of a step, with its dimensions and no hardware."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hwmodels.records import dataclass

FloatArray = NDArray[np.float64]
OpKind = Literal["gemm", "grouped_gemm", "attention", "memory", "collective"]
Phase = Literal["forward", "backward_input", "backward_weight", "optimizer", "prefill", "decode"]
Rerun = Literal["never", "full", "selective"]
OTHER = "other:"
"""Begins the name of a partner that belongs to another micro-batch: ``other:experts:forward+backward_weight``."""

PARTS: dict[str, tuple[str, ...]] = {
    "attention": ("attention.", "mixer.", "norm_", "moe.rout"),
    "experts": ("moe.expert.",),
}
"""Part of a layer -> how the names of its ops begin (Megatron-Core ``TransformerLayerSchedulePlan``: ``attn`` holds the
norms and the router, ``mlp`` the experts)."""


@dataclass(frozen=True, slots=True, eq=False)
class Op:
    """One op of a block, run once per micro-batch unless it says otherwise.

    Dimensions are arrays that broadcast over the candidates (a scalar is an array of
    shape ``()``).

    Attributes
    ----------
    name : str
        ``block.role``, e.g. ``"attention.qkv"``.
    kind : {'gemm', 'grouped_gemm', 'attention', 'memory', 'collective'}
    phase : str
        forward, backward_input, backward_weight, optimizer (training); prefill, decode.
    dims : mapping of str to array
        gemm: m, n, k, batch. grouped_gemm: m, n, k, groups. attention: batch, q_len, kv_len,
        n_heads, n_kv_heads, qk_dim, v_dim, and causal, window, direction. memory: nbytes (read plus
        written). collective: nbytes (nccl-tests convention), skew of an all-to-all; for the expert exchanges
        tokens, hidden, topk, experts, skew, groups, group_limit (`hwmodels.collectives.expert_seconds`).
    dtype : str
    group : str
        Axis of the process group of a collective (``"tp"``, ``"ep"``, ``"cp"`` …).
    collective : str
        all_reduce, all_gather, reduce_scatter, all_to_all, send_recv; expert_dispatch, expert_combine.
    count : array
        Runs per micro-batch; 0 where the candidate does not have the op.
    kernels : float or array
        Host launches of one run (an eager chain is several).
    rerun : {'never', 'full', 'selective'}
        ``never``: no recompute policy runs this forward op again. ``selective``: it belongs to the attention core.
    modules : tuple of str
        Recompute modules that hold this forward op (`planner.workload.recompute`).
    full_share, op_share : float
        Share of this forward op that the backward runs again where whole layers are recomputed, and
        under the policy ``op``.
    skips_first : bool
        Not run by the first micro-batch of a step (gradient accumulation by autograd).
    first_only : bool
        Run by the first micro-batch of a step alone (casting weights that then stay cast).
    behind : str
        Name of the compute op that the collective runs beside; empty when it is exposed. A name that begins
        with `OTHER` is a part of the layer as another micro-batch runs it at the same time (`PARTS`).
    pieces : array
        Parts into which a collective and the GEMM that it feeds or drains (`behind`) are cut to run side by side
        (`planner.price.overlapped`); 0: the whole of one runs beside the whole of the other.
    impl : str
        Implementation that the law takes as an input.
    within : str
        Name of the GEMM in whose epilogue a memory op runs, without a launch of its own (`kernels` is 0).
    """

    name: str
    kind: OpKind
    phase: Phase
    dims: Mapping[str, Any]
    dtype: str = "bf16"
    group: str = ""
    collective: str = ""
    count: ArrayLike = 1.0
    kernels: float | FloatArray = 1.0
    rerun: Rerun = "full"
    modules: tuple[str, ...] = ()
    full_share: float = 1.0
    op_share: float = 1.0
    skips_first: bool = False
    first_only: bool = False
    behind: str = ""
    pieces: ArrayLike = 0.0
    impl: str = ""
    within: str = ""

    def flops(self) -> FloatArray:
        """Floating-point operations of one run (a multiply-add is two).

        GEMM 2·m·n·k·batch. Attention forward 2·b·heads·pairs·(d_qk + d_v) (`attention_pairs`);
        backward 2.5 times that (five products instead of two; FlashAttention-2,
        arXiv 2307.08691, section 4.1).
        """
        d = self.dims
        if self.kind == "gemm":
            return np.asarray(2.0 * d["m"] * d["n"] * d["k"] * d.get("batch", 1.0), dtype=np.float64)
        if self.kind == "grouped_gemm":
            return np.asarray(2.0 * d["m"] * d["n"] * d["k"] * d["groups"], dtype=np.float64)
        if self.kind == "attention":
            pairs = attention_pairs(d["q_len"], d["kv_len"], bool(d["causal"]), d["window"])
            forward = 2.0 * d["batch"] * d["n_heads"] * pairs * (d["qk_dim"] + d["v_dim"])
            return np.asarray(forward * (2.5 if d["direction"] == "backward" else 1.0), dtype=np.float64)
        return np.zeros(())


def attention_pairs(q_len: ArrayLike, kv_len: ArrayLike, causal: bool, window: int | None) -> FloatArray:
    """Query-key pairs that are computed.

    Causal queries are the last ones of the keys: q·kv - q²/2, half of the square when q = kv;
    a window leaves a band of that.
    """
    q, kv = np.asarray(q_len, dtype=np.float64), np.asarray(kv_len, dtype=np.float64)
    pairs = q * kv - (q * q / 2.0 if causal else 0.0)
    if window is not None:
        pairs = np.minimum(pairs, q * window)
    return np.asarray(pairs)


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """Part of what a layer saves for the backward.

    Attributes
    ----------
    nbytes : ndarray
        Of one micro-batch.
    dropped_by : tuple of str
        Recompute modules that drop it.
    kept_for : tuple of str
        Modules whose checkpoint it is the input of: it is kept for them alone; empty: kept by itself.
    """

    nbytes: FloatArray
    dropped_by: tuple[str, ...] = ()
    kept_for: tuple[str, ...] = ()

    def kept(self, modules: tuple[str, ...]) -> bool:
        """Whether it is kept while these modules are recomputed."""
        wanted = not self.kept_for or any(m in modules for m in self.kept_for)
        return wanted and not any(m in modules for m in self.dropped_by)


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """The ops of one layer kind (or of the embedding or the head) for one micro-batch.

    Attributes
    ----------
    name : str
    ops : tuple of Op
        Forward and backward ops in program order.
    saved_bytes : array
        Kept for the backward per micro-batch without recomputation.
    saved_full_bytes, saved_op_bytes : array
        The same where the whole layer is recomputed: its input; and under the policy ``op``.
    pieces : tuple of Piece
        `saved_bytes` by what a selective policy drops of it; empty where nothing is ever recomputed.
    kept_bytes, rebuilt_bytes : array
        Kept under the layout's own policy where it works on this block, and rebuilt by it at a time; filled where
        blocks stand for layouts (`planner.step.assemble.lowered_for`).
    weight_bytes : array
        Kept per micro-batch between the input and the weight gradient where the backward is split: inputs
        of the matrices and gradients of their outputs (`planner.workload.split`).
    backward_bytes : array
        Gradients of activations, and of the largest weight where it is no running sum, that the backward of the
        layer holds at a time.
    logits_bytes : array
        Of the head only: what a micro-batch keeps between the loss and its backward.
    logits_forward_bytes, logits_backward_bytes : array
        The most of logits and what the loss makes of them, while it runs and while its backward runs.
    exchange_bytes : array
        Of a layer: what context parallelism holds while its attention core runs, and no longer.
    """

    name: str
    ops: tuple[Op, ...]
    saved_bytes: FloatArray = field(default_factory=lambda: np.zeros(()))
    saved_full_bytes: FloatArray = field(default_factory=lambda: np.zeros(()))
    logits_bytes: FloatArray = field(default_factory=lambda: np.zeros(()))
    weight_bytes: FloatArray = field(default_factory=lambda: np.zeros(()))
    saved_op_bytes: FloatArray = field(default_factory=lambda: np.zeros(()))
    kept_bytes: FloatArray = field(default_factory=lambda: np.zeros(()))
    rebuilt_bytes: FloatArray = field(default_factory=lambda: np.zeros(()))
    pieces: tuple[Piece, ...] = ()
    exchange_bytes: FloatArray = field(default_factory=lambda: np.zeros(()))
    logits_forward_bytes: FloatArray = field(default_factory=lambda: np.zeros(()))
    logits_backward_bytes: FloatArray = field(default_factory=lambda: np.zeros(()))
    backward_bytes: FloatArray = field(default_factory=lambda: np.zeros(()))
