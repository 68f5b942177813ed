"""Attention rows against the law."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from hwmodels import catalog, measured
from hwmodels.device import Device
from hwmodels.estimate import Estimate
from hwmodels.fit.attention import decode_rows
from hwmodels.kernels.attention import attention_seconds
from hwmodels.measured import Rows
from hwmodels.validation.scored import Scored, keys

LONG = 1024
"""Queries from which a prefill counts as long."""
EIGHT_BIT = ("fp8", "int8")


def predict(device: Device, rows: Rows, impl: str, dtype: str, kv_dtype: str) -> Estimate:
    """Price of rows that share device, implementation and formats: forward, backward, or both together.

    Rows that do not say so are causal; a prompt of one token runs in the kernel of `decode_rows`.
    """
    w, n = rows.words, rows.numbers
    arguments = {
        "batch": n["batch"], "q_len": n["q_len"], "kv_len": n["kv_len"], "n_heads": n["n_heads"],
        "n_kv_heads": n["n_kv_heads"], "qk_dim": n["head_dim"], "v_dim": n["head_dim"],
        "causal": np.where(np.isnan(n["causal"]), 1.0, n["causal"]),
    }  # fmt: skip
    mid, spread = np.zeros(len(rows)), np.zeros(len(rows))
    steps = decode_rows(rows)
    for phase, its in (("decode", steps), ("prefill", ~steps)):
        if not its.any():
            continue
        part: dict[str, Any] = {name: value[its] for name, value in arguments.items()}
        price = attention_seconds(
            device, **part, direction="forward", dtype=dtype, kv_dtype=kv_dtype, impl=impl, phase=phase
        )
        mid[its], spread[its] = price.mid, price.spread
    back = w["direction"] != "fwd"
    if back.any():
        part = {name: value[back] for name, value in arguments.items()}
        price = attention_seconds(device, **part, direction="backward", dtype=dtype, kv_dtype=kv_dtype, impl=impl)
        ahead = Estimate.of(np.where(w["direction"][back] == "bwd", 0.0, mid[back]), spread[back])
        total = ahead + price
        mid[back], spread[back] = total.mid, total.spread
    return Estimate.of(mid, spread)


def score(path: Path) -> Scored:
    """Groups are device, phase, direction, implementation, formats and length class.

    Raises
    ------
    InputError
        For a broken file.
    """
    rows = measured.attention(path)
    w, n = rows.words, rows.numbers
    out = Scored.empty(str(path), "attention", rows, n["time_us"] * 1e-6)
    cells = list(zip(w["device"], w["impl"], w["law_dtype"], w["law_kv_dtype"], strict=True))
    for cell in sorted(set(cells)):
        device_name, impl, dtype, kv_dtype = (str(word) for word in cell)
        its = np.asarray([c == cell for c in cells])
        if not device_name or not dtype or not kv_dtype:
            out.reason[its] = "device not in the catalog" if not device_name else "no law for this number format"
            continue
        device = catalog.device(device_name)
        if dtype not in device.peak_flops:
            out.reason[its] = f"{device_name} has no {dtype} peak"
            continue
        price = predict(device, rows.take(its), impl, dtype, kv_dtype)
        out.predicted_s[its], out.spread[its] = price.mid, price.spread
        _label(out, rows, its, device_name, impl, dtype, kv_dtype)
    return out


def _label(
    out: Scored, rows: Rows, its: np.ndarray[tuple[int], np.dtype[np.bool_]], device: str, impl: str, dtype: str,
    kv_dtype: str,
) -> None:  # fmt: skip
    w, n = rows.words, rows.numbers
    pairs = n["batch"] * n["n_heads"] * n["q_len"] * n["kv_len"] * n["head_dim"]
    cache = n["batch"] * n["n_kv_heads"] * n["kv_len"] * n["head_dim"] * 2.0 * (1.0 if kv_dtype in EIGHT_BIT else 2.0)
    decode = w["phase"] == "decode"
    out.x[its] = np.where(decode, cache, 4.0 * pairs * np.where(n["causal"] > 0, 0.5, 1.0))[its]
    size = np.where(decode, "", np.where(n["q_len"] >= LONG, ">=1k", "<1k"))
    formats = dtype if kv_dtype == dtype else f"{dtype}/kv {kv_dtype}"
    lead = [f"attention {device} {p} {d}" for p, d in zip(w["phase"][its], w["direction"][its], strict=True)]
    ends = [f" {s}" if s else "" for s in size[its]]
    out.group[its] = [f"{a} {impl or 'unstated'} {formats}{e}" for a, e in zip(lead, ends, strict=True)]
    out.pool[its] = [f"{a}{e}" for a, e in zip(lead, ends, strict=True)]
    if "size" in out.tags:
        out.tags["size"][its] = size[its]
    sizes = ("batch", "q_len", "kv_len", "n_heads", "n_kv_heads", "head_dim", "causal")
    out.key[its] = keys(out.group[its], *(n[c][its] for c in sizes))
