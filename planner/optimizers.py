"""Optimizers as data: the state that they keep, and what a step of theirs reads, writes and multiplies."""

from __future__ import annotations

from hwmodels.errors import Fault, InputError
from hwmodels.records import dataclass

MAIN_DTYPES: dict[str, float] = {"fp32": 4.0, "bf16": 0.0, "remainder": 2.0}
"""Main weights beside a 16-bit compute copy -> bytes a parameter. ``bf16``: the compute copy is the main
one. ``remainder``: the 16 bits by which an fp32 value goes beyond its bf16 copy (Transformer Engine
FusedAdam ``store_param_remainders``; Megatron-Core ``--use-precision-aware-optimizer``)."""

GRAD_DTYPES: tuple[str, ...] = ("fp32", "bf16")
"""Dtypes in which gradients can be asked to be kept and reduced, whatever the framework's default."""


@dataclass(frozen=True, slots=True)
class Optimizer:
    """One optimizer.

    Attributes
    ----------
    name : str
    state_bytes : float
        Bytes a parameter beside its main copy.
    other_state_bytes : float
        The same for parameters that are no hidden matrix (embedding, head, norms), where they get Adam.
    eager_bytes, eager_kernels : float
        Bytes a parameter and launches of the eager operators, over fp32 tensors.
    impl : str
        Implementation of the fused kernel that a device may have coefficients for.
    newton_schulz : int
        Steps of the Newton-Schulz iteration over every hidden matrix; 0 for none.
    source : str
    """

    name: str
    state_bytes: float
    other_state_bytes: float
    eager_bytes: float
    eager_kernels: float
    impl: str
    newton_schulz: int
    source: str


def _elementwise(name: str, states: float, eager: tuple[float, float], impl: str, source: str) -> Optimizer:
    return Optimizer(name, states, states, eager[0], eager[1], impl, 0, source)


_FOREACH = (84.0, 8.0)
"""Eager (foreach) Adam: eight operators over every tensor, 21 passes of four bytes (mul, lerp, mul, addcmul,
sqrt, div, add, addcdiv: 2+3+2+4+2+2+2+4)."""

_BLOCKWISE = 2.0 * (1.0 + 4.0 / 256.0)
_OPTIMIZERS: dict[str, Optimizer] = {
    o.name: o
    for o in (
        _elementwise("adamw", 8.0, _FOREACH, "adamw", "Loshchilov & Hutter 2019 (arXiv 1711.05101): two fp32 moments"),
        _elementwise("adamw-bf16", 4.0, _FOREACH, "adamw", "DeepSeek-V3 (arXiv 2412.19437) 3.3.1: moments in bf16"),
        _elementwise(
            "adamw-8bit", _BLOCKWISE, _FOREACH, "adamw",
            "Dettmers et al. 2022 (arXiv 2110.02861); torchao AdamW8bit: blocks of 256 elements share an fp32 scale",
        ),
        _elementwise("sgd", 0.0, (12.0, 2.0), "", "p -= lr g: two reads and a write"),
        _elementwise("sgd-momentum", 4.0, (32.0, 3.0), "", "PyTorch SGD, foreach: mul, add, add: 2 + 3 + 3 passes"),
        Optimizer(
            "muon", 4.0, 8.0, 32.0, 3.0, "", 5,
            "Jordan et al. 2024, Muon; Liu et al. 2025, Muon is Scalable (arXiv 2502.16982): one momentum for hidden "
            "matrices, orthogonalised by five Newton-Schulz steps in bf16; AdamW for embedding, head and norms",
        ),
    )
}  # fmt: skip


def names() -> tuple[str, ...]:
    """Names of all optimizers."""
    return tuple(_OPTIMIZERS)


def get(name: str) -> Optimizer:
    """The optimizer called `name`; `InputError` with the known names otherwise."""
    try:
        return _OPTIMIZERS[name]
    except KeyError:
        fix = "one of " + ", ".join(_OPTIMIZERS)
        raise InputError(Fault(f"unknown optimizer {name!r}", "optimizer", "", fix)) from None
