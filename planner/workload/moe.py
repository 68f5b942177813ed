"""A mixture of experts: router, exchange, experts, shared experts, and the bytes they save."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hwmodels.errors import Fault, InputError
from hwmodels.records import dataclass
from planner.model.spec import ModelSpec, Moe
from planner.moe_switches import ROW_BLOCK
from planner.training import Workload
from planner.workload.context import Shapes
from planner.workload.dense import activation_ops, activation_width, dense_part
from planner.workload.exchange import exchange_ops, permute_ops
from planner.workload.op import Op, Phase
from planner.workload.router import router_ops, router_saved

FloatArray = NDArray[np.float64]


def require_experts(model: ModelSpec, workload: Workload) -> None:
    """Raise `InputError` where a routing is stated for a model that has nothing to route."""
    if workload.routing.balanced or any(isinstance(layer.ffn, Moe) for layer in model.layer_kinds()):
        return
    why = f"{model.name} has no experts"
    raise InputError(Fault(workload.routing.described(), "workload.routing", why, "no routing"))


@dataclass(frozen=True, slots=True, eq=False)
class ExpertRows:
    """Rows of the routed experts on the busiest rank; float64 arrays over the candidates.

    Attributes
    ----------
    routed : ndarray
        Copies that a rank's own tokens make: tokens / tp with sequence parallelism, times top_k.
    local : ndarray
        Experts that a rank holds.
    each : ndarray
        Rows of one of them as its GEMMs run: tokens of the expert grid by the load of `planner.routing.Routing`,
        at least 1, whole blocks of a scaled format.
    width : ndarray
        Columns of an expert's up-projection on this rank.
    """

    routed: FloatArray
    local: FloatArray
    each: FloatArray
    width: FloatArray

    @property
    def all(self) -> FloatArray:
        """Rows of all local experts."""
        return np.asarray(self.each * self.local)


def expert_rows(ffn: Moe, s: Shapes) -> ExpertRows:
    """Rows of the experts: with sequence parallelism each rank routes its own tokens / tp, the etp group gathers."""
    routed = np.asarray(s.tokens_sp * ffn.top_k)
    each = np.maximum(routed * s.ep * s.etp / ffn.n_experts * s.routing.load, 1.0)
    if s.recipe.quantised:
        block = float(ROW_BLOCK[s.recipe.scaling])
        each = np.ceil(each / block - 1e-9) * block
    return ExpertRows(routed, np.asarray(ffn.n_experts / s.ep), np.asarray(each), np.asarray(ffn.ffn_hidden / s.etp))


def moe_ops(ffn: Moe, s: Shapes) -> tuple[list[Op], FloatArray]:
    """Router, dispatch, experts, combine and shared experts, and the bytes they save.

    Every rank of the expert grid waits in the combine for the busiest one, whose rows these are.
    """
    hidden, rows = float(s.model.hidden), expert_rows(ffn, s)
    ops = router_ops(ffn, s)
    ops += permute_ops(ffn, rows.routed, rows.all, s)
    ops += exchange_ops(ffn, rows.routed, s)
    ops += _padding(rows, s)
    ops += expert_gemms(ffn, rows, s)
    if not _fused_mlp(s):
        ops += activation_ops("moe.expert", rows.all, rows.width, ffn.gated, s)
    columns = rows.width * (2.0 if ffn.gated else 1.0)
    saved = s.keeps_input("moe.router", s.tokens_sp, hidden, quantised=False) + router_saved(ffn, s)
    saved = saved + s.keeps_input("moe.expert.up", rows.all, hidden)
    saved = saved + s.keeps_input("moe.expert.down", rows.all, rows.width)
    saved = saved + activation_width(ffn.gated, s) * rows.all * columns
    if not s.preset.moe_weighted_activation:  # the gradient of a probability reads the expert's output
        saved = saved + s.width * rows.routed * s.routing.sent * hidden
    elif not ffn.gated:  # nor is there a fused kernel but SwiGLU's: the product with them reads the plain activation
        saved = saved + s.width * rows.all * rows.width
    if ffn.shared_ffn_hidden:
        shared, shared_saved = dense_part("moe.shared", ffn.shared_ffn_hidden, ffn.gated, s)
        ops += [*s.enter_tp("moe.shared.up"), *shared, *s.leave_tp("moe.shared.down")]
        # the router keeps the same tensor where it is trained
        entering = s.keeps_input("moe.shared.up", s.tokens_saved, hidden, shared=s.lora is None)
        saved = saved + shared_saved + entering
    return ops, np.asarray(saved)


def _fused_mlp(s: Shapes) -> bool:
    """Whether activation and casts between the two products are in their epilogues."""
    return s.preset.moe_fused_mlp and s.recipe.scaling == "mx"


def _padding(rows: ExpertRows, s: Shapes) -> list[Op]:
    """Copies that bring each expert's rows to whole blocks of a scaled format, and back.

    Transformer Engine ``Fp8Padding``. Not where the router pads, nor where HybridEP writes each expert at the start
    of a block.
    """
    preset = s.preset
    if not s.recipe.quantised or preset.moe_router_padding or preset.moe_dispatcher == "hybridep":
        return []
    moved = 2.0 * s.width * rows.all * s.model.hidden
    found = []
    for name in ("pad", "unpad"):
        found.append(s.memory(f"moe.{name}", "forward", moved))
        found.append(s.memory(f"moe.{name}.grad", "backward_input", moved))
    return found


def expert_gemms(ffn: Moe, rows: ExpertRows, s: Shapes) -> list[Op]:
    """GEMMs of the local experts: up (with gate) and down, forward and backward, and their recipe's kernels.

    One kernel (``grouped``); a launch for each expert, that share the device (``streams``); or one after another
    (``loop``, a GEMM that runs once for each expert). Casts follow: one for all experts or one for each.
    Adapters sit on no routed expert: frozen ones have no weight gradient.
    """
    hidden = np.asarray(float(s.model.hidden))
    columns = np.asarray(rows.width * (2.0 if ffn.gated else 1.0))
    r, how = s.recipe, s.preset.moe_expert_gemm
    launches = np.asarray(1.0) if how == "grouped" else rows.local

    def product(name: str, phase: Phase, m: FloatArray, n: FloatArray, k: FloatArray, dtype: str) -> Op:
        dims = {"m": m, "n": n, "k": k}
        if how == "loop":
            return Op(name, "gemm", phase, dims, dtype, count=rows.local, impl=s.preset.gemm_impl)
        return Op(name, "grouped_gemm", phase, {**dims, "groups": rows.local}, dtype, kernels=launches)

    inside = ("moe.expert.down.quantise", "moe.expert.up.grad.quantise") if _fused_mlp(s) else ()

    def one(name: str, n_in: FloatArray, n_out: FloatArray) -> list[Op]:
        elements = rows.local * n_in * n_out
        casts = s.quantise(name, rows.all, n_in, n_out, r, weights=elements) + s.dequantise(name, elements)
        found = [replace(op, kernels=np.asarray(op.kernels * launches)) for op in casts if op.name not in inside]
        found.append(product(name, "forward", rows.each, n_out, n_in, r.forward))
        found.append(product(f"{name}.dgrad", "backward_input", rows.each, n_in, n_out, r.input_gradient))
        if s.lora is None:
            found.append(product(f"{name}.wgrad", "backward_weight", n_in, n_out, rows.each, r.weight_gradient))
        return found

    stored = np.asarray(rows.local * hidden * (columns + rows.width))
    trained = s.accumulate("moe.expert", stored) if s.lora is None else []
    return [*trained, *one("moe.expert.up", hidden, columns), *one("moe.expert.down", rows.width, hidden)]
