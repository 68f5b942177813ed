"""Attention rows against the law."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hwmodels import catalog, measured
from hwmodels.fit.attention import REFERENCE_KERNELS, attention_predict
from hwmodels.validation.scored import Scored, keys


def score(path: Path) -> Scored:
    """Groups are device, phase, direction, kernel and length class.

    Raises
    ------
    InputError
        For a broken file.
    """
    rows = measured.attention(path)
    w, n = rows.words, rows.numbers
    out = Scored.empty(str(path), "attention", rows, n["time_us"] * 1e-6)
    for device_name, kernel, dtype in {
        (d, k, t) for d, k, t in zip(w["device"], w["kernel"], w["law_dtype"], strict=True)
    }:
        its = (w["device"] == device_name) & (w["kernel"] == kernel) & (w["law_dtype"] == dtype)
        if device_name not in REFERENCE_KERNELS:
            out.reason[its] = "attention was not fitted on this device"
            continue
        if dtype not in ("bf16", "fp16"):
            out.reason[its] = "the attention law is for 16-bit formats"
            continue
        impl = "flash" if kernel in REFERENCE_KERNELS[str(device_name)] else str(kernel)
        out.predicted_s[its] = attention_predict(catalog.device(str(device_name)), rows.take(its), impl)
        out.x[its] = n["batch"][its] * n["n_heads"][its] * n["q_len"][its] * n["kv_len"][its] * n["head_dim"][its]
        length = np.where(n["q_len"][its] >= 1024, " >=1k", " <1k")
        length = np.where(w["phase"][its] == "decode", "", length)
        lead = [f"attention {device_name} {p} {d}" for p, d in zip(w["phase"][its], w["direction"][its], strict=True)]
        out.group[its] = [f"{a} {kernel}{s}" for a, s in zip(lead, length, strict=True)]
        out.pool[its] = [f"{a}{s}" for a, s in zip(lead, length, strict=True)]
        sizes = ("batch", "q_len", "kv_len", "n_heads", "n_kv_heads", "head_dim", "causal")
        out.key[its] = keys(out.group[its], w["dtype"][its], *(n[c][its] for c in sizes))
    return out
