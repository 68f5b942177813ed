"""GPU names and formats as files spell them."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from hwmodels import catalog
from hwmodels.spelling import device_of, format_of


@pytest.mark.parametrize(
    ("cell", "device"),
    [
        ("a100_sxm", "a100-sxm-80gb"), ("a100_vidur", "a100-sxm-80gb"), ("a40_vidur", "a40-48gb"),
        ("A100-SXM4-40GB", "a100-sxm-40gb"), ("a100_pcie", "a100-pcie-80gb"), ("h100", "h100-sxm-80gb"),
        ("NVIDIA H100 PCIe", "h100-pcie-80gb"), ("h200_sxm", "h200-sxm-141gb"), ("gb300", "gb300-288gb"),
        ("b60", "arc-pro-b60"), ("rtx_pro_6000", "rtx-pro-6000-96gb"), ("l40s", "l40s-48gb"), ("l4", "l4-24gb"),
        ("mi300x", "mi300x-192gb"), ("mi355x", "mi355x-288gb"), ("gaudi3", "gaudi3"), ("h800", "h800-sxm-80gb"),
    ],
)  # fmt: skip
def test_names_of_parts(cell: str, device: str) -> None:
    assert device_of(cell) == device


@pytest.mark.parametrize("cell", ["", "nvidia", "h1000", "b2000_sxm", "p5.48xlarge"])
def test_what_the_catalog_lacks_has_no_device(cell: str) -> None:
    assert device_of(cell) == ""


def test_every_device_is_found_by_its_own_name() -> None:
    assert [device_of(name) for name in catalog.device_names()] == list(catalog.device_names())


def test_formats() -> None:
    assert [format_of(c) for c in ("bfloat16", "FP8", "nvfp4", "sq", "mxfp8", "int4_wo", "W8A8-INT8")] == [
        "bf16", "fp8", "fp4", "int8", "mxfp8", "int4_wo", "int8",
    ]  # fmt: skip
    assert format_of("ternary") == ""


@pytest.mark.parametrize("name", ["gemm_measured.csv", "attention_measured.csv"])
def test_every_word_of_the_measured_files_is_understood(name: str, shared_data: Path) -> None:
    with (shared_data / name).open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    assert all(device_of(gpu) for gpu in {row["gpu"] for row in rows})
    assert all(format_of(dtype) for dtype in {row["dtype"] for row in rows})
