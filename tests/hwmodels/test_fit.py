"""Fits find the numbers that made the rows; curves stay increasing; the catalog's errors on published rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hwmodels import catalog, fit, measured, validation
from hwmodels.device import Coefficient, Device
from hwmodels.errors import InputError
from hwmodels.fit import solve
from hwmodels.kernels import attention_seconds, gemm_seconds, memory_seconds


@dataclass(frozen=True)
class Row:
    """One measured row; unused fields keep their defaults."""

    seconds: float
    m: int = 0
    n: int = 0
    k: int = 0
    nbytes: float = 0
    kernels: int = 1
    batch: int = 1
    seq_len: int = 0
    n_heads: int = 8
    n_kv_heads: int = 8
    head_dim: int = 64
    dtype: str = "fp32"
    direction: str = "forward"
    op: str = ""
    group_size: int = 2
    compute_s: float = 0
    collective_s: float = 0
    both_s: float = 0
    name: str = ""


SHAPES = [(m, n, k) for m in (64, 256, 1024, 4096) for n in (64, 512, 4096) for k in (64, 512, 2048)]


def truth(device: Device, numbers: dict[str, float]) -> Device:
    coefficients = {name: Coefficient(v, "truth", 1) for name, v in numbers.items()}
    return replace(device, coefficients=coefficients)


def test_cpu_gemm_fit_recovers_times_within_the_noise() -> None:
    # Rows from other coefficients than the defaults, with 5% noise: the fit predicts shapes it never saw.
    device = catalog.device("cpu-core")
    real = truth(
        device,
        {
            "gemm.cpu_efficiency": 1.1, "gemm.cpu_half_m": 30.0, "gemm.cpu_half_n": 10.0, "gemm.cpu_half_k": 40.0,
            "gemm.cpu_read": 0.3, "gemm.cpu_write": 2.0, "gemm.cpu_floor": 9e-6,
        },
    )  # fmt: skip
    noise = np.random.default_rng(7).normal(1.0, 0.05, len(SHAPES))
    rows = [
        Row(float(gemm_seconds(real, m, n, k, dtype="fp32").mid) * e, m, n, k)
        for (m, n, k), e in zip(SHAPES, noise, strict=True)
    ]
    found = fit.fit_device(device, rows, [], [], source="test")
    fitted = replace(device, coefficients=found)
    fresh = np.array([(128, 1408, 512), (512, 128, 128), (2048, 1536, 1024), (96, 96, 96), (768, 3072, 768)])
    m, n, k = fresh.T
    error = gemm_seconds(fitted, m, n, k, dtype="fp32").mid / gemm_seconds(real, m, n, k, dtype="fp32").mid - 1
    assert np.abs(error).max() < 0.08
    assert found["gemm.fp32.cpu_efficiency"].rows == len(SHAPES)
    assert 0.02 < found["gemm.fp32.cpu_efficiency"].residual < 0.09


def test_memory_fit_by_hand() -> None:
    # cpu-core moves 12 GB/s by its entry; rows at 6 GB/s with 10 us a kernel: share 0.5, launch 10 us.
    rows = [Row(k * 1e-5 + b / 6e9, nbytes=b, kernels=k) for b in (1e5, 1e6, 1e7, 1e8) for k in (1, 4)]
    found = fit.fit_device(catalog.device("cpu-core"), [], rows, [], source="test")
    assert found["memory.efficiency"].value == pytest.approx(0.5, rel=0.01)
    assert found["memory.launch"].value == pytest.approx(1e-5, rel=0.03)


def test_memory_fit_by_operator() -> None:
    # Copies at 6 GB/s, an operator that computes much at 2 GB/s: each keeps its own share of 12 GB/s.
    rows = [Row(1e-5 + b / 6e9, name="copy", nbytes=b) for b in (1e5, 1e6, 1e7)]
    rows += [Row(2e-5 + b / 2e9, name="silu", nbytes=b) for b in (1e5, 1e6, 1e7)]
    device = catalog.device("cpu-core")
    found = fit.fit_device(device, [], rows, [], source="test")
    assert found["memory.copy.efficiency"].value == pytest.approx(6 / 12, rel=0.02)
    assert found["memory.silu.efficiency"].value == pytest.approx(2 / 12, rel=0.02)
    fitted = replace(device, coefficients=found)
    assert float(memory_seconds(fitted, 5e6, impl="silu").mid) == pytest.approx(2e-5 + 5e6 / 2e9, rel=0.03)
    # An operator without rows takes what all of them together give: between the two.
    pooled = float(memory_seconds(fitted, 5e6, impl="unheard-of").mid)
    assert 5e6 / 6e9 < pooled < 5e6 / 2e9


def test_attention_fit_recovers_both_directions() -> None:
    device = catalog.device("cpu-core")
    real = truth(
        device,
        {"attention.forward.efficiency": 0.9, "attention.backward.efficiency": 0.6, "attention.launch": 4e-5,
         "attention.head_dim_half": 0.0},
    )  # fmt: skip
    rows = []
    for length in (64, 256, 512, 1024, 2048):
        for direction in ("forward", "backward"):
            seconds = attention_seconds(
                real, batch=1, q_len=length, kv_len=length, n_heads=8, n_kv_heads=8, qk_dim=64, v_dim=64, causal=True,
                direction=direction, dtype="fp32",
            ).mid  # fmt: skip
            rows.append(Row(float(seconds), seq_len=length, direction=direction))
    found = fit.fit_device(device, [], [], rows, source="test")
    assert found["attention.forward.efficiency"].value == pytest.approx(0.9, rel=0.02)
    assert found["attention.backward.efficiency"].value == pytest.approx(0.6, rel=0.02)
    assert found["attention.launch"].value == pytest.approx(4e-5, rel=0.05)


def test_few_rows_change_nothing() -> None:
    assert fit.fit_device(catalog.device("cpu-core"), [Row(1e-3, 64, 64, 64)] * 3, [], []) == {}


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_impossible_times_are_refused(seconds: float) -> None:
    rows = [Row(1e-3, 64, 64, 64)] * 8 + [Row(seconds, 64, 64, 64)]
    with pytest.raises(InputError, match="row 8"):
        fit.fit_device(catalog.device("cpu-core"), rows, [], [])
    with pytest.raises(InputError, match="row 0"):
        fit.fit_collectives([Row(seconds, op="all_reduce", nbytes=8)])


def test_collective_curves_by_hand() -> None:
    rows = [
        Row(1e-4, op="all_reduce", nbytes=1e3),
        Row(3e-4, op="all_reduce", nbytes=1e3),
        Row(2e-4, op="all_reduce", nbytes=1e3),  # median 2e-4
        Row(1e-3, op="all_reduce", nbytes=1e6),
        Row(5e-3, op="all_gather", nbytes=1e6, group_size=4),
    ]
    tables, residual = fit.fit_collectives(rows)
    assert np.allclose(tables["all_reduce"][2], ((1e3, 2e-4), (1e6, 1e-3)), rtol=1e-12)
    assert np.allclose(tables["all_gather"][4], ((1e6, 5e-3),), rtol=1e-12)
    assert residual > 0
    with pytest.raises(InputError, match="1 rank"):
        fit.fit_collectives([Row(1e-3, op="all_reduce", nbytes=8, group_size=1)])


def test_isotonic_by_hand() -> None:
    # 3, 1 pool to 2 with equal weights, to 2.5 when the 3 counts three times.
    assert fit.isotonic(np.array([3.0, 1.0, 4.0]), np.ones(3)).tolist() == [2.0, 2.0, 4.0]
    assert fit.isotonic(np.array([3.0, 1.0, 4.0]), np.array([3.0, 1.0, 1.0])).tolist() == [2.5, 2.5, 4.0]


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(-5, 5), min_size=1, max_size=12))
def test_isotonic_increases_and_keeps_the_mean(values: list[float]) -> None:
    result = fit.isotonic(np.asarray(values), np.ones(len(values)))
    assert (np.diff(result) >= -1e-12).all()
    assert result.mean() == pytest.approx(np.mean(values), abs=1e-9)


def test_overlap_by_hand() -> None:
    # 10 ms of compute and 4 ms of a collective: together 11 ms -> 1 - (11 - 10)/4 = 0.75.
    row = Row(1.0, compute_s=10e-3, collective_s=4e-3, both_s=11e-3)
    serial = Row(1.0, compute_s=10e-3, collective_s=4e-3, both_s=15e-3)
    found = fit.fit_overlap([row])
    assert found is not None and found.value == pytest.approx(0.75)
    assert fit.fit_overlap([serial]).value == 0.0  # type: ignore[union-attr]
    assert fit.fit_overlap([]) is None


def test_solve_ignores_a_wild_row() -> None:
    x = np.linspace(1.0, 10.0, 40)
    actual = 3.0 * x
    actual[5] *= 20
    values, errors = solve.solve(lambda v: v[0] * x, (solve.Free("slope", 1.0, 0.1, 100.0),), actual)
    assert values[0] == pytest.approx(3.0, rel=0.01)
    assert abs(errors[5]) > 2.5


# --- measured files


GEMM_HEAD = "gpu,dtype,m,n,k,time_us,tflops,notes,source\n"


def test_every_fault_of_a_measured_file(tmp_path: Path) -> None:
    path = tmp_path / "g.csv"
    path.write_text(
        GEMM_HEAD
        + "a100_sxm,bfloat16,1,2,3,4.0,,,s\n"
        + "a100_sxm,bfloat16,1,2,3,-4.0,,,s\n"
        + "a100_sxm,bfloat16,1,2,,4.0,,,s\n"
        + "a100_sxm,bfloat16,x,2,3,nan,,,s\n"
    )
    with pytest.raises(InputError) as error:
        measured.gemm(path)
    text = str(error.value)
    for where in (":3: column time_us", ":4: column k", ":5: column m", ":5: column time_us"):
        assert where in text
    path.write_text("gpu,m,n\n")
    with pytest.raises(InputError, match="columns k, time_us, dtype are missing"):
        measured.gemm(path)
    with pytest.raises(InputError, match="no such file"):
        measured.gemm(tmp_path / "none.csv")


# --- published rows


@pytest.fixture(scope="module")
def groups() -> dict[str, dict[str, float]]:
    from tests.conftest import NO_DATA, data_path

    data = data_path()
    if data is None:
        pytest.skip(NO_DATA)
    result = validation.summary(validation.score(data / name) for name in validation.FILES)
    return {group["group"]: group for group in result["groups"]}


@pytest.mark.parametrize(
    ("group", "median", "p90"),
    [
        ("gemm a100-sxm-80gb bf16 sglang large", 4, 10),
        ("gemm a100-sxm-80gb bf16 trtllm large", 7, 14),
        ("gemm a100-sxm-80gb fp16 vidur large", 7, 16),
        ("gemm h100-sxm-80gb bf16 trtllm large", 6, 18),
        ("gemm h100-sxm-80gb fp16 vidur large", 7, 20),
        ("gemm b200-sxm-180gb bf16 trtllm large", 7, 18),
        ("collective 8xA100-SXM4-80GB NVSwitch all_gather nccl 1 node", 4, 8),
        ("collective 8xA100-SXM4-80GB NVSwitch reduce_scatter nccl 1 node", 4, 8),
        ("collective 8xA100-SXM4-80GB NVSwitch all_reduce nccl 1 node", 4, 10),
        ("collective 8xH100-SXM5 NVSwitch all_reduce nccl 1 node", 4, 10),
        ("collective 8xB200-SXM NVSwitch all_reduce nccl 1 node", 4, 9),
        ("collective p4de.24xlarge (8xA100-80, 4x100G EFA all_reduce nccl 2 nodes >=64MiB", 8, 15),
    ],
)
def test_errors_on_published_rows(groups: dict[str, dict[str, float]], group: str, median: float, p90: float) -> None:
    assert groups[group]["median_abs_pct"] <= median
    assert groups[group]["p90_abs_pct"] <= p90


def test_anchored_device_passes_through_its_row(groups: dict[str, dict[str, float]]) -> None:
    assert groups["gemm mi300x-192gb bf16 mamf large"]["max_abs_pct"] < 1
