"""Rows of ``moe_alltoall_measured.csv`` as the law sees them: fabric, library, payload, routing, seconds.

Rules for what the file leaves open (data/README, trap 7, and the sources that it names):

- A blank ``ep_size`` is ``n_nodes`` times the GPUs of a node (8; 4 of a GB200 tray, whose 18 trays are one
  NVLink domain); ``n_nodes`` 0 means inside one.
- Blank ``hidden``, ``topk`` and ``experts`` are DeepSeek-V3's (7168, 8, 256), which DeepEP, UCCL and pplx use in
  their benchmarks.
- A dispatch of dtype ``default`` (vLLM) is unquantised bf16; one with a blank dtype is fp8 with a scale for 128
  channels, as DeepEP's and sglang's benchmarks dispatch. A combine returns bf16 whatever was dispatched,
  unless it is marked as of low precision (``fp4`` on TensorRT-LLM's low-latency kernels, or its phase).
- TensorRT-LLM's NVLink benchmark (``trtllm_alltoall_perf``) routes tokens evenly in turn: its times follow
  ``min(k, R)`` ranks, not the random expectation. Its DeepEP benchmark takes the router of the model with the
  row's shape, and DeepSeek-V3's (7168, 256, 8) is limited to 4 of 8 groups (its config; the times of that
  shape are 0.77 of those with 384 experts). DeepEP V1 benchmarks its normal kernels with that router as well.
- A row without a time carries a bandwidth: logical bytes over seconds, those to the own rank (or, between
  nodes, the own node) included.
- A part that `SYSTEMS` lacks is taken on the links usual for it, a library without an entry as DeepEP's normal
  or low-latency mode by its name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from hwmodels import catalog
from hwmodels.collectives.expert_implementations import IMPLEMENTATIONS, ExpertImplementation
from hwmodels.collectives.expert_law import Exchange, exchange
from hwmodels.device import Device
from hwmodels.estimate import FloatArray
from hwmodels.fit import systems
from hwmodels.implementations import implementation
from hwmodels.measured import Rows
from hwmodels.network import Fabric
from hwmodels.spelling import device_of
from hwmodels.topology import GroupShape


@dataclass(frozen=True, slots=True)
class System:
    """A ``gpu`` cell: the device and links that it stands for, and the GPUs of a node as the file counts them."""

    device: str
    intra: str
    inter: str
    ports: int
    gpus_per_node: int = 8
    domain: int = 8


SYSTEMS = {
    "h100_sxm": System("h100-sxm-80gb", "nvlink4", "infiniband-ndr", 8),
    "h100": System("h100-sxm-80gb", "nvlink4", "infiniband-ndr", 8),
    "h200_sxm": System("h200-sxm-141gb", "nvlink4", "infiniband-ndr", 8),
    "h200": System("h200-sxm-141gb", "nvlink4", "infiniband-ndr", 8),
    "h800": System("h800-sxm-80gb", "nvlink4-h800", "infiniband-ndr", 8),
    "a100_sxm": System("a100-sxm-80gb", "nvlink3", "infiniband-hdr", 8),
    "b200_sxm": System("b200-sxm-180gb", "nvlink5", "infiniband-ndr", 8),
    "b300_sxm": System("b300-sxm-288gb", "nvlink5", "infiniband-xdr", 8),
    "gb200": System("gb200-186gb", "nvlink5-nvl72", "infiniband-ndr", 72, 4, 72),
    "gb300": System("gb300-288gb", "nvlink5-nvl72", "infiniband-xdr", 72, 4, 72),
    "h200 p5en EFA": System("h200-sxm-141gb", "nvlink4", "efa-v3", 16),
    "b200 p6 EFA": System("b200-sxm-180gb", "nvlink5", "efa-v4", 8),
    "mi300x CX7": System("mi300x-192gb", "xgmi-mi300x", "roce-400g", 8),
    "sm90 CX7": System("h100-sxm-80gb", "nvlink4", "infiniband-ndr", 8),
    "sm100 CX7": System("b200-sxm-180gb", "nvlink5", "infiniband-ndr", 8),
    "sm100": System("b200-sxm-180gb", "nvlink5", "infiniband-ndr", 8),
}
"""The network of the systems with rows over several nodes is stated (CX-7, EFA) or, for ``h100_sxm``, 50 GB/s a
GPU by the low-latency rows, which reach 44."""



@cache
def system_of(cell: str) -> System | None:
    """The system that a ``gpu`` cell names: an entry of `SYSTEMS`, else its device on the links usual for that part.

    None for a part that the catalog lacks.
    """
    if cell in SYSTEMS:
        return SYSTEMS[cell]
    words = cell.split()
    device = next((d for n in range(len(words), 0, -1) if (d := device_of(" ".join(words[:n])))), "")
    fabric = systems.system_of(cell.upper().replace("_", " "))
    if not device or fabric is None:
        return None
    rack = fabric.gpus_per_node > 8
    inter, ports = (fabric.inter, fabric.ports) if fabric.inter else ("infiniband-ndr", fabric.gpus_per_node)
    return System(device, fabric.intra, inter, ports, 4 if rack else fabric.gpus_per_node, fabric.gpus_per_node)


UNKNOWN = (
    (r"low.?latency|[_-]ll\b", "deepep-low-latency"),
    (r"ep\b|deep.?ep|moe|all.?to.?all|a2a|dispatch|normal", "deepep-normal"),
)
"""Words of a library that has no entry -> the one whose law speaks for it; most libraries follow DeepEP's two modes."""


def _known(key: str, lib: str) -> str:
    """Key of the library, or of the one that stands for it; empty for one that says nothing of experts."""
    if key in IMPLEMENTATIONS:
        return key
    return next((entry for pattern, entry in UNKNOWN if re.search(pattern, lib, re.IGNORECASE)), "")


DTYPES = {
    "bf16": "bf16", "bfloat16": "bf16", "fp16": "fp16", "float16": "fp16", "fp8": "fp8", "fp8_block": "fp8",
    "nvfp4": "fp4", "fp4": "fp4", "default": "bf16", "": "fp8",
}  # fmt: skip
PHASES = {"a2a": "dispatch"}
BALANCED = ("trtllm-nvlink-one-sided", "trtllm-nvlink-two-sided")
"""Libraries whose benchmark spreads the tokens evenly over the experts."""


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Rows of one system, library, phase, payload and routing.

    Attributes
    ----------
    index : ndarray of int
        Their places among all rows.
    system : System
    entry : ExpertImplementation
    phase, dtype, routing : str
    fabric : Fabric
    device : Device
    x : Exchange
    seconds : ndarray
        Measured, or from the measured bandwidth.
    """

    index: NDArray[np.int64]
    system: System
    entry: ExpertImplementation
    phase: str
    dtype: str
    routing: str
    fabric: Fabric
    device: Device
    x: Exchange
    seconds: FloatArray


def fabric_of(system: System) -> Fabric:
    """The fabric of a system; large enough for any of its rows."""
    intra, inter = catalog.link(system.intra), catalog.link(system.inter)
    return Fabric(system.domain, 1024, intra, inter, system.ports, topology="rail-fat-tree")


def numbers(rows: Rows, system: System) -> dict[str, FloatArray]:
    """Tokens, shape, router and group of rows of one system, blanks filled by the rules above."""
    n = rows.numbers
    given_nodes = np.where(np.isnan(n["n_nodes"]), 1.0, n["n_nodes"])
    size = np.where(np.isnan(n["ep_size"]), np.maximum(given_nodes, 1.0) * system.gpus_per_node, n["ep_size"])
    ranks = np.minimum(size, system.domain)
    return {
        "tokens_per_rank": n["tokens_per_rank"],
        "hidden": np.where(np.isnan(n["hidden"]), 7168.0, n["hidden"]),
        "topk": np.where(np.isnan(n["topk"]), 8.0, n["topk"]),
        "experts": np.where(np.isnan(n["experts"]), 256.0, n["experts"]),
        "comm_sms": np.nan_to_num(n["comm_sms"]),
        "ranks": ranks,
        "nodes": np.ceil(size / ranks),
    }


def _limited(entry: ExpertImplementation, columns: dict[str, FloatArray]) -> NDArray[np.bool_]:
    """Rows whose router was limited to 4 of 8 groups."""
    deepseek = (columns["hidden"] == 7168.0) & (columns["experts"] == 256.0) & (columns["topk"] == 8.0)
    return deepseek & (entry.key in ("trtllm-deepep-normal", "trtllm-deepep-low-latency", "deepep-normal"))


def _words(rows: Rows) -> tuple[NDArray[np.str_], NDArray[np.str_], NDArray[np.str_]]:
    """Library, phase of the law, and payload of each row."""
    w = rows.words
    keys = [
        _known(implementation(s, "", lib).key, str(lib)) for s, lib in zip(w["source"], w["lib"], strict=True)
    ]  # fmt: skip
    phases = [PHASES.get(p, p) for p in w["phase"]]
    low = [
        p == "combine" and DTYPES.get(d) == "fp4" and key == "trtllm-deepep-low-latency"
        for p, d, key in zip(phases, w["dtype"], keys, strict=True)
    ]
    phases = ["combine_low_precision" if is_low else p for p, is_low in zip(phases, low, strict=True)]
    payload = {"combine": "bf16", "combine_low_precision": "fp4"}
    dtypes = [payload.get(p, DTYPES.get(d, "?")) for p, d in zip(phases, w["dtype"], strict=True)]
    return np.asarray(keys), np.asarray(phases), np.asarray(dtypes)


def reasons(rows: Rows) -> NDArray[np.object_]:
    """Why a row has no law; empty where it has one."""
    keys, phases, dtypes = _words(rows)
    found = np.full(len(rows), "", object)
    usual = {"topk": 8.0, "experts": 256.0}
    topk, experts = (np.where(np.isnan(rows.numbers[c]), blank, rows.numbers[c]) for c, blank in usual.items())
    for i, (gpu, key, phase, dtype) in enumerate(zip(rows.words["gpu"], keys, phases, dtypes, strict=True)):
        if system_of(str(gpu)) is None:
            found[i] = f"gpu '{gpu}' is not in the catalog"
        elif not key:
            found[i] = "the library is not known"
        elif phase not in IMPLEMENTATIONS[key].phases:
            found[i] = f"{key} has no phase '{phase}'"
        elif dtype == "?":
            found[i] = "the payload's dtype is not known"
        elif topk[i] > experts[i]:
            found[i] = f"topk is {topk[i]:g} of {experts[i]:g} experts"
    return found


def batches(rows: Rows) -> Iterator[Batch]:
    """The rows that have a law, in batches that one call prices."""
    keys, phases, dtypes = _words(rows)
    routing = np.asarray(["balanced" if key in BALANCED else "uniform" for key in keys.tolist()])
    label = np.asarray([f"{'|'.join(c)}" for c in zip(rows.words["gpu"], keys, phases, dtypes, routing, strict=True)])
    usable = reasons(rows) == ""
    for one in sorted(set(label[usable])):
        index = np.flatnonzero(usable & (label == one))
        first = int(index[0])
        part = rows.take(usable & (label == one))
        system, entry = system_of(str(rows.words["gpu"][first])), IMPLEMENTATIONS[str(keys[first])]
        if system is None:
            continue
        phase, dtype, how = str(phases[first]), str(dtypes[first]), str(routing[first])
        fabric, device = fabric_of(system), catalog.device(system.device)
        c = numbers(part, system)
        ranks, nodes = c["ranks"].astype(np.int64), c["nodes"].astype(np.int64)
        limited = _limited(entry, c)
        x = exchange(
            fabric, device, entry.algorithm, phase=phase, tokens_per_rank=c["tokens_per_rank"], hidden=c["hidden"],
            topk=c["topk"], experts=c["experts"], shape=GroupShape(ranks, nodes, np.ones_like(ranks)), dtype=dtype,
            comm_sms=c["comm_sms"], routing=how, groups=np.where(limited, 8, 1), group_limit=np.where(limited, 4, 1),
        )  # fmt: skip
        seconds = part.numbers["time_us"] * 1e-6
        rate = logical_bytes(x, entry) / (part.numbers["bw_GBps"] * 1e9)
        seconds = np.where(np.isnan(seconds), rate, seconds)
        yield Batch(index, system, entry, phase, dtype, how, fabric, device, x, seconds)


def logical_bytes(x: Exchange, entry: ExpertImplementation) -> FloatArray:
    """Bytes that the libraries' own bandwidths count: copies to the own rank or node included."""
    inside = x.copies * x.message
    if entry.algorithm.route != "relay":
        return inside
    return np.where(x.nodes > 1.0, x.crossed * x.nodes / np.maximum(x.nodes - 1.0, 1.0), inside)
