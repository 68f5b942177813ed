"""Causal `scaled_dot_product_attention`, forward and backward."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - the name that PyTorch's own documentation uses

from executor.benchmarks.base import Bench, Case


def cases(bench: Bench, quick: bool) -> list[Case]:
    """Cases over the designed shapes; the backward is timed alone."""
    found = []
    dtype = bench.backend.sizes.dtype
    for batch, seq, heads, kv_heads, dim in bench.backend.sizes.attention:
        q = bench.tensor(batch, heads, seq, dim, dtype=dtype, grad=True)
        k, v = (bench.tensor(batch, kv_heads, seq, dim, dtype=dtype, grad=True) for _ in range(2))
        upstream = bench.tensor(batch, heads, seq, dim, dtype=dtype)

        def forward(q: torch.Tensor = q, k: torch.Tensor = k, v: torch.Tensor = v) -> torch.Tensor:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])

        out = forward()

        def backward(
            out: torch.Tensor = out,
            q: torch.Tensor = q,
            k: torch.Tensor = k,
            v: torch.Tensor = v,
            upstream: torch.Tensor = upstream,
        ) -> object:
            return torch.autograd.grad(out, (q, k, v), upstream, retain_graph=True)

        for direction, call in (("forward", forward), ("backward", backward)):
            facts = {
                "batch": batch,
                "seq_len": seq,
                "n_heads": heads,
                "n_kv_heads": kv_heads,
                "head_dim": dim,
                "dtype": dtype,
                "direction": direction,
            }
            found.append(Case(facts, call))
    return found
