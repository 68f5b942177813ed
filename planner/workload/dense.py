"""The dense feed-forward, alone in a layer or as the shared experts beside routed ones."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from planner.model.spec import Mlp
from planner.precision import BYTES
from planner.workload.context import Shapes
from planner.workload.op import Op

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
    return [*s.enter_tp("mlp.up", cut=True), *ops, *s.leave_tp("mlp.down", cut=True)], np.asarray(saved + entering)


def dense_part(name: str, ffn_hidden: int, gated: bool, s: Shapes) -> tuple[list[Op], FloatArray]:
    """Up (and gate), activation and down of one dense feed-forward, tp-sharded."""
    width = np.asarray(ffn_hidden / s.tp)
    columns = width * (2.0 if gated else 1.0)
    hidden = np.asarray(float(s.model.hidden))
    cut = name == "mlp"  # a shared expert's GEMMs run whole
    ops = s.linear(f"{name}.up", s.tokens, hidden, columns, after_norm=name == "mlp", cut="column" if cut else "")
    ops += activation_ops(name, s.tokens, width, gated, s)
    ops += s.linear(f"{name}.down", s.tokens, width, hidden, cut="row" if cut else "")
    saved = activation_width(gated, s) * s.tokens * columns + s.keeps_input(f"{name}.down", s.tokens, width)
    return ops, np.asarray(saved)
