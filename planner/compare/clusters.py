"""The cluster of a published row: GPU name, counts and the networks that the source states."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

from hwmodels.errors import Fault, InputError
from planner.compare.rows import Row

if TYPE_CHECKING:
    from hwmodels.cluster import Cluster
    from hwmodels.network import Link


@dataclass(frozen=True, slots=True)
class Hardware:
    """Catalog entries that a GPU name of a measurement means.

    Attributes
    ----------
    device : str
        Device of the catalog.
    preset : str
        Cluster preset that gives links, overlap and context.
    intra, inter : str
        Links of the catalog that replace those of the preset; empty keeps them.
    """

    device: str
    preset: str
    intra: str = ""
    inter: str = ""


HARDWARE: dict[tuple[str, int], Hardware] = {
    ("A100", 80): Hardware("a100-sxm-80gb", "dgx-a100"),
    ("A100", 40): Hardware("a100-sxm-40gb", "dgx-a100-40gb"),
    ("H100", 80): Hardware("h100-sxm-80gb", "dgx-h100"),
    ("H100", 96): Hardware("h100-sxm-96gb-500w", "dgx-h100"),
    ("H200", 141): Hardware("h200-sxm-141gb", "hgx-h200"),
    ("L40S", 48): Hardware("l40s-48gb", "dgx-h100", intra="pcie4"),
    ("B200", 180): Hardware("b200-sxm-180gb", "hgx-b200"),
    ("B300", 288): Hardware("b300-sxm-288gb", "hgx-b200", inter="infiniband-xdr"),
    ("GB200", 186): Hardware("gb200-186gb", "gb200-nvl72"),
    ("GB300", 288): Hardware("gb300-288gb", "gb200-nvl72", inter="infiniband-xdr"),
    ("MI300X", 192): Hardware("mi300x-192gb", "mi300x"),
    ("MI325X", 256): Hardware("mi325x-256gb", "mi300x"),
    ("MI355X", 288): Hardware("mi355x-288gb", "mi355x"),
    ("V100", 32): Hardware("v100-sxm-32gb", "dgx-a100", intra="nvlink2", inter="infiniband-edr"),
}
"""(GPU name, memory label in GB) -> catalog. Several labels of one name: the nearest is taken,
the first where the source states none."""

GENERATIONS: dict[str, dict[int, str]] = {
    "blackwell": {8: "B200", 4: "GB200"}, "hopper": {8: "H100"}, "ampere": {8: "A100"}, "volta": {8: "V100"},
}  # fmt: skip
"""Generation -> GPUs of a host -> GPU that a source means which names the generation alone; the first where the host
is not stated."""

MOST_GPUS_A_HOST = 16
"""A scale-up domain above this is a rack: jobs fill whole domains, not the host's share of it."""

_LINKS = re.compile(r"(\d+)\s*x\s*(?!\d)[^,;]*?(?:ConnectX-7|CX7|CX-7|NDR)[^,;]*?(\d+)\s*Gb", re.IGNORECASE)
_PER_GPU = re.compile(r"(\d+)\s*Gb(?:it)?/s per GPU", re.IGNORECASE)
_PER_NODE = re.compile(r"(\d+)\s*Gb(?:it)?/s per node", re.IGNORECASE)
_OMNI_PATH = re.compile(r"Omni-Path, (\d+) links per node", re.IGNORECASE)
OMNI_PATH_BITS = 100e9
"""Bits/s of an Omni-Path 100 link, the only generation in use on A100 systems (Intel product brief)."""


def stated_bandwidth(text: str, gpus_per_node: int) -> float | None:
    """Bytes/s per direction between nodes that a source's words give a whole node, or None.

    ``"RDMA 400 Gbit/s per GPU"``, ``"800 Gb/s per node"``, ``"Omni-Path, 4 links per node"`` and
    ``"8x ConnectX-7 IB NDR 400Gb/s"`` are understood; where storage and compute adapters are
    both listed, the most of one kind are the compute ones.
    """
    if match := _PER_GPU.search(text):
        return float(match[1]) * gpus_per_node * 1e9 / 8.0
    if match := _PER_NODE.search(text):
        return float(match[1]) * 1e9 / 8.0
    if match := _OMNI_PATH.search(text):
        return float(match[1]) * OMNI_PATH_BITS / 8.0
    found = [float(count) * float(gbits) * 1e9 / 8.0 for count, gbits in _LINKS.findall(text)]
    return max(found) if found else None


def hardware_of(row: Row) -> tuple[Hardware, list[str]]:
    """Catalog entries of the row's GPU, with what was assumed.

    Raises
    ------
    hwmodels.errors.InputError
        Where the GPU is not one that the catalog knows.
    """
    gpu, assumed = _gpu(row)
    labels = [label for name, label in HARDWARE if name == gpu]
    if row.gpu_mem_gib is None:
        assumed += [f"{gpu} with {labels[0]} GB"] if len(labels) > 1 else []
        return HARDWARE[gpu, labels[0]], assumed
    stated = row.gpu_mem_gib
    label = min(labels, key=lambda gb: abs(gb - stated))
    near = abs(label - stated) <= 0.03 * label
    assumed += [] if near else [f"{gpu} {label} GB for the {stated:g} GB of the source"]
    return HARDWARE[gpu, label], assumed


def _gpu(row: Row) -> tuple[str, list[str]]:
    """Name of the row's GPU in `HARDWARE`, and what was assumed where the source names its generation alone.

    Raises
    ------
    hwmodels.errors.InputError
        Where the GPU is not one that the catalog knows.
    """
    if any(name == row.gpu for name, _ in HARDWARE):
        return row.gpu, []
    hosts = next((hosts for word, hosts in GENERATIONS.items() if word in row.gpu.lower()), None)
    if hosts is None:
        known = ", ".join(dict.fromkeys(name for name, _ in HARDWARE))
        raise InputError(Fault(f"GPU {row.gpu!r} is not in the catalog", "gpu", "", f"one of {known}"))
    found = hosts.get(row.gpus_per_node or 0, next(iter(hosts.values())))
    return found, [f"{found} for {row.gpu!r}"]


def in_rack(row: Row) -> bool:
    """Whether the row's GPUs share a scale-up domain of a whole rack; False for GPUs that the catalog lacks."""
    try:
        hardware, _ = hardware_of(row)
    except InputError:
        return False
    return _preset(hardware.preset).gpus_per_node > MOST_GPUS_A_HOST


def _node_size(row: Row, domain: int) -> int:
    """GPUs of one node: those of the host, or of the rack where the scale-up domain is a rack."""
    n_gpus = row.n_gpus or 1
    most = domain if domain > MOST_GPUS_A_HOST else (row.gpus_per_node or domain)
    return next(n for n in range(min(most, n_gpus), 0, -1) if n_gpus % n == 0)


def _stated_link(link: Link, node_bytes_s: float, ports: int, text: str) -> Link:
    name = f"{link.name} ({text})"[:80]
    return replace(link, name=name, bandwidth=node_bytes_s / ports, source=f"stated by the row: {text}")


@cache
def _preset(name: str) -> Cluster:
    """A preset of the catalog; hundreds of rows share one."""
    from hwmodels import cluster as clusters

    return clusters.load(name)


def cluster_of(row: Row) -> tuple[Cluster, list[str]]:
    """Cluster of exactly the row's GPUs, and what was assumed.

    Links come from the preset of the GPU, except for the bandwidth between nodes where the
    source states it. A job that fills no whole node gets a node of its own size.

    Raises
    ------
    hwmodels.errors.InputError
        Where the GPU is not in the catalog.
    """
    from hwmodels import catalog
    from hwmodels import cluster as clusters

    hardware, assumed = hardware_of(row)
    base = _preset(hardware.preset)
    size = _node_size(row, base.gpus_per_node)
    nodes = (row.n_gpus or 1) // size
    fabric = base.fabric
    intra = catalog.link(hardware.intra) if hardware.intra else fabric.intra
    ports = max(1, round(fabric.ports_per_node * size / base.gpus_per_node)) if fabric.inter is not None else 0
    inter = catalog.link(hardware.inter) if hardware.inter else fabric.inter
    if nodes > 1 and inter is not None:
        stated = stated_bandwidth(row.inter_net, row.gpus_per_node or size)
        if stated is not None:
            stated *= size / (row.gpus_per_node or size)
            if _OMNI_PATH.search(row.inter_net):
                inter = catalog.link("omni-path-100")
            inter = _stated_link(inter, stated, ports, row.inter_net)
        else:
            assumed.append(f"network of {hardware.preset}")
    pool = clusters.Pool(catalog.device(hardware.device), size, nodes)
    fabric = replace(fabric, gpus_per_node=size, nodes=nodes, intra=intra, inter=inter, ports_per_node=ports)
    return replace(base, name=f"{row.n_gpus} x {row.gpu}", pools=(pool,), fabric=fabric), assumed
