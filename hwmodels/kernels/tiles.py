"""Time that the tensor cores need for a product cut into tiles: waves, split-K and the power limit.

For `batch` products ``C(m,n) = A(m,k) B(k,n)`` on `n_sm` SMs, over the tiles ``(tm, tn)`` of the menu and with the k
loop of a tile given to one SM (s = 1) or to s of them::

    w       = ceil(m/tm) ceil(n/tn) batch / n_sm                          (either orientation of the tile)
    waves   = max(s w + tail (ceil(s w) - s w), 1)
    tile    = (k/s + k_ramp) 2 tm tn / (peak / n_sm x efficiency x tile_efficiency)
    time    = min over tiles and s of  waves x tile + [s > 1] s split_traffic 8 m n batch / cache bandwidth
    s       = max(2, min(floor(1/w), k / split_k, s_best))

`s_best` makes the sum least, where the cost of the parts equals what they save. `k_ramp` is the prologue and epilogue
of a tile, in steps of k. `tail` is the share of an unfilled last wave that is lost: 1 for one tile an SM at a time,
less where the library mixes tiles or hands tiles out dynamically. Split-K writes and reads back an fp32 partial
result for each part.

Long kernels heat the part and its clock falls to what the power limit sustains (data/README, trap 6)::

    time x (1 + (slow - 1) flop / (flop + 1e12 / rho)),
    slow = max(1, (1 + throttle) rho),    rho = ((peak / tdp) / power_density)^0.4

`power_density` is the peak FLOP/s per watt of the measured part, `throttle` what it loses on long kernels. A part
with more peak for each watt loses more, and sooner.

Rows that do not start at multiples of 16 bytes are read by narrower loads (`unaligned_share`). Strided batches of
them, whose every matrix starts at such an address, found no tensor-core kernel in the cuBLAS of CUDA 11 and ran on
the scalar units: ``2 m n k batch / (fp32 peak x scalar_efficiency)``.

References: NVIDIA "Matrix Multiplication Background User's Guide" (tile and wave quantisation, alignment); Osama et
al. 2023 "Stream-K"; NVIDIA CUTLASS documentation, "Efficient GEMM" (split-K).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hwmodels.estimate import FloatArray

TILES = ((256, 128), (128, 128), (256, 64), (128, 64), (64, 64))
"""Tile menu, in both orientations. The first has efficiency 1, the others ``tile_<long>x<short>``."""

POWER_EXPONENT = 0.4
"""Slow-down of a power-limited part: time grows as (peak / power)^0.4.

Power at a fixed voltage grows with the clock, and with the voltage along with it up to its cube, so the exponent lies
between 1/3 and 1/2. The H100 rows of serving_measurements.csv that were capped in power take 1.3 times as long in
prefill; half the power gives 2^0.4 = 1.32."""

FLOP_OF_HEATING = 1e12
"""Work at which half of the throttling is felt: GEMM efficiency peaks between 1e11 and 1e12 flop (data/README, trap
6)."""

ALIGNED_BYTES = 16.0
"""Rows that start at multiples of this are read by the widest loads (NVIDIA guide cited above, "Tensor Core
requirements")."""


def tile_name(rows: int, columns: int) -> str:
    """Name of the coefficient of a tile's efficiency."""
    return f"tile_{rows}x{columns}"


def _tiles(m: FloatArray, n: FloatArray) -> list[FloatArray]:
    """Number of tiles of each kind of the menu, in the better orientation."""
    edges = {edge for tile in TILES for edge in tile}
    rows = {edge: np.ceil(m * (1.0 / edge)) for edge in edges}
    columns = {edge: np.ceil(n * (1.0 / edge)) for edge in edges}
    found = []
    for long, short in TILES:
        count = rows[long] * columns[short]
        if long != short:
            count = np.minimum(count, rows[short] * columns[long])
        found.append(count)
    return found


def power_terms(c: Mapping[str, float]) -> tuple[float, float]:
    """``slow - 1`` and the flop at which half of it is felt; `c` as in `tile_seconds`."""
    rho = 1.0
    if c["tdp"] > 0 and c["power_density"] > 0:
        rho = (c["peak"] / c["tdp"] / c["power_density"]) ** POWER_EXPONENT
    return max((1.0 + c["throttle"]) * rho - 1.0, 0.0), FLOP_OF_HEATING / rho


def unaligned_share(n: FloatArray, k: FloatArray, element: float, c: Mapping[str, float]) -> FloatArray | None:
    """Factor on time of rows that do not start at multiples of 16 bytes; None where all of them do.

    ``(16 / a)^unaligned`` for rows that start at multiples of `a` bytes, a of 2 or more: narrower loads, and below
    4 bytes no asynchronous copies.
    """
    steps = [np.asarray(size * (element / ALIGNED_BYTES)) for size in (n, k)]
    if all(bool((step == np.floor(step)).all()) for step in steps) or not c["unaligned"]:
        return None
    factor = np.ones_like(n)
    for share in (2.0, 4.0, 8.0):
        odd = np.zeros(n.shape, np.bool_)
        for step in steps:
            part = step * (share / 2.0)
            odd |= part != np.floor(part)
        factor[odd] = share ** c["unaligned"]
    return factor


def tile_seconds(m: FloatArray, n: FloatArray, k: FloatArray, batch: FloatArray, c: Mapping[str, float]) -> FloatArray:
    """Seconds of the formula above.

    Parameters
    ----------
    m, n, k, batch : ndarray, shape (N,)
    c : Mapping
        Coefficients named above, and ``peak`` (FLOP/s), ``n_sm`` (0: not known, no wave quantisation), ``tdp`` (W),
        ``cache_bandwidth`` (bytes/s) and ``element`` (bytes of an element of A without its scales); ``scalar`` (FLOP/s)
        where unaligned products run without tensor cores.

    Returns
    -------
    ndarray, shape (N,)
    """
    n_sm = c["n_sm"] or 100.0
    whole = float(c["n_sm"] > 0)
    tail = c["tail"] * whole
    per_sm = c["peak"] * c["efficiency"] / n_sm
    k_step = np.ceil(k * (1.0 / 32.0)) * 32.0
    parts = k_step * (1.0 / c["split_k"])
    partial = (m * n) * batch
    partial *= 8.0 * c["split_traffic"] / c["cache_bandwidth"]
    unsplit = k_step + c["k_ramp"]
    best = np.full(m.shape, np.inf)
    share = batch * (1.0 / n_sm)
    with np.errstate(divide="ignore", invalid="ignore"):
        saved = np.sqrt(k_step / partial)
        for (rows, columns), count in zip(TILES, _tiles(m, n), strict=True):
            unit = 2.0 * rows * columns / (per_sm * c.get(tile_name(rows, columns), 1.0))
            w = count * share
            waves = np.ceil(w)
            waves *= tail
            waves += w * (1.0 - tail)
            if whole:
                np.maximum(waves, 1.0, out=waves)
            waves *= unsplit
            waves *= unit
            np.minimum(best, waves, out=best)
            s = np.floor(1.0 / w)
            np.minimum(s, parts, out=s)
            np.minimum(s, saved * unit**0.5, out=s)
            np.maximum(s, 2.0, out=s)
            w *= s
            waves = np.ceil(w)
            waves *= tail
            waves += w * (1.0 - tail)
            if whole:
                np.maximum(waves, 1.0, out=waves)
            waves *= (k_step / s + c["k_ramp"]) * unit
            waves += s * partial
            np.minimum(best, waves, out=best)
    slower, half = power_terms(c)
    if slower > 0:
        flop = 2.0 * (m * n) * (k * batch)
        best *= 1.0 + slower * (flop / (flop + half))
    factor = unaligned_share(n, k, c["element"], c)
    if factor is None:
        return best
    if c.get("scalar", 0.0) > 0:
        slow = 2.0 * (m * n) * (k * batch) / c["scalar"]
        return np.where(factor > 1.0, np.maximum(best, slow), best)
    return best * factor
