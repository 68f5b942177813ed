"""Host seconds of one eager operator: the smallest kernel there is, in a long row."""

from __future__ import annotations

import time

import torch

from executor.benchmarks.base import Bench


def run(bench: Bench, calls: int = 2000) -> float:
    """Median over 5 rows of host seconds per operator (queued on CUDA, done on CPU)."""
    x = torch.ones(1, device=bench.backend.device)
    found = []
    for _ in range(5):
        bench.backend.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            x.add_(1.0)
        found.append((time.perf_counter() - start) / calls)
    return sorted(found)[2]
