"""Matrix multiplication on one CPU core, by a BLAS with packed panels.

::

    t = floor + batch 2 m n k / (peak x efficiency x m/(m+m_half) x n/(n+n_half) x k/(k+k_half))
      + batch (read e k (m + n) + write o m n) / bandwidth

`read` and `write` are passes over memory: a cache that holds the operands brings them below 1, fresh
pages for the result above.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hwmodels.device import Coefficient
from hwmodels.estimate import FloatArray


def _assumed(value: float, why: str) -> Coefficient:
    return Coefficient(value, f"assumed: {why}", 0, 0.25)


CPU_DEFAULTS = {
    "cpu_efficiency": _assumed(0.5, "a BLAS on a core of a shared host reaches half of its boost-clock peak"),
    "cpu_half_m": _assumed(12.0, "panel overhead"),
    "cpu_half_n": _assumed(24.0, "panel overhead"),
    "cpu_half_k": _assumed(24.0, "panel overhead"),
    "cpu_read": _assumed(1.0, "operands come from memory once"),
    "cpu_write": _assumed(1.0, "the result goes to memory once"),
    "cpu_floor": _assumed(5e-6, "dispatch of one operator in eager PyTorch"),
}


def cpu_seconds(m: FloatArray, n: FloatArray, k: FloatArray, batch: FloatArray, c: Mapping[str, float]) -> FloatArray:
    """Seconds of a slice of the batch (m, n, k, batch) on one core; `c` holds plain floats."""
    # m/(m+h) written as 1/(1 + h/m) would divide by zero for empty products.
    work = (m + c["cpu_half_m"]) * (n + c["cpu_half_n"]) * (k + c["cpu_half_k"])
    moved = c["cpu_read"] * c["in"] * k * (m + n) + c["cpu_write"] * c["out"] * m * n
    traffic = moved * batch * (1.0 / c["bandwidth"])
    seconds = c["cpu_floor"] + 2.0 * batch * work / (c["peak"] * c["cpu_efficiency"]) + traffic
    return np.where(m * n * k * batch > 0, seconds, 0.0)
