"""The law of a forward or backward kernel over many queries (prefill, training).

A block takes a tile of 128 (64, 16) query rows of one head and runs over the keys that they see, 64 at a time
(Dao 2023, FlashAttention-2, section 3.2). With `units` SMs that each do ``peak / units`` FLOP/s::

    tile    = 2 rows 64 (qk_dim + v_dim) / (peak / units x efficiency x width)       seconds of an SM
    width   = d / (d + half_dim) x (1 + half_dim / 128)                              1 at head dim 128
    compute = sum over blocks of (tile x tiles + block) / units + tail x tile x tiles of the longest block
    traffic = (q_traffic (Q + O) + kv_traffic (K + V)) / bandwidth                    L2 serves what fits
    t       = launch + compute + traffic

- `tiles` counts whole tiles: those that the diagonal cuts are computed in full.
- The exponentials of the softmax run on units of their own (16 results a clock and SM from Ampere to
  Blackwell, while the tensor cores doubled twice: Shah et al. 2024, FlashAttention-3, section 3.1), one a
  pair whatever the head dim: `half_dim` is how many dimensions' worth of products they take.
- The makespan of blocks that SMs fetch one after the other is at most the mean load plus the longest block
  (Graham 1969); `tail` is the share of the latter that is seen.
- A `packed` kernel puts the query heads of a KV head into the rows of one tile.
- A kernel that runs longer than the power limit takes to act (10 ms) drops to `sustained` of its rate where the
  device is limited.
- Nothing is faster than the visible pairs at peak, or one pass over the operands where no cache holds them.

The backward does 2.5 times the forward's FLOP (five products instead of two: Dao et al. 2022,
FlashAttention, appendix B) and twice its traffic, at an `efficiency` of its own.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hwmodels.estimate import FloatArray
from hwmodels.kernels.attention.shapes import KV_TILE, Q_TILES, Hardware, Shapes
from hwmodels.kernels.cache import cached_share

BACKWARD_FLOP_RATIO = 2.5
"""FLOP of the backward over those of the forward (Dao et al. 2022)."""
POWER_LIMIT_S = 10.5e-3
"""Time that the power limit takes to act: GB200 rows run at full rate up to 7 ms and at the limit from 13 ms on."""


def _width(s: Shapes, c: Mapping[str, float]) -> FloatArray:
    """Rate at a head dim over that at 128."""
    d, half = np.maximum(s.dim, 1.0), c["half_dim"]
    factor = d / (d + half) * (1.0 + half / 128.0)
    octave = np.log2(np.clip(d, 128.0, 1024.0)) - 7.0
    factor = factor * c["dim_256"] ** np.minimum(octave, 1.0) * c["dim_512"] ** np.maximum(octave - 1.0, 0.0)
    odd = np.exp2(np.ceil(np.log2(d))) > d
    return np.asarray(np.where(odd, factor * c["odd_dim"], factor))


def _tiles(s: Shapes, rows_a_query: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Rows of a tile, blocks of one head, tiles of all of them, tiles of the longest."""
    rows = s.q_len * rows_a_query
    tile = np.where(rows > Q_TILES[1], Q_TILES[2], np.where(rows > Q_TILES[0], Q_TILES[1], Q_TILES[0]))
    blocks = np.ceil(rows / tile)
    span = tile / rows_a_query  # queries of a tile
    padded = blocks * span
    area = s.pairs * padded / np.maximum(s.q_len, 1.0)
    # What the diagonal cuts: half a tile of queries and, where that is narrower than a tile of keys, half of those.
    edge = padded * (span + KV_TILE * (1.0 - np.minimum(1.0, span / KV_TILE))) / 2.0
    edges = np.where(s.causal, 1.0, 0.0) + np.where(s.window < s.kv_len, 1.0, 0.0)
    whole = np.ceil(np.maximum(s.kv_len, 1.0) / KV_TILE)
    cut = np.maximum((area + edges * edge) / (span * KV_TILE), blocks)
    tiles = np.where(edges > 0, np.minimum(cut, blocks * whole), blocks * whole)
    longest = np.minimum(whole, (s.window + span) / KV_TILE + 1.0)
    return tile, blocks, tiles, longest


def seconds(s: Shapes, hardware: Hardware, c: Mapping[str, float], backward: bool = False) -> FloatArray:
    """Seconds of each call; `c` holds the coefficients by the names of the module's text."""
    group = s.n_heads / np.maximum(s.n_kv_heads, 1.0)
    packed = c["packed"] > 0.5 and not backward  # a backward block owns keys, not the rows of a group
    tile_rows, blocks, tiles, longest = _tiles(s, group if packed else np.ones_like(group))
    blocks_at_once = s.batch * (s.n_kv_heads if packed else s.n_heads)
    work = BACKWARD_FLOP_RATIO if backward else 1.0
    flop = 4.0 * KV_TILE * s.dim * tile_rows * work
    sm_peak = hardware.peak / hardware.units
    tile = flop / (sm_peak * c["efficiency"] * c["rate"] * _width(s, c))
    start = c["block"] * s.dim / 128.0
    compute = (tile * tiles + start * blocks) * blocks_at_once / hardware.units + c["tail"] * tile * longest
    passes = 2.0 if backward else 1.0  # Q, K, V, O, dO read; dQ, dK, dV written
    q_bytes, kv_bytes = s.q_bytes, s.kv_bytes
    moved = passes * (c["q_traffic"] * q_bytes + c["kv_traffic"] * kv_bytes)
    hit = cached_share(moved, hardware.cache)
    busy = compute + moved / hardware.bandwidth * (1.0 - hit + hit / c["cache_speed"])
    if c["sustained"] < 1.0:
        ratio = (busy / POWER_LIMIT_S) ** 4
        busy = busy * (1.0 + ratio * ratio / (1.0 + ratio * ratio) * (1.0 / c["sustained"] - 1.0))
    served = cached_share(q_bytes + kv_bytes, hardware.cache)
    bound = np.maximum(
        s.flop * work / hardware.limit,
        (q_bytes + kv_bytes) * passes / hardware.bandwidth * (1.0 - served),
    )
    return np.asarray(c["launch"] + np.maximum(busy, bound))
