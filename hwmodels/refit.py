"""Coefficients of the catalog from measured CSV files (`python -m hwmodels fit`).

Kernels of one device share the few coefficients of their law; each implementation that was measured
adds one factor. Devices that were not measured take them over by ``coefficients_from`` (all are
dimensionless or relative to the datasheet) with a wider spread. SciPy is imported here only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwmodels import catalog, measured
from hwmodels.device import DTYPE_BYTES, Coefficient, Device
from hwmodels.errors import RunError
from hwmodels.estimate import FloatArray
from hwmodels.kernels.attention import attention_coefficient, attention_seconds
from hwmodels.kernels.gemm import gemm_seconds
from hwmodels.measured import Rows

GEMM_DEVICES = ("a100-sxm-80gb", "h100-sxm-80gb", "b200-sxm-180gb", "gb200-186gb", "l40s-48gb")
"""Devices with enough GEMM rows for a fit of their own."""


@dataclass(frozen=True, slots=True)
class Free:
    """A coefficient that a fit may move: name, start, bounds."""

    name: str
    start: float
    low: float
    high: float


GEMM_FREE = (
    Free("efficiency", 0.8, 0.3, 1.05), Free("tile_128x128", 0.95, 0.75, 1.0), Free("tile_128x64", 0.8, 0.5, 0.95),
    Free("tile_64x64", 0.6, 0.3, 0.85), Free("k_ramp", 120.0, 1.0, 1500.0), Free("tail", 0.6, 0.01, 1.0),
    Free("fill", 0.6, 0.1, 1.0), Free("throttle", 0.08, 0.001, 0.35), Free("memory_efficiency", 0.85, 0.5, 1.0),
    Free("floor", 4e-6, 5e-7, 3e-5),
)  # fmt: skip
ATTENTION_FREE = (
    Free("forward.efficiency", 0.65, 0.005, 1.0), Free("head_dim_half", 30.0, 1.0, 200.0), Free("ramp",
    250.0, 1.0, 2000.0),
    Free("tail", 0.5, 0.01, 1.0), Free("launch", 1e-5, 1e-6, 8e-5),
)  # fmt: skip
QUANTISE = Free("quantise", 1.0, 0.01, 12.0)
"""Free as well for formats that activations must be turned into."""
DECODE_FREE = (
    Free("decode.efficiency", 0.7, 0.005, 1.0), Free("decode.launch", 1e-5, 1e-6, 6e-5), Free("decode.tile",
    64.0, 1.0, 256.0),
    Free("decode.pad", 50.0, 1.0, 400.0),
)  # fmt: skip
REFERENCE_KERNELS = {
    "a100-sxm-80gb": ("flash_attention", "FlashAttention-2"),
    "h100-sxm-80gb": ("fa3", "FlashAttention-3", "vllm_flash_attn_fa3"),
    "b200-sxm-180gb": ("trtllm_mha", "vllm_flashinfer_trtllmprefill", "vllm_flashinfer_trtllmdecode"),
    "gb200-186gb": ("trtllm_mha", "vllm_flashinfer_trtllmprefill", "vllm_flashinfer_trtllmdecode"),
    "l40s-48gb": ("vllm_flash_attn_fa2", "flashinfer"),
}
"""Attention kernels that ``impl="flash"`` stands for on each generation."""


def solve(
    predict: Callable[[FloatArray], FloatArray],
    free: Sequence[Free],
    actual: FloatArray,
    weight: FloatArray | None = None,
    scale: float = 0.06,
    prior: float = 0.0,
) -> tuple[FloatArray, FloatArray]:
    """Values of `free` that bring ``predict(values)`` nearest to `actual`, and the log errors.

    Least squares of the logarithm of predicted over actual with a soft L1 loss, so that a few odd
    rows do not bend the law (`scale`: log error from which a row counts less); bounds keep every value
    physical, and `prior` (the weight of one row that says "as at the start") what the rows do not tell.

    Raises
    ------
    RunError
        Where SciPy is not installed.
    """
    try:
        from scipy.optimize import least_squares
    except ImportError:
        raise RunError("fitting needs SciPy, which is not installed. Try: pip install 'meshwright[fit]'") from None

    start = np.asarray([f.start for f in free])
    root = 1.0 if weight is None else np.sqrt(weight)

    def errors(x: FloatArray) -> FloatArray:
        found = np.log(predict(x * start) / actual) * root
        return np.concatenate([found, prior * np.log(np.maximum(x, 1e-9))]) if prior else np.asarray(found)

    found = least_squares(
        errors,
        np.ones(len(free)),
        bounds=([f.low / f.start for f in free], [f.high / f.start for f in free]),
        loss="soft_l1",
        f_scale=scale,
        diff_step=1e-3,
        max_nfev=200,
    )
    values = np.asarray(found.x * start)
    return values, np.asarray(np.log(predict(values) / actual))


def rms(errors: FloatArray) -> float:
    """Root mean square of log errors with the widest tenth cut off, as a relative spread."""
    if errors.size == 0:
        return 0.0
    size = np.sort(np.abs(errors))
    kept = size[: max(1, int(np.ceil(0.9 * size.size)))]
    return float(np.sqrt(np.mean(kept**2)) * 1.15)  # 1.15: the cut removes that much of a normal spread


def with_coefficients(device: Device, numbers: dict[str, float]) -> Device:
    """`device` with plain `numbers` among its coefficients (while fitting)."""
    extra = {name: Coefficient(float(v), "fit", 1) for name, v in numbers.items()}
    return replace(device, coefficients={**device.coefficients, **extra}, fitted_on=device.name)


def large(rows: Rows, l2_bytes: float, dtype: str) -> NDArray[np.bool_]:
    """Rows that leave the cache: dims >= 256 and bytes > 4x L2 or flop > 1e10 (data/README, trap 6)."""
    m, n, k = (rows.numbers[name] for name in ("m", "n", "k"))
    size = DTYPE_BYTES[dtype] * (m * k + k * n) + 2.0 * m * n
    big = (np.minimum(np.minimum(m, n), k) >= 256) & ((size > 4.0 * l2_bytes) | (2.0 * m * n * k > 1e10))
    return np.asarray(big)


def gemm_coefficients(device: Device, rows: Rows, dtype: str, source: str) -> dict[str, Coefficient]:
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
    residual = rms(errors[big])
    return {
        f"gemm.{dtype}.{f.name}": Coefficient(float(v), source, int(big.sum()), residual)
        for f, v in zip(free, values, strict=True)
    }


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


def _now(device: Device, prefix: str, free: Free) -> float:
    """Value of a coefficient before the fit: that of the reference kernel, else the assumed one."""
    return attention_coefficient(device, free.name, prefix.removeprefix("attention.").removesuffix(".")).value


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
        return replace(device, coefficients={**device.coefficients, **found}, fitted_on=device.name)

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


def bare(name: str) -> Device:
    """The device without fitted coefficients: a fit must not depend on the one before."""
    return replace(catalog.device(name), coefficients={}, fitted_on="")


def gemm_catalog(rows: Rows) -> dict[str, dict[str, Coefficient]]:
    """Device -> coefficients for every device and dtype with enough rows."""
    found: dict[str, dict[str, Coefficient]] = {}
    mine: dict[str, Coefficient]
    for name in GEMM_DEVICES:
        device, mine = bare(name), {}
        for dtype, others in (("bf16", ("bf16", "fp16")), ("fp8", ("fp8",)), ("fp4", ("fp4",)), ("int8", ("int8",))):
            keep = (
                (rows.words["device"] == name)
                & np.isin(rows.words["law_dtype"], others)
                & ~np.isin(rows.words["impl"], ("mamf", "deepgemm"))
            )
            if dtype in device.peak_flops and keep.sum() >= 40:
                part = rows.take(keep)
                text = f"least squares on gemm_measured.csv, {name}, {'/'.join(others)}"
                mine |= gemm_coefficients(device, part, dtype, text)
        found[name] = mine
    return found


def attention_catalog(rows: Rows) -> dict[str, dict[str, Coefficient]]:
    """Device -> coefficients for every device of `REFERENCE_KERNELS`."""
    found = {}
    for name in REFERENCE_KERNELS:
        part = rows.take(rows.words["device"] == name)
        text = f"least squares on attention_measured.csv, {name}"
        found[name] = attention_coefficients(bare(name), part, text)
    return found
