"""Feed-forward blocks: dense MLP and mixture of experts."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from planner.model.spec import Mlp, Moe
from planner.precision import BYTES
from planner.workload.context import Shapes
from planner.workload.op import Op, Phase

FloatArray = NDArray[np.float64]


def activation_ops(name: str, rows: FloatArray, width: FloatArray, gated: bool, s: Shapes) -> list[Op]:
    """GELU or SwiGLU between the up and down projections.

    Fused: read the projection(s), write the activation; backward reads projections and the
    incoming gradient and writes their gradients. Eager operators go through memory once more
    per operator (activation and product apart; PyTorch's eager SiLU + mul: 2 and 3 passes).
    """
    n = rows * width * s.width
    inputs = 2.0 if gated else 1.0
    fused = s.preset.fused_elementwise
    eager_extra = 0.0 if fused else (2.0 if gated else 3.0)
    kernels = 1.0 if fused else (2.0 if gated else 3.0)
    return [
        s.memory(
            f"{name}.activation",
            "forward",
            n * (inputs + 1.0 + eager_extra),
            kernels=kernels,
            impl="silu_mul" if gated else "gelu",
        ),
        s.memory(
            f"{name}.activation.grad",
            "backward_input",
            n * (2.0 * inputs + 1.0 + 2.0 * eager_extra),
            kernels=2.0 * kernels - 1.0,
        ),
    ]


def activation_width(gated: bool, s: Shapes) -> float:
    """Bytes of an element of an activation's input that is kept (Megatron-Core ``activation_func_fp8_input_store``)."""
    narrow = gated and s.recipe.quantised and s.preset.quantised_activation_input
    return BYTES["fp8"] if narrow else s.width


def mlp_ops(ffn: Mlp, s: Shapes) -> tuple[list[Op], FloatArray]:
    """Dense feed-forward under tensor parallelism, and the bytes it saves."""
    ops, saved = dense_part("mlp", ffn.ffn_hidden, ffn.gated, s)
    entering = s.keeps_input("mlp.up", s.tokens_saved, float(s.model.hidden))
    return [*s.enter_tp("mlp.up"), *ops, *s.leave_tp("mlp.down")], np.asarray(saved + entering)


def dense_part(name: str, ffn_hidden: int, gated: bool, s: Shapes) -> tuple[list[Op], FloatArray]:
    """Up (and gate), activation and down of one dense feed-forward, tp-sharded."""
    width = np.asarray(ffn_hidden / s.tp)
    columns = width * (2.0 if gated else 1.0)
    hidden = np.asarray(float(s.model.hidden))
    ops = s.linear(f"{name}.up", s.tokens, hidden, columns, after_norm=name == "mlp")
    ops += activation_ops(name, s.tokens, width, gated, s)
    ops += s.linear(f"{name}.down", s.tokens, width, hidden)
    saved = activation_width(gated, s) * s.tokens * columns + s.keeps_input(f"{name}.down", s.tokens, width)
    return ops, np.asarray(saved)


def moe_ops(ffn: Moe, s: Shapes) -> tuple[list[Op], FloatArray]:
    """Router, dispatch, experts, combine and shared experts, and the bytes they save.

    Tokens are taken as balanced over the experts. With sequence parallel each rank routes its
    own tokens / tp; the ep group exchanges every routed copy (its send buffer holds
    tokens·top_k rows), the etp group gathers rows and shares the expert width.
    """
    hidden = float(s.model.hidden)
    routed = np.asarray(s.tokens_sp * ffn.top_k)
    local_experts = np.asarray(ffn.n_experts / s.ep)
    rows_each = np.maximum(routed * s.ep * s.etp / ffn.n_experts, 1.0)
    rows = np.asarray(rows_each * local_experts)
    width = np.asarray(ffn.ffn_hidden / s.etp)
    ops = s.linear("moe.router", s.tokens_sp, np.asarray(hidden), np.asarray(float(ffn.n_experts)), quantised=False)
    router_bytes = s.tokens_sp * ffn.n_experts * 4.0
    row_bytes = s.width * routed * hidden
    ops += [
        s.memory("moe.route", "forward", 4.0 * router_bytes, kernels=6.0),
        s.memory("moe.route.grad", "backward_input", 4.0 * router_bytes, kernels=6.0),
        s.memory("moe.permute", "forward", 2.0 * row_bytes, kernels=2.0),
        s.memory("moe.permute.grad", "backward_input", 2.0 * row_bytes, kernels=2.0),
        s.memory("moe.unpermute", "forward", 2.0 * row_bytes, kernels=2.0),
        s.memory("moe.unpermute.grad", "backward_input", 3.0 * row_bytes, kernels=2.0),
    ]
    ops += _expert_exchange(row_bytes, s)
    ops += _expert_gemms(ffn, rows_each, local_experts, width, s)
    ops += activation_ops("moe.expert", rows, width, ffn.gated, s)
    columns = width * (2.0 if ffn.gated else 1.0)
    saved = s.keeps_input("moe.router", s.tokens_sp, hidden, quantised=False) + router_bytes
    saved = saved + s.keeps_input("moe.expert.up", rows, hidden) + s.keeps_input("moe.expert.down", rows, width)
    saved = saved + activation_width(ffn.gated, s) * rows * columns + s.width * routed * hidden
    if ffn.shared_ffn_hidden:
        shared, shared_saved = dense_part("moe.shared", ffn.shared_ffn_hidden, ffn.gated, s)
        ops += [*s.enter_tp("moe.shared.up"), *shared, *s.leave_tp("moe.shared.down")]
        # the router keeps the same tensor where it is trained
        entering = s.keeps_input("moe.shared.up", s.tokens_saved, hidden, shared=s.lora is None)
        saved = saved + shared_saved + entering
    return ops, np.asarray(saved)


def _expert_exchange(row_bytes: FloatArray, s: Shapes) -> list[Op]:
    """Dispatch and combine over ep, rows gathered and scattered over etp; mirrored backward.

    Tokens go out quantised, and come back in the compute dtype, where the framework does so and
    scales lie along rows (DeepSeek-V3, arXiv 2412.19437, section 3.3.3; DeepEP).
    """

    def exchange(name: str, op: str, group: str, nbytes: FloatArray, phase: Phase) -> Op:
        degree = s.ep if group == "ep" else s.etp
        return Op(
            name,
            "collective",
            phase,
            {"nbytes": nbytes},
            s.dtype,
            group=group,
            collective=op,
            count=np.where(degree > 1, 1.0, 0.0),
        )

    gathered = np.asarray(row_bytes * s.etp)
    narrow = s.preset.quantised_dispatch and s.recipe.scaling in ("block", "mx")
    sent = np.asarray(row_bytes * (s.recipe.element_bytes / s.width)) if narrow else row_bytes
    return [
        exchange("moe.dispatch", "all_to_all", "ep", sent, "forward"),
        exchange("moe.combine", "all_to_all", "ep", row_bytes, "forward"),
        exchange("moe.dispatch.grad", "all_to_all", "ep", row_bytes, "backward_input"),
        exchange("moe.combine.grad", "all_to_all", "ep", row_bytes, "backward_input"),
        exchange("moe.etp_gather", "all_gather", "etp", gathered, "forward"),
        exchange("moe.etp_scatter", "reduce_scatter", "etp", gathered, "forward"),
        exchange("moe.etp_gather.grad", "all_gather", "etp", gathered, "backward_input"),
        exchange("moe.etp_scatter.grad", "reduce_scatter", "etp", gathered, "backward_input"),
    ]


def _expert_gemms(ffn: Moe, rows_each: FloatArray, groups: FloatArray, width: FloatArray, s: Shapes) -> list[Op]:
    """Grouped GEMMs of the local experts: up (with gate) and down, forward and backward, and their recipe's kernels.

    Adapters sit on no routed expert: frozen ones have no weight gradient.
    """
    hidden = np.asarray(float(s.model.hidden))
    columns = np.asarray(width * (2.0 if ffn.gated else 1.0))

    r, all_rows = s.recipe, rows_each * groups

    def one(name: str, n_in: FloatArray, n_out: FloatArray) -> list[Op]:
        def grouped(suffix: str, phase: Phase, m: FloatArray, n: FloatArray, k: FloatArray, dtype: str) -> Op:
            return Op(name + suffix, "grouped_gemm", phase, {"m": m, "n": n, "k": k, "groups": groups}, dtype)

        found = s.quantise(name, all_rows, n_in, n_out, r, weights=groups * n_in * n_out)
        found += s.dequantise(name, groups * n_in * n_out)
        found.append(grouped("", "forward", rows_each, n_out, n_in, r.forward))
        found.append(grouped(".dgrad", "backward_input", rows_each, n_in, n_out, r.input_gradient))
        if s.lora is None:
            found.append(grouped(".wgrad", "backward_weight", n_in, n_out, rows_each, r.weight_gradient))
        return found

    stored = np.asarray(groups * hidden * (columns + width))
    trained = s.accumulate("moe.expert", stored) if s.lora is None else []
    return [*trained, *one("moe.expert.up", hidden, columns), *one("moe.expert.down", width, hidden)]
