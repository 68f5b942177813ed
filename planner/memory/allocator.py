"""From what tensors take to what the device must have: rounding, fragmentation, and the verdict.

Three figures are told apart, as PyTorch does (documentation, "Memory management"): *allocated*, what tensors take in
the blocks that the caching allocator handed out; *reserved*, what it holds of the device, with free blocks that
no request fitted; *device*, with what is outside its sight (context, communicators).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hwmodels.device import Coefficient
from hwmodels.records import dataclass

FloatArray = NDArray[np.float64]
BLOCK_BYTES = 512.0
"""Every request is rounded up to this (c10/cuda/CUDACachingAllocator.h, ``kMinBlockSize``)."""

SEGMENT_BYTES = 2.0 * 2**20
"""Segments are multiples of this (``kSmallBuffer``, ``kRoundLarge``)."""

FRAGMENTATION = Coefficient(
    0.048,
    "reserved over allocated of the simumax_b200 rows, the ten distinct pairs (mem_kind states both): median of "
    "reserved/allocated - 1",
    10,
    0.021,
)
"""Share of allocated memory that the allocator holds beyond it."""

FRAGMENTATION_RANGE = (0.0, 0.08)
"""From none (the allocator returns free blocks to the device before it gives up) to the largest of those ten pairs."""

MODEL_ERROR = Coefficient(
    0.05,
    "mean absolute error of the allocated figure over megatron_ci_small (101 rows, 4.9%) and simumax_b200 (22, 0.5%), "
    "rounded up",
    123,
    0.041,
)
"""How far the sum of the tensors may be off."""

HEADROOM = 0.06
"""Share of the device that a search leaves free unless told otherwise."""

FITS, AT_RISK, OUT = "fits", "at risk", "out of memory"


@dataclass(frozen=True, slots=True, eq=False)
class Footprint:
    """Bytes on the device: low, mid and high (arrays of one shape).

    Attributes
    ----------
    allocated : ndarray
        What tensors take, rounded to blocks.
    reserved : ndarray
        With the fragmentation that is expected.
    low, mid, high : ndarray
        Of the device: with context and communicators, least and most that is likely.
    """

    allocated: FloatArray
    reserved: FloatArray
    low: FloatArray
    mid: FloatArray
    high: FloatArray


def fragments(allocated: ArrayLike) -> FloatArray:
    """Bytes that the allocator holds beyond the tensors, in whole segments."""
    wanted = np.asarray(allocated, dtype=np.float64) * FRAGMENTATION.value
    return np.asarray(np.ceil(wanted / SEGMENT_BYTES) * SEGMENT_BYTES)


def footprint(allocated: ArrayLike, outside: ArrayLike) -> Footprint:
    """Device bytes from `allocated` bytes of tensors and `outside` bytes that the allocator does not see.

    ``mid = allocated (1 + f) + outside``; low takes off the model's error and all fragmentation, high adds both.
    """
    inside, beyond = np.asarray(allocated, dtype=np.float64), np.asarray(outside, dtype=np.float64)
    error, (least, most) = MODEL_ERROR.value, FRAGMENTATION_RANGE
    reserved = np.asarray(inside + fragments(inside))
    return Footprint(
        inside,
        reserved,
        np.asarray(inside * (1.0 - error) * (1.0 + least) + beyond),
        np.asarray(reserved + beyond),
        np.asarray(inside * (1.0 + error) * (1.0 + most) + beyond),
    )


def verdict(low_bytes: float, high_bytes: float, capacity_bytes: float) -> str:
    """It fits (even the high end does), out of memory (not even the low end does), else at risk."""
    if low_bytes > capacity_bytes:
        return OUT
    return AT_RISK if high_bytes > capacity_bytes else FITS
