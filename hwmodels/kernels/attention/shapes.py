"""Sizes of an attention call: visible pairs, tiles, bytes."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hwmodels.device import DTYPE_BYTES, Device
from hwmodels.estimate import FloatArray
from hwmodels.kernels.attention.coefficients import attention_coefficient
from hwmodels.kernels.units import units_of
from hwmodels.records import dataclass

KV_TILE = 64.0
"""Keys that one step of the inner loop takes at least."""
Q_TILES = (16.0, 64.0, 128.0)
"""Rows of a tile of queries; a kernel takes the smallest that holds a short call."""
UNKNOWN_UNITS = 64.0
"""Units over which blocks are spread where neither the datasheet nor the laws say: Arc Pro B60, whose coefficients
were fitted with it."""


@dataclass(frozen=True, slots=True)
class Hardware:
    """What the laws need to know of a device.

    Attributes
    ----------
    peak : float
        FLOP/s that efficiencies are shares of.
    limit : float
        FLOP/s that nothing exceeds: the peak of the narrowest format among the operands.
    bandwidth : float
        Bytes/s of the memory.
    units : float
        SMs, compute units or cores.
    cache : float
        Bytes of the last-level cache.
    """

    peak: float
    limit: float
    bandwidth: float
    units: float
    cache: float

    @classmethod
    def of(cls, device: Device, dtype: str, kv_dtype: str) -> Hardware:
        """Read off the datasheet, or where that has no SMs or cache, off the laws' (`hwmodels.kernels.units`).

        Raises
        ------
        InputError
            When the device has no peak for `dtype`.
        """
        peak = device.peak(dtype)
        units = units_of(device, "attention") or UNKNOWN_UNITS
        cache = device.l2_bytes or attention_coefficient(device, "l2_per_sm").value * units
        return cls(peak, max(peak, device.peak_flops.get(kv_dtype, peak)), device.memory_bandwidth, units, cache)


@dataclass(frozen=True, slots=True, eq=False)
class Shapes:
    """One attention call a element, broadcast and float64; bytes of one element of Q and O, and of K and V."""

    batch: FloatArray
    q_len: FloatArray
    kv_len: FloatArray
    n_heads: FloatArray
    n_kv_heads: FloatArray
    qk_dim: FloatArray
    v_dim: FloatArray
    causal: NDArray[np.bool_]
    window: FloatArray
    shared_kv: NDArray[np.bool_]
    q_size: float
    kv_size: float

    @property
    def dim(self) -> FloatArray:
        """Mean of the dimensions of a key and a value."""
        return np.asarray((self.qk_dim + self.v_dim) / 2.0)

    @property
    def q_bytes(self) -> FloatArray:
        """Q read and O written once."""
        return np.asarray(self.q_size * self.batch * self.n_heads * self.q_len * (self.qk_dim + self.v_dim))

    @property
    def kv_bytes(self) -> FloatArray:
        """K and V read once; V is part of K in absorbed latent attention; a window hides the older keys."""
        width = np.where(self.shared_kv, np.maximum(self.qk_dim, self.v_dim), self.qk_dim + self.v_dim)
        keys = np.minimum(self.kv_len, self.window + self.q_len - 1.0)
        return np.asarray(self.kv_size * self.batch * self.n_kv_heads * keys * width)

    @property
    def pairs(self) -> FloatArray:
        """Visible (query, key) pairs of one head."""
        return visible_pairs(self.q_len, self.kv_len, self.causal, self.window)

    @property
    def flop(self) -> FloatArray:
        """FLOP of the forward: QK^T and PV."""
        return np.asarray(2.0 * (self.qk_dim + self.v_dim) * self.pairs * self.n_heads * self.batch)

    def take(self, keep: NDArray[np.bool_] | slice) -> Shapes:
        """The calls that `keep` picks, flat."""
        return Shapes(
            self.batch[keep], self.q_len[keep], self.kv_len[keep], self.n_heads[keep], self.n_kv_heads[keep],
            self.qk_dim[keep], self.v_dim[keep], self.causal[keep], self.window[keep], self.shared_kv[keep],
            self.q_size, self.kv_size,
        )  # fmt: skip


def element_bytes(dtype: str) -> float:
    """Bytes of one element of `dtype`."""
    return DTYPE_BYTES[dtype]


def visible_pairs(q_len: ArrayLike, kv_len: ArrayLike, causal: ArrayLike, window: ArrayLike | None) -> FloatArray:
    """Visible (query, key) pairs of one head.

    Queries are the last `q_len` positions of `kv_len`. Causal: ``q kv - q (q - 1) / 2`` pairs,
    which is ``q (q + 1) / 2`` for equal lengths. With a window of `w` keys, query ``i`` sees at
    most `w`: subtract the triangle ``sum max(0, position - w)``.
    """
    q, kv = np.asarray(q_len, dtype=np.float64), np.asarray(kv_len, dtype=np.float64)
    q = np.minimum(q, kv)
    full = q * kv
    masked = full - q * (q - 1.0) / 2.0
    pairs = np.where(np.asarray(causal, dtype=bool), masked, full)
    if window is not None:
        # Positions kv-q+1 .. kv see (position - w) keys too many, where that is positive.
        w = np.minimum(np.asarray(window, dtype=np.float64), kv)
        last = np.maximum(kv - w, 0.0)
        first = np.maximum(kv - q - w, 0.0)
        triangle = (last * (last + 1.0) - first * (first + 1.0)) / 2.0
        pairs = np.where(np.asarray(causal, dtype=bool), masked - triangle, np.minimum(full, q * w))
    return np.asarray(pairs)
