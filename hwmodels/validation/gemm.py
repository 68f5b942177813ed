"""GEMM rows against the law."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hwmodels import catalog, measured
from hwmodels.fit.gemm import large
from hwmodels.kernels.gemm import gemm_seconds
from hwmodels.validation.scored import Scored, keys


def score(path: Path) -> Scored:
    """Groups are device, dtype, implementation and size class (`large`).

    Raises
    ------
    InputError
        For a broken file.
    """
    rows = measured.gemm(path)
    w, n = rows.words, rows.numbers
    out = Scored.empty(str(path), "gemm", rows, n["time_us"] * 1e-6)
    for device_name, dtype, impl in {(d, t, i) for d, t, i in zip(w["device"], w["law_dtype"], w["impl"], strict=True)}:
        its = (w["device"] == device_name) & (w["law_dtype"] == dtype) & (w["impl"] == impl)
        if not device_name or not dtype:
            out.reason[its] = "device not in the catalog" if not device_name else "no law for this number format"
            continue
        device = catalog.device(str(device_name))
        if dtype not in device.peak_flops:
            out.reason[its] = f"{device_name} has no {dtype} peak"
            continue
        price = gemm_seconds(device, n["m"][its], n["n"][its], n["k"][its], dtype=str(dtype), impl=str(impl))
        out.predicted_s[its], out.spread[its] = price.mid, price.spread
        out.x[its] = 2.0 * n["m"][its] * n["n"][its] * n["k"][its]
        size = np.where(large(rows.take(its), device.l2_bytes, str(dtype)), "large", "small")
        out.group[its] = [f"gemm {device_name} {dtype} {impl or 'unstated'} {s}" for s in size]
        out.pool[its] = [f"gemm {device_name} {dtype} {s}" for s in size]
        out.key[its] = keys(out.group[its], n["m"][its], n["n"][its], n["k"][its])
    return out
