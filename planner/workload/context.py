"""`Shapes`: the local sizes that every block of a micro-batch shares."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hwmodels.records import dataclass
from planner.frameworks import FrameworkPreset
from planner.layout import OPEN_CP_KINDS, LayoutBatch
from planner.model.spec import DecoderLayer, ModelSpec, Weight
from planner.plan import Lora, Workload
from planner.precision import BYTES, Recipe, gradient_dtype, recipe_of
from planner.routing import Routing
from planner.workload.op import Op, Phase, Rerun

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Shapes:
    """Local sizes of one micro-batch on one rank, as arrays over the candidates.

    Attributes
    ----------
    tp, cp, ep, etp : ndarray of float64
    sp : ndarray of bool
    cp_inner, cp_outer : ndarray of float64
        Ranks that exchange sequence for heads, and that exchange keys and values; their product is cp.
    cp_gathers : ndarray of bool
        Whether keys and values are gathered instead of sent around.
    sequences : ndarray
        Sequences in the micro-batch (mbs).
    seq : ndarray
        Tokens of one sequence on this rank: seq_len / cp.
    tokens : ndarray
        sequences * seq: rows of the GEMMs of tensor-parallel regions.
    tokens_sp : ndarray
        Rows outside the tensor-parallel regions: tokens / tp with sequence parallel.
    attended : float
        Tokens of the document that attention runs over: seq_len unless documents are packed.
    recipe : Recipe
        Formats of linear layers.
    dtype : str
        Compute precision outside quantised GEMMs; `width` its bytes.
    grad_width : float
        Bytes of an accumulated gradient.
    lora : Lora or None
        Adapters, where only they are trained.
    routing : Routing
        Load of the busiest expert rank.
    """

    model: ModelSpec
    preset: FrameworkPreset
    tp: FloatArray
    cp: FloatArray
    ep: FloatArray
    etp: FloatArray
    sp: NDArray[np.bool_]
    cp_inner: FloatArray
    cp_outer: FloatArray
    cp_gathers: NDArray[np.bool_]
    sequences: FloatArray
    seq: FloatArray
    tokens: FloatArray
    tokens_sp: FloatArray
    seq_len: float
    attended: float
    recipe: Recipe
    dtype: str
    width: float
    grad_width: float
    lora: Lora | None
    routing: Routing

    @classmethod
    def of(cls, model: ModelSpec, workload: Workload, layouts: LayoutBatch, preset: FrameworkPreset) -> Shapes:
        """Local sizes of `layouts` for one micro-batch of `workload`."""
        layouts = layouts.with_cp_kind(preset.cp_kind)
        tp, cp = layouts.tp.astype(np.float64), layouts.cp.astype(np.float64)
        sp = np.asarray(layouts.sp == 1)
        sequences = layouts.mbs.astype(np.float64)
        seq = np.asarray(workload.tokens_per_sequence / cp)
        tokens = np.asarray(sequences * seq)
        recipe = recipe_of(workload, preset)
        return cls(
            model=model,
            preset=preset,
            tp=tp,
            cp=cp,
            ep=layouts.ep.astype(np.float64),
            etp=layouts.etp.astype(np.float64),
            sp=sp,
            cp_inner=layouts.cp_inner.astype(np.float64),
            cp_outer=layouts.cp_outer.astype(np.float64),
            cp_gathers=np.asarray((layouts.cp_kind == OPEN_CP_KINDS.index("all-gather")) & (layouts.cp > 1)),
            sequences=sequences,
            seq=seq,
            tokens=tokens,
            tokens_sp=np.asarray(np.where(sp, tokens / tp, tokens)),
            seq_len=workload.tokens_per_sequence,
            attended=workload.attended_tokens,
            recipe=recipe,
            dtype=recipe.compute,
            width=recipe.width,
            grad_width=BYTES[gradient_dtype(workload, preset)],
            lora=workload.lora,
            routing=workload.routing,
        )

    def within(self, layer: DecoderLayer) -> Shapes:
        """The same inside a layer: without quantised GEMMs in one that stays in the compute dtype."""
        return replace(self, recipe=self.recipe.plain()) if layer.high_precision else self

    @property
    def tp_pieces(self) -> FloatArray:
        """Parts of a GEMM that tensor-parallel collectives run beside: tp where they do, else 1.

        Transformer Engine's ring exchange and PyTorch's ``_fused_all_gather_matmul`` cut along the rows of each rank.
        """
        # NVFP4 recipes turn it off (Megatron-Bridge scripts/performance/configs: tp_comm_overlap False for nvfp4).
        cut = self.sp & (self.preset.tp_gemm_overlap and self.recipe.scaling != "nv")
        return np.asarray(np.where(cut, self.tp, 1.0))

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
        kernels: float | FloatArray = 1.0,
        rerun: Rerun = "full",
        impl: str = "",
    ) -> Op:
        """A memory-bound op that moves `nbytes` in `kernels` launches.

        `impl` names the operator; a calibrated device has a share of the bandwidth for some.
        """
        dims = {"nbytes": np.asarray(nbytes, dtype=np.float64)}
        return Op(name, "memory", phase, dims, self.dtype, kernels=kernels, rerun=rerun, impl=impl)

    def linear(
        self,
        name: str,
        rows: FloatArray,
        n_in: FloatArray,
        n_out: FloatArray,
        *,
        quantised: bool = True,
        after_norm: bool = False,
        cut: Literal["", "column", "row"] = "",
    ) -> list[Op]:
        """Forward, input-gradient and weight-gradient GEMMs of ``y = x W``, and what its recipe runs around them.

        Forward m=rows, n=n_out, k=n_in; input gradient m=rows, n=n_in, k=n_out; weight
        gradient m=n_in, n=n_out, k=rows (each 2·rows·n_in·n_out FLOPs). A frozen weight has no
        weight gradient.

        Parameters
        ----------
        quantised : bool
            Whether a quantised recipe covers this layer (not the head, nor a router).
        after_norm : bool
            Whether its input comes straight out of a norm, which may write it quantised.
        cut : {'', 'column', 'row'}
            Split over tp whose collectives may run in pieces beside the GEMM (`tp_pieces`): the forward of both, and
            the input gradient of a row split, which gathers what it reads.
        """
        recipe = self.recipe if quantised else self.recipe.plain()
        impl, again = self.preset.gemm_impl, f"{name}.dgrad"
        ops = self.quantise(name, rows, n_in, n_out, recipe, after_norm=after_norm)
        ops += self.dequantise(name, n_in * n_out) if quantised else []
        whole: FloatArray | float = 1.0
        cut = cut if self.preset.tp_gemm_overlap else ""
        there, back = (self.tp_pieces if cut else whole), (self.tp_pieces if cut == "row" else whole)
        forward = {"m": np.asarray(rows / there), "n": n_out, "k": n_in}
        gradient = {"m": np.asarray(rows / back), "n": n_in, "k": n_out}
        ops += [
            Op(name, "gemm", "forward", forward, recipe.forward, count=there, impl=impl),
            Op(again, "gemm", "backward_input", gradient, recipe.input_gradient, count=back, impl=impl),
        ]
        if self.lora is None:
            dims = {"m": n_in, "n": n_out, "k": rows}
            ops.append(Op(f"{name}.wgrad", "gemm", "backward_weight", dims, recipe.weight_gradient, impl=impl))
            return [*ops, *self.accumulate(name, n_in * n_out)]
        return [*ops, *adapter_ops(name, rows, n_in, n_out, self)]

    def quantise(
        self,
        name: str,
        rows: FloatArray,
        n_in: FloatArray,
        n_out: FloatArray,
        recipe: Recipe,
        *,
        after_norm: bool = False,
        weights: FloatArray | None = None,
    ) -> list[Op]:
        """Kernels that quantise the operands of a linear layer: its input, its weight, its output's gradient.

        Each reads the source in the compute dtype as often as the recipe says and writes its
        copies. A frozen weight needs none along the columns of input and gradient. Weights are
        cast by the first micro-batch of a step where the result stays resident, before each use
        where it is thrown away, and not at all where they arrive quantised (then each rank casts
        its shard, 1/fsdp of the weight: left out). A frozen weight that
        exists in the narrow format alone never changes: with a tensor-wide scale its rows are
        kept and turned before each use.

        Parameters
        ----------
        weights : ndarray or None
            Elements of the weight; n_in·n_out unless given.
        """
        if not recipe.quantised:
            return []
        written = recipe.element_bytes * (recipe.copies if self.lora is None else 1.0)
        per = recipe.activation_reads * self.width + written
        k, found = recipe.activation_kernels, []
        known = recipe.scaling in ("delayed", "block", "mx")
        if not (after_norm and known and self.preset.fused_norm_quantise):
            found.append(self.memory(f"{name}.quantise", "forward", rows * n_in * per, kernels=k))
        found.append(self.memory(f"{name}.grad.quantise", "backward_input", rows * n_out * per, kernels=k))
        elements = n_in * n_out if weights is None else weights
        narrow = recipe.scaling in self.preset.quantised_params
        if self.preset.compute_copy and narrow and self.lora is not None:
            if recipe.tensor_wide:
                turned = elements * 2.0 * recipe.element_bytes
                found.append(self.memory(f"{name}.weight.transpose", "backward_input", turned))
        elif self.preset.compute_copy:
            read = recipe.element_bytes if narrow else recipe.weight_reads * self.width
            wrote = recipe.element_bytes * (recipe.copies - 1.0 if narrow else recipe.copies)
            launches = 1.0 if narrow else recipe.weight_kernels
            op = self.memory(f"{name}.weight.quantise", "forward", elements * (read + wrote), kernels=launches)
            found.append(replace(op, first_only=True, rerun="never"))
        elif not narrow:
            each = elements * (recipe.weight_reads * self.width + recipe.element_bytes)
            k, cast = recipe.weight_kernels, f"{name}.weight.quantise"
            found.append(self.memory(cast, "forward", each, kernels=k))
            found.append(self.memory(f"{cast}.again", "backward_input", each, kernels=k))
        return found

    def dequantise(self, name: str, elements: FloatArray) -> list[Op]:
        """Unpacking a 4-bit frozen weight before each use: read it, write it in the compute dtype (QLoRA)."""
        if self.lora is None or not self.lora.base:
            return []
        nbytes = elements * (BYTES[self.lora.base] + self.width)
        return [
            self.memory(f"{name}.dequantise", "forward", nbytes),
            self.memory(f"{name}.dequantise.again", "backward_input", nbytes),
        ]

    def adapted(self, name: str) -> bool:
        """Whether an adapter sits on a linear layer of this name (``block.role``)."""
        if self.lora is None:
            return False
        block, _, role = name.rpartition(".")
        if block in ("attention", "mixer"):
            return ("o" if role == "o" else "qkv") in self.lora.modules
        return block in ("mlp", "moe.shared") and role in self.lora.modules

    def keeps_input(self, name: str, rows: FloatArray, features: FloatArray | float, *, quantised: bool = True,
                    shared: bool = False) -> FloatArray:  # fmt: skip
        """Bytes that a linear layer keeps of its input for the backward.

        A trained weight keeps what its weight gradient reads: the quantised columns, or the
        tensor itself. A frozen one keeps nothing of its own; its adapter keeps the input (after
        dropout, with the mask) and the rank's intermediate.

        Parameters
        ----------
        shared : bool
            The tensor itself is kept anyway by what made it.
        """
        n = np.asarray(rows * features)
        recipe = self.recipe if quantised else self.recipe.plain()
        if self.lora is None:
            own = shared and not recipe.quantised
            return np.asarray(n * (0.0 if own else recipe.saved_bytes))
        if not self.adapted(name):
            return np.zeros_like(n)
        kept = self.width + 1.0 if self.lora.dropout else (0.0 if shared else self.width)
        return np.asarray(n * kept + rows * self.lora.rank * self.width)

    def accumulate(self, name: str, elements: FloatArray) -> list[Op]:
        """Adding a weight gradient to the accumulated one: in the epilogue of its GEMM, or by a kernel.

        The GEMM reads the accumulated gradient and writes it in its own width instead of a result in the compute
        dtype (Megatron-LM ``gradient_accumulation_fusion``; TE ``fuse_wgrad_accumulation``). A kernel reads the
        new gradient, reads and writes the accumulated one. Autograd has nothing to add to
        at the first micro-batch; a persistent main gradient takes every one.
        """
        if self.preset.fused_grad_accumulation:
            more = np.asarray(elements * (2.0 * self.grad_width - self.width))
            op = self.memory(f"{name}.accumulate", "backward_weight", more, kernels=0.0)
            return [replace(op, within=f"{name}.wgrad")]
        op = self.memory(f"{name}.accumulate", "backward_weight", elements * (self.width + 2.0 * self.grad_width))
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
        quantised: bool = False,
        cut: bool = False,
    ) -> Op:
        """A collective over the tp group on the activation of the micro-batch, `features` wide (hidden).

        `cut`: it runs in pieces beside those of the GEMM `behind`. `quantised`: what it gathers is an operand of a
        quantised GEMM, cast before where the framework does so.
        """
        narrow = quantised and op == "all_gather" and self.recipe.quantised and self.preset.quantised_tp_gather
        width = self.recipe.element_bytes if narrow else self.width
        dims = {"nbytes": np.asarray(self.tokens * (features or self.model.hidden) * width)}
        count = np.where(when & (self.tp > 1), 1.0, 0.0)
        pieces = self.tp_pieces if cut else 0.0
        impl = "userbuffers" if cut and self.preset.user_buffers else ""
        return Op(name, "collective", phase, dims, self.dtype, "tp", op, count, behind=behind, pieces=pieces, impl=impl)

    def enter_tp(
        self, name: str, gemm: str = "", features: int | None = None, *, quantised: bool = True, cut: bool = False
    ) -> list[Op]:
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
        quantised : bool
            Whether a quantised recipe covers the GEMM.
        cut : bool
            Whether the gather may run in pieces beside those of the GEMM.
        """
        gemm, cut = gemm or name, cut and self.preset.tp_gemm_overlap
        late = f"{gemm}.wgrad" if self.preset.tp_backward_overlap else ""
        early = f"{gemm}.dgrad" if self.preset.tp_backward_overlap else ""

        # gathered again for a weight gradient: the weight's own, or its adapter's
        again = not self.preset.sp_saves_gathered and (self.lora is None or self.adapted(gemm))

        def move(
            suffix: str, op: str, phase: Phase, when: NDArray[np.bool_], behind: str = "", cut: bool = False
        ) -> Op:
            return self.tp_collective(
                f"{name}.{suffix}", op, phase, when=when, behind=behind, features=features, quantised=quantised, cut=cut
            )

        return [
            move("all_gather", "all_gather", "forward", self.sp, gemm if cut else "", cut),
            move("grad_all_reduce", "all_reduce", "backward_input", ~self.sp, late),
            move("input_all_gather", "all_gather", "backward_weight", self.sp & again, early),
            move("grad_reduce_scatter", "reduce_scatter", "backward_input", self.sp, late),
        ]

    def leave_tp(self, name: str, *, quantised: bool = True, cut: bool = False) -> list[Op]:
        """Collectives at the exit of a tensor-parallel region (after a row split).

        All-reduce forward and identity backward; with sequence parallel reduce-scatter forward
        and all-gather backward, which may be `cut` to run beside pieces of the GEMM `name` and its input gradient.
        """
        cut = cut and self.preset.tp_gemm_overlap
        there, back = (name, f"{name}.dgrad") if cut else ("", "")
        return [
            self.tp_collective(f"{name}.all_reduce", "all_reduce", "forward", when=~self.sp),
            self.tp_collective(
                f"{name}.reduce_scatter", "reduce_scatter", "forward", when=self.sp, behind=there, cut=cut
            ),
            self.tp_collective(
                f"{name}.grad_all_gather",
                "all_gather",
                "backward_input",
                when=self.sp,
                quantised=quantised,
                behind=back,
                cut=cut,
            ),
        ]


def adapter_ops(name: str, rows: FloatArray, n_in: FloatArray, n_out: FloatArray, s: Shapes) -> list[Op]:
    """Kernels of the low-rank adapter on a linear layer, where there is one.

    Forward: dropout of the input, x A, (x A) B, and adding the scaled product to the output.
    Backward: the four products of the two small matrices, dropout's gradient, and adding the
    input gradients. Everything in the compute dtype (Hu et al., arXiv 2106.09685, section 4.1).
    """
    if s.lora is None or not s.adapted(name):
        return []
    rank, w, impl = np.asarray(float(s.lora.rank)), s.width, s.preset.gemm_impl

    def product(suffix: str, phase: Phase, m: FloatArray, n: FloatArray, k: FloatArray) -> Op:
        return Op(f"{name}.lora_{suffix}", "gemm", phase, {"m": m, "n": n, "k": k}, s.dtype, impl=impl)

    found = [
        product("a", "forward", rows, rank, n_in),
        product("b", "forward", rows, n_out, rank),
        s.memory(f"{name}.lora_add", "forward", 3.0 * w * rows * n_out),
        product("b.dgrad", "backward_input", rows, rank, n_out),
        product("a.dgrad", "backward_input", rows, n_in, rank),
        product("b.wgrad", "backward_weight", rank, n_out, rows),
        product("a.wgrad", "backward_weight", n_in, rank, rows),
        s.memory(f"{name}.lora_add.grad", "backward_input", 3.0 * w * rows * n_in),
        *s.accumulate(f"{name}.lora", rank * (n_in + n_out)),
    ]
    if s.lora.dropout:
        dropped = (2.0 * w + 1.0) * rows * n_in
        found.append(s.memory(f"{name}.lora_dropout", "forward", dropped))
        found.append(s.memory(f"{name}.lora_dropout.grad", "backward_input", dropped))
    return found
