"""Matrix products of a linear layer: forward, input gradient, weight gradient."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from executor.benchmarks.base import Bench, Case


def cases(bench: Bench, quick: bool) -> list[Case]:
    """Cases over the designed shapes.

    A row's (m, n, k) is that of the product ``m x k`` by ``k x n``: forward (tokens, out, in),
    input gradient (tokens, in, out), weight gradient (in, out, tokens).
    """
    sizes = bench.backend.sizes
    found = []
    for n_in, n_out in sizes.gemm:
        for tokens in sizes.tokens if quick else sorted({*sizes.tokens, *(2 * t for t in sizes.tokens)}):
            x, w = bench.tensor(tokens, n_in, dtype=sizes.dtype), bench.tensor(n_out, n_in, dtype=sizes.dtype)
            dy = bench.tensor(tokens, n_out, dtype=sizes.dtype)

            def fact(orientation: str, m: int, n: int, k: int) -> dict[str, Any]:
                return {"m": m, "n": n, "k": k, "dtype": sizes.dtype, "orientation": orientation}

            found += [
                Case(fact("forward", tokens, n_out, n_in), partial(torch.matmul, x, w.t())),
                Case(fact("dgrad", tokens, n_in, n_out), partial(torch.matmul, dy, w)),
                Case(fact("wgrad", n_in, n_out, tokens), partial(torch.matmul, dy.t(), x)),
            ]
    return found
