"""GEMM rows against the law."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hwmodels import catalog, measured
from hwmodels.device import Device
from hwmodels.estimate import Estimate
from hwmodels.fit import gemm as fitting
from hwmodels.kernels.formats import format_of
from hwmodels.kernels.gemm import gemm_seconds, grouped_gemm_seconds
from hwmodels.measured import Rows
from hwmodels.validation.scored import Scored, keys


def predict(device: Device, rows: Rows, dtype: str, impl: str) -> Estimate:
    """Price of rows that share device, format and implementation, dense and grouped ones."""
    n, grouped = rows.numbers, rows.words["op"] == "grouped"
    mid, spread = np.zeros(len(rows)), np.zeros(len(rows))
    for its, one_group in ((~grouped, True), (grouped, False)):
        if not its.any():
            continue
        m, columns, k = n["m"][its], n["n"][its], n["k"][its]
        if one_group:
            price = gemm_seconds(device, m, columns, k, dtype=dtype, impl=impl)
        else:
            price = grouped_gemm_seconds(device, m, columns, k, n["groups"][its], dtype=dtype, impl=impl)
        mid[its], spread[its] = price.mid, price.spread
    return Estimate.of(mid, spread)


def score(path: Path) -> Scored:
    """Groups are device, dtype, op where it is not dense, implementation and size class
    (`hwmodels.kernels.gemm.is_large`).

    Raises
    ------
    InputError
        For a broken file.
    """
    rows = measured.gemm(path)
    w, n = rows.words, rows.numbers
    out = Scored.empty(str(path), "gemm", rows, n["time_us"] * 1e-6)
    for cell in sorted(set(zip(w["device"], w["law_dtype"], w["impl"], strict=True))):
        device_name, dtype, impl = (str(word) for word in cell)
        its = (w["device"] == device_name) & (w["law_dtype"] == dtype) & (w["impl"] == impl)
        reason = _skipped(device_name, dtype, impl)
        if reason:
            out.reason[its] = reason
            continue
        device = catalog.device(device_name)
        price = predict(device, rows.take(its), dtype, impl)
        out.predicted_s[its], out.spread[its] = price.mid, price.spread
        _label(out, rows, its, device, dtype, impl)
    return out


def _skipped(device: str, dtype: str, impl: str) -> str:
    """Why rows are left out; empty when they are scored."""
    if not device:
        return "device not in the catalog"
    if not dtype:
        return "no law for this number format"
    if format_of(dtype).peak not in catalog.device(device).peak_flops:
        return f"{device} has no {format_of(dtype).peak} peak"
    if impl.endswith("-eager"):
        return "timed eagerly: the host's launches, not the kernel (data/README, trap 6)"
    return ""


def _label(out: Scored, rows: Rows, its: NDArray[np.bool_], device: Device, dtype: str, impl: str) -> None:
    form = format_of(dtype)
    m, n, k, groups = (rows.numbers[name][its] for name in ("m", "n", "k", "groups"))
    out.x[its] = 2.0 * m * n * k * groups
    out.amounts["flops"][its] = out.x[its]
    moved = form.activation_bytes * m * k + form.weight_bytes * k * n + form.result_bytes * m * n
    out.amounts["bytes"][its] = moved * groups
    size = np.where(fitting.large(rows.take(its), device, dtype), "large", "small")
    ops = ["" if op == "dense" else f"{op} " for op in rows.words["op"][its]]
    out.tags["size"][its] = size
    out.group[its] = [f"gemm {device.name} {dtype} {o}{impl or 'unstated'} {s}" for o, s in zip(ops, size, strict=True)]
    out.pool[its] = [f"gemm {device.name} {dtype} {o}{s}" for o, s in zip(ops, size, strict=True)]
    out.key[its] = keys(out.group[its], m, n, k, groups)
