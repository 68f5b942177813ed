"""power: energy of a step from what its phases do to the device.

Compute phases run at the FLOPs of the step over the peak; the optimizer streams memory; transfers, bubbles and
waits idle. Watts and the building's overhead come from `hwmodels.energy`, which says what is assumed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hwmodels import energy
from hwmodels.device import Device
from hwmodels.kernels.formats import format_of
from hwmodels.kernels.memory import memory_coefficient
from hwmodels.kernels.sustained import compute_weight

FloatArray = NDArray[np.float64]
COMPUTE = ("forward", "backward", "recompute")


def step_joules(
    device: Device,
    phases: Sequence[Mapping[str, float]],
    step_s: float,
    hardware_flops: float,
    peak_flops: float,
    gpus: int,
    dtype: str = "bf16",
) -> float | None:
    """Joules of one step at the meter; None for a device whose datasheet gives no board power.

    Parameters
    ----------
    phases : sequence of mapping
        Seconds by phase of each pipeline rank; every rank stands for as many GPUs.
    hardware_flops : float
        Of the step, all ranks.
    peak_flops : float
        Of all ranks together.
    dtype : str
        Format that the peak is of.
    """
    if device.tdp_w <= 0:
        return None
    ranks = len(phases)
    busy = sum(row[name] for row in phases for name in COMPUTE) / ranks
    streaming = sum(row["optimizer"] for row in phases) / ranks
    return float(joules(device, busy, streaming, step_s, hardware_flops, peak_flops, gpus, dtype))


def joules(
    device: Device,
    compute_s: ArrayLike,
    optimizer_s: ArrayLike,
    step_s: ArrayLike,
    hardware_flops: ArrayLike,
    peak_flops: ArrayLike,
    gpus: ArrayLike,
    dtype: str = "bf16",
    pue: float = energy.PUE.value,
) -> FloatArray:
    """Joules of steps at the meter, for arrays that broadcast.

    Parameters
    ----------
    compute_s, optimizer_s : array_like
        Seconds that a rank computes and updates, mean over the ranks; what is left of `step_s` idles.
    hardware_flops, peak_flops : array_like
        As `step_joules`.
    pue : float
        Power of the building over that of its machines.

    Raises
    ------
    hwmodels.errors.InputError
        For a device whose datasheet gives no board power.
    """
    compute, streaming = np.asarray(compute_s, np.float64), np.asarray(optimizer_s, np.float64)
    share = np.asarray(hardware_flops, np.float64) / np.asarray(peak_flops, np.float64)
    reached = np.minimum(np.divide(share, compute, out=np.zeros(np.broadcast(share, compute).shape),
                                   where=compute > 0), 1.0)  # fmt: skip
    reach = memory_coefficient(device, "efficiency").value  # what a stream reaches by the law that priced it
    parts = [energy.Phase.of(compute, reached), energy.Phase.of(streaming, 0.0, min(reach, 1.0))]
    whole = np.maximum(step_s, compute + streaming)
    return np.asarray(energy.step_energy_j(device, parts, whole, gpus=gpus, pue=pue, dtype=dtype).mid)


def per_mtoken(joules: float | None, tokens: float) -> tuple[float | None, float | None]:
    """Energy in kWh and kilograms of CO2 for a million tokens, by the default grid of `hwmodels.energy`."""
    if joules is None:
        return None, None
    kwh = joules / energy.JOULES_PER_KWH / tokens * 1e6
    return kwh, kwh * energy.GRID_KG_PER_KWH.value


def note() -> str:
    """What the figures rest on."""
    return (
        f"energy: watts between idle and board power by utilisation, PUE {energy.PUE.value:g}, "
        f"{energy.GRID_KG_PER_KWH.value:g} kg CO2 per kWh; all assumed, within about {energy.POWER_SPREAD:.0%} "
        "(hwmodels/energy.py)"
    )


def sustained_note(device: Device, dtype: str) -> str:
    """Whether measured steps say what the tensor cores of a device sustain at its board power in a format."""
    weight = compute_weight(device, dtype)
    if not weight.rows:
        return (
            f"sustained clock: no measured step says what {device.generation} sustains in {dtype} at its board power; "
            "kernels as they are timed alone, which a step of seconds may not reach"
        )
    rate = device.peak(format_of(dtype).peak) / weight.value / 1e12
    return f"sustained clock: at most {rate:.0f} TFLOP/s in {dtype} at {device.tdp_w:.0f} W ({weight.source})"
