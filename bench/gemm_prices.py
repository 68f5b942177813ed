"""GEMM prices a second on one core: two million random shapes in one call, median of five runs.

Run alone it prints the rate; under ``bench.py`` the whole process is timed, imports included.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from hwmodels import catalog
from hwmodels.kernels import gemm_seconds

SHAPES = 2_000_000


def rates(runs: int) -> list[float]:
    """Prices a second of each of `runs` calls, CPU time."""
    draw = np.random.default_rng(0)
    m, n, k = (draw.integers(1, 16385, SHAPES) for _ in range(3))
    device = catalog.device("h100-sxm-80gb")
    found = []
    for _ in range(runs):
        start = time.process_time()
        gemm_seconds(device, m, n, k, impl="trtllm")
        found.append(SHAPES / (time.process_time() - start))
    return found


if __name__ == "__main__":
    measured = rates(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
    print(f"{statistics.median(measured) / 1e6:.2f} million GEMM prices a second (median of {len(measured)} runs)")
