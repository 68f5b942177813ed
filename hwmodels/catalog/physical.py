"""What a device can be at all, and which memory its generation is built with: slips of a prefix, a factor or a unit.

Two nets, so that a number that is off is named with its key whatever the schema lets through:

- **ranges** (`RANGES`): what any part of its kind lies in. They are wide on purpose: a slip of a prefix (``MiB`` for
  ``GiB``, ``kW`` for ``W``, ``s`` for ``us``) is a factor of a thousand and leaves them.
- **memories** (`MEMORIES`): a memory's bandwidth is the width of its bus times the rate of a pin, and parts of one
  generation with one capacity come with one or two of them. A figure that is doubled, halved, or in bits is none of
  them. For a capacity that a generation is not known with, bytes per FLOP (`BYTES_PER_FLOP`) are all there is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from hwmodels import units
from hwmodels.errors import Fault
from hwmodels.records import dataclass

GIB_OVER_GB = 2.0**30 / 1e9
"""1.0737: the mark of GiB taken for GB."""

KIB, MIB, GIB, TIB = 2.0**10, 2.0**20, 2.0**30, 2.0**40

Range = tuple[float, float]

RANGES: Mapping[str, Mapping[str, Range]] = MappingProxyType(
    {
        "gpu": {
            "memory": (4 * GIB, TIB), "memory_bandwidth": (0.1e12, 20e12), "l2": (MIB, GIB), "tdp": (30.0, 3000.0),
            "launch": (0.1e-6, 1e-3),
        },
        "cpu": {
            "memory": (GIB / 4, 16 * TIB), "memory_bandwidth": (1e9, 2e12), "l2": (64 * KIB, 4 * GIB),
            "tdp": (3.0, 1000.0), "launch": (0.1e-6, 1e-3),
        },
    }
)  # fmt: skip
"""Kind -> key -> smallest and largest that parts are built with (SI units). Accelerators from an L4 (300 GB/s, 24 GiB,
72 W) to a GB300 (8 TB/s, 1400 W), with room for older and coming ones on either side; hosts from one core's share to
a server of two sockets. A launch is an operator's cost on the host: 4-6 us eager, far below a millisecond."""

PEAKS: Mapping[str, Mapping[str, Range]] = MappingProxyType(
    {
        "gpu": {
            "fp32": (5e12, 2e15), "tf32": (20e12, 10e15), "bf16": (20e12, 20e15), "fp16": (20e12, 20e15),
            "fp8": (40e12, 40e15), "int8": (20e12, 40e15), "fp4": (100e12, 100e15),
        },
        "cpu": {},
    }
)  # fmt: skip
"""Kind -> dtype -> dense peaks that a device with matrix engines can have: V100 has 125 TFLOP/s in fp16."""

CPU_PEAKS: Range = (0.1e9, 1e15)
"""Of a host in any dtype: bf16 that is emulated on one core, up to two sockets with matrix extensions."""

BYTES_PER_FLOP: Mapping[str, Range] = MappingProxyType({"gpu": (1.2e-3, 3.5e-2)})
"""Memory bytes per dense 16-bit FLOP: the catalog has 1.8e-3 (TPU v6e) to 2.7e-2 (H20)."""

CORE_BANDWIDTH: Range = (2e9, 20e9)
"""Bytes/s of memory that one core of a host draws when all of them are busy."""

BANDWIDTH_TOLERANCE = 0.03
"""Data sheets round: 2 TB/s of an H100 PCIe is 5120 bit at 3.19 Gb/s, which is 2.04."""

CAPACITY_TOLERANCE = 0.09
"""Usable and labelled capacity: GB beside GiB (7%), and what error correction and firmware keep."""


@dataclass(frozen=True, slots=True)
class Memory:
    """A memory that parts are built with.

    Attributes
    ----------
    gib : float
        Its label: 80 means 80 GiB (or GB).
    bus : int
        Width, bits.
    pin : float
        Rate of a pin, Gb/s, from the data sheet's bandwidth.
    """

    gib: float
    bus: int
    pin: float

    @property
    def bandwidth(self) -> float:
        """Bytes/s: width times rate.

        >>> Memory(80, 5120, 5.234).bandwidth
        3349760000000.0
        """
        return self.bus * self.pin * 1e9 / 8.0


MEMORIES: Mapping[str, tuple[Memory, ...]] = MappingProxyType(
    {
        "volta": (Memory(16, 4096, 1.758), Memory(32, 4096, 1.758), Memory(32, 4096, 2.214)),
        "ampere": (
            Memory(40, 5120, 2.43), Memory(80, 5120, 3.024), Memory(80, 5120, 3.186), Memory(24, 384, 12.5),
            Memory(24, 384, 16.0), Memory(24, 384, 19.5), Memory(24, 384, 21.0), Memory(24, 3072, 2.43),
            Memory(48, 384, 14.5), Memory(48, 384, 16.0),
        ),
        "ada": (
            Memory(24, 192, 12.5), Memory(24, 192, 18.0), Memory(24, 384, 21.0), Memory(48, 384, 18.0),
            Memory(48, 384, 20.0),
        ),
        "hopper": (
            Memory(80, 5120, 3.186), Memory(80, 5120, 5.234), Memory(96, 6144, 3.125), Memory(96, 6144, 5.208),
            Memory(141, 6144, 6.25),
        ),
        "blackwell": (
            Memory(180, 8192, 7.812), Memory(186, 8192, 7.812), Memory(192, 8192, 7.812), Memory(32, 512, 28.0),
            Memory(32, 256, 28.0), Memory(96, 512, 28.0),
        ),
        "blackwell-ultra": (Memory(288, 8192, 7.812), Memory(270, 8192, 7.812)),
        "cdna2": (Memory(128, 8192, 3.2), Memory(64, 4096, 3.2)),
        "cdna3": (Memory(192, 8192, 5.2), Memory(256, 8192, 5.859)),
        "cdna4": (Memory(288, 8192, 7.812),),
        "battlemage": (Memory(24, 192, 19.0), Memory(12, 192, 19.0)),
        "gaudi": (Memory(96, 6144, 3.2), Memory(128, 8192, 3.6)),
        "tpu-v4": (Memory(32, 4096, 2.344),),
        "tpu-v5": (Memory(16, 2048, 3.2), Memory(95, 6144, 3.6)),
        "tpu-v6": (Memory(32, 2048, 6.4),),
        "tpu-v7": (Memory(192, 8192, 7.2),),
        "trainium": (Memory(96, 4096, 5.664), Memory(144, 4096, 9.57)),
    }
)  # fmt: skip
"""Generation -> the memories of its parts that are sold, in the catalog or not. Widths from the architecture
white papers (HBM: 1024 bit a stack); rates of a pin as the stated bandwidth has them."""


def slip(ratio: float) -> tuple[str, str] | None:
    """What a ratio of stated to true says, and what to do: None for none of the usual slips."""
    for factor, what, fix in (
        (2.0, "counts both directions", "half of it, the figure per direction"),
        (0.5, "is half of one direction", "the whole figure per direction"),
        (GIB_OVER_GB, "mixes up GiB/s and GB/s", "the decimal figure, GB/s"),
        (1 / GIB_OVER_GB, "mixes up GB/s and GiB/s", "the decimal figure, GB/s"),
        (2 * GIB_OVER_GB, "counts both directions, in GiB/s", "half of it, in GB/s"),
        (8.0, "takes bits for bytes", "Gb/s, or an eighth of it in GB/s"),
        (0.125, "takes bytes for bits", "GB/s, or eight times as much in Gb/s"),
    ):
        if abs(ratio / factor - 1.0) < 0.004:
            return what, fix
    return None


def device_faults(data: Mapping[str, Any], at: Callable[..., str]) -> list[Fault]:
    """Faults of a device's plain content: numbers outside their range, and a memory that its generation has not.

    Parameters
    ----------
    data : Mapping
        The keys of `hwmodels.schema.DeviceFile` with their text as written, which the schema has accepted.
    at : callable
        Keys -> where they stand.
    """
    kind = str(data["kind"])
    values = _values(data)
    faults = [
        _outside(f"{key} {data[key]!r}", values[key], limits, FORMATS[key], at(key))
        for key, limits in RANGES[kind].items()
        if key in values
    ]
    faults += [
        _outside(f"peak {text!r} of {dtype}", peak, limits, units.format_flops, at("peak_flops", dtype))
        for dtype, text in data["peak_flops"].items()
        if (peak := units.parse_flops(text)) and (limits := PEAKS[kind].get(dtype, CPU_PEAKS))
    ]
    found = [fault for fault in faults if fault is not None]
    # A figure that is off by a thousand is off beside everything else too: once is enough.
    if "memory" in values and not any(f.where in (at("memory"), at("memory_bandwidth")) for f in found):
        other = _bandwidth_fault(data, values, at)
        found += [other] if other is not None else []
    return found


FORMATS: Mapping[str, Callable[[float], str]] = MappingProxyType(
    {
        "memory": units.format_bytes, "memory_bandwidth": units.format_bandwidth, "l2": units.format_bytes,
        "tdp": lambda watts: f"{watts:g} W", "launch": units.format_seconds,
    }
)  # fmt: skip
_PARSERS: Mapping[str, Callable[[object], float]] = MappingProxyType(
    {
        "memory": units.parse_bytes, "memory_bandwidth": units.parse_bandwidth, "l2": units.parse_bytes,
        "tdp": units.parse_power, "launch": units.parse_duration,
    }
)  # fmt: skip


def _values(data: Mapping[str, Any]) -> dict[str, float]:
    """The quantities of a device that are stated, in SI units."""
    return {key: parse(data[key]) for key, parse in _PARSERS.items() if data.get(key) is not None}


def _outside(what: str, value: float, limits: Range, shown: Callable[[float], str], where: str) -> Fault | None:
    low, high = limits
    if low <= value <= high:
        return None
    side = "below" if value < low else "above"
    why = f"{side} anything that is built: parts have {shown(low)} to {shown(high)}"
    return Fault(f"{what} is off", where, why, "the figure of the data sheet with its own unit")


def _bandwidth_fault(data: Mapping[str, Any], values: Mapping[str, float], at: Callable[..., str]) -> Fault | None:
    """The memory bandwidth beside the memories of the generation, else beside cores or 16-bit peak."""
    bandwidth, where = values["memory_bandwidth"], at("memory_bandwidth")
    what = f"memory_bandwidth {data['memory_bandwidth']!r}"
    if data["kind"] == "cpu":
        low, high = (float(data.get("n_sm") or 0) * side for side in CORE_BANDWIDTH)
        if not data.get("n_sm") or low <= bandwidth <= high:
            return None
        why = f"{data['n_sm']} cores draw {units.format_bandwidth(low)} to {units.format_bandwidth(high)}"
        return Fault(f"{what} is off", where, why, "bytes/s of one direction, as STREAM counts")
    generation = str(data.get("generation", ""))
    built = MEMORIES.get(generation, ())
    known = [m for m in built if _like(values["memory"] / GIB, m.gib) or _like(values["memory"] / 1e9, m.gib)]
    if known:
        if any(abs(bandwidth / m.bandwidth - 1.0) < BANDWIDTH_TOLERANCE for m in known):
            return None
        return _unlike(what, bandwidth, generation, known, where)
    base = [units.parse_flops(data["peak_flops"][d]) for d in ("bf16", "fp16") if d in data["peak_flops"]]
    if not base:
        return None
    low, high = BYTES_PER_FLOP["gpu"]
    if low <= bandwidth / base[0] <= high:
        return None
    why = f"{bandwidth / base[0]:.2g} bytes per 16-bit FLOP, where parts have {low:g} to {high:g}"
    return Fault(f"{what} does not go with the peaks", where, why, "bytes/s of one direction")


def _like(capacity: float, label: float) -> bool:
    return abs(capacity / label - 1.0) < CAPACITY_TOLERANCE


def _unlike(what: str, bandwidth: float, generation: str, known: Iterable[Memory], where: str) -> Fault:
    """None of the memories: say which slip it is where it is a usual one."""
    labels = [f"{units.format_bandwidth(m.bandwidth)} ({m.bus} bit x {m.pin:g} Gb/s)" for m in known]
    why = f"{generation} with this capacity has {' or '.join(labels)}"
    for factor, words in ((2.0, "is doubled"), (0.5, "is halved"), (8.0, "takes bits for bytes"),
                          (0.125, "takes bytes for bits")):  # fmt: skip
        if any(abs(bandwidth / (factor * m.bandwidth) - 1.0) < BANDWIDTH_TOLERANCE for m in known):
            return Fault(f"{what} {words}", where, why, "the figure of the data sheet, GB/s")
    return Fault(f"{what} is of no memory of {generation}", where, why, "the figure of the data sheet, GB/s")
