"""The GEMM law of each device generation from ``gemm_measured.csv``."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hwmodels import measured
from hwmodels.device import DTYPE_BYTES, Device
from hwmodels.estimate import FloatArray
from hwmodels.fit.solve import Free, bare, rms, solve, with_coefficients
from hwmodels.kernels.gemm import gemm_coefficient, gemm_seconds
from hwmodels.laws import Block, Section
from hwmodels.measured import Rows

GEMM_DEVICES = {
    "ampere": "a100-sxm-80gb", "hopper": "h100-sxm-80gb", "blackwell": "b200-sxm-180gb", "gb200-186gb": "gb200-186gb",
    "ada": "l40s-48gb",
}  # fmt: skip
"""Section -> device with enough GEMM rows for a fit of its own."""

GEMM_FREE = (
    Free("efficiency", 0.8, 0.3, 1.05), Free("tile_128x128", 0.95, 0.75, 1.0), Free("tile_128x64", 0.8, 0.5, 0.95),
    Free("tile_64x64", 0.6, 0.3, 0.85), Free("k_ramp", 120.0, 1.0, 1500.0), Free("tail", 0.6, 0.01, 1.0),
    Free("fill", 0.6, 0.1, 1.0), Free("throttle", 0.08, 0.001, 0.35), Free("memory_efficiency", 0.85, 0.5, 1.0),
    Free("floor", 4e-6, 5e-7, 3e-5),
)  # fmt: skip

QUANTISE = Free("quantise", 1.0, 0.01, 12.0)
"""Free as well for formats that activations must be turned into."""


def large(rows: Rows, l2_bytes: float, dtype: str) -> NDArray[np.bool_]:
    """Rows that leave the cache: dims >= 256 and bytes > 4x L2 or flop > 1e10 (data/README, trap 6)."""
    m, n, k = (rows.numbers[name] for name in ("m", "n", "k"))
    size = DTYPE_BYTES[dtype] * (m * k + k * n) + 2.0 * m * n
    big = (np.minimum(np.minimum(m, n), k) >= 256) & ((size > 4.0 * l2_bytes) | (2.0 * m * n * k > 1e10))
    return np.asarray(big)


def gemm_block(device: Device, rows: Rows, dtype: str, source: str) -> Block:
    """The GEMM law of one device and dtype, with a factor for each implementation.

    Large rows carry the weight; small ones (decode shapes) pin the floor with a tenth of it.
    """
    n = rows.numbers
    impls = sorted(set(rows.words["impl"]) - set(measured.REFERENCE))
    masks = [rows.words["impl"] == impl for impl in impls]
    law = GEMM_FREE if dtype in ("bf16", "fp16") else (*GEMM_FREE, QUANTISE)
    free = (*law, *(Free(f"impl.{impl}", 1.0, 0.6, 1.6) for impl in impls))

    def predict(values: FloatArray) -> FloatArray:
        numbers = {f"gemm.{dtype}.{f.name}": v for f, v in zip(law, values, strict=False)}
        seconds = gemm_seconds(with_coefficients(device, numbers), n["m"], n["n"], n["k"], dtype=dtype).mid.copy()
        for mask, factor in zip(masks, values[len(law) :], strict=True):
            seconds[mask] *= factor
        return seconds

    big = large(rows, device.l2_bytes, dtype)
    values, errors = solve(predict, free, n["time_us"] * 1e-6, np.where(big, 1.0, 0.1))
    found = {f.name: float(v) for f, v in zip(free, values, strict=True)}
    return Block(f"{dtype}.", source, int(big.sum()), rms(errors[big]), found)


def fit(data: Path) -> dict[str, Section]:
    """Sections of the GEMM law from ``gemm_measured.csv`` in the folder `data`.

    Raises
    ------
    InputError
        For a missing or broken file.
    """
    rows = measured.gemm(data / "gemm_measured.csv")
    found: dict[str, Section] = {}
    for section, name in GEMM_DEVICES.items():
        device, blocks = bare(name), []
        for dtype, others in (("bf16", ("bf16", "fp16")), ("fp8", ("fp8",)), ("fp4", ("fp4",)), ("int8", ("int8",))):
            keep = (
                (rows.words["device"] == name)
                & np.isin(rows.words["law_dtype"], others)
                & ~np.isin(rows.words["impl"], ("mamf", "deepgemm"))
            )
            if dtype in device.peak_flops and keep.sum() >= 40:
                text = f"least squares on gemm_measured.csv, {name}, {'/'.join(others)}"
                blocks.append(gemm_block(device, rows.take(keep), dtype, text))
        found[section] = Section((name,), tuple(blocks))
    return found | anchors(rows)


def anchors(rows: Rows) -> dict[str, Section]:
    """bf16 GEMM efficiency of devices that have one row only (the best of a search over shapes).

    The law keeps its inherited shape and is scaled to pass through that row; without it a part of
    another vendor would be taken to reach NVIDIA's share of its peak.
    """
    found: dict[str, Section] = {}
    best = (rows.words["impl"] == "mamf") & (rows.words["law_dtype"] == "bf16")
    for i in np.flatnonzero(best):
        name = str(rows.words["device"][i])
        if not name or name in GEMM_DEVICES.values():
            continue
        device = bare(name)
        m, n, k, time_us = (float(rows.numbers[c][i]) for c in ("m", "n", "k", "time_us"))
        lead = gemm_coefficient(device, "bf16", "efficiency")
        ratio = float(gemm_seconds(device, m, n, k).mid) * 1e6 / time_us
        text = "one row of gemm_measured.csv, best of a search over shapes (MAMF); shape of the law as transferred"
        value = min(lead.value * ratio, 1.0)
        found[name] = Section((name,), (Block("bf16.", text, 1, lead.residual + 0.05, {"efficiency": value}),))
    return found
