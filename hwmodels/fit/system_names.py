"""The fabric that a ``system`` cell names: the GPU gives the link inside a node, the rest the network.

A network is read as ``count x speed kind`` in any order and spelling (``8x400G RoCE``, ``32x100G EFA``,
``8x NDR400 IB``, ``ConnectX-7 400Gb/s``): `KINDS` are the words of a kind, its speed decides between its generations.
A machine of one cloud has one network (`CLOUDS`); where a cell names no more than a machine, `MACHINES` tells what is
usual in it. Systems whose nodes were joined, but not by what, are not `System.stated`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

GPUS: tuple[tuple[str, int, str], ...] = (
    # pattern, GPUs in an NVLink domain or node, link inside it; forms on a card before those on a board
    (r"GB[23]00", 72, "nvlink5-nvl72"),
    (r"A100 pairwise", 4, "nvlink3-bridge"), (r"H100 pairwise", 4, "nvlink4-bridge"),
    (r"H100[- ]?NVL\b", 8, "nvlink4-bridge"), (r"A40\b", 4, "pcie4-host"),
    (r"H[128]00(?![^+,;]*SXM)[^+,;]{0,12}PCIe|PCIe H[128]00|H200[- ]?NVL\b", 8, "pcie5"),
    (r"A[18]00(?![^+,;]*SXM)[^+,;]{0,12}PCIe|PCIe A[18]00|A30\b", 8, "pcie4"),
    (r"H800", 8, "nvlink4-h800"), (r"H100|H200|H20\b|p5", 8, "nvlink4"), (r"B[23]00|P6|p6", 8, "nvlink5"),
    (r"A800", 8, "nvlink3-a800"), (r"A100|BM\.GPU\.B4|p4d", 8, "nvlink3"), (r"V100", 8, "nvlink2"),
    (r"L40S?\b|RTX 4090|A10G?\b|L4\b", 8, "pcie4"), (r"RTX", 8, "pcie5"),
    (r"MI35\d", 8, "xgmi-mi355x"), (r"MI3[02]\d", 8, "xgmi-mi300x"), (r"MI250", 8, "xgmi-mi250x"),
    (r"Gaudi[- ]?3", 8, "roce-gaudi3"),
)  # fmt: skip
RACK = 72
"""GPUs of a rack, and its ports: a cell counts those of a tray."""
UNSTATED = "infiniband-hdr-host"
"""What two nodes without a stated network reached: 6-8 GB/s for one GPU, at most twice that for eight, as through host
memory. Whether they lacked GPUDirect is not known."""
UNSTATED_PAIRS = "ethernet-100g-host"
"""The same for nodes whose GPUs are joined in pairs; a link of its own, which speaks for no network that is stated."""
CLOUDS: tuple[tuple[str, str, int], ...] = (
    # pattern, network, ports of a node where the cell does not count them (of a domain of 72 GPUs for GB200, GB300)
    (r"GB[23]00", "infiniband-ndr", 72),
    (r"pairwise|A40\b", UNSTATED_PAIRS, 1),
    (r"inter-node net\b", UNSTATED, 2),
    (r"p4d", "efa-v1", 4), (r"p5en", "efa-v3", 16), (r"p5", "efa-v2", 32), (r"[Pp]6-[Bb]", "efa-v4", 8),
    (r"TCPXO|a3-mega", "tcpxo", 8), (r"TCPX|a3-high", "tcpx", 4),
)  # fmt: skip
"""Before any word of a kind: racks, hosts without a stated network, and instances of clouds."""
MACHINES: tuple[tuple[str, str, int], ...] = (
    (r"BM\.GPU\.H[12]00|BM\.GPU\.MI300X", "roce-400g", 8), (r"BM\.GPU\.(?:B4|A100)", "roce-200g", 8),
    (r"ND.{0,8}H[12]00|ND.{0,8}MI300X", "infiniband-ndr", 8), (r"ND.{0,8}A100", "infiniband-hdr", 8),
    (r"DGX [HB][12]00", "infiniband-ndr", 8), (r"DGX B300", "infiniband-xdr", 8), (r"DGX A100", "infiniband-hdr", 8),
)  # fmt: skip
"""After the words of a kind: what such a machine comes with."""
INFINIBAND = {100: "infiniband-edr", 200: "infiniband-hdr", 400: "infiniband-ndr", 800: "infiniband-xdr"}
ROCE = {100: "roce-100g", 200: "roce-200g", 400: "roce-400g"}
KINDS: tuple[tuple[str, dict[int, str]], ...] = (
    (r"Pollara", {400: "pollara-400"}),
    (r"EFA", {}),
    (r"RoCE|GbE|Spectrum-?X|Ethernet", ROCE),
    (r"InfiniBand|\bIB\b|[EHNX]DR\d*|ConnectX|\bCX-?\d|Azure|Quantum", INFINIBAND),
)
"""Words of a kind of network -> its generations by Gbit/s of a port."""
EFA = {(100, 8): "efa-v1", (100, 32): "efa-v2", (200, 16): "efa-v3", (400, 8): "efa-v4"}
"""EFA by Gbit/s and ports of a node: at 100 Gbit/s the first generation had four ports, the second 32."""
SPEEDS = ((r"EDR", 100), (r"HDR", 200), (r"NDR", 400), (r"XDR", 800), (r"ConnectX-?6|CX-?6", 200),
          (r"ConnectX-?7|CX-?7", 400), (r"ConnectX-?8|CX-?8", 800))  # fmt: skip
"""Names of a generation -> Gbit/s of a port, where no number says it."""
BY_GPU = ((r"GB?300|B300", 800), (r"H[128]00|H20\b|B200|MI3", 400), (r"A[18]00|MI250", 200), (r"V100", 100))
"""GPU -> Gbit/s of the port beside it, where a cell names only the kind of network."""
PORTS = {"infiniband-edr": 4}
"""Ports of a node where they are not counted and no machine is named; else one for each GPU."""
_SPEED = re.compile(r"(?<![\d.])(100|200|400|800) ?(?:G(?:b/?s|bps|bE|bit/s|E)?)(?![A-Za-z])")
_COUNT = re.compile(
    r"(\d+) ?x ?(?=(?:\d+ ?G|[EHNX]DR|ConnectX|CX-?\d|Pollara|EFA|RoCE|IB\b|InfiniBand|NIC))|\+ ?(\d+) ?x"
)
_TAIL = re.compile(r"(?:\d+ ?G\w*|[EHNX]DR\d*|RoCE|IB|InfiniBand|EFA)[^+,;x]{0,16} x ?(\d+)\b")


@dataclass(frozen=True, slots=True)
class System:
    """The fabric that a ``system`` cell stands for.

    Attributes
    ----------
    gpus_per_node : int
    intra, inter : str
        Links of the catalog; `inter` is empty where the cell names no network.
    ports : int
        Network ports of a node.
    """

    gpus_per_node: int
    intra: str
    inter: str = ""
    ports: int = 0

    @property
    def stated(self) -> bool:
        """Whether the network is known from its name, and not only from what it reached."""
        return self.inter not in (UNSTATED, UNSTATED_PAIRS)

    def nodes(self, stated: float, n_gpus: float) -> int:
        """NVLink domains of a row: trays of a rack are one domain."""
        return int(np.ceil(n_gpus / self.gpus_per_node)) if self.gpus_per_node > 8 else int(stated)


def _count(name: str) -> int:
    """Ports of a node that a cell counts; 0 where it does not."""
    found = _COUNT.search(name) or _TAIL.search(name)
    return int(next(filter(None, found.groups()))) if found else 0


def _speed(name: str) -> int:
    """Gbit/s of a port: a number, else the name of a generation, else what is beside such a GPU; 0 for none."""
    found = _SPEED.search(name)
    if found:
        return int(found.group(1))
    words = (*SPEEDS, *BY_GPU)
    return next((speed for pattern, speed in words if re.search(pattern, name)), 0)


def network_of(name: str) -> tuple[str, int]:
    """Network and ports of a node that a cell names; empty and 0 where it names none."""
    count = _count(name)
    kind = next((table for pattern, table in KINDS if re.search(pattern, name)), None)
    for pattern, machine, ports in CLOUDS if kind is not None else (*CLOUDS, *MACHINES):
        if re.search(pattern, name):
            return machine, count if count and ports != RACK else ports
    if kind is None:
        return "", 0
    speed = _speed(name)
    if not kind:  # EFA
        generations = [link for (each, most), link in EFA.items() if each == speed and (count or 8) <= most]
        return (generations[0], count or 8) if generations else ("", 0)
    link = kind.get(speed) or (next(iter(kind.values())) if len(kind) == 1 else "")
    return (link, count or PORTS.get(link, 8)) if link else ("", 0)


@lru_cache(maxsize=256)
def system_of(name: str) -> System | None:
    """The fabric that a ``system`` cell names; None for GPUs that the table lacks."""
    gpu = next(((gpus, link) for pattern, gpus, link in GPUS if re.search(pattern, name)), None)
    if gpu is None:
        return None
    return System(*gpu, *network_of(name))
