"""Names of GPUs and number formats as measured files spell them -> the catalog's devices and the laws' formats.

A ``gpu`` cell is cut into words; words that say nothing of the part (vendor, laboratory, cloud) are dropped,
and the device is the one whose own name holds every word that is left, with digits and suffixes alike. Several
that do are told apart by `PREFERRED`: the form that is sold most, which is what a bare name means.
"""

from __future__ import annotations

import re
from functools import cache

from hwmodels import catalog

NOISE = frozenset(("nvidia", "amd", "intel", "google", "aws", "gpu", "vidur", "tensor", "core", "instinct", "geforce",
                   "nvlink", "hgx", "dgx", "server", "edition", "oam", "hbm2e", "hbm3", "hbm3e"))  # fmt: skip
"""Words of a ``gpu`` cell that do not tell parts apart."""

ALIASES = {"sxm4": "sxm", "sxm5": "sxm", "sxm6": "sxm", "sxm2": "sxm", "pcie4": "pcie", "rtx4090": "rtx 4090",
           "rtx5090": "rtx 5090", "rtxpro6000": "rtx pro 6000", "rtx6000": "rtx 6000", "b60": "arc pro b60",
           "gb200nvl72": "gb200", "gb300nvl72": "gb300", "nvl72": "", "sm90": "h100", "sm100": "b200"}  # fmt: skip
"""A word of a ``gpu`` cell -> the catalog's words for it."""

PREFERRED = ("sxm-80gb", "sxm", "80gb")
"""Parts of a device name, the first that decides between devices that all fit."""

FORMATS = {
    "bfloat16": "bf16", "bf16": "bf16", "float16": "fp16", "fp16": "fp16", "half": "fp16", "float32": "fp32",
    "fp32": "fp32", "tf32": "tf32", "fp8": "fp8", "fp8_static": "fp8", "fp8_per_tensor": "fp8", "e4m3": "fp8",
    "fp8_e4m3": "fp8", "float8": "fp8", "fp8_block": "fp8_block", "fp8_block_grouped": "fp8_block",
    "nvfp4": "fp4", "fp4": "fp4", "mxfp8": "mxfp8", "mxfp4": "mxfp4", "int8": "int8", "sq": "int8", "w8a8": "int8",
    "w8a8_int8": "int8", "int8_wo": "int8_wo", "w8a16": "int8_wo", "int4_wo": "int4_wo", "w4a16": "int4_wo",
    "awq": "int4_wo", "gptq": "int4_wo",
}  # fmt: skip
"""``dtype`` of the files -> format of the laws."""


def _words(text: str) -> list[str]:
    cut = [w for w in re.split(r"[^a-z0-9]+", text.lower()) if w and w not in NOISE]
    return [part for w in cut for part in ALIASES.get(w, w).split()]


@cache
def device_of(cell: str) -> str:
    """Device of the catalog that a ``gpu`` cell names; empty where none does.

    ``h200_sxm`` is ``h200-sxm-141gb``, ``A100-SXM4-40GB`` is ``a100-sxm-40gb``, ``a100`` is the SXM part with 80 GB.
    """
    wanted = set(_words(cell))
    if not wanted:
        return ""
    fitting = [name for name in catalog.device_names() if wanted <= set(name.split("-"))]
    for part in PREFERRED:
        fitting = [name for name in fitting if part in name] or fitting
    return fitting[0] if fitting else ""


def format_of(cell: str) -> str:
    """Format of the laws that a ``dtype`` cell names; empty where there is no law for it."""
    return FORMATS.get(cell.strip().lower().replace("-", "_"), "")
