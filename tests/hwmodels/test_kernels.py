"""Kernel laws against hand calculation, their bounds, and their speed."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hwmodels import catalog
from hwmodels.device import Coefficient, Device
from hwmodels.errors import InputError
from hwmodels.kernels import gemm_seconds, grouped_gemm_seconds
from hwmodels.kernels.gemm import ideal_seconds


def device(kind: str = "gpu", **numbers: float) -> Device:
    """100 TFLOP/s, 1 TB/s, 100 SMs, and only the coefficients that are given."""
    coefficients = {name.replace("__", "."): Coefficient(v, "test", 1) for name, v in numbers.items()}
    return Device(
        "toy", "test", kind, "toy", {"bf16": 100e12, "fp32": 50e12, "fp8": 200e12}, 8e9, 1e12, 1e6, 100, 100.0, 5e-6,
        coefficients, {}, "B",
    )  # fmt: skip


PLAIN = {
    "gemm__efficiency": 0.5, "gemm__tile_128x128": 0.001, "gemm__tile_128x64": 0.001, "gemm__tile_64x64": 0.001,
    "gemm__k_ramp": 0.0, "gemm__tail": 1.0, "gemm__fill": 0.5, "gemm__throttle": 0.0, "gemm__memory_efficiency": 1.0,
    "gemm__floor": 0.0,
}  # fmt: skip


def test_gemm_by_hand_full_waves() -> None:
    # 2560 x 1280 over 256 x 128 tiles: 10 x 10 = 100 tiles = one full wave of 100 SMs.
    # Compute: 2 * 2560 * 1280 * 8192 = 5.3687e10 flop at 100e12 * 0.5 = 1.073742e-3 s.
    # Memory: 2 * 8192 * (2560 + 1280) + 2 * 2560 * 1280 = 69,468,160 bytes at 1e12 = 6.9e-5 s.
    # Fourth-power sum: 1.073742e-3 * (1 + (0.0647)^4)^(1/4) = 1.073747e-3 s.
    seconds = float(gemm_seconds(device(**PLAIN), 2560, 1280, 8192).mid)
    assert seconds == pytest.approx(1.073747e-3, rel=1e-5)


def test_gemm_by_hand_last_wave_is_lost() -> None:
    # One row more: 11 x 10 = 110 tiles = 2 waves of 100 SMs where tail = 1: twice the compute time.
    full = float(gemm_seconds(device(**PLAIN), 2560, 1280, 8192).mid)
    more = float(gemm_seconds(device(**PLAIN), 2561, 1280, 8192).mid)
    assert more == pytest.approx(2 * full, rel=1e-3)
    # A stream-K schedule (tail = 0) pays for 1.1 waves only.
    smooth = float(gemm_seconds(device(**{**PLAIN, "gemm__tail": 0.0}), 2561, 1280, 8192).mid)
    assert smooth == pytest.approx(1.1 * full, rel=1e-3)


def test_gemm_by_hand_split_k_fills_the_device() -> None:
    # One tile on 100 SMs with fill = 0.5: (1/100)^0.5 = 0.1 waves instead of 1 (no split) or 0.01 (perfect).
    # Tile: 2 * 256 * 128 * 65536 flop at 100e12 * 0.5 / 100 = 8.59e-3 s; times 0.1 = 8.59e-4 s.
    seconds = float(gemm_seconds(device(**PLAIN), 256, 128, 65536).mid)
    assert seconds == pytest.approx(2 * 256 * 128 * 65536 / 0.5e12 * 0.1, rel=1e-2)


def test_gemm_by_hand_memory_bound_and_floor() -> None:
    # m = 1: weights of 8192 x 8192 bf16 = 134,217,728 B, activations 2 * 8192, result 2 * 8192: 1.34250e-4 s.
    numbers = {**PLAIN, "gemm__fill": 1.0, "gemm__floor": 3e-6}
    seconds = float(gemm_seconds(device(**numbers), 1, 8192, 8192).mid)
    compute = 64 / 100 * 2 * 256 * 128 * 8192 / 0.5e12  # 64 tiles of 100 SMs, padded to 256 rows
    memory = (2 * 8192 * 8193 + 2 * 8192) / 1e12
    assert seconds == pytest.approx(3e-6 + (compute**4 + memory**4) ** 0.25, rel=1e-9)


def test_gemm_throttle_and_quantise_by_hand() -> None:
    # flop = 1e12 exactly halves the throttle: 1 + 0.2 * 1e12 / (1e12 + 1e12) = 1.1.
    m, n, k = 2560, 1280 * 8, 10**12 / (2 * 2560 * 1280 * 8)
    k = round(k / 16) * 16
    base = float(gemm_seconds(device(**PLAIN), m, n, k).mid)
    hot = float(gemm_seconds(device(**{**PLAIN, "gemm__throttle": 0.2}), m, n, k).mid)
    assert hot / base == pytest.approx(1.1, rel=1e-3)
    # fp8 activations: read 2 bytes, write 1, for m x k elements, twice over: 6 m k / 1e12 s more.
    cold = float(gemm_seconds(device(**PLAIN), m, n, k, dtype="fp8").mid)
    cast = float(gemm_seconds(device(**{**PLAIN, "gemm__quantise": 2.0}), m, n, k, dtype="fp8").mid)
    assert cast - cold == pytest.approx(6.0 * m * k / 1e12, rel=1e-6)


def test_cpu_gemm_by_hand() -> None:
    numbers = {
        "gemm__cpu_efficiency": 0.5, "gemm__cpu_half_m": 64.0, "gemm__cpu_half_n": 0.0, "gemm__cpu_half_k": 0.0,
        "gemm__cpu_read": 0.0, "gemm__cpu_write": 2.0, "gemm__cpu_floor": 1e-6,
    }  # fmt: skip
    # m = 64 with m_half = 64 runs at half rate: 2 * 2 * 64 * 256 * 512 / (50e12 * 0.5) = 1.34218e-6 s;
    # the result goes out twice: 2 * 4 * 64 * 256 / 1e12 = 1.31e-7 s.
    seconds = float(gemm_seconds(device("cpu", **numbers), 64, 256, 512, dtype="fp32").mid)
    assert seconds == pytest.approx(1e-6 + 1.342177e-6 + 1.31072e-7, rel=1e-6)


def test_grouped_is_one_batched_kernel() -> None:
    toy = device(**PLAIN, gemm__grouped_factor=1.25)
    one = gemm_seconds(toy, 512, 1024, 4096, batch=8).mid
    assert float(grouped_gemm_seconds(toy, 512, 1024, 4096, 8).mid) == pytest.approx(1.25 * float(one), rel=1e-12)


SIZES = st.integers(1, 20000)


@settings(deadline=None, max_examples=80)
@given(SIZES, SIZES, SIZES, st.sampled_from(["a100-sxm-80gb", "h100-sxm-80gb", "mi300x-192gb", "tpu-v5p"]))
def test_no_gemm_beats_the_datasheet(m: int, n: int, k: int, name: str) -> None:
    device_ = catalog.device(name)
    seconds = float(gemm_seconds(device_, m, n, k).mid)
    assert np.isfinite(seconds)
    # Operands that fit the cache may be read faster than from memory, so the bound is that of compute.
    assert seconds >= 2.0 * m * n * k / device_.peak("bf16")
    assert seconds >= min(ideal_seconds(device_, m, n, k, "bf16"), seconds)


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 4000), st.integers(1, 4000), st.integers(1, 4000))
def test_gemm_grows_with_k_and_batch(m: int, n: int, k: int) -> None:
    device_ = catalog.device("a100-sxm-80gb")
    base = float(gemm_seconds(device_, m, n, k).mid)
    assert float(gemm_seconds(device_, m, n, k + 16).mid) >= base
    assert float(gemm_seconds(device_, m, n, k, batch=2).mid) >= base


def test_broadcasts_and_empty_products() -> None:
    device_ = catalog.device("h100-sxm-80gb")
    estimate = gemm_seconds(device_, np.array([[0], [128]]), [256, 512, 1024], 64, batch=[1, 2, 3])
    assert estimate.mid.shape == (2, 3)
    assert (estimate.mid[0] == 0).all() and (estimate.mid[1] > 0).all()
    one = gemm_seconds(device_, 128, 512, 64, batch=2)
    assert one.mid.shape == () and float(one.mid) == estimate.mid[1, 1]
    assert (estimate.low < estimate.high)[1].all()


def test_chunks_do_not_show() -> None:
    device_ = catalog.device("h100-sxm-80gb")
    m = np.arange(1, 20001)
    whole = gemm_seconds(device_, m, 4096, 4096).mid
    picked = [float(gemm_seconds(device_, int(x), 4096, 4096).mid) for x in m[::2500]]
    assert np.array_equal(whole[::2500], picked)


@pytest.mark.parametrize("bad", [-1, float("nan"), float("inf")])
def test_bad_sizes(bad: float) -> None:
    device_ = catalog.device("h100-sxm-80gb")
    with pytest.raises(InputError, match="m is"):
        gemm_seconds(device_, bad, 1, 1)


def test_missing_dtype() -> None:
    with pytest.raises(InputError, match="no fp8 peak"):
        gemm_seconds(catalog.device("a100-sxm-80gb"), 1, 1, 1, dtype="fp8")


def test_transferred_device_is_less_sure() -> None:
    mine = gemm_seconds(catalog.device("h100-sxm-80gb"), 4096, 4096, 4096)
    theirs = gemm_seconds(catalog.device("h200-sxm-141gb"), 4096, 4096, 4096)
    assert float(theirs.spread) > float(mine.spread)
    # Same compute die: the datasheets differ in memory only, so the times are close.
    assert float(theirs.mid) == pytest.approx(float(mine.mid), rel=0.05)


def test_implementation_is_an_input() -> None:
    device_ = catalog.device("a100-sxm-80gb")
    plain = float(gemm_seconds(device_, 4096, 4096, 4096).mid)
    factor = device_.coefficients["gemm.bf16.impl.vllm"].value
    assert float(gemm_seconds(device_, 4096, 4096, 4096, impl="vllm").mid) == pytest.approx(plain * factor, rel=1e-12)
    assert float(gemm_seconds(device_, 4096, 4096, 4096, impl="unheard-of").mid) == plain


def test_two_million_shapes_a_second() -> None:
    rng = np.random.default_rng(0)
    m, n, k = (rng.integers(1, 16384, 300_000) for _ in range(3))
    device_ = catalog.device("h100-sxm-80gb")
    best = 1e9
    for _ in range(3):
        start = time.process_time()
        gemm_seconds(device_, m, n, k)
        best = min(best, time.process_time() - start)
    # 0.12 s a million on an idle core; the limit allows for a busy one.
    assert best < 0.3, f"{0.3 / best:.1f} million shapes a second"


def test_device_is_checked_when_built() -> None:
    good = device()
    with pytest.raises(InputError) as error:
        replace(good, kind="fpga", memory_bytes=0.0, peak_flops={"bf17": 1.0})
    assert len(error.value.faults) == 3
