"""Findings about a cluster's links and network: what will slow a job there, by how much, why, and what helps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from hwmodels import units
from hwmodels.network.fabric import Fabric
from hwmodels.topology import GroupShape

if TYPE_CHECKING:
    from hwmodels.cluster import Cluster

SLOTS: Mapping[str, tuple[str, float]] = MappingProxyType(
    {
        "volta": ("PCIe 3.0 x16", 15.75e9), "ampere": ("PCIe 4.0 x16", 31e9), "ada": ("PCIe 4.0 x16", 31e9),
        "hopper": ("PCIe 5.0 x16", 63e9), "cdna3": ("PCIe 5.0 x16", 63e9), "cdna4": ("PCIe 5.0 x16", 63e9),
    }
)  # fmt: skip
"""Generation -> slot of its hosts and bytes/s per direction (hw_devices, column pcie). Blackwell's cards and ports
meet on PCIe 5 and 6, so nothing is said of them."""

MEASURED_NODES = 4
"""Collectives over more nodes have been measured on single systems only."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing worth knowing about a cluster or a measurement.

    Attributes
    ----------
    rule : str
        Identifier.
    severity : {'problem', 'note'}
        A problem costs time that the hardware could give; a note is a figure to plan with.
    what, why, fix : str
        The finding with its numbers, its reason, and what helps.
    numbers : Mapping[str, float]
        The same numbers in SI units.
    """

    rule: str
    severity: str
    what: str
    why: str
    fix: str
    numbers: Mapping[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.severity}: {self.what} ({self.why}) [{self.rule}]. Try: {self.fix}"


def findings(cluster: Cluster) -> list[Finding]:
    """Everything that the checks of this module find, problems first.

    Parameters
    ----------
    cluster : Cluster
    """
    found = [f for check in CHECKS for f in check(cluster)]
    return sorted(found, key=lambda f: f.severity != "problem")


def _shape(ranks: float, nodes: float, stride: float = 1) -> GroupShape:
    return GroupShape(np.asarray(int(ranks)), np.asarray(int(nodes)), np.asarray(int(stride)))


def _gb(value: float) -> str:
    return units.format_bandwidth(value)


def _devices(cluster: Cluster) -> Iterator[Finding]:
    """Datasheet numbers of the devices that contradict each other: sparse peaks, figures of two dies."""
    from hwmodels.catalog import checks
    from hwmodels.writing import device_content

    for pool in cluster.pools:
        for fault in checks.device_faults(device_content(pool.device), f"device {pool.device.name}", {(): 1}):
            yield Finding("datasheet", "problem", f"{fault.where}: {fault.what}", fault.why, fault.fix)


def _standards(cluster: Cluster) -> Iterator[Finding]:
    """Bandwidths that the link's standard does not have, or that look like both directions."""
    from hwmodels.catalog import checks

    fabric = cluster.fabric
    if fabric.tables:
        return  # measured on this machine: its curves count
    for where, link in (("fabric.intra_node", fabric.intra), ("fabric.inter_node.link", fabric.inter)):
        if link is None:
            continue
        fault = checks.bandwidth_fault(link.generation, link.bandwidth, where) if link.generation else None
        if fault is not None:
            yield Finding("link-standard", "problem", f"{where}: {fault.what}", fault.why, fault.fix,
                          {"bandwidth": link.bandwidth})  # fmt: skip
        if link.generation or link.kind not in checks.NEEDS_GENERATION:
            continue
        own = {s.lane * s.lanes for name, s in checks.STANDARDS.items() if name.startswith(link.kind)}
        twice = [b for b in own if abs(link.bandwidth / (2 * b) - 1) < 0.01 and link.bandwidth not in own]
        if twice:
            yield Finding(
                "both-directions", "problem", f"{where} {link.name} has {_gb(link.bandwidth)}",
                f"that is twice {_gb(twice[0])}, a {link.kind} figure per direction",
                f"bandwidth: {twice[0] / 1e9:g}GB/s, or its generation",
                {"bandwidth": link.bandwidth, "half": twice[0]},
            )  # fmt: skip


def _ports(cluster: Cluster) -> Iterator[Finding]:
    """Ports that GPUs share, unevenly or behind a narrower slot."""
    fabric = cluster.fabric
    if fabric.inter is None or fabric.torus:
        return
    g, p, port = fabric.gpus_per_node, fabric.ports_per_node, fabric.inter.bandwidth
    if max(g, p) % min(g, p):
        yield Finding(
            "uneven-ports", "problem", f"{p} ports for {g} GPUs a node",
            "some GPUs share a port and others do not, and a group waits for its slowest member",
            "a number of ports that divides or is divided by the GPUs", {"ports": p, "gpus": g},
        )  # fmt: skip
    if p < g and fabric.nodes > 1:
        share = port * p / g
        yield Finding(
            "shared-ports", "note", f"{p} ports of {_gb(port)} leave each of {g} GPUs {_gb(share)} when all send",
            "groups side by side in a node share its ports", "keep tp and ep inside a node",
            {"per_gpu": share, "port": port},
        )  # fmt: skip
    slot = SLOTS.get(cluster.device.generation)
    if slot is not None and port > slot[1] * 1.05:
        yield Finding(
            "slot-under-port", "problem", f"a port of {_gb(port)} is fed by {slot[0]} at {_gb(slot[1])}",
            f"hosts of {cluster.device.name} have {slot[0]}; the port reaches {slot[1] / port:.0%} of its line",
            f"plan with {_gb(slot[1])} a port", {"port": port, "slot": slot[1]},
        )  # fmt: skip


def _uplinks(cluster: Cluster) -> Iterator[Finding]:
    """Oversubscription: what groups over all nodes keep of their ports."""
    fabric = cluster.fabric
    if fabric.inter is None or fabric.nodes < 2 or fabric.torus:
        return
    wide = replace(fabric, oversubscription=1.0, pod_oversubscription=1.0)
    group = _shape(fabric.gpus_per_node, fabric.nodes)
    apart = _shape(1, fabric.nodes, fabric.gpus_per_node)
    kept = {
        pattern: float(fabric.group_bandwidth(shape, pattern) / wide.group_bandwidth(shape, pattern))
        for pattern, shape in (("ring", group), ("all_to_all", apart))
    }
    if min(kept.values()) > 0.999:
        return
    leaf = fabric.leaf_span
    pods = f"; pods of {fabric.pod_nodes} nodes at {fabric.pod_oversubscription:g}:1" if fabric.pod_nodes else ""
    place = "place expert-parallel and full-shard groups"
    near = f"{place} within {leaf} nodes" if leaf > 1 else "leaf_nodes, if neighbouring nodes share a leaf switch"
    yield Finding(
        "oversubscribed", "problem",
        f"over all {fabric.nodes} nodes a ring keeps {kept['ring']:.0%} of the ports and an all-to-all "
        f"{kept['all_to_all']:.0%}",
        f"leaves of {leaf} nodes at {fabric.oversubscription:g}:1{pods}", near,
        {"ring_share": kept["ring"], "all_to_all_share": kept["all_to_all"]},
    )  # fmt: skip


def _inside(cluster: Cluster) -> Iterator[Finding]:
    """Links inside a node that small, large or cross-socket groups cannot use in full."""
    fabric = cluster.fabric
    link, g = fabric.intra, fabric.gpus_per_node
    if g < 2:
        return
    two, whole = float(link.reach(np.asarray(2))), float(link.reach(np.asarray(g)))
    if link.topology in ("mesh", "cube-mesh") and two < whole:
        four = float(link.reach(np.asarray(min(4, g))))
        yield Finding(
            "small-groups", "note",
            f"groups of 2 and 4 GPUs reach {_gb(two)} and {_gb(four)} of {_gb(link.bandwidth)}",
            f"{link.name} has no switch: a GPU has {_gb(two)} to one neighbour", f"tp of {g}, or 1",
            {"two": two, "four": four, "all": whole},
        )  # fmt: skip
    if link.topology == "pairs" and g > 2:
        yield Finding(
            "bridged-pairs", "problem", f"groups of more than 2 GPUs fall from {_gb(two)} to {_gb(whole)}",
            f"{link.name} joins pairs; the others are reached over PCIe", "tp of 2, and pp or dp beyond",
            {"two": two, "more": whole},
        )  # fmt: skip
    if link.topology == "tree" and g > 1:
        tree = fabric.pcie
        per_gpu = tree.socket_bandwidth / max(1.0, g / min(tree.sockets, g))
        across = f", and {g} GPUs on {tree.sockets} sockets have {_gb(per_gpu)} each across" if g > 2 else ""
        yield Finding(
            "pcie-only", "note", f"GPUs meet over PCIe at {_gb(link.bandwidth)}{across}",
            "there is no NVLink or xGMI; without peer access (consumer cards, access control on switches) copies pass "
            "through host memory and reach a few GB/s", "replicas or pp before tp; check peer access",
            {"per_gpu": link.bandwidth, "across_sockets": per_gpu},
        )  # fmt: skip


def _steps(cluster: Cluster) -> Iterator[Finding]:
    """The step from inside a node to between nodes, and how far the laws were measured."""
    fabric = cluster.fabric
    if fabric.inter is None or fabric.nodes < 2:
        return
    if not fabric.torus and fabric.gpus_per_node > 1:
        inside = float(fabric.intra.reach(np.asarray(fabric.gpus_per_node)))
        between = float(fabric.group_bandwidth(_shape(fabric.gpus_per_node, 2))) / fabric.gpus_per_node
        ratio = inside / between
        if ratio > 1.5:
            yield Finding(
                "node-boundary", "note",
                f"a GPU has {_gb(inside)} inside its node and {_gb(between)} out of it: {ratio:.3g} times less",
                "tensor, sequence and expert parallel traffic that leaves the node pays that factor",
                f"tp and ep of at most {fabric.gpus_per_node}", {"inside": inside, "between": between, "ratio": ratio},
            )  # fmt: skip
    if fabric.nodes > MEASURED_NODES:
        yield Finding(
            "no-evidence", "note", f"groups over {fabric.nodes} nodes are priced beyond what was measured",
            f"published collectives cover up to {MEASURED_NODES} nodes, but for single systems",
            "calibrate on the cluster, or read the wide end of the interval", {"nodes": fabric.nodes},
        )  # fmt: skip


def _sharding(cluster: Cluster) -> Iterator[Finding]:
    """Full against hybrid sharding from the link speeds alone: the compute that hides each."""
    from hwmodels.network.sharding import network_seconds_per_byte

    fabric = cluster.fabric
    if fabric.inter is None or fabric.nodes < 2 or fabric.gpus_per_node < 2 or fabric.torus:
        return
    full, hybrid = network_seconds_per_byte(fabric)
    yield Finding(
        "full-or-hybrid-shard", "note",
        f"sharding over all {fabric.nodes} nodes moves {full * 1e12:.3g} ms of network traffic for each GB of "
        f"parameters a step, sharding inside nodes {hybrid * 1e12:.3g} ms",
        "full sharding gathers parameters twice and scatters gradients once over the network; hybrid sharding only "
        "sums gradients there",
        f"hybrid sharding when a step computes for less than {full * 1e12:.3g} ms per GB and a node has the memory "
        "for whole states", {"full_s_per_byte": full, "hybrid_s_per_byte": hybrid},
    )  # fmt: skip


CHECKS: tuple[Callable[[Cluster], Iterator[Finding]], ...] = (
    _devices, _standards, _ports, _uplinks, _inside, _steps, _sharding,
)  # fmt: skip
"""What `findings` runs, in order."""


def limit(fabric: Fabric, op: str, shape: GroupShape) -> tuple[float, str]:
    """The highest bus bandwidth that the links allow a ring (or direct all-to-all), and the link that sets it.

    Bus bandwidth as nccl-tests defines it, ``algbw x 2 (n-1)/n`` for all-reduce and ``algbw x (n-1)/n`` for the
    others, is the bytes/s over each edge of a ring: the GPU's reach inside a node, all of a group's ports between
    nodes. In-switch reduction (NVLS, SHARP) can pass it, since it sends less. An all-to-all sends ``(r-1)/n`` of its
    bytes inside a node of `r` and ``(n-r)/n`` out of it.

    Parameters
    ----------
    fabric : Fabric
    op : str
        As `hwmodels.collectives.names`.
    shape : GroupShape
        Of one group (scalars).

    Returns
    -------
    (float, str)
        Bytes/s and the name of the link; ``(inf, "")`` for one rank.

    Raises
    ------
    InputError
        For a group that the fabric cannot hold.
    """
    fabric.check(shape)
    r, nodes = float(np.max(shape.ranks_per_node)), float(np.max(shape.nodes))
    n = r * nodes
    options = [(np.inf, "")]
    alltoall = op == "all_to_all"
    if r > 1:
        reach = float(fabric.intra.reach(np.asarray(r)))
        options.append((reach * (n - 1) / (r - 1) if alltoall else reach, fabric.intra.name))
    if nodes > 1 and fabric.inter is not None:
        pattern = "all_to_all" if alltoall else "pair" if op == "send_recv" else "ring"
        ports = float(np.max(fabric.group_bandwidth(shape, pattern)))
        options.append((ports * (n - 1) / (r * (n - r)) if alltoall else ports, fabric.inter.name))
    return min(options)
