"""What a kernel takes inside a training step, which runs for seconds at the power limit: its energy bounds its time.

A kernel that is timed alone, some tens of times over, is timed at the clock of a cool part. In a step that keeps the
tensor cores busy for seconds the part settles where it draws its board power, so that no kernel is done sooner than
its floating-point operations take at that power::

    t >= flop / (flop_per_j x tdp)

`flop_per_j` is what a generation gets out of a joule of board power (``power.<peak>.flop_per_j``), fitted on training
steps. It does not depend on the limit: H100 at 700 and at 500 W, B200 at 1,000 and GB200 at 1,200 W go by the same
number, and H100 and Blackwell, made in one process, nearly so. Kernels that draw less, such as small or memory-bound
ones, are left as they are. Without a fitted number the bound is the assumed `COMPUTE_WEIGHT`, which is none for any
kernel below nine tenths of the peak; `hwmodels.energy` takes its watts from the same numbers (`compute_weight`).

A narrower format has a number of its own: a multiplier's energy grows with the square of the mantissa, so that the
double peak of fp8 need not take the power of that of bf16 (Horowitz 2014, "Computing's energy problem", ISSCC).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from hwmodels.device import Coefficient, Device
from hwmodels.estimate import Estimate
from hwmodels.kernels.formats import format_of

COMPUTE_WEIGHT = Coefficient(
    1.1,
    "assumed: 0.8 of the tensor peak with a quarter of the memory bandwidth draws the board power (trap 6)",
    0,
    0.15,
)
_ALIKE = {"fp16": "bf16"}
"""Peaks that draw what another one does: the same multipliers at the same rate."""


def power_name(dtype: str) -> str:
    """Name of the coefficient that bounds kernels in a format; `InputError` for an unknown format."""
    peak = format_of(dtype).peak
    return f"power.{_ALIKE.get(peak, peak)}.flop_per_j"


def compute_weight(device: Device, dtype: str = "bf16") -> Coefficient:
    """Power of the tensor cores at the datasheet peak of a format, over the board power of the device.

    ``peak / (flop_per_j x tdp)`` where the generation's number is known; else `COMPUTE_WEIGHT`.

    Raises
    ------
    InputError
        For an unknown format, or one that the device does not have.
    """
    peak = format_of(dtype).peak
    found = device.coefficients.get(power_name(dtype))
    if found is None or device.tdp_w <= 0:
        return COMPUTE_WEIGHT
    return Coefficient(device.peak(peak) / (found.value * device.tdp_w), found.source, found.rows, found.residual)


def sustained_seconds(device: Device, kernel: Estimate, flop: ArrayLike, dtype: str = "bf16") -> Estimate:
    """A kernel's time in a step that runs for seconds.

    Parameters
    ----------
    device : Device
    kernel : Estimate
        Its time alone.
    flop : array_like
        Its floating-point operations; broadcast against the time.
    dtype : str
        Format that the tensor cores multiply, as `hwmodels.kernels.gemm_seconds` takes it.

    Returns
    -------
    Estimate
        The longer of `kernel` and the formula of the module docstring; a device without tensor cores (a CPU) keeps
        the kernel's own time. The spread is that of the one which is longer.

    Raises
    ------
    InputError
        For an unknown format, or one that the device does not have.
    """
    if device.kind == "cpu":
        return kernel
    weight = compute_weight(device, dtype)
    least = np.asarray(flop, dtype=np.float64) * (weight.value / device.peak(format_of(dtype).peak))
    longer = least > kernel.mid
    return Estimate.of(np.where(longer, least, kernel.mid), np.where(longer, weight.residual, kernel.spread))
