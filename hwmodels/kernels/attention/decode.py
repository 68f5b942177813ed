"""The law of a decode step: one query (or a few) of each sequence over a paged cache.

One block reads the keys and values of one (sequence, KV head), or of a part of it where a kernel splits the
sequence (Dao et al. 2023, Flash-Decoding); all query heads of the KV head share the read. With
``n = batch x KV heads`` blocks::

    read   = (K + V + Q + O) / (bandwidth x efficiency)               x cache_speed where L2 holds them
    work   = n (block x block_dim^log2(d / 128) x (1 + rows x heads / 16) + key x kv_len x d / 128) / units
    chain  = key x kv_len x d / 128 / splits                          a sequence on its few blocks
    t      = launch + (read^4 + work^4 + chain^4)^(1/4)

- `work` is what the SMs need to start blocks and to issue, convert and multiply keys: it binds with many short
  sequences, and with formats that must be converted.
- `chain` is Little's law: a long sequence that a kernel spreads over few blocks has too few bytes
  in flight to fill the memory.
- Blocks that are not split fill the SMs in waves: a share `waves` of the last, unfilled one is lost from both.
- More query heads than 16 rows of a tensor-core tile make a key dearer (`group`), and the start and end of a
  block grow with their queries and results (`rows`).
- A kernel may have a version of its own for one query head a KV head (`single`) and for groups that exceed
  `grouped_to` (`apart`: each query head then reads the cache for itself, from L2).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hwmodels.estimate import FloatArray
from hwmodels.kernels.attention.shapes import Hardware, Shapes
from hwmodels.kernels.cache import cached_share

SPLIT_BELOW = 0.8
"""Blocks an SM below which Flash-Decoding splits sequences (num_splits_heuristic of flash-attention)."""


def _fourth_root_of_sum(*parts: FloatArray) -> FloatArray:
    total = np.zeros_like(parts[0])
    for part in parts:
        square = part * part
        total = total + square * square
    return np.asarray(np.sqrt(np.sqrt(total)))


def seconds(s: Shapes, hardware: Hardware, c: Mapping[str, float]) -> FloatArray:
    """Seconds of each step; `c` holds the coefficients by the names of the module's text."""
    heads = s.n_heads / np.maximum(s.n_kv_heads, 1.0)
    group = heads * s.q_len
    single, apart = heads <= 1.0, (heads > 1.0) & (group > c["grouped_to"])
    blocks = s.batch * np.where(apart, s.n_heads * s.q_len, s.n_kv_heads)
    keys = np.minimum(s.kv_len, s.window + s.q_len - 1.0)

    def version(name: str) -> FloatArray:
        own = np.where(single, c[f"single.{name}"], np.where(apart, c[f"apart.{name}"], 1.0))
        return np.asarray(c[name] * own)

    crowded = np.where(apart, 0.0, np.maximum(group / 16.0, 1.0) - 1.0)
    key = keys * version("key") * s.dim / 128.0 * (1.0 + c["group"] * crowded)
    rows = np.where(apart, 0.0, group / 16.0)
    start = version("block") * c["block_dim"] ** (np.log2(np.maximum(s.dim, 1.0)) - 7.0) * (1.0 + c["rows"] * rows)
    chain = key / version("splits")
    q_bytes, kv_bytes = s.q_bytes, s.kv_bytes
    hit = cached_share(kv_bytes, hardware.cache)
    speed = hardware.bandwidth * (1.0 - hit + hit * c["cache_speed"])
    load = blocks / hardware.units
    unfilled = np.where(load > SPLIT_BELOW, np.ceil(load) / np.maximum(load, SPLIT_BELOW), 1.0) - 1.0
    waves = 1.0 + c["waves"] * unfilled
    work = (start + key) * load * waves
    read = (q_bytes + kv_bytes) / (speed * c["efficiency"]) * waves
    bound = np.maximum(
        (q_bytes + kv_bytes) / hardware.bandwidth * (1.0 - cached_share(q_bytes + kv_bytes, hardware.cache)),
        s.flop / hardware.limit,
    )
    return np.asarray(c["launch"] + np.maximum(_fourth_root_of_sum(read, work, chain), bound))
