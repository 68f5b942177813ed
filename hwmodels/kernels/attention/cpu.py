"""SDPA on a CPU core: no tiles, no asynchronous launches::

    t = launch + flop / (peak x efficiency x d_eff) + passes (Q + O + K + V) / bandwidth
    d_eff = d / (d + head_dim_half) x (1 + head_dim_half / 128)

The efficiency of each direction, `head_dim_half` and the launch are measured by `calibrate`.
"""

from __future__ import annotations

import numpy as np

from hwmodels.device import Coefficient, Device
from hwmodels.estimate import Estimate
from hwmodels.kernels.attention.prefill import BACKWARD_FLOP_RATIO
from hwmodels.kernels.attention.shapes import Shapes

CPU_DEFAULTS = {
    "forward.efficiency": Coefficient(0.68, "assumed: as on a GPU; calibrate measures it", 0, 0.2),
    "backward.efficiency": Coefficient(0.55, "assumed: 0.8 of the forward; calibrate measures it", 0, 0.2),
    "head_dim_half": Coefficient(20.0, "assumed: short inner products are slower", 0, 0.2),
    "launch": Coefficient(8e-6, "assumed: one operator", 0, 0.2),
}


def estimate(device: Device, s: Shapes, direction: str, dtype: str, impl: str) -> Estimate:
    """Seconds of each call, with the spread of the efficiency."""

    def find(name: str) -> Coefficient:
        names = [f"attention.{impl}.{name}"] if impl else []
        return device.find(*names, f"attention.{name}", default=CPU_DEFAULTS[name])

    lead, half = find(f"{direction}.efficiency"), find("head_dim_half").value
    flop, passes = s.flop, 1.0
    if direction == "backward":
        flop, passes = flop * BACKWARD_FLOP_RATIO, 2.0
    rate = device.peak(dtype) * lead.value * (s.dim / (s.dim + half) * (1.0 + half / 128.0))
    compute = np.divide(flop, rate, out=np.zeros(flop.shape), where=rate > 0)
    launch = find("launch").value
    seconds = launch + compute + (s.q_bytes + s.kv_bytes) * passes / device.memory_bandwidth
    return Estimate.of(np.where(flop > 0, seconds, 0.0), lead.residual)
