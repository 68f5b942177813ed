"""What a datasheet entry gets wrong: no source, sparse peaks, bandwidths of both directions, units mixed up.

The schema reads an entry; these checks hold its numbers against each other and against what its own standard
allows, so that the usual slips are named with file and key (data sheets print sparse peaks and both directions):

- **links**: the bandwidth must be that of its `generation` per direction, lanes x rate (`STANDARDS`; ``nvlink4x8``
  has eight lanes). A ratio of 2 is both directions, of 1.0737 (2^30 / 10^9) GiB for GB, of 8 bits for bytes.
- **devices**: each peak against bf16 (`RATIOS`: a matrix engine of half the width runs twice as fast), and bf16
  against units x FLOP per clock (`ENGINES`) at the highest clock of its kind, or against the power limit. Sparse
  peaks are twice the dense ones and fail one of them.
- **sizes**: every number within what parts of its kind are built with, and the memory bandwidth that of a memory of
  the generation (`hwmodels.catalog.physical`): ``80MiB``, ``700kW``, or twice the bandwidth.
- **units**: capacities are labelled in powers of 2 and bandwidths in powers of 10: ``80GB`` and ``3350GiB/s`` are
  mixed up.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from hwmodels import units, yamlfile
from hwmodels.catalog import physical
from hwmodels.catalog.physical import slip
from hwmodels.errors import Fault, InputError
from hwmodels.records import dataclass


@dataclass(frozen=True, slots=True)
class Standard:
    """A kind of link: `lanes` of `lane` bytes/s per direction, of which a figure may count the `payload` alone."""

    lane: float
    lanes: int
    payload: tuple[float, ...]
    source: str


RAW = (1.0,)
ENCODED = (1.0, 128.0 / 130.0, 31.0 / 32.0)
"""PCIe 3 to 5: the line rate, without its 128b/130b encoding, and the 31 GB/s that is printed for 32."""
FLIT = (1.0, 242.0 / 256.0)
"""PCIe 6: the line rate, and without the parity of its 256-byte units."""


STANDARDS: Mapping[str, Standard] = MappingProxyType(
    {
        "nvlink2": Standard(25e9, 6, RAW, "hw_networks: 150 GB/s, 6 links"),
        "nvlink3": Standard(25e9, 12, RAW, "hw_networks: 300 GB/s, 12 links"),
        "nvlink3-a40": Standard(14.0625e9, 4, RAW, "NVIDIA A40 data sheet: 112.5 GB/s both directions, 4 links"),
        "nvlink4": Standard(25e9, 18, RAW, "hw_networks: 450 GB/s, 18 links"),
        "nvlink5": Standard(50e9, 18, RAW, "hw_networks: 900 GB/s, 18 links"),
        "nvlink-c2c": Standard(450e9, 1, RAW, "hw_networks: 450 GB/s"),
        "xgmi-mi250": Standard(50e9, 7, RAW, "hw_networks: 50 per link per direction, 7 links"),
        "xgmi-mi300": Standard(64e9, 7, RAW, "hw_networks: 64 per peer, 7 links"),
        "xgmi-mi350": Standard(76.5e9, 7, RAW, "hw_networks: 76.5 per peer, 7 links"),
        "ici-v5e": Standard(50e9, 1, RAW, "TPU v5e docs: 400 GB/s both directions over 4 ports"),
        "ici-v5p": Standard(100e9, 1, RAW, "TPU v5p docs: 4800 Gb/s over 6 ports"),
        "ici-v6e": Standard(100e9, 1, RAW, "TPU v6e docs: 800 GB/s both directions over 4 ports"),
        "ici-v7x": Standard(100e9, 1, RAW, "TPU v7x docs: 1200 GB/s both directions over 6 ports"),
        "pcie3": Standard(1e9, 16, ENCODED, "PCI-SIG: 8 GT/s a lane"),
        "pcie4": Standard(2e9, 16, ENCODED, "PCI-SIG: 16 GT/s a lane"),
        "pcie5": Standard(4e9, 16, ENCODED, "PCI-SIG: 32 GT/s a lane"),
        "pcie6": Standard(8e9, 16, FLIT, "PCI-SIG: 64 GT/s a lane"),
        "edr": Standard(12.5e9, 1, RAW, "IBTA: 100 Gb/s (4x)"),
        "hdr": Standard(25e9, 1, RAW, "IBTA: 200 Gb/s (4x)"),
        "ndr": Standard(50e9, 1, RAW, "IBTA: 400 Gb/s (4x)"),
        "xdr": Standard(100e9, 1, RAW, "IBTA: 800 Gb/s (4x)"),
        "omni-path": Standard(12.5e9, 1, RAW, "Intel Omni-Path HFI 100 series, product brief: 100 Gb/s a port"),
        "25gbe": Standard(3.125e9, 1, RAW, "IEEE 802.3"),
        "100gbe": Standard(12.5e9, 1, RAW, "IEEE 802.3"),
        "200gbe": Standard(25e9, 1, RAW, "IEEE 802.3"),
        "400gbe": Standard(50e9, 1, RAW, "IEEE 802.3"),
        "800gbe": Standard(100e9, 1, RAW, "IEEE 802.3"),
        "efa-v1": Standard(12.5e9, 1, RAW, "hw_networks: 4 ports of 100 Gb/s"),
        "efa-v2": Standard(12.5e9, 1, RAW, "hw_networks: 32 ports of 100 Gb/s"),
        "efa-v3": Standard(25e9, 1, RAW, "hw_networks: 16 ports of 200 Gb/s"),
        "efa-v4": Standard(50e9, 1, RAW, "hw_networks: 8 or 16 ports of 400 Gb/s"),
    }
)
"""Bandwidth per direction that the standard of a link gives it."""

NEEDS_GENERATION = ("nvlink", "xgmi", "ici", "pcie", "infiniband", "roce", "efa")
"""Kinds of link whose catalog entries must name a standard."""


@dataclass(frozen=True, slots=True)
class Engine:
    """Dense 16-bit FLOP per clock of one unit (SM, CU), and the highest clock that parts of that kind ship with."""

    flop_per_clock: float
    max_hz: float


ENGINES: Mapping[str, tuple[tuple[float, Engine], ...]] = MappingProxyType(
    {
        "volta": ((0.0, Engine(1024.0, 1.8e9)),),
        "ampere": ((1.2e12, Engine(2048.0, 1.8e9)), (0.0, Engine(1024.0, 2.0e9))),
        "ada": ((0.0, Engine(1024.0, 2.9e9)),),
        "hopper": ((0.0, Engine(4096.0, 2.1e9)),),
        "blackwell": ((2.5e12, Engine(8192.0, 2.2e9)), (0.0, Engine(1024.0, 3.0e9))),
        "blackwell-ultra": ((0.0, Engine(8192.0, 2.3e9)),),
        "cdna2": ((0.0, Engine(1024.0, 1.9e9)),),
        "cdna3": ((0.0, Engine(2048.0, 2.3e9)),),
        "cdna4": ((0.0, Engine(4096.0, 2.6e9)),),
    }
)
"""Generation -> (memory bandwidth from which it holds, engine), widest first: the data-centre chips of a generation
have wider engines than its cards. From the architecture white papers: A100 312 TFLOP/s = 108 x 2048 x 1.41 GHz, H100
989 = 132 x 4096 x 1.83 GHz, L40S 362 = 142 x 1024 x 2.49 GHz, MI300X 1307 = 304 x 2048 x 2.1 GHz."""

MAX_FLOP_PER_J = 2.6e12
"""Dense bf16 FLOP per joule at the power limit: the best of the catalog is 2.1e12 (GB200), sparse peaks reach 4e12."""

RATIOS: Mapping[str, Mapping[str, tuple[float, ...]]] = MappingProxyType(
    {
        "": {"fp16": (1.0,), "tf32": (0.5,), "fp8": (2.0,), "int8": (2.0,), "fp4": (4.0,)},
        "blackwell-ultra": {"int8": (0.067,), "fp4": (6.0, 6.22)},
        "cdna2": {"int8": (1.0,)},
        "tpu-v4": {"int8": (1.0,)},
        "tpu-v6": {"fp8": (1.0,)},
        "battlemage": {"fp8": (1.0,)},
        "trainium": {"tf32": (1.0,), "fp8": (1.95, 3.75), "fp4": (3.75,)},
        "gaudi": {"fp16": (1.0, 0.274), "tf32": (0.274,), "fp8": (2.0, 1.0)},
    }
)
"""Generation -> dtype -> peak over the bf16 peak; "" holds for all that a generation does not say otherwise (int8 of
Blackwell Ultra was cut, fp16 and tf32 of Gaudi 3 run at a quarter, MI250X and TPU v4 gain nothing from int8, TPU v6e
and Arc nothing from fp8: hw_devices)."""

RATIO_TOLERANCE = 0.038
"""Data sheets round: tf32 of L4 is 62.7 beside 121 TFLOP/s."""

HALF_RATE = ("ada", "blackwell")
"""Generations whose consumer cards accumulate bf16 products at half rate (hw_devices, RTX 4090 and 5090)."""

MIN_SOURCE = 11
"""Characters of a source that can be followed up."""


def standard(generation: str) -> tuple[Standard, float] | None:
    """The standard that `generation` names, and its bytes/s per direction; None for an unknown one.

    >>> standard("nvlink4x8")[1]
    200000000000.0
    """
    if generation in STANDARDS:
        found = STANDARDS[generation]
        return found, found.lane * found.lanes
    match = re.fullmatch(r"(.+)x(\d+)", generation)
    if match is None or match.group(1) not in STANDARDS or not int(match.group(2)):
        return None
    return STANDARDS[match.group(1)], STANDARDS[match.group(1)].lane * int(match.group(2))


def bandwidth_fault(generation: str, bandwidth: float, where: str) -> Fault | None:
    """What is wrong with a bandwidth (bytes/s) for its standard; None where it is as it should be."""
    found = standard(generation)
    if found is None:
        fix = ", ".join(STANDARDS) + ", or one of them with a count of lanes such as nvlink4x8"
        return Fault(f"generation {generation!r} is unknown", where, "there is nothing to hold the bandwidth to", fix)
    rules, true = found
    if any(abs(bandwidth / (true * part) - 1.0) < 1e-3 for part in rules.payload):
        return None
    slips = (slip(bandwidth / (true * part)) for part in rules.payload)
    wrong = ("is not that of its standard", "the figure of the standard, or another generation")
    what, fix = next((found for found in slips if found is not None), wrong)
    why = f"{generation} has {units.format_bandwidth(true)} per direction: {rules.source}"
    return Fault(f"bandwidth {units.format_bandwidth(bandwidth)} {what}", where, why, fix)


def _source_fault(text: Any, where: str) -> Fault | None:
    if isinstance(text, str) and len(text.strip()) >= MIN_SOURCE and not re.search(r"(?i)\btodo\b|\bunknown\b", text):
        return None
    return Fault(f"source {text!r} says nothing", where, "every number has a source", "a document, page or file, dated")


def _unit_faults(data: Mapping[str, Any], at: Any) -> list[Fault]:
    faults = []
    for key in ("bandwidth", "memory_bandwidth", "beyond"):
        text = data.get(key)
        if isinstance(text, str) and re.search(r"[KMGTP]i[Bb]", text):
            why = "bandwidths are decimal; a binary unit makes them 7% larger"
            faults.append(Fault(f"{key} {text!r} mixes up GiB/s and GB/s", at(key), why, "GB/s"))
    text = data.get("memory")
    if isinstance(text, str):
        match = re.fullmatch(r"\s*([\d.]+)\s*([kKMGTP]i?)B\s*", text)
        stated = "decimal" in str((data.get("sources") or {}).get("memory", ""))
        if match and not match.group(2).endswith("i") and not stated:
            why = "labels of capacity count in powers of 2: 80 means 80 GiB"
            faults.append(
                Fault(
                    f"memory {text!r} mixes up GB and GiB",
                    at("memory"),
                    why,
                    "GiB, the exact bytes (B), or sources.memory: ... decimal",
                )
            )
        elif match and match.group(2) == "Gi" and not float(match.group(1)).is_integer():
            why = "memory is built of whole GiB"
            faults.append(
                Fault(f"memory {text!r} is no whole number", at("memory"), why, "GiB, or the exact bytes (B)")
            )
    return faults


def link_faults(
    data: Mapping[str, Any], file: str, marks: yamlfile.Marks, loc: tuple[str | int, ...] = ()
) -> list[Fault]:
    """Faults of a link's plain content, which the schema has accepted.

    Parameters
    ----------
    data : Mapping
        The keys of `hwmodels.schema.LinkFile` with their text as written.
    file, marks, loc
        Where the entry stands, for `yamlfile.where`.
    """

    def at(key: str) -> str:
        return yamlfile.where(file, (*loc, key), marks)

    faults = [f for f in (_source_fault(data.get("source"), at("source")),) if f]
    faults += _unit_faults(data, at)
    generation = data.get("generation")
    if generation is None:
        if data.get("kind") in NEEDS_GENERATION:
            why = "its bandwidth is held to the figure of its standard"
            faults.append(Fault("generation is missing", at("kind"), why, "generation: nvlink4, ndr, pcie5, ..."))
        return faults
    fault = bandwidth_fault(str(generation), units.parse_bandwidth(data["bandwidth"]), at("bandwidth"))
    if fault is not None:
        faults.append(fault)
    return faults


def device_faults(
    data: Mapping[str, Any], file: str, marks: yamlfile.Marks, loc: tuple[str | int, ...] = ()
) -> list[Fault]:
    """As `link_faults`, for the keys of `hwmodels.schema.DeviceFile`."""

    def at(key: str, *more: str) -> str:
        return yamlfile.where(file, (*loc, key, *more), marks)

    sources = data.get("sources") or {}
    faults = [f for f in (_source_fault(sources.get("datasheet"), at("sources", "datasheet")),) if f]
    faults += _unit_faults(data, at)
    # A unit that is mixed up is named already: its bandwidth fits no memory either.
    named = {fault.where for fault in faults}
    faults += [fault for fault in physical.device_faults(data, at) if fault.where not in named]
    if data.get("kind") != "gpu":
        return faults
    peaks = {dtype: units.parse_flops(text) for dtype, text in data["peak_flops"].items()}
    generation = str(data.get("generation", ""))
    base = peaks.get("bf16", peaks.get("fp16"))
    if base is None:
        return faults
    expected = _expected(generation, peaks, base)
    for dtype, peak in peaks.items():
        ratio = peak / base
        if dtype in ("bf16", "fp32") or any(abs(ratio / r - 1.0) < RATIO_TOLERANCE for r in expected[dtype]):
            continue
        doubled = any(abs(ratio / (2.0 * r) - 1.0) < RATIO_TOLERANCE for r in expected[dtype])
        halved = any(abs(ratio / (0.5 * r) - 1.0) < RATIO_TOLERANCE for r in expected[dtype])
        what = "is sparse" if doubled else "or the bf16 peak is sparse" if halved else "does not go with bf16"
        why = f"{ratio:.3g} times the bf16 peak, where {expected[dtype][0]:g} is expected of {generation}"
        faults.append(Fault(f"peak {data['peak_flops'][dtype]} {what}", at("peak_flops", dtype), why, "dense peaks"))
    return faults + _engine_faults(data, generation, base, at)


def _expected(generation: str, peaks: Mapping[str, float], base: float) -> dict[str, tuple[float, ...]]:
    """`RATIOS` of a device.

    Cards whose bf16 runs at half rate (32-bit accumulation, twice the vector peak) keep the full rate in int8 and fp4.
    """
    expected = {**RATIOS[""], **RATIOS.get(generation, {})}
    if generation in HALF_RATE and "fp32" in peaks and base / peaks["fp32"] < 2.5:
        expected |= {dtype: tuple(2.0 * r for r in expected[dtype]) for dtype in ("int8", "fp4")}
    return expected


def _engine_faults(data: Mapping[str, Any], generation: str, base: float, at: Any) -> list[Fault]:
    """The 16-bit peak against units, clock and power."""
    memory = units.parse_bandwidth(data["memory_bandwidth"])
    engine = next((e for least, e in ENGINES.get(generation, ()) if memory >= least), None)
    dtype = "bf16" if "bf16" in data["peak_flops"] else "fp16"
    if data.get("n_sm") and engine is not None:
        clock = base / (data["n_sm"] * engine.flop_per_clock)
        if clock > engine.max_hz:
            why = (
                f"{data['n_sm']} units x {engine.flop_per_clock:g} FLOP per clock need {clock / 1e9:.2f} GHz, and "
                f"{generation} runs at {engine.max_hz / 1e9:g} GHz at most"
            )
            what = f"peak {data['peak_flops'][dtype]} is sparse or counts several dies"
            return [Fault(what, at("peak_flops", dtype), why, "the dense peak of one device")]
    elif data.get("tdp") and base > MAX_FLOP_PER_J * (watts := units.parse_power(data["tdp"])):
        why = f"{base / watts / 1e12:.2f} TFLOP/s per watt, where dense peaks stay below {MAX_FLOP_PER_J / 1e12:g}"
        what = f"peak {data['peak_flops'][dtype]} is sparse or counts several dies"
        return [Fault(what, at("peak_flops", dtype), why, "the dense peak of one device")]
    return []


def entry_faults(folder: str, text: str, file: str) -> list[Fault]:
    """All faults of an entry's YAML text: those of the schema, then those of this module.

    Parameters
    ----------
    folder : {'devices', 'networks'}
    text : str
    file : str
        Name for the faults.
    """
    from hwmodels.schema import DeviceFile, LinkFile

    try:
        data, marks = yamlfile.parse(text, file)
        yamlfile.validate(DeviceFile if folder == "devices" else LinkFile, data, file, marks)
    except InputError as error:
        return list(error.faults)
    return device_faults(data, file, marks) if folder == "devices" else link_faults(data, file, marks)


def inline_faults(data: Mapping[str, Any], file: str, marks: yamlfile.Marks) -> list[Fault]:
    """Faults of devices and links that a cluster file spells out, as far as they contradict themselves.

    Units mixed up, and a bandwidth that its own `generation` does not have. Peaks are left to the user here: a file
    may describe a device that nobody sells. An entry that `calibrate` wrote (``laws_of: none``) holds measured numbers
    and is not checked.
    """
    from hwmodels.laws import NO_LAWS

    pools = list(enumerate(data.get("pools") or []))
    fabrics: list[tuple[tuple[str | int, ...], Any]] = [(("fabric",), data.get("fabric") or {})]
    fabrics += [(("pools", i, "fabric"), pool.get("fabric") or {}) for i, pool in pools]
    places: list[tuple[tuple[str | int, ...], Any]] = []
    for loc, fabric in fabrics:
        places.append(((*loc, "intra_node"), fabric.get("intra_node")))
        places.append(((*loc, "inter_node", "link"), (fabric.get("inter_node") or {}).get("link")))
    places += [(("links", i, "link"), link.get("link")) for i, link in enumerate(data.get("links") or [])]
    joins = {loc for loc, _ in places}
    places += [(("pools", i, "device"), pool.get("device")) for i, pool in pools]
    faults: list[Fault] = []
    for loc, entry in places:
        if not isinstance(entry, Mapping) or entry.get("laws_of") == NO_LAWS:
            continue

        def at(key: str, loc: tuple[str | int, ...] = loc) -> str:
            return yamlfile.where(file, (*loc, key), marks)

        faults += _unit_faults(entry, at)
        if entry.get("generation") and "bandwidth" in entry and loc in joins:
            fault = bandwidth_fault(entry["generation"], units.parse_bandwidth(entry["bandwidth"]), at("bandwidth"))
            faults += [fault] if fault else []
    return faults


def close(value: float, datasheet: float) -> str:
    """What is wrong with a bandwidth beside another source's figure: "" when they agree within 1%.

    >>> close(3597e9, 3350e9)
    'mixes up GiB/s and GB/s'
    """
    if not (math.isfinite(value) and datasheet > 0):
        return "is no number"
    if abs(value / datasheet - 1.0) <= 0.01:
        return ""
    found = slip(value / datasheet)
    return found[0] if found else "differs"
