"""Every entry of the catalog: source, dense peak, per-direction bandwidth, units; and that a fault is found."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

from hwmodels import catalog, yamlfile
from hwmodels import cluster as clusters
from hwmodels.errors import InputError
from hwmodels.schema import DeviceFile, LinkFile

DENSE_BF16 = {
    # NVIDIA and AMD data sheets, dense; where the sheet prints sparse figures, half of them.
    "v100-sxm-32gb": None, "a100-sxm-80gb": 312e12, "a100-sxm-40gb": 312e12, "h100-sxm-80gb": 989.4e12,
    "h200-sxm-141gb": 989.4e12, "b200-sxm-180gb": 2250e12, "gb200-186gb": 2500e12, "mi300x-192gb": 1307.4e12,
    "l40s-48gb": 362e12, "rtx-4090-24gb": 165.2e12,
}  # fmt: skip
PER_DIRECTION = {
    # Half of the headline figures of 600, 900, 1800 GB/s (NVLink 3-5), 896 (MI300X), 64 (PCIe 4).
    "nvlink3": 300e9, "nvlink4": 450e9, "nvlink5": 900e9, "xgmi-mi300x": 448e9, "pcie4": 31e9,
    "infiniband-hdr": 25e9, "infiniband-ndr": 50e9, "efa-v1": 12.5e9,
}  # fmt: skip


@pytest.mark.parametrize("name", catalog.device_names())
def test_device(name: str) -> None:
    device = catalog.device(name)
    assert device.name == name
    assert len(device.sources["datasheet"]) > 10
    assert device.confidence in "ABC"
    assert device.launch_s > 0 and "launch" in device.sources
    assert all(len(c.source) > 10 for c in device.coefficients.values())
    # A sparse peak would be twice the dense one: fp16 and bf16 agree (but on Gaudi 3, whose matrix engine
    # runs fp16 at the rate of tf32), 8-bit is at most about twice.
    peaks = device.peak_flops
    if {"bf16", "fp16"} <= set(peaks) and name != "gaudi3":
        assert 0.95 <= peaks["fp16"] / peaks["bf16"] <= 1.05
    if {"bf16", "fp8"} <= set(peaks):
        assert peaks["fp8"] / peaks["bf16"] <= 4.05  # NVIDIA, AMD twice; Trainium3 3.75
    if {"bf16", "tf32"} <= set(peaks):
        assert peaks["tf32"] / peaks["bf16"] <= 1.05
    if device.kind == "gpu":
        assert device.coefficients, "no coefficients and no device to take them from"


@pytest.mark.parametrize(("name", "peak"), DENSE_BF16.items())
def test_dense_peaks(name: str, peak: float | None) -> None:
    assert catalog.device(name).peak_flops.get("bf16") == peak


@pytest.mark.parametrize(("name", "bandwidth"), PER_DIRECTION.items())
def test_bandwidth_is_per_direction(name: str, bandwidth: float) -> None:
    assert catalog.link(name).bandwidth == bandwidth


@pytest.mark.parametrize("name", catalog.network_names())
def test_link(name: str) -> None:
    link = catalog.link(name)
    assert link.name == name
    assert len(link.source) > 10
    assert all(len(c.source) > 10 for c in link.coefficients.values())
    assert all(0 < c.value <= 1 for n, c in link.coefficients.items() if n.endswith(".efficiency"))


@pytest.mark.parametrize("name", catalog.cluster_names())
def test_cluster(name: str) -> None:
    cluster = clusters.load(name)
    assert cluster.context_bytes > 0
    for number in (cluster.usd_per_gpu_hour, cluster.mtbf_gpu_hours, cluster.overlap):
        assert number is None or len(number.source) > 10
    if cluster.usd_per_gpu_hour is not None:
        # A price without its date is a constant in disguise.
        assert re.search(r"20\d\d", cluster.usd_per_gpu_hour.source), cluster.usd_per_gpu_hour.source


def test_presets_of_the_issue_are_there() -> None:
    wanted = {
        "dgx-a100", "dgx-h100", "hgx-h200", "hgx-b200", "gb200-nvl72", "mi300x", "aws-p4d", "aws-p5", "cpu-local",
        "dgx-a100-40gb", "hgx-h800",
    }  # fmt: skip
    assert wanted <= set(catalog.cluster_names())


@pytest.mark.parametrize(
    ("folder", "schema", "name", "pattern", "new", "words"),
    [
        ("devices", DeviceFile, "h100-sxm-80gb", r"memory_bandwidth: .*", "memory_bandwidth: 3350", "no unit"),
        ("devices", DeviceFile, "h100-sxm-80gb", r"memory: .*", "memory: 80GBit", "unknown unit"),
        ("devices", DeviceFile, "h100-sxm-80gb", r"confidence: .*", "confidence: D", "confidence"),
        ("devices", DeviceFile, "h100-sxm-80gb", r"memory: .*", "memory: 0GiB", "zero"),
        ("networks", LinkFile, "nvlink4", r"(?m)^source: .*", "", "'source' is missing"),
        ("networks", LinkFile, "nvlink4", r"bandwidth: .*", "bandwidth: 0GB/s", "zero"),
    ],
)
def test_a_broken_entry_names_file_and_key(
    folder: str, schema: type, name: str, pattern: str, new: str, words: str
) -> None:
    text = re.sub(pattern, new, catalog.text(folder, name), count=1)
    with pytest.raises(InputError) as error:
        data, marks = yamlfile.parse(text, f"{name}.yaml")
        yamlfile.validate(schema, data, f"{name}.yaml", marks)
    assert f"{name}.yaml:" in str(error.value) and words in str(error.value)


def test_unknown_names_suggest_close_ones() -> None:
    with pytest.raises(InputError, match="h100-sxm-80gb"):
        catalog.device("h100")
    with pytest.raises(InputError, match="nvlink4"):
        catalog.link("nvlink9")


def test_every_datasheet_row_with_a_peak_is_in_the_catalog(shared_data: Path) -> None:
    with (shared_data / "hw_devices.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    peaks = {
        float(row[c]) * 1e12
        for row in rows
        for c in ("bf16_dense", "fp16_dense")
        if row[c] and "RTX" not in row["device"]
    }
    known = {
        p for n in catalog.device_names() for d, p in catalog.device(n).peak_flops.items() if d in ("bf16", "fp16")
    }
    assert peaks <= known
    with_peak = sum(1 for row in rows if row["bf16_dense"] or row["fp16_dense"])
    # Two more, of which there are measured rows and no datasheet row: the A40, and torchtitan's H100 of 500 W.
    assert sum(catalog.device(n).kind == "gpu" for n in catalog.device_names()) == with_peak + 2
    by_bandwidth = {catalog.device(n).memory_bandwidth for n in catalog.device_names()}
    assert {float(row["mem_bw_GBps"]) * 1e9 for row in rows if row["bf16_dense"] or row["fp16_dense"]} <= by_bandwidth
