"""`Shapes`: the local sizes that every block of a micro-batch shares."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from planner.layout import LayoutBatch
from planner.model.spec import ModelSpec, Weight
from planner.plan import Workload
from planner.presets import FrameworkPreset
from planner.workload.op import BYTES, Op, Phase, Rerun

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Shapes:
    """Local sizes of one micro-batch on one rank, as arrays over the candidates.

    Attributes
    ----------
    tp, cp, ep, etp : ndarray of float64
    sp : ndarray of bool
    sequences : ndarray
        Sequences in the micro-batch (mbs).
    seq : ndarray
        Tokens of one sequence on this rank: seq_len / cp.
    tokens : ndarray
        sequences * seq: rows of the GEMMs of tensor-parallel regions.
    tokens_sp : ndarray
        Rows outside the tensor-parallel regions: tokens / tp with sequence parallel.
    dtype : str
        Compute precision; `width` its bytes.
    """

    model: ModelSpec
    preset: FrameworkPreset
    tp: FloatArray
    cp: FloatArray
    ep: FloatArray
    etp: FloatArray
    sp: NDArray[np.bool_]
    sequences: FloatArray
    seq: FloatArray
    tokens: FloatArray
    tokens_sp: FloatArray
    seq_len: int
    dtype: str
    width: float

    @classmethod
    def of(cls, model: ModelSpec, workload: Workload, layouts: LayoutBatch, preset: FrameworkPreset) -> Shapes:
        """Local sizes of `layouts` for one micro-batch of `workload`."""
        tp, cp = layouts.tp.astype(np.float64), layouts.cp.astype(np.float64)
        sp = np.asarray(layouts.sp == 1)
        sequences = layouts.mbs.astype(np.float64)
        seq = np.asarray(workload.seq_len / cp)
        tokens = np.asarray(sequences * seq)
        return cls(
            model=model,
            preset=preset,
            tp=tp,
            cp=cp,
            ep=layouts.ep.astype(np.float64),
            etp=layouts.etp.astype(np.float64),
            sp=sp,
            sequences=sequences,
            seq=seq,
            tokens=tokens,
            tokens_sp=np.asarray(np.where(sp, tokens / tp, tokens)),
            seq_len=workload.seq_len,
            dtype=workload.precision,
            width=BYTES[workload.precision],
        )

    @property
    def tokens_saved(self) -> FloatArray:
        """Rows of a tensor-parallel region's input that are kept for the backward."""
        return self.tokens if self.preset.sp_saves_gathered else self.tokens_sp

    def local_out(self, weight: Weight) -> FloatArray:
        """Output features of a weight on one tp rank."""
        if weight.shard != "column":
            return np.asarray(float(weight.n_out))
        return np.asarray(np.maximum(weight.n_out / self.tp, min(weight.min_out, weight.n_out)))

    def local_in(self, weight: Weight) -> FloatArray:
        """Input features of a weight on one tp rank."""
        return np.asarray(weight.n_in / self.tp) if weight.shard == "row" else np.asarray(float(weight.n_in))

    def memory(
        self,
        name: str,
        phase: Phase,
        nbytes: FloatArray | float,
        *,
        kernels: float = 1.0,
        rerun: Rerun = "full",
        impl: str = "",
    ) -> Op:
        """A memory-bound op that moves `nbytes` in `kernels` launches.

        `impl` names the operator; a calibrated device has a share of the bandwidth for some.
        """
        dims = {"nbytes": np.asarray(nbytes, dtype=np.float64)}
        return Op(name, "memory", phase, dims, self.dtype, kernels=kernels, rerun=rerun, impl=impl)

    def linear(self, name: str, rows: FloatArray, n_in: FloatArray, n_out: FloatArray) -> list[Op]:
        """Forward, input-gradient and weight-gradient GEMMs of ``y = x W``.

        Forward m=rows, n=n_out, k=n_in; input gradient m=rows, n=n_in, k=n_out; weight
        gradient m=n_in, n=n_out, k=rows (each 2·rows·n_in·n_out FLOPs).
        """
        impl = self.preset.gemm_impl
        return [
            Op(name, "gemm", "forward", {"m": rows, "n": n_out, "k": n_in}, self.dtype, impl=impl),
            Op(f"{name}.dgrad", "gemm", "backward_input", {"m": rows, "n": n_in, "k": n_out}, self.dtype, impl=impl),
            Op(f"{name}.wgrad", "gemm", "backward_weight", {"m": n_in, "n": n_out, "k": rows}, self.dtype, impl=impl),
            *self.accumulate(name, n_in * n_out),
        ]

    def accumulate(self, name: str, elements: FloatArray) -> list[Op]:
        """Adding a weight gradient to the accumulated one, where the GEMM does not do it itself.

        Reads the new gradient, reads and writes the accumulated one. Autograd has nothing to add to
        at the first micro-batch; a persistent main gradient takes every one.
        """
        if self.preset.fused_grad_accumulation:
            return []
        kept = BYTES[self.preset.gradient_dtype(self.dtype)]
        op = self.memory(f"{name}.accumulate", "backward_weight", elements * (self.width + 2.0 * kept))
        return [replace(op, skips_first=not self.preset.main_grad_buffer)]

    def tp_collective(
        self,
        name: str,
        op: str,
        phase: Phase,
        *,
        when: NDArray[np.bool_],
        behind: str = "",
        features: int | None = None,
    ) -> Op:
        """A collective over the tp group on the activation of the micro-batch, `features` wide (hidden)."""
        dims = {"nbytes": np.asarray(self.tokens * (features or self.model.hidden) * self.width)}
        count = np.where(when & (self.tp > 1), 1.0, 0.0)
        return Op(name, "collective", phase, dims, self.dtype, "tp", op, count, behind=behind)

    def enter_tp(self, name: str, gemm: str = "", features: int | None = None) -> list[Op]:
        """Collectives at the entrance of a tensor-parallel region (before a column split).

        Without sequence parallel: identity forward, all-reduce of the input gradient backward
        (Megatron's ``f``, arXiv 1909.08053). With it: all-gather forward; backward all-gathers
        the saved input again beside the input-gradient GEMM and reduce-scatters the gradient
        (``g`` of arXiv 2205.05198, section 4.2.2).

        Parameters
        ----------
        name : str
        gemm : str
            The GEMM whose gradients run beside the collectives; `name` unless given.
        features : int or None
            Width of the activation that enters; the hidden size unless given.
        """
        gemm = gemm or name
        late = f"{gemm}.wgrad" if self.preset.tp_backward_overlap else ""
        early = f"{gemm}.dgrad" if self.preset.tp_backward_overlap else ""

        again = not self.preset.sp_saves_gathered

        def move(suffix: str, op: str, phase: Phase, when: NDArray[np.bool_], behind: str = "") -> Op:
            return self.tp_collective(f"{name}.{suffix}", op, phase, when=when, behind=behind, features=features)

        return [
            move("all_gather", "all_gather", "forward", self.sp),
            move("grad_all_reduce", "all_reduce", "backward_input", ~self.sp, late),
            move("input_all_gather", "all_gather", "backward_weight", self.sp & again, early),
            move("grad_reduce_scatter", "reduce_scatter", "backward_input", self.sp, late),
        ]

    def leave_tp(self, name: str) -> list[Op]:
        """Collectives at the exit of a tensor-parallel region (after a row split).

        All-reduce forward and identity backward; with sequence parallel reduce-scatter forward
        and all-gather backward.
        """
        return [
            self.tp_collective(f"{name}.all_reduce", "all_reduce", "forward", when=~self.sp),
            self.tp_collective(f"{name}.reduce_scatter", "reduce_scatter", "forward", when=self.sp),
            self.tp_collective(f"{name}.grad_all_gather", "all_gather", "backward_input", when=self.sp),
        ]
