"""Kernels that move memory: copies, elementwise operators, norms, loss, optimizer.

The bytes of a row are what the operators of a case must read and write, each operator by
itself (an eager ``silu(g) * u`` reads and writes five times its output).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812 - the name that PyTorch's own documentation uses

from executor.benchmarks.base import Bench, Case
from executor.device import rms_norm

_WIDTH = 512


def cases(bench: Bench, quick: bool) -> list[Case]:
    """Cases over the designed sizes; `kernels` is the number of operators launched."""
    found = []
    for n in bench.backend.sizes.memory_elements:
        found += _elementwise(bench, n) + _norms(bench, n) + _loss(bench, n) + _optimizer(bench, n)
    return found


def _case(name: str, nbytes: float, kernels: int, call: Callable[[], object]) -> Case:
    return Case({"name": name, "nbytes": int(nbytes), "kernels": kernels}, call)


def _elementwise(bench: Bench, n: int) -> list[Case]:
    x, y = (bench.tensor(n // _WIDTH, _WIDTH) for _ in range(2))
    out = torch.empty_like(x)
    size = 4.0 * n
    return [
        _case("copy", 2 * size, 1, lambda: out.copy_(x)),
        _case("add", 3 * size, 1, lambda: torch.add(x, y)),
        _case("silu", 2 * size, 1, lambda: F.silu(x)),
        _case("silu_mul", 5 * size, 2, lambda: F.silu(x) * y),
    ]


def _norms(bench: Bench, n: int) -> list[Case]:
    x, weight = bench.tensor(n // _WIDTH, _WIDTH, grad=True), bench.tensor(_WIDTH, grad=True)
    upstream = bench.tensor(n // _WIDTH, _WIDTH)
    size = 4.0 * n
    found = []
    variants: tuple[tuple[str, Callable[[], torch.Tensor], tuple[int, int], tuple[int, int]], ...] = (
        # executor.device.rms_norm: norm 1, two products of 2 | product 3, two sums of 1, scale 2, addcmul 3, scale 2.
        ("rmsnorm", lambda: rms_norm(x, weight, 1e-5), (5, 12), (7, 7)),
        ("layernorm", lambda: F.layer_norm(x, (_WIDTH,), weight, weight), (2, 3), (1, 2)),
    )
    for name, run, passes, kernels in variants:
        y = run()

        def forward(run: Callable[[], torch.Tensor] = run) -> torch.Tensor:
            with torch.no_grad():
                return run()

        def backward(y: torch.Tensor = y) -> object:
            return torch.autograd.grad(y, (x, weight), upstream, retain_graph=True)

        found += [
            _case(name, passes[0] * size, kernels[0], forward),
            _case(f"{name}_backward", passes[1] * size, kernels[1], backward),
        ]
    return found


def _loss(bench: Bench, n: int) -> list[Case]:
    vocab = 1024
    logits = bench.tensor(n // vocab, vocab, grad=True)
    target = torch.zeros(n // vocab, dtype=torch.int64, device=bench.backend.device)
    loss = F.cross_entropy(logits, target)

    def forward() -> torch.Tensor:
        with torch.no_grad():
            return F.cross_entropy(logits, target)

    return [
        _case("cross_entropy", 2 * 4.0 * n, 2, forward),
        _case("cross_entropy_backward", 3 * 4.0 * n, 2, lambda: torch.autograd.grad(loss, logits, retain_graph=True)),
    ]


def _optimizer(bench: Bench, n: int) -> list[Case]:
    """AdamW reads weight, gradient and two moments and writes all but the gradient: 7 x 4 bytes."""
    parameter = torch.nn.Parameter(bench.tensor(n))
    parameter.grad = bench.tensor(n)
    optimizer = torch.optim.AdamW([parameter], fused=True)
    return [_case("adamw", 28.0 * n, 1, optimizer.step)]
