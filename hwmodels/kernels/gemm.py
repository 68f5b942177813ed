"""Matrix multiplication: tile and wave quantisation, memory roofline, launch floor.

GPU law, for `batch` independent products ``C(m,n) = A(m,k) B(k,n)`` in one kernel::

    t = floor + quantise x (activations read in 16 bits and written narrow) / bandwidth
        + (compute^4 + memory^4)^(1/4)
    memory  = batch (e m k + e k n + o m n) / (bandwidth x memory_efficiency)
    compute = min over tiles (tm, tn) of
              waves x tm tn 2 (k' + k_ramp) / (peak / n_sm x efficiency x tile_efficiency)
              x (1 + throttle x flop / (flop + 1e12))
    waves   = w + tail (ceil(w) - w) for w > 1, w^fill for w <= 1,
              w = ceil(m/tm) ceil(n/tn) batch / n_sm

``w^fill`` with fill < 1 stands for split-K, which gives idle SMs a share of the k loop; `tail`
is the share of an unfilled last wave that is lost (stream-K schedules lose less); `k_ramp` is
the prologue and epilogue of a tile, in steps of k; the fourth-power sum is a max with a soft
corner; `throttle` is what a power-limited part loses on long kernels (data/README, trap 6); `quantise` is
above 0 for 8- and 4-bit formats, whose measured rows include turning 16-bit activations into them.
All of them are dimensionless or relative to the datasheet, so they carry over to a device of
the same kind that was not measured. References: NVIDIA "Matrix Multiplication Background User's
Guide" (tile and wave quantisation); Osama et al. 2023 "Stream-K"; Williams et al. 2009 "Roofline".

CPU law (one core, a BLAS with packed panels)::

    t = floor + batch 2 m n k / (peak x efficiency x m/(m+m_half) x n/(n+n_half) x k/(k+k_half))
      + batch (read e k (m + n) + write o m n) / bandwidth

`read` and `write` are passes over memory: a cache that holds the operands brings them below 1, fresh
pages for the result above.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hwmodels.device import DTYPE_BYTES, Coefficient, Device
from hwmodels.errors import Fault, InputError
from hwmodels.estimate import Estimate, FloatArray

TILES = ((256, 128), (128, 128), (128, 64), (64, 64))
"""Tile menu: rows, columns. The first has efficiency 1, the others ``tile_<rows>x<columns>``."""

_CHUNK = 8192
"""Elements worked on at a time: the temporaries stay in the core's cache."""


def _assumed(value: float, why: str) -> Coefficient:
    return Coefficient(value, f"assumed: {why}", 0, 0.25)


GEMM_DEFAULTS = {
    "efficiency": _assumed(0.80, "large GEMMs reach 75-85% of the dense peak on NVIDIA parts"),
    "tile_128x128": _assumed(0.95, "less reuse of a smaller tile"),
    "tile_128x64": _assumed(0.80, "less reuse of a smaller tile"),
    "tile_64x64": _assumed(0.60, "less reuse of a smaller tile"),
    "k_ramp": _assumed(150.0, "prologue and epilogue of one tile"),
    "tail": _assumed(0.6, "between data-parallel (1) and stream-K (0) schedules"),
    "fill": _assumed(0.5, "split-K recovers part of an unfilled device"),
    "throttle": _assumed(0.08, "large GEMMs lose 5-10 points on power-limited parts"),
    "memory_efficiency": _assumed(0.85, "streams reach 80-90% of the datasheet bandwidth"),
    "floor": _assumed(4e-6, "shortest kernels take 3-5 us"),
    "quantise": _assumed(0.0, "activations arrive in the format of the product"),
    "cpu_efficiency": _assumed(0.5, "a BLAS on a core of a shared host reaches half of its boost-clock peak"),
    "cpu_half_m": _assumed(12.0, "panel overhead"),
    "cpu_half_n": _assumed(24.0, "panel overhead"),
    "cpu_half_k": _assumed(24.0, "panel overhead"),
    "cpu_read": _assumed(1.0, "operands come from memory once"),
    "cpu_write": _assumed(1.0, "the result goes to memory once"),
    "cpu_floor": _assumed(5e-6, "dispatch of one operator in eager PyTorch"),
}


def gemm_coefficient(device: Device, dtype: str, name: str) -> Coefficient:
    """``gemm.<dtype>.<name>``, else ``gemm.<name>``, else the assumed value."""
    names = [f"gemm.{dtype}.{name}"]
    if dtype in ("bf16", "fp16"):
        # The two formats run at one speed on every tensor core.
        names += ["gemm.bf16." + name, "gemm.fp16." + name]
    return device.find(*names, f"gemm.{name}", default=GEMM_DEFAULTS[name])


def _positive(**arrays: ArrayLike) -> list[NDArray[np.float64]]:
    """Arguments as float arrays; InputError with every one that is negative or not finite."""
    faults, result = [], []
    for name, value in arrays.items():
        array = np.asarray(value, dtype=np.float64)
        if array.size and (not np.all(np.isfinite(array)) or array.min() < 0):
            bad = array[~(np.isfinite(array) & (array >= 0))].flat[0]
            faults.append(Fault(f"{name} is {bad:g}", why="sizes are finite and >= 0", fix="a size of 0 or more"))
        result.append(array)
    if faults:
        raise InputError(faults)
    return result


def _gpu_chunk(sizes: list[FloatArray], c: dict[str, float], n_sm: float) -> FloatArray:
    """Seconds of a slice of the batch (m, n, k, batch); `c` holds plain floats."""
    m, n, k, batch = sizes
    per_sm = c["peak"] * c["efficiency"] / n_sm
    k_work = np.ceil(k * (1 / 16)) * 16.0 + c["k_ramp"]
    best = np.full(m.shape, np.inf)
    for rows, columns in TILES:
        share = 1.0 if (rows, columns) == TILES[0] else c[f"tile_{rows}x{columns}"]
        tiles = np.ceil(m * (1.0 / rows)) * np.ceil(n * (1.0 / columns))
        tiles *= batch
        w = tiles * (1.0 / n_sm)
        if c["waves"]:
            full = w + c["tail"] * (np.ceil(w) - w)
            small = w < 1.0
            if small.any():
                full[small] = w[small] ** c["fill"]
            w = full
        w *= rows * columns * 2.0 / (per_sm * share)
        np.minimum(best, w, out=best)
    flop = 2.0 * m * n * k * batch
    compute = best * k_work * (1.0 + c["throttle"] * (flop / (flop + 1e12)))
    traffic = (c["in"] * k * (m + n) + c["out"] * m * n) * batch * (1.0 / (c["bandwidth"] * c["memory_efficiency"]))
    # In microseconds, so that fourth powers stay far from underflow.
    compute *= 1e6
    traffic *= 1e6
    compute *= compute
    traffic *= traffic
    seconds = np.sqrt(np.sqrt(compute * compute + traffic * traffic)) * 1e-6 + c["floor"]
    if c["quantise"]:
        seconds += m * k * batch * (c["quantise"] * (2.0 + c["in"]) / c["bandwidth"])
    return np.where(flop > 0, seconds * c["factor"], 0.0)


def _cpu_chunk(sizes: list[FloatArray], c: dict[str, float]) -> FloatArray:
    """Seconds of a slice of the batch (m, n, k, batch) on one core."""
    m, n, k, batch = sizes
    # m/(m+h) written as 1/(1 + h/m) would divide by zero for empty products.
    work = (m + c["cpu_half_m"]) * (n + c["cpu_half_n"]) * (k + c["cpu_half_k"])
    moved = c["cpu_read"] * c["in"] * k * (m + n) + c["cpu_write"] * c["out"] * m * n
    traffic = moved * batch * (1.0 / c["bandwidth"])
    seconds = c["cpu_floor"] + 2.0 * batch * work / (c["peak"] * c["cpu_efficiency"]) + traffic
    return np.where(m * n * k * batch > 0, seconds, 0.0)


def _numbers(device: Device, dtype: str, impl: str) -> dict[str, float]:
    """Every coefficient of the law as a plain float."""
    names = [name for name in GEMM_DEFAULTS if name.startswith("cpu_") == (device.kind == "cpu")]
    c = {name: gemm_coefficient(device, dtype, name).value for name in names}
    c["peak"] = device.peak(dtype)
    c["bandwidth"] = device.memory_bandwidth
    c["in"] = DTYPE_BYTES[dtype]
    c["out"] = 4.0 if dtype in ("fp32", "tf32") else 2.0
    c["waves"] = float(device.n_sm > 0)
    c["factor"] = 1.0
    if impl and device.kind == "gpu":
        neutral = Coefficient(1.0, "assumed: implementation not measured")
        names = [f"gemm.{d}.impl.{impl}" for d in (dtype, *(("bf16", "fp16") if dtype in ("bf16", "fp16") else ()))]
        c["factor"] = device.find(*names, f"gemm.impl.{impl}", default=neutral).value
    return c


def gemm_seconds(
    device: Device,
    m: ArrayLike,
    n: ArrayLike,
    k: ArrayLike,
    *,
    batch: ArrayLike = 1,
    dtype: str = "bf16",
    impl: str = "",
) -> Estimate:
    """Time of `batch` independent ``m x n x k`` products in one kernel.

    Parameters
    ----------
    device : Device
    m, n, k, batch : array_like
        Dimensions, broadcast against each other; an empty product takes no time.
    dtype : str
        One of `hwmodels.device.DTYPES`; the device must have a peak for it.
    impl : str
        Implementation that runs it (``"torch"``, ``"vllm"``, ``"trtllm"``, ``"sglang"``); one that
        was not measured runs at the speed of the reference.

    Returns
    -------
    Estimate
        Seconds, of the broadcast shape; formula and references in the module docstring.

    Raises
    ------
    InputError
        For a negative or non-finite dimension, or a dtype that the device does not have.
    """
    arrays = np.broadcast_arrays(*_positive(m=m, n=n, k=k, batch=batch))
    c = _numbers(device, dtype, impl)
    flat = [np.ascontiguousarray(array).reshape(-1) for array in arrays]
    seconds = np.empty(flat[0].shape)
    for start in range(0, seconds.size, _CHUNK):
        part = slice(start, start + _CHUNK)
        piece = [array[part] for array in flat]
        if device.kind == "cpu":
            seconds[part] = _cpu_chunk(piece, c)
        else:
            seconds[part] = _gpu_chunk(piece, c, float(device.n_sm or 100))
    name = "cpu_efficiency" if device.kind == "cpu" else "efficiency"
    spread = gemm_coefficient(device, dtype, name).residual
    return Estimate.of(seconds.reshape(arrays[0].shape), spread)


def grouped_gemm_seconds(
    device: Device,
    m: ArrayLike,
    n: ArrayLike,
    k: ArrayLike,
    groups: ArrayLike,
    *,
    dtype: str = "bf16",
    impl: str = "",
) -> Estimate:
    """Time of one grouped GEMM: `groups` experts with `m` rows each.

    The groups share one launch and one set of waves, so it is the batched law with a batch
    of `groups`; what its tile scheduler loses is the coefficient ``gemm.grouped_factor``.

    Raises
    ------
    InputError
        As `gemm_seconds`.
    """
    # DeepGEMM's own tables: grouped fp8 kernels run at 0.9-1.0 of the dense ones of equal total size.
    assumed = Coefficient(1.05, "assumed: DeepGEMM README tables, grouped 0-10% below dense", 0, 0.1)
    factor = device.find("gemm.grouped_factor", default=assumed)
    estimate = gemm_seconds(device, m, n, k, batch=groups, dtype=dtype, impl=impl) * factor.value
    return Estimate.of(estimate.mid, estimate.spread + factor.residual)


def flops(m: ArrayLike, n: ArrayLike, k: ArrayLike, batch: ArrayLike = 1) -> FloatArray:
    """``2 m n k batch``."""
    m_, n_, k_, batch_ = (np.asarray(x, dtype=np.float64) for x in (m, n, k, batch))
    return np.asarray(2.0 * m_ * n_ * k_ * batch_)


def ideal_seconds(device: Device, m: float, n: float, k: float, dtype: str) -> float:
    """Time at the datasheet peak or bandwidth, whichever is longer: no kernel is faster."""
    traffic = DTYPE_BYTES[dtype] * k * (m + n) + 2.0 * m * n
    return max(2.0 * m * n * k / device.peak(dtype), math.fsum([traffic]) / device.memory_bandwidth)
