"""Fits of the GEMM law: known coefficients come back, rows are read as what they timed, generations are left out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hwmodels import catalog, laws, measured
from hwmodels.fit import gemm as fitting
from hwmodels.fit import gemm_held_out
from hwmodels.fit.solve import bare, with_coefficients
from hwmodels.kernels import gemm_seconds
from hwmodels.laws import Block, Section
from hwmodels.measured import Rows
from hwmodels.validation import gemm as validation

HEAD = "gpu,dtype,m,n,k,time_us,tflops,notes,source\n"
AIC = "aiconfigurator-core 0.12.0 systems/data"
EAGER = f"CutlassFp8BlockScaledMMKernel; set=common,{AIC}/h100_sxm/gemm/vllm/0.24.0"
GROUPED = '"DeepGEMM grouped, 4 groups x M 256; m column = groups*M",deepseek-ai/DeepGEMM'


def written(path: Path, *lines: str) -> Path:
    """A file of the format of ``gemm_measured.csv``."""
    path.write_text(HEAD + "".join(line + "\n" for line in lines))
    return path


def test_rows_are_read_as_what_they_timed(tmp_path: Path) -> None:
    rows = measured.gemm(
        written(
            tmp_path / "gemm.csv",
            f"h100_sxm,int8_wo,64,4096,4096,40,,sglang; set=common,{AIC}/h100_sxm/gemm/sglang/0.5.6.post2",
            f"a100_sxm,int8_wo,64,4096,4096,40,,trt_flow,{AIC}/a100_sxm/gemm/trtllm/1.0.0",
            f"h100_sxm,fp8_block,64,4096,4096,60,,{EAGER}",
            f"h800,fp8_block_grouped,1024,4096,7168,64.5,,{GROUPED}",
            "a40_vidur,float16,64,4096,4096,40,,Qwen/Qwen-72B mlp_up_proj tp8,microsoft/vidur data",
        )
    )
    assert rows.words["law_dtype"].tolist() == ["int8_dynamic", "int8_wo", "fp8_block", "fp8_block", "fp16"]
    assert rows.words["impl"].tolist() == ["sglang", "trtllm", "vllm-eager", "deepgemm", "vidur"]
    assert rows.words["op"].tolist() == ["dense", "dense", "dense", "grouped", "dense"]
    # 1024 rows of 4 groups are 256 of each.
    assert rows.numbers["groups"].tolist() == [1, 1, 1, 4, 1] and rows.numbers["m"][3] == 256
    assert rows.words["device"].tolist()[-1] == "a40-48gb"
    assert fitting.usable(rows).tolist() == [True, True, False, False, True]


def test_eager_rows_are_left_out_with_the_reason(tmp_path: Path) -> None:
    line = f"h100_sxm,fp8_block,64,4096,4096,60,,{EAGER}"
    scored = validation.score(written(tmp_path / "gemm.csv", line))
    assert scored.group[0] == "" and "eager" in scored.reason[0]


def synthetic(noise: float) -> tuple[Rows, dict[str, float]]:
    """Rows of a made-up H100 kernel library, 16-bit, of two frameworks that differ by 10% in efficiency."""
    truth = {
        "gemm.memory_efficiency": 0.9, "gemm.bf16.throttle": 0.2, "gemm.bf16.k_ramp": 200.0, "gemm.bf16.tail": 0.7,
        "gemm.bf16.impl.trtllm.efficiency": 0.9, "gemm.bf16.impl.sglang.efficiency": 0.81,
    }  # fmt: skip
    draw = np.random.default_rng(1)
    count = 160
    m, n, k = (np.round(2.0 ** draw.uniform(low, 15, count) / 64) * 64 for low in (6, 8, 8))
    impl = np.asarray(["trtllm", "sglang"] * (count // 2))
    device = with_coefficients(bare("h100-sxm-80gb"), truth)
    seconds = np.where(
        impl == "trtllm",
        gemm_seconds(device, m, n, k, impl="trtllm").mid,
        gemm_seconds(device, m, n, k, impl="sglang").mid,
    )
    words = {
        "device": np.full(count, "h100-sxm-80gb"), "law_dtype": np.full(count, "bf16"), "impl": impl,
        "dtype": np.full(count, "bfloat16"), "op": np.full(count, "dense"),
    }  # fmt: skip
    times = seconds * 1e6 * np.exp(draw.normal(0.0, noise, count))
    numbers = {"m": m, "n": n, "k": k, "time_us": times, "groups": np.ones(count)}
    return Rows(numbers, words, np.arange(count)), truth


def test_a_fit_finds_what_made_the_rows() -> None:
    rows, truth = synthetic(0.01)
    section = fitting.fit_generation(rows, "hopper", ("bf16",), starts=1)
    assert section is not None and section.measured == ("h100-sxm-80gb",)
    found = fitting.numbers_of(section)
    for name, tolerance in (
        ("gemm.bf16.impl.trtllm.efficiency", 0.03), ("gemm.bf16.impl.sglang.efficiency", 0.03),
        ("gemm.memory_efficiency", 0.05),
    ):  # fmt: skip
        assert found[name] == pytest.approx(truth[name], rel=tolerance)
    # What impl="" stands for is the mean of the two; the residual is the noise of the rows.
    assert found["gemm.bf16.efficiency"] == pytest.approx((0.9 + 0.81) / 2, rel=0.03)
    assert found["gemm.bf16.spread.large"] < 0.03
    # The part's own peak for each watt: 989.4e12 / 700.
    assert found["gemm.bf16.power_density"] == pytest.approx(1.4134e12, rel=1e-3)


def test_too_few_rows_are_no_fit() -> None:
    rows, _ = synthetic(0.01)
    assert fitting.fit_generation(rows.take(np.arange(len(rows)) < 12), "hopper", ("bf16",), starts=1) is None


def test_a_transferred_law_is_the_mean_of_the_others() -> None:
    def section(efficiency: float, floor: float) -> Section:
        values = {
            "efficiency": efficiency,
            "floor": 3e-6,
            "impl.vidur.efficiency": efficiency * 0.9,
            "impl.vidur.floor": floor,
        }
        return Section(("x",), (Block("bf16.", "s", 30, 0.1, values), Block("", "s", 30, 0.1, {"memory_ramp": floor})))

    found = gemm_held_out.transferred({"a": section(0.9, 2e-6), "b": section(0.7, 4e-6)})
    assert found["gemm.bf16.efficiency"].value == pytest.approx(0.8)
    assert found["gemm.memory_ramp"].value == pytest.approx(3e-6)
    # Ratios to the reference: 0.9 of it in both; floors (2 + 4) / 2 / 3 = 1 of it.
    assert found["gemm.bf16.impl.vidur.efficiency"].value == pytest.approx(0.72)
    assert found["gemm.bf16.impl.vidur.floor"].value == pytest.approx(3e-6)


def test_an_anchor_makes_the_law_pass_through_its_row() -> None:
    rows, _ = synthetic(0.01)
    section = fitting.fit_generation(rows, "hopper", ("bf16",), starts=1)
    assert section is not None
    one = rows.take(np.arange(len(rows)) == 0)
    one.words["device"], one.words["impl"] = np.asarray(["mi300x-192gb"]), np.asarray(["mamf"])
    for name, value in (("m", 8192.0), ("n", 8192.0), ("k", 8192.0), ("time_us", 1700.0)):
        one.numbers[name] = np.asarray([value])
    found = fitting.anchors(one, {"hopper": section})["mi300x-192gb"]
    numbers = {**fitting.numbers_of(section), **fitting.numbers_of(found)}
    device = with_coefficients(bare("mi300x-192gb"), numbers)
    assert float(gemm_seconds(device, 8192, 8192, 8192, impl="mamf").mid) == pytest.approx(1700e-6, rel=1e-3)


def test_published_rows_of_one_shape() -> None:
    # gemm_measured.csv: 8192 x 8192 x 8192 in bf16, TRT-LLM: 1404.8 us on H100 SXM, 4938.6 us on L40S.
    for name, time_us in (("h100-sxm-80gb", 1404.8), ("l40s-48gb", 4938.6)):
        price = gemm_seconds(catalog.device(name), 8192, 8192, 8192, impl="trtllm")
        assert float(price.mid) * 1e6 == pytest.approx(time_us, rel=0.15)


@pytest.mark.slow
def test_left_out_generations_reach_their_limits() -> None:
    from tests.conftest import NO_DATA, data_path

    data = data_path()
    if data is None:
        pytest.skip(NO_DATA)
    found = fitting.held_out(data)
    # Three data-centre generations are judged, without and with one anchor row.
    assert sum(line.limit_pct is not None for line in found) == 6
    for line in found:
        assert line.limit_pct is None or line.median_pct <= line.limit_pct, line


@pytest.mark.slow
def test_the_catalog_is_what_the_fit_gives() -> None:
    from tests.conftest import NO_DATA, data_path

    data = data_path()
    if data is None:
        pytest.skip(NO_DATA)
    fresh = fitting.fit_generation(measured.gemm(data / "gemm_measured.csv"), "arc-pro-b60")
    stored = fitting.numbers_of(laws.sections("gemm")["arc-pro-b60"])
    assert fresh is not None
    mine, theirs = (with_coefficients(bare("arc-pro-b60"), table) for table in (fitting.numbers_of(fresh), stored))
    sizes = np.array([16.0, 512.0, 4096.0])
    again = gemm_seconds(mine, sizes, 4096, 4096, impl="vllm").mid
    assert again == pytest.approx(gemm_seconds(theirs, sizes, 4096, 4096, impl="vllm").mid, rel=0.03)


def test_capped_part_within_a_generation() -> None:
    # The PCIe card of the generation has 2.16e12 peak FLOP/s a watt, the SXM part 1.41e12.
    card, part = catalog.device("h100-pcie-80gb"), catalog.device("h100-sxm-80gb")
    alike = replace(card, tdp_w=card.peak("bf16") / (part.peak("bf16") / part.tdp_w))
    sizes = (16384, 8192, 8192)
    assert float(gemm_seconds(card, *sizes).mid) > 1.08 * float(gemm_seconds(alike, *sizes).mid)
