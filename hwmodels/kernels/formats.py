"""Number formats of a matrix product: what its operands weigh, which peak it runs at, and whose law it takes.

A format is more than a dtype of the datasheet: fp8 with one scale for each tensor and fp8 with one for each block run
at the same peak by different kernels; weight-only formats store narrow weights and compute in 16 bits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

from hwmodels.device import DTYPE_BYTES
from hwmodels.errors import Fault, InputError
from hwmodels.records import dataclass


@dataclass(frozen=True, slots=True)
class Format:
    """One way to store and multiply two matrices.

    Attributes
    ----------
    name : str
    peak : str
        Key of `hwmodels.device.Device.peak_flops` at which the tensor cores run.
    activation_bytes, weight_bytes, result_bytes : float
        Bytes of an element of A (m x k), of B (k x n) and of C (m x n), scales included.
    like : tuple of str
        Formats whose coefficients stand in, nearest first, where this one was not measured on a generation.
    quantised : bool
        16-bit activations are turned into the format before the product (`quantise_seconds`).
    """

    name: str
    peak: str
    activation_bytes: float
    weight_bytes: float
    result_bytes: float = 2.0
    like: tuple[str, ...] = ()
    quantised: bool = False

    def __post_init__(self) -> None:
        for field in ("activation_bytes", "weight_bytes", "result_bytes"):
            if not 0 < getattr(self, field) <= 16:
                where = f"format {self.name}"
                raise InputError(Fault(f"{field} is {getattr(self, field)}", where, fix="bytes of one element"))

    @property
    def element_bytes(self) -> float:
        """Bytes of an element of A alone: scales lie in arrays of their own, so rows start at multiples of this.

        Elements weigh a power of two, and their scales less than they do.
        """
        return float(2.0 ** math.floor(math.log2(self.activation_bytes)))


def _bytes(dtype: str, scale_bits: float = 0.0, block: float = 1.0) -> float:
    return DTYPE_BYTES[dtype] + scale_bits / 8.0 / block


_ALL = (
    Format("fp32", "fp32", 4.0, 4.0, 4.0, ("tf32", "bf16")),
    Format("tf32", "tf32", 4.0, 4.0, 4.0, ("bf16",)),
    # bf16 and fp16 run at one speed on every tensor core; one block of coefficients serves both.
    Format("bf16", "bf16", 2.0, 2.0, 2.0, ("fp16",)),
    Format("fp16", "fp16", 2.0, 2.0, 2.0, ("bf16",)),
    Format("fp8", "fp8", 1.0, 1.0, 2.0, ("fp8_block", "int8", "bf16"), quantised=True),
    # DeepSeek-V3 report, section 3.3: fp32 scales for 1 x 128 of the activations, 128 x 128 of the weights
    Format("fp8_block", "fp8", _bytes("fp8", 32, 128), _bytes("fp8", 32, 128 * 128), 2.0, ("fp8", "bf16"), True),
    # OCP Microscaling Formats 1.0: one 8-bit scale for 32 elements
    Format("mxfp8", "fp8", _bytes("fp8", 8, 32), _bytes("fp8", 8, 32), 2.0, ("fp8_block", "fp8", "bf16"), True),
    # NVFP4: one fp8 scale for 16 elements
    Format("fp4", "fp4", DTYPE_BYTES["fp4"], DTYPE_BYTES["fp4"], 2.0, ("fp8", "fp8_block", "bf16"), True),
    Format("mxfp4", "fp4", 0.5 + 1 / 32, 0.5 + 1 / 32, 2.0, ("fp4", "fp8", "fp8_block", "bf16"), True),
    Format("int8", "int8", 1.0, 1.0, 2.0, ("fp8", "bf16"), quantised=True),
    # quantised row by row by kernels of the framework, not fused: many passes over the activations
    Format("int8_dynamic", "int8", 1.0, 1.0, 2.0, ("int8", "fp8", "bf16"), quantised=True),
    Format("int8_wo", "bf16", 2.0, 1.0, 2.0, ("int4_wo", "bf16")),
    # one 16-bit scale and zero point for 128 weights (AWQ, GPTQ)
    Format("int4_wo", "bf16", 2.0, 0.5 + 2 * 2 / 128, 2.0, ("int8_wo", "bf16")),
)

FORMATS: Mapping[str, Format] = MappingProxyType({item.name: item for item in _ALL})
"""Every format that `hwmodels.kernels.gemm_seconds` takes as `dtype`."""

SAME = (("nvfp4", "fp4"), ("fp8_tensor", "fp8"), ("sq", "int8"), ("w8a16", "int8_wo"), ("w4a16", "int4_wo"))
"""Other spellings."""

_SPELT = {**{name: FORMATS[name] for name in FORMATS}, **{other: FORMATS[name] for other, name in SAME}}


def format_of(dtype: str) -> Format:
    """The `Format` of that name or other spelling.

    Raises
    ------
    InputError
        For an unknown one.
    """
    try:
        return _SPELT[dtype]
    except KeyError:
        raise InputError(Fault(f"dtype {dtype!r} is unknown", "GEMM", fix="one of " + ", ".join(_SPELT))) from None
