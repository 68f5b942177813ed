"""Matrix multiplication: tensor cores, memory hierarchy, launch floor, quantised activations.

GPU law, for `batch` independent products ``C(m,n) = A(m,k) B(k,n)`` in one kernel::

    t       = floor + quantise + (compute^4 + memory^4)^(1/4)
    compute : waves of tiles, split-K and the power limit (`hwmodels.kernels.tiles`)
    memory  = x (1 + memory_ramp / (x + memory_ramp)),    x = cold + hot
    cold    = (a (1 - hit_a) + b (1 - hit_b)) / (bandwidth x memory_efficiency)
    hot     = (a hit_a + b hit_b) / cache bandwidth,      hit = 1 / (1 + (bytes / (cache_share x L2))^4)

`a` is the bytes of the activations and the result, which the kernel before and the one after touch as well; `b` those
of the weights, which were last touched a step ago: the two have a `cache_share` of their own. `memory_ramp` is what
it costs to fill the memory pipeline once; the fourth-power sum is a max with a soft corner. Cache bandwidth is
``cache_per_sm x n_sm``, never less than that of the memory behind it.

Formats narrower than 16 bits take their activations in 16 bits; the rows that they were fitted on include turning them
into the format (`quantise_seconds`; ``quantise=False`` leaves it out)::

    quantise = launches + batch m (quantise_row / n_sm + quantise_pass k (2 + e) / (bandwidth x memory_efficiency))

Coefficients are dimensionless, relative to the datasheet, or seconds of a launch, so a device of the same generation
that was not measured takes them over. One is looked up as ``gemm.<format>.impl.<implementation>.<name>``, then
``gemm.<format>.<name>``, then the same for the formats that `Format.like` names, then ``gemm.<name>``, then the
assumed value. An implementation that was not measured runs as the sustained serving kernels do (TensorRT-LLM,
SGLang).

References: those of `hwmodels.kernels.tiles`; Williams et al. 2009 "Roofline". The CPU law is in
`hwmodels.kernels.gemm_cpu`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hwmodels.device import DTYPE_BYTES, Coefficient, Device
from hwmodels.errors import Fault, InputError
from hwmodels.estimate import Estimate, FloatArray
from hwmodels.kernels.formats import Format, format_of
from hwmodels.kernels.gemm_cpu import CPU_DEFAULTS, cpu_seconds
from hwmodels.kernels.tiles import tile_seconds
from hwmodels.kernels.units import units_of

_CHUNK = 8192
"""Elements worked on at a time: the temporaries stay in the core's cache."""

FORMAT_SPREAD = 0.08
"""Added to the spread where another format's coefficients stand in: fp8 and fp8_block kernels of one library are that
far apart at the median on H100 and B200 (gemm_measured.csv)."""

IMPLEMENTATIONS = ("trtllm", "sglang", "vllm", "vidur", "mamf")
"""Implementations that a fit of all of them told apart (`hwmodels.implementations`)."""

IMPLEMENTATION_SPREAD = 0.08
"""Added for an implementation that was not measured, or is not stated (``impl=""``) where several were: rows that
differ in nothing else are 8-20% apart (data/README, trap 7)."""

CACHE_PER_SM = 0.38 * 2**20
"""Bytes of L2 for each SM where neither the catalog entry nor the laws state any: what A100 and H100 have."""

UNKNOWN_UNITS = 100.0
"""SMs over which sizes are spread, without waves, where neither the datasheet nor the laws say how many there are."""


STRIDED = "batched"
"""Implementation of attention's products in eager frameworks: cuBLAS's strided batches (``torch.baddbmm``)."""


def _assumed(value: float, why: str) -> Coefficient:
    return Coefficient(value, f"assumed: {why}", 0, 0.25)


GEMM_DEFAULTS = {
    "efficiency": _assumed(0.80, "large GEMMs reach 75-85% of the dense peak on NVIDIA parts"),
    "tile_128x128": _assumed(0.92, "less reuse of a smaller tile"),
    "tile_256x64": _assumed(0.90, "less reuse of a smaller tile"),
    "tile_128x64": _assumed(0.75, "less reuse of a smaller tile"),
    "tile_64x64": _assumed(0.60, "less reuse of a smaller tile"),
    "k_ramp": _assumed(150.0, "prologue and epilogue of one tile"),
    "tail": _assumed(0.5, "between data-parallel (1) and stream-K (0) schedules"),
    "split_k": _assumed(1000.0, "libraries split loops of a few thousand steps"),
    "split_traffic": _assumed(3.0, "partial results are written, read and reduced"),
    "throttle": _assumed(0.08, "large GEMMs lose 5-10 points on power-limited parts"),
    "power_density": _assumed(0.0, "no measured part to compare the power with"),
    "unaligned": _assumed(1 / 3, "2-byte alignment halves the rate (NVIDIA Matrix Multiplication User's Guide)"),
    "scalar_efficiency": Coefficient(
        0.50,
        "least mean absolute error of the step time over bloom_a100, 5 rows of which state heads that are no multiple "
        "of 8 wide (108, 150 and 450), in two steps of 0.03",
        5,
        0.035,
    ),
    "memory_efficiency": _assumed(0.82, "streams reach 80-90% of the datasheet bandwidth"),
    "memory_ramp": _assumed(1.5e-6, "two round trips to memory"),
    "cache_per_sm": _assumed(2.5e10, "bytes/s of L2 for each SM, 16 bytes a clock"),
    "activation_share": _assumed(0.5, "activations were just written"),
    "weight_share": _assumed(0.05, "weights were last read a step ago"),
    "floor": _assumed(3e-6, "shortest kernels take 2-4 us"),
    "quantise_row": _assumed(0.0, "rows are cheap when the grid is large"),
    "quantise_pass": _assumed(1.0, "activations are read once in 16 bits and written once"),
    "spread.large": _assumed(0.15, "residuals of generations that were measured are 5-15%"),
    "spread.small": _assumed(0.25, "residuals of generations that were measured are 10-25%"),
    **CPU_DEFAULTS,
}


@cache
def _names(kind: str, form: Format, impl: str, name: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Names under which a coefficient may stand, the closest first: that of all implementations, those of `impl`."""
    if kind == "cpu":
        formats: tuple[str, ...] = (form.name, *(f for f in form.like if {f, form.name} == {"bf16", "fp16"}))
        return (*((f"gemm.{f}.{name}", ()) for f in formats), (f"gemm.{name}", ()))
    impls = tuple(dict.fromkeys((impl, impl.partition("-")[0]))) if impl else ()
    own = ((f"gemm.{f}.{name}", tuple(f"gemm.{f}.impl.{i}.{name}" for i in impls)) for f in (form.name, *form.like))
    return (*own, (f"gemm.{name}", ()))


def _find(device: Device, form: Format, impl: str, name: str) -> Coefficient:
    """The coefficient by the look-up of the module docstring.

    One of an implementation counts only beside the common one of the same fit: where a calibration or an anchor row
    lies over that, it says more of the device than what an implementation reached elsewhere.
    """
    known = device.coefficients
    for common, special in _names(device.kind, form, impl, name):
        base = known.get(common)
        for key in special:
            found = known.get(key)
            if found and (base is None or found.source.startswith(base.source.partition(";")[0])):
                return found
        if base:
            return base
    return GEMM_DEFAULTS[name]


def gemm_coefficient(device: Device, dtype: str, name: str, impl: str = "") -> Coefficient:
    """The coefficient by the look-up of the module docstring.

    Raises
    ------
    InputError
        For an unknown format.
    """
    return _find(device, format_of(dtype), impl, name)


def _cache_bytes(device: Device) -> float:
    """Bytes of L2, by the SM where the datasheet does not say (`hwmodels.kernels.units`)."""
    if device.l2_bytes:
        return device.l2_bytes
    each = device.coefficients.get("gemm.l2_per_sm")
    return (each.value if each else CACHE_PER_SM) * (units_of(device, "gemm") or UNKNOWN_UNITS)


def is_large(m: FloatArray, n: FloatArray, k: FloatArray, form: Format, device: Device) -> NDArray[np.bool_]:
    """Products that leave the cache: dims >= 256, and bytes > 4x L2 or flop > 1e10 (data/README, trap 6)."""
    cache = _cache_bytes(device)
    size = form.activation_bytes * m * k + form.weight_bytes * k * n + form.result_bytes * m * n
    least = np.minimum(np.minimum(m, n), k)
    return np.asarray((least >= 256) & ((size > 4.0 * cache) | (m * n * k > 0.5e10)))


def _positive(**arrays: ArrayLike) -> list[NDArray[np.float64]]:
    """Arguments as float arrays; InputError with every one that is no number, negative or not finite."""
    faults, result = [], []
    for name, value in arrays.items():
        try:
            array = np.asarray(value, dtype=np.float64)
        except (TypeError, ValueError):
            faults.append(Fault(f"{name} is {str(value)[:40]!r}", why="sizes are numbers", fix="a size of 0 or more"))
            continue
        if array.size and (not np.all(np.isfinite(array)) or array.min() < 0):
            bad = array[~(np.isfinite(array) & (array >= 0))].flat[0]
            faults.append(Fault(f"{name} is {bad:g}", why="sizes are finite and >= 0", fix="a size of 0 or more"))
        result.append(array)
    shapes = [array.shape for array in result]
    if not faults and len(set(shapes)) > 1:
        try:
            np.broadcast_shapes(*shapes)
        except ValueError:
            found = ", ".join(f"{name} {shape}" for name, shape in zip(arrays, shapes, strict=True))
            faults.append(Fault(f"shapes do not go together: {found}", fix="arrays of one shape, or single numbers"))
    if faults:
        raise InputError(faults)
    return result


def _numbers(device: Device, form: Format, impl: str) -> dict[str, float]:
    """Every coefficient of the law as a plain float."""
    names = [name for name in GEMM_DEFAULTS if name.startswith("cpu_") == (device.kind == "cpu")]
    c = {name: _find(device, form, impl, name).value for name in names}
    c |= {"peak": device.peak(form.peak), "bandwidth": device.memory_bandwidth, "tdp": device.tdp_w}
    c |= {"in": form.weight_bytes, "out": form.result_bytes}
    if device.kind == "gpu":
        n_sm = units_of(device, "gemm")
        c |= {"a": form.activation_bytes, "b": form.weight_bytes, "element": form.element_bytes}
        c["n_sm"] = n_sm
        n_sm = n_sm or UNKNOWN_UNITS
        c["l2"] = _cache_bytes(device)
        c["stream"] = c["bandwidth"] * c["memory_efficiency"]
        c["cache_bandwidth"] = max(c["cache_per_sm"] * n_sm, c["stream"])
        plain = _find(device, format_of("bf16"), impl, "floor").value
        c["launches"] = max(c["floor"] - plain, 0.0) if form.quantised else 0.0
        scalar = device.peak_flops.get("fp32", 0.0) * c["scalar_efficiency"]
        c["scalar"] = scalar if impl == STRIDED and form.name in ("bf16", "fp16") else 0.0
    return c


def _missed(size: FloatArray, share: float) -> FloatArray:
    """Share of `size` bytes that does not stay in a cache of `share` bytes."""
    x = size * (1.0 / max(share, 1.0))
    x *= x
    x *= x
    return np.asarray(x / (1.0 + x))


def _memory_seconds(
    m: FloatArray, n: FloatArray, k: FloatArray, batch: FloatArray, c: Mapping[str, float]
) -> FloatArray:
    """The memory term of the module docstring."""
    k_batch = k * batch
    moved = m * (c["a"] * k_batch + (c["out"] * n) * batch)
    weights = c["b"] * k_batch * n
    cold = moved * _missed(moved, c["activation_share"] * c["l2"])
    cold += weights * _missed(weights, c["weight_share"] * c["l2"])
    moved += weights
    moved -= cold
    moved *= 1.0 / c["cache_bandwidth"]
    cold *= 1.0 / c["stream"]
    ramp = c["memory_ramp"]
    moved += cold
    if ramp > 0:
        moved += moved * (ramp / (moved + ramp))
    return moved


def _quantise_seconds(m: FloatArray, k: FloatArray, batch: FloatArray, c: Mapping[str, float]) -> FloatArray:
    """The quantise term of the module docstring without its launches."""
    rows = m * batch
    each_row = c["quantise_row"] / (c["n_sm"] or 100.0)
    return np.asarray(rows * (each_row + k * (c["quantise_pass"] * (2.0 + c["a"]) / c["stream"])))


def _gpu_chunk(sizes: list[FloatArray], c: Mapping[str, float], quantise: bool) -> FloatArray:
    """Seconds of a slice of the batch (m, n, k, batch); `c` holds plain floats."""
    m, n, k, batch = sizes
    # In microseconds, so that fourth powers stay far from underflow.
    seconds = tile_seconds(m, n, k, batch, c) * 1e6
    traffic = _memory_seconds(m, n, k, batch, c) * 1e6
    seconds *= seconds
    traffic *= traffic
    seconds *= seconds
    traffic *= traffic
    seconds += traffic
    np.sqrt(seconds, out=seconds)
    np.sqrt(seconds, out=seconds)
    seconds *= 1e-6
    seconds += c["floor"]
    if quantise:
        seconds += _quantise_seconds(m, k, batch, c)
    else:
        seconds -= c["launches"]
    empty = np.minimum(np.minimum(m, n), np.minimum(k, batch)) <= 0
    if empty.any():
        seconds[empty] = 0.0
    return seconds


def _same_fit(one: Coefficient | None, lead: Coefficient) -> bool:
    """Whether a coefficient is of the fit that `lead` is of."""
    return one is not None and one.source.startswith(lead.source.partition(";")[0])


def _spread(device: Device, form: Format, impl: str, large: NDArray[np.bool_]) -> FloatArray:
    """Relative half-width: the residual of the size class, and what a stand-in adds."""
    lead = _find(device, form, impl, "efficiency")
    found = []
    for name in ("spread.large", "spread.small"):
        own = _find(device, form, "", name)
        # A calibration or an anchor brings its own residual; that of the section it lies over says less.
        found.append(own.value + own.residual if own.rows and own.source == lead.source else lead.residual)
    extra = 0.0
    measured = [f for f in (form.name, *form.like) if f"gemm.{f}.efficiency" in device.coefficients]
    if measured and measured[0] != form.name and {measured[0], form.name} != {"bf16", "fp16"}:
        extra += FORMAT_SPREAD
    special = [key for _, keys in _names(device.kind, form, impl, "efficiency") for key in keys]
    # Those that the fit in use told apart; a calibration on one's own device tells none, an anchor row its own.
    told = [f"gemm.{f}.impl.{i}.efficiency" for f in measured[:1] for i in IMPLEMENTATIONS]
    same = [key for key in (*special, *told) if _same_fit(device.coefficients.get(key), lead)]
    missed = bool(same) and not any(key in same for key in special)
    if missed or (impl and measured and not any(key in device.coefficients for key in special)):
        extra += IMPLEMENTATION_SPREAD
    return np.where(large, found[0] + extra, found[1] + extra)


def gemm_seconds(
    device: Device,
    m: ArrayLike,
    n: ArrayLike,
    k: ArrayLike,
    *,
    batch: ArrayLike = 1,
    dtype: str = "bf16",
    impl: str = "",
    quantise: bool = True,
) -> Estimate:
    """Time of `batch` independent ``m x n x k`` products in one kernel.

    Parameters
    ----------
    device : Device
    m, n, k, batch : array_like
        Dimensions, broadcast against each other; an empty product takes no time.
    dtype : str
        One of `hwmodels.kernels.formats.FORMATS` (``bf16``, ``fp8``, ``fp8_block``, ``mxfp8``, ``fp4``, ``int4_wo``
        ...); the device must have a peak for it.
    impl : str
        Implementation that runs it (`hwmodels.implementations`: ``"vidur"``, ``"vllm"``, ``"trtllm"``,
        ``"sglang"``); one that was not measured runs as the reference with a wider spread.
    quantise : bool
        Activations arrive in 16 bits and are turned into a narrower format first. False: the product alone.

    Returns
    -------
    Estimate
        Seconds, of the broadcast shape; formula and references in the module docstring.

    Raises
    ------
    InputError
        For a dimension that is no number, negative or not finite, shapes that cannot be broadcast, an unknown format,
        or one that the device does not have.
    """
    form = format_of(dtype)
    arrays = np.broadcast_arrays(*_positive(m=m, n=n, k=k, batch=batch))
    c = _numbers(device, form, impl)
    flat = [np.ascontiguousarray(array).reshape(-1) for array in arrays]
    seconds = np.empty(flat[0].shape)
    if device.kind == "cpu":
        for start in range(0, seconds.size, _CHUNK):
            part = slice(start, start + _CHUNK)
            m_, n_, k_, batch_ = (array[part] for array in flat)
            seconds[part] = cpu_seconds(m_, n_, k_, batch_, c)
        lead = gemm_coefficient(device, dtype, "cpu_efficiency")
        return Estimate.of(seconds.reshape(arrays[0].shape), lead.residual)
    large = np.empty(seconds.shape, np.bool_)
    cast = quantise and form.quantised
    for start in range(0, seconds.size, _CHUNK):
        part = slice(start, start + _CHUNK)
        piece = [array[part] for array in flat]
        seconds[part] = _gpu_chunk(piece, c, cast)
        large[part] = is_large(piece[0], piece[1], piece[2], form, device)
    shape = arrays[0].shape
    return Estimate.of(seconds.reshape(shape), _spread(device, form, impl, large).reshape(shape))


def quantise_seconds(
    device: Device, m: ArrayLike, k: ArrayLike, *, batch: ArrayLike = 1, dtype: str = "fp8", impl: str = ""
) -> Estimate:
    """Time to turn ``m x k`` activations from 16 bits into `dtype`; zero for formats that take them as they are.

    ``gemm_seconds(...)`` is this plus ``gemm_seconds(..., quantise=False)``.

    Raises
    ------
    InputError
        As `gemm_seconds`.
    """
    form = format_of(dtype)
    arrays = np.broadcast_arrays(*_positive(m=m, k=k, batch=batch))
    if device.kind == "cpu" or not form.quantised:
        return Estimate.of(np.zeros(arrays[0].shape))
    c = _numbers(device, form, impl)
    m_, k_, batch_ = arrays
    seconds = np.where(m_ * k_ * batch_ > 0, _quantise_seconds(m_, k_, batch_, c) + c["launches"], 0.0)
    return Estimate.of(seconds, _spread(device, form, impl, np.zeros(seconds.shape, np.bool_)))


def grouped_gemm_seconds(
    device: Device,
    m: ArrayLike,
    n: ArrayLike,
    k: ArrayLike,
    groups: ArrayLike,
    *,
    dtype: str = "bf16",
    impl: str = "",
    skew: ArrayLike = 0.0,
    quantise: bool = True,
) -> Estimate:
    """Time of one grouped GEMM: `groups` experts with `m` rows each, on average.

    The groups share one launch and one set of waves, so it is the batched law with a batch of `groups`; what the tile
    scheduler loses is the coefficient ``gemm.grouped_factor``. Two things make experts unequal. With fewer rows
    than experts (m < 1) only ``m x groups`` of them have work and have their weights read. With unequal rows the
    experts end inside a tile: on average half a tile more than the rows fill, instead of what the mean leaves over.

    Parameters
    ----------
    skew : array_like
        Standard deviation of the rows of an expert over their mean; 0 = all equal.

    Raises
    ------
    InputError
        As `gemm_seconds`; also for a negative skew.
    """
    # DeepGEMM's own tables: grouped fp8 kernels run at 0.9-1.0 of the dense ones of equal total size.
    assumed = Coefficient(1.05, "assumed: DeepGEMM README tables, grouped 0-10% below dense", 0, 0.1)
    factor = device.find("gemm.grouped_factor", default=assumed)
    rows, active, uneven = _positive(m=m, groups=groups, skew=skew)
    some = rows > 0
    active = np.where(some, active * np.minimum(rows, 1.0), 0.0)
    rows = np.where(some, np.maximum(rows, 1.0), 0.0)
    if uneven.any() and device.kind == "gpu":
        rows = _uneven_rows(rows, uneven)
    estimate = gemm_seconds(device, rows, n, k, batch=active, dtype=dtype, impl=impl, quantise=quantise) * factor.value
    return Estimate.of(estimate.mid, estimate.spread + factor.residual)


_SMALLEST_TILE = 64.0


def _uneven_rows(rows: FloatArray, skew: FloatArray) -> FloatArray:
    """Rows of equal experts that fill as many of the smallest tiles as unequal ones do on average.

    Rows spread evenly over more than a tile fill ``rows/64 + 1/2`` tiles on average; a narrower spread (standard
    deviation x sqrt(12) is its width) counts in proportion. Never fewer than equal experts need.
    """
    equal = np.ceil(rows / _SMALLEST_TILE)
    spread = np.minimum(rows * skew * math.sqrt(12.0) / _SMALLEST_TILE, 1.0)
    mean = np.maximum(equal + spread * (rows / _SMALLEST_TILE + 0.5 - equal), equal)
    return np.asarray(rows + (mean - equal) * _SMALLEST_TILE)


def flops(m: ArrayLike, n: ArrayLike, k: ArrayLike, batch: ArrayLike = 1) -> FloatArray:
    """``2 m n k batch``."""
    m_, n_, k_, batch_ = (np.asarray(x, dtype=np.float64) for x in (m, n, k, batch))
    return np.asarray(2.0 * m_ * n_ * k_ * batch_)


def ideal_seconds(device: Device, m: float, n: float, k: float, dtype: str) -> float:
    """Time at the datasheet peak or bandwidth, whichever is longer: no kernel is faster."""
    traffic = DTYPE_BYTES[dtype] * k * (m + n) + 2.0 * m * n
    return max(2.0 * m * n * k / device.peak(dtype), math.fsum([traffic]) / device.memory_bandwidth)
