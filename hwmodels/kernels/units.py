"""Units and cache of a device whose datasheet gives none: those of the generation whose laws it takes.

Costs of a block or a tile are seconds of one SM, so a law needs their number. Where the datasheet does not say it,
the device is taken to be made of SMs like those that were measured: as many as its peak is of theirs
(``<law>.unit_peak``, FLOP/s of one in 16 bits), each with as much of the last-level cache (``<law>.l2_per_sm``).
Equal datasheets then give equal times, and a faster one is never slower for not stating its SMs.
"""

from __future__ import annotations

from hwmodels.device import Device
from hwmodels.laws import Block

SIXTEEN_BITS = ("bf16", "fp16", "fp32")
"""Peak that units are compared by, the first that the device has."""


def _peak(device: Device) -> float:
    return next((device.peak_flops[name] for name in SIXTEEN_BITS if name in device.peak_flops), 0.0)


def units_of(device: Device, law: str) -> float:
    """SMs, compute units or cores; 0 where neither the datasheet nor the law's section tells."""
    if device.n_sm:
        return float(device.n_sm)
    unit = device.coefficients.get(f"{law}.unit_peak")
    if unit is None or unit.value <= 0:
        return 0.0
    return max(float(round(_peak(device) / unit.value)), 1.0)


def datasheet_block(device: Device, l2_per_sm: float) -> Block:
    """What a section records of the datasheet of the device that it was fitted on, for those without these figures.

    Parameters
    ----------
    device : Device
    l2_per_sm : float
        Bytes of the last-level cache for each unit that the law assumes where `device` has no such figure itself.
    """
    known = bool(device.n_sm)
    values = {
        "unit_peak": _peak(device) / device.n_sm if known else 0.0,
        "l2_per_sm": device.l2_bytes / device.n_sm if known and device.l2_bytes else l2_per_sm,
    }
    return Block("", f"datasheet of {device.name}: peak and cache of one SM, for devices that do not state theirs", 0,
                 0.0, values)  # fmt: skip
