"""`Device`: what a datasheet says of an accelerator (or CPU core), and what was fitted for it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field
from types import MappingProxyType

from hwmodels.errors import Fault, InputError
from hwmodels.records import dataclass

DTYPES = ("fp32", "tf32", "bf16", "fp16", "fp8", "fp4", "int8")
"""Spellings of number formats; peaks are dense and with fp32 accumulation."""

DTYPE_BYTES: Mapping[str, float] = MappingProxyType(
    {"fp32": 4.0, "tf32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "fp4": 0.5625, "int8": 1.0}
)
"""Bytes of one element in memory; fp4 carries one fp8 scale for every 16 elements."""

TRANSFER_SPREAD = 0.10
"""Added to the residual of coefficients that a device or link takes over from another.

Laboratories that measured the same A100 shapes differ by 14% (data/README); a transferred
law cannot be surer than that, and its own residual comes on top."""


@dataclass(frozen=True, slots=True)
class Coefficient:
    """A number with its origin.

    Attributes
    ----------
    value : float
        SI units, or dimensionless.
    source : str
        Datasheet, files fitted on, or the reason of a default.
    rows : int
        Measured rows behind it; 0 for a datasheet figure or default.
    residual : float
        Root mean square relative error of the fit (0.1 = 10%); for unfitted numbers the
        relative half-width that is assumed.
    """

    value: float
    source: str
    rows: int = 0
    residual: float = 0.0


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator, or one core of a CPU. Checked when built.

    Attributes
    ----------
    name, vendor, generation : str
    kind : {'gpu', 'cpu'}
        ``cpu`` selects the CPU laws (no tiles, no asynchronous launches).
    peak_flops : Mapping[str, float]
        Dense FLOP/s per dtype (`DTYPES`).
    memory_bytes : float
        Bytes that the device has; what a process may use is less.
    memory_bandwidth : float
        Bytes/s.
    l2_bytes : float
        Last-level on-chip cache; 0 = unknown.
    n_sm : int
        Units over which tiles are spread (SM, CU, core); 0 = unknown, no wave quantisation.
    tdp_w : float
        Watts; 0 = unknown.
    launch_s : float
        Host time to launch one eager kernel, seconds.
    coefficients : Mapping[str, Coefficient]
        Fitted numbers of the kernel laws, by name (``"gemm.bf16.efficiency"``).
    sources : Mapping[str, str]
        Where each datasheet field comes from; ``"datasheet"`` covers all not named.
    host_link : str
        How it hangs on its host (`hwmodels.host.LINKS`); empty: unknown.
    confidence : {'A', 'B', 'C'}
        A: two sources agree; B: one; C: weak.
    """

    name: str
    vendor: str
    kind: str
    generation: str
    peak_flops: Mapping[str, float]
    memory_bytes: float
    memory_bandwidth: float
    l2_bytes: float
    n_sm: int
    tdp_w: float
    launch_s: float
    coefficients: Mapping[str, Coefficient] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    confidence: str = "B"
    host_link: str = ""

    def __post_init__(self) -> None:
        faults = []
        if self.kind not in ("gpu", "cpu"):
            faults.append(Fault(f"kind is {self.kind!r}", where=f"device {self.name}", fix="gpu or cpu"))
        if not self.peak_flops:
            faults.append(Fault("no peak FLOP/s is given", where=f"device {self.name}", fix="peak_flops: {bf16: ...}"))
        for dtype, peak in self.peak_flops.items():
            if dtype not in DTYPES:
                faults.append(Fault(f"dtype {dtype!r} is unknown", where=f"device {self.name}", fix=", ".join(DTYPES)))
            if not (math.isfinite(peak) and peak > 0):
                faults.append(Fault(f"peak of {dtype} is {peak}", where=f"device {self.name}", fix="a value > 0"))
        for name in ("memory_bytes", "memory_bandwidth"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                faults.append(Fault(f"{name} is {value}", where=f"device {self.name}", fix="a value > 0"))
        for name in ("l2_bytes", "n_sm", "tdp_w", "launch_s"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                faults.append(Fault(f"{name} is {value}", where=f"device {self.name}", fix="a value >= 0"))
        if faults:
            raise InputError(faults)
        for name in ("peak_flops", "coefficients", "sources"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))

    def __reduce__(self) -> tuple[object, ...]:
        # MappingProxyType cannot be pickled; worker processes get plain dicts and rebuild.
        values = [getattr(self, name) for name in self.__slots__]
        return (type(self), tuple(dict(v) if isinstance(v, MappingProxyType) else v for v in values))

    def peak(self, dtype: str) -> float:
        """Dense FLOP/s of `dtype`.

        Raises
        ------
        InputError
            When the device does not compute in that format.
        """
        try:
            return self.peak_flops[dtype]
        except KeyError:
            known = ", ".join(self.peak_flops)
            raise InputError(
                Fault(f"{self.name} has no {dtype} peak", why="the datasheet lists none", fix=f"one of {known}")
            ) from None

    def find(self, *names: str, default: Coefficient) -> Coefficient:
        """The first of `names` that was fitted, else `default`."""
        for name in names:
            if name in self.coefficients:
                return self.coefficients[name]
        return default
