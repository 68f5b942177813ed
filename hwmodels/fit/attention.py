"""Attention laws of each device generation from ``attention_measured.csv``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from hwmodels import measured
from hwmodels.device import Coefficient, Device
from hwmodels.estimate import FloatArray
from hwmodels.fit.solve import Free, bare, rms, solve, with_coefficients
from hwmodels.kernels.attention import attention_seconds
from hwmodels.laws import Block, Section
from hwmodels.measured import Rows

ATTENTION_FREE = (
    Free("forward.efficiency", 0.65, 0.005, 1.0), Free("head_dim_half", 30.0, 1.0, 200.0), Free("ramp",
    250.0, 1.0, 2000.0),
    Free("tail", 0.5, 0.01, 1.0), Free("launch", 1e-5, 1e-6, 8e-5),
)  # fmt: skip
DECODE_FREE = (
    Free("decode.efficiency", 0.7, 0.005, 1.0), Free("decode.launch", 1e-5, 1e-6, 6e-5), Free("decode.tile",
    64.0, 1.0, 256.0),
    Free("decode.pad", 50.0, 1.0, 400.0),
)  # fmt: skip
SECTIONS = {
    "a100-sxm-80gb": "ampere", "h100-sxm-80gb": "hopper", "b200-sxm-180gb": "blackwell", "l40s-48gb": "ada",
}  # fmt: skip
"""Device -> generation that its fit stands for; one that is missing stands for itself only."""
REFERENCE_KERNELS = {
    "a100-sxm-80gb": ("flash_attention", "FlashAttention-2"),
    "h100-sxm-80gb": ("fa3", "FlashAttention-3", "vllm_flash_attn_fa3"),
    "b200-sxm-180gb": ("trtllm_mha", "vllm_flashinfer_trtllmprefill", "vllm_flashinfer_trtllmdecode"),
    "gb200-186gb": ("trtllm_mha", "vllm_flashinfer_trtllmprefill", "vllm_flashinfer_trtllmdecode"),
    "l40s-48gb": ("vllm_flash_attn_fa2", "flashinfer"),
}
"""Attention kernels that ``impl="flash"`` stands for on each generation."""


def attention_arguments(rows: Rows) -> dict[str, Any]:
    """Keyword arguments of `attention_seconds`; rows that do not state it are causal."""
    n = rows.numbers
    return {
        "batch": n["batch"], "q_len": n["q_len"], "kv_len": n["kv_len"], "n_heads": n["n_heads"],
        "n_kv_heads": n["n_kv_heads"], "qk_dim": n["head_dim"], "v_dim": n["head_dim"],
        "causal": np.where(np.isnan(n["causal"]), 1.0, n["causal"]),
    }  # fmt: skip


def attention_predict(device: Device, rows: Rows, impl: str = "flash") -> FloatArray:
    """Seconds of each row: forward, or forward and backward where the row timed both."""
    arguments = attention_arguments(rows)
    both = rows.words["direction"] == "fwd+bwd"
    forward = attention_seconds(device, **arguments, direction="forward", impl=impl).mid
    if not both.any():
        return forward
    backward = attention_seconds(device, **arguments, direction="backward", impl=impl).mid
    return np.asarray(forward + np.where(both, backward, 0.0))


def _attention_law(
    device: Device, rows: Rows, free: Sequence[Free], prefix: str, source: str
) -> dict[str, Coefficient]:
    """The `free` coefficients of one law on `rows`, named ``<prefix><name>``."""
    impl = prefix.removeprefix("attention.").removesuffix(".") or "flash"

    def predict(values: FloatArray) -> FloatArray:
        numbers = {prefix + f.name: v for f, v in zip(free, values, strict=True)}
        return attention_predict(with_coefficients(device, numbers), rows, impl)

    values, errors = solve(predict, free, rows.numbers["time_us"] * 1e-6)
    residual = rms(errors)
    return {
        prefix + f.name: Coefficient(float(v), source, len(rows), residual) for f, v in zip(free, values, strict=True)
    }


def attention_coefficients(device: Device, rows: Rows, source: str) -> dict[str, Coefficient]:
    """Prefill and backward together, then decode; one law on the reference kernels of the device.

    Every other kernel gets its own efficiency (prefill) or law (decode) where it has rows for one.
    """
    w, n = rows.words, rows.numbers
    bf16 = np.isin(w["law_dtype"], ["bf16", "fp16"])
    reference = np.isin(w["kernel"], list(REFERENCE_KERNELS[device.name]))
    dense = bf16 & (w["phase"] != "decode") & (n["q_len"] >= 512)
    decode = bf16 & (w["phase"] == "decode")
    backward = Free("backward.efficiency", 0.5, 0.05, 1.0)
    found: dict[str, Coefficient] = {}

    def fitted() -> Device:
        return replace(device, coefficients={**device.coefficients, **found})

    timed_both = (dense & reference & (w["direction"] == "fwd+bwd")).any()
    law = (*ATTENTION_FREE, backward) if timed_both else ATTENTION_FREE
    found |= _attention_law(device, rows.take(dense & reference), law, "attention.", source)
    found |= _attention_law(fitted(), rows.take(decode & reference), DECODE_FREE, "attention.", source)
    for kernel in sorted(set(w["kernel"][~reference])):
        its = w["kernel"] == kernel
        if (dense & its).sum() >= 8:
            trained = (dense & its & (w["direction"] == "fwd+bwd")).any()
            lead = (ATTENTION_FREE[0], backward) if trained else (ATTENTION_FREE[0],)
            found |= _attention_law(fitted(), rows.take(dense & its), lead, f"attention.{kernel}.", source)
        if (decode & its).sum() >= 40:
            found |= _attention_law(fitted(), rows.take(decode & its), DECODE_FREE, f"attention.{kernel}.", source)
    if not timed_both and "attention.FlashAttention-2.backward.efficiency" in found:
        found |= _same_ratio(found, source)
    return found


def _same_ratio(found: dict[str, Coefficient], source: str) -> dict[str, Coefficient]:
    """Backward of the reference kernel from FlashAttention-2's ratio of backward to forward.

    Used where only FlashAttention-2 was timed backward (H100).
    """
    mine = found["attention.FlashAttention-2.backward.efficiency"]
    ratio = mine.value / found["attention.FlashAttention-2.forward.efficiency"].value
    value = found["attention.forward.efficiency"].value * ratio
    text = source + "; FlashAttention-2's ratio of backward to forward at the forward of the reference kernel"
    return {"attention.backward.efficiency": Coefficient(value, text, mine.rows, mine.residual + 0.05)}


def _block(prefix: str, found: dict[str, Coefficient]) -> Block:
    """Coefficients of one source and residual as a block."""
    first = next(iter(found.values()))
    lead = "attention." + prefix
    return Block(prefix, first.source, first.rows, first.residual, {n[len(lead) :]: c.value for n, c in found.items()})


def blocks(found: dict[str, Coefficient]) -> tuple[Block, ...]:
    """Coefficients fitted together (equal source, rows and residual) as blocks."""
    groups: dict[tuple[str, int, float], dict[str, Coefficient]] = {}
    for name, c in found.items():
        groups.setdefault((c.source, c.rows, c.residual), {})[name] = c
    return tuple(_block("", group) for group in groups.values())


def fit(data: Path) -> dict[str, Section]:
    """Sections of the attention law from ``attention_measured.csv`` in the folder `data`.

    Raises
    ------
    InputError
        For a missing or broken file.
    """
    rows = measured.attention(data / "attention_measured.csv")
    found = {}
    for name in REFERENCE_KERNELS:
        part = rows.take(rows.words["device"] == name)
        text = f"least squares on attention_measured.csv, {name}"
        section = SECTIONS.get(name, name)
        found[section] = Section((name,), blocks(attention_coefficients(bare(name), part, text)))
    return found
