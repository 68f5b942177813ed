"""GEMM rows against the law."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hwmodels import catalog, measured
from hwmodels.device import Device
from hwmodels.estimate import Estimate
from hwmodels.fit import gemm as fitting
from hwmodels.fit.solve import bare, with_coefficients
from hwmodels.kernels.formats import format_of
from hwmodels.kernels.gemm import gemm_seconds, grouped_gemm_seconds
from hwmodels.laws import Section
from hwmodels.measured import Rows
from hwmodels.validation.scored import HeldOut, Scored, keys

DATA_CENTRE = {"ampere": 13.0, "hopper": 13.0, "blackwell": 13.0}
"""Generations that are judged when left out -> largest median error, per cent; the others are printed only."""

ANCHORED_LIMIT = 10.0
"""The same with one measured row of the generation."""

ANCHOR_WEIGHT = 0.5
"""Share of an anchor row's logarithmic distance from the law that is believed: one row is as unsure as a transferred
law, each some 10%."""


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


def held_out(data: Path) -> list[HeldOut]:
    """Large 16-bit products of each generation, predicted by fits that saw no row of it, then with one row of it.

    The law of a generation that was not measured is the mean of the data-centre generations that were
    (`hwmodels.fit.gemm.transferred`), with what its own datasheet says. Takes some ten seconds.

    Parameters
    ----------
    data : Path
        Folder with ``gemm_measured.csv``.

    Raises
    ------
    InputError
        For a missing or broken file.
    """
    rows = measured.gemm(data / "gemm_measured.csv")
    sections = {
        name: section
        for name in fitting.GENERATIONS
        if (section := fitting.fit_generation(rows, name, ("bf16",), starts=2)) is not None
    }
    found = []
    for name in sections:
        rest = {other: section for other, section in sections.items() if other != name and other in DATA_CENTRE}
        if rest:
            found += _left_out(rows, name, rest)
    return found


def _left_out(rows: Rows, name: str, rest: Mapping[str, Section]) -> list[HeldOut]:
    sixteen = np.isin(rows.words["law_dtype"], ("bf16", "fp16")) & np.isin(
        rows.words["device"], fitting.GENERATIONS[name]
    )
    part = rows.take(sixteen & fitting.usable(rows))
    big = np.zeros(len(part), np.bool_)
    for device in set(part.words["device"].tolist()):
        its = part.words["device"] == device
        big[its] = fitting.large(part.take(its), bare(device), "bf16")
    part = part.take(big)
    devices = ", ".join(sorted(set(part.words["device"].tolist())))
    what = f"{name} ({devices}) from {', '.join(rest)}"
    ratio = _moved(part, rest) / (part.numbers["time_us"] * 1e-6)
    alone = np.abs(ratio - 1.0) * 100.0
    lines = [HeldOut(what, len(part), *_middle(alone), DATA_CENTRE.get(name))]
    anchors = np.flatnonzero(np.isin(part.words["impl"], measured.REFERENCE))
    if anchors.size:
        # Which row is measured must not decide: the median over every row that could have been.
        tried = [_middle(np.abs(np.delete(ratio / ratio[i] ** ANCHOR_WEIGHT, i) - 1.0) * 100.0) for i in anchors]
        middle, top = np.median(np.asarray(tried), axis=0)
        limit = ANCHORED_LIMIT if name in DATA_CENTRE else None
        lines.append(HeldOut(f"{what}, one anchor row", len(part) - 1, float(middle), float(top), limit))
    return lines


def _middle(error: NDArray[np.float64]) -> tuple[float, float]:
    return float(np.median(error)), float(np.quantile(error, 0.9))


def _moved(part: Rows, rest: Mapping[str, Section]) -> NDArray[np.float64]:
    """Seconds of `part` by the mean law of `rest`."""
    seconds = np.zeros(len(part))
    for cell in sorted(set(zip(part.words["device"], part.words["impl"], strict=True))):
        name, impl = (str(word) for word in cell)
        its = (part.words["device"] == name) & (part.words["impl"] == impl)
        device = bare(name)
        numbers = {key: c.value for key, c in fitting.transferred(rest).items()}
        n = part.take(its).numbers
        seconds[its] = gemm_seconds(with_coefficients(device, numbers), n["m"], n["n"], n["k"], impl=impl).mid
    return seconds
