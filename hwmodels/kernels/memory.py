"""Memory-bound kernels: norms, rotary, activations, softmax, optimizer, casts, copies.

    t = launch + bytes / (bandwidth x efficiency x bytes / (bytes + ramp))
      = launch + (bytes + ramp) / (bandwidth x efficiency)

`ramp` bytes are what the device could have moved while a kernel fills and drains it; it is
latency x bandwidth (Little's law), so the law is the usual alpha-beta line of a stream.

A tensor that the kernel before has just written (`resident`) may lie in the last-level cache, which serves a
stream `cache_speed` times as fast as memory while it fits: ``bandwidth x (1 - h + h cache_speed)`` with
``h = 1 / (1 + (bytes / cache)^8)``. `hwmodels.kernels.traffic` says what each kind of kernel moves.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from hwmodels.device import Coefficient, Device
from hwmodels.estimate import Estimate
from hwmodels.kernels.cache import cached_share
from hwmodels.kernels.gemm import _positive, gemm_coefficient

MEMORY_DEFAULTS = {
    "efficiency": Coefficient(
        0.65,
        "least mean absolute error of the step time over the 18 A100 rows megatron_a100_sc21 and korthikanti_a100, "
        "grid 0.50-0.85 by 0.05 (tests/validation/test_memory_efficiency.py); norms, dropout, softmax and "
        "activations of a training step, which reach less than the 80-90% of a plain stream; carried over to "
        "devices without a fit",
        18,
        0.15,
    ),
    "ramp_s": Coefficient(1.5e-6, "assumed: time to fill and drain the device", 0, 0.5),
    "launch": Coefficient(2.0e-6, "assumed: shortest elementwise kernels take 2-3 us", 0, 0.5),
    "epilogue": Coefficient(
        0.0,
        "assumed: the next tile's main loop hides an epilogue, where several blocks share an SM (Ampere) or tiles "
        "accumulate in a memory of their own (Blackwell's tensor memory)",
        0,
        0.5,
    ),
    "cache_speed": Coefficient(
        2.0,
        "assumed: L2 reads of A100 and H100 run at 2-3 times the memory bandwidth (decode rows of L40S whose cache "
        "fits: 2.5-4 times, attention.decode.cache_speed)",
        0,
        0.5,
    ),
}


def memory_coefficient(device: Device, name: str, impl: str = "") -> Coefficient:
    """``memory.<impl>.<name>``, else ``memory.<name>``, else the assumed value."""
    names = [f"memory.{impl}.{name}"] if impl else []
    return device.find(*names, f"memory.{name}", default=MEMORY_DEFAULTS[name])


def memory_seconds(device: Device, nbytes: ArrayLike, *, impl: str = "", resident: ArrayLike = False) -> Estimate:
    """Time of one kernel that moves `nbytes` in total, read and written.

    Parameters
    ----------
    device : Device
    nbytes : array_like
        Bytes; nothing moved takes no time.
    impl : str
        Implementation with coefficients of its own (``memory.<impl>.efficiency``); one that
        was not measured takes the device's.
    resident : array_like of bool
        What is read was written by the kernel before: the cache serves it while it fits.

    Raises
    ------
    InputError
        For a negative or non-finite size.
    """
    (size,) = _positive(nbytes=nbytes)
    efficiency = memory_coefficient(device, "efficiency", impl)
    start = memory_coefficient(device, "launch", impl).value + memory_coefficient(device, "ramp_s", impl).value
    seconds = size / (device.memory_bandwidth * efficiency.value)
    warm = np.asarray(resident, dtype=bool)
    if warm.any() and device.l2_bytes:
        hit = np.where(warm, cached_share(size, device.l2_bytes), 0.0)
        seconds = seconds / (1.0 + hit * (memory_coefficient(device, "cache_speed", impl).value - 1.0))
    return Estimate.of(np.where(size > 0, start + seconds, 0.0), efficiency.residual)


def epilogue_seconds(device: Device, nbytes: ArrayLike, dtype: str = "bf16") -> Estimate:
    """What `nbytes` more take at the end of a matrix product: no launch, at the bandwidth that products reach.

    ``t = memory.epilogue x bytes / (bandwidth x gemm.memory_efficiency)``, where ``memory.epilogue`` is the share that
    nothing hides: all of it where a tile's accumulators fill the registers of its SM, so that the epilogue that reads
    the matrix which the product adds to, and writes it wider than an operand, runs after the tile's main loop and not
    beside the next one's (CUTLASS, efficient_gemm.md; cooperative kernels of Hopper).

    Raises
    ------
    InputError
        For a negative or non-finite size, or an unknown format.
    """
    (size,) = _positive(nbytes=nbytes)
    efficiency = gemm_coefficient(device, dtype, "memory_efficiency")
    exposed = memory_coefficient(device, "epilogue").value
    return Estimate.of(exposed * size / (device.memory_bandwidth * efficiency.value), efficiency.residual)
