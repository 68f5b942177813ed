"""A measured collective beside what its links allow: how efficient it is, and what a slow one looks like."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hwmodels import units
from hwmodels.errors import Fault, InputError
from hwmodels.network.advice import SLOTS, Finding, limit
from hwmodels.topology import GroupShape

if TYPE_CHECKING:
    from hwmodels.cluster import Cluster

BULK_BYTES = 64 * 2**20
"""Below it latency counts as much as bandwidth, and a rate says nothing about a link."""

NEAR = 0.25
"""A rate within a quarter of a cause's rate looks like it."""

BUS = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "all_to_all": 1.0}
"""busbw = algbw x this x (n-1)/n (nccl-tests, doc/PERFORMANCE.md); send/recv and broadcast: algbw."""


@dataclass(frozen=True, slots=True)
class Efficiency:
    """A measured collective against its links.

    Attributes
    ----------
    bus_bandwidth : float
        Measured, bytes/s (nccl-tests busbw).
    limit : float
        What the tightest link allows a ring, bytes/s.
    link : str
        That link.
    """

    bus_bandwidth: float
    limit: float
    link: str

    @property
    def efficiency(self) -> float:
        """Measured over limit; above 1 where switches reduce in flight."""
        return self.bus_bandwidth / self.limit


def bus_bandwidth(op: str, nbytes: float, seconds: float, ranks: int) -> float:
    """nccl-tests busbw in bytes/s.

    >>> bus_bandwidth("all_reduce", 1e9, 0.02, 16) / 1e9
    93.75
    """
    factor = BUS[op] * (ranks - 1) / ranks if op in BUS else 1.0
    return nbytes / seconds * factor


def efficiency(cluster: Cluster, op: str, nbytes: float, shape: GroupShape, seconds: float) -> Efficiency:
    """How much of its tightest link a measured collective reached.

    Parameters
    ----------
    cluster : Cluster
    op : str
    nbytes : float
        nccl-tests size.
    shape : GroupShape
        Of the group (scalars).
    seconds : float
        Measured.

    Raises
    ------
    InputError
        For a time or size that is not positive, a group of one, or one that the cluster cannot hold.
    """
    ranks = int(np.max(shape.size))
    faults = [
        Fault(f"{name} is {value}", "efficiency", fix="a number above zero")
        for name, value in (("seconds", seconds), ("nbytes", nbytes))
        if not (np.isfinite(value) and value > 0)
    ]
    if ranks < 2:
        faults.append(Fault("the group has one rank", "efficiency", "it sends nothing", "two ranks or more"))
    if faults:
        raise InputError(faults)
    most, link = limit(cluster.fabric, op, shape)
    return Efficiency(bus_bandwidth(op, nbytes, seconds, ranks), most, link)


def diagnose(cluster: Cluster, op: str, nbytes: float, shape: GroupShape, seconds: float) -> list[Finding]:
    """What a measured time says: as it should be, or which causes give a rate like it, the closest first.

    Parameters
    ----------
    cluster, op, nbytes, shape, seconds
        As `efficiency`.

    Returns
    -------
    list of Finding
        One ``as-expected`` note when the time is within the interval of the law (or faster), else a ``slow`` problem
        with the efficiency, followed by the causes whose rate is near.

    Raises
    ------
    InputError
        As `efficiency`.
    """
    from hwmodels import collectives

    seen = efficiency(cluster, op, nbytes, shape, seconds)
    price = collectives.seconds(cluster, op, nbytes, shape)
    high, mid = float(np.max(price.high)), float(np.max(price.mid))
    if op == "all_reduce":
        # NCCL may settle on the ring where a tree or the switch would do better: that is no fault of the links.
        high = max(high, float(np.max(collectives.seconds(cluster, op, nbytes, shape, algorithm="ring").high)))
    numbers = {
        "bus_bandwidth": seen.bus_bandwidth,
        "limit": seen.limit,
        "efficiency": seen.efficiency,
        "expected_s": mid,
    }
    rate = f"{units.format_bandwidth(seen.bus_bandwidth)} of {units.format_bandwidth(seen.limit)} over {seen.link}"
    if seconds <= high:
        why = f"{units.format_seconds(mid)} expected, at most {units.format_seconds(high)}"
        return [Finding("as-expected", "note", f"{op} reaches {seen.efficiency:.0%}: {rate}", why, "nothing", numbers)]
    why = f"{units.format_seconds(seconds)} where at most {units.format_seconds(high)} are expected"
    found = [
        Finding("slow", "problem", f"{op} reaches {seen.efficiency:.0%}: {rate}", why, "the causes below", numbers)
    ]
    if nbytes < BULK_BYTES:
        found.append(
            Finding(
                "latency-bound",
                "note",
                f"{units.format_bytes(nbytes)} are too few to tell a link's rate",
                "latency counts as much as bandwidth here",
                f"measure {units.format_bytes(BULK_BYTES)} or more",
            )
        )
        return found
    causes = [(abs(np.log(seen.bus_bandwidth / c.numbers["rate"])), c) for c in _causes(cluster, shape, seen.limit)]
    near = sorted(((d, c) for d, c in causes if d <= np.log(1.0 + NEAR)), key=lambda pair: pair[0])
    return found + [cause for _, cause in near]


def _causes(cluster: Cluster, shape: GroupShape, most: float) -> Iterator[Finding]:
    """Known causes of slow collectives, each with the bus bandwidth that it would leave."""
    fabric = cluster.fabric
    between = int(np.max(shape.nodes)) > 1

    def cause(rule: str, rate: float, what: str, why: str, fix: str) -> Finding:
        return Finding(rule, "note", f"{what}: about {units.format_bandwidth(rate)}", why, fix, {"rate": rate})

    slot = SLOTS.get(cluster.device.generation)
    if between and fabric.inter is not None:
        port = fabric.inter.bandwidth
        if fabric.ports_per_node > 1:
            yield cause("one-port", port, "one port carries all", "the library sees or picks a single network port",
                        "name all ports (NCCL_IB_HCA, FI_EFA_*) and check the topology file")  # fmt: skip
            yield cause("half-the-ports", most / 2, "half of the ports work",
                        "one socket's ports are unused, or traffic of two GPUs meets on one port",
                        "check that every GPU has its own port and that all links are up")  # fmt: skip
        yield cause("host-memory", most * 0.28, "copies pass through host memory",
                    "no direct access of the ports to GPU memory (7 of 25 GB/s a port seen on two DGX A100)",
                    "load the peer-memory module and check the PCIe path of GPU and port")  # fmt: skip
        yield cause("cross-rail", most * 0.46, "traffic changes rails at the spine",
                    "20.1 instead of 43.7 GB/s when ranks of different rails meet (p5, EFA)",
                    "align ranks with rails, or let NVLink forward (NCCL_PXN)")  # fmt: skip
        for gbit in (10.0, 25.0):
            yield cause(f"tcp-{gbit:g}g", gbit / 8 * 1e9, f"TCP over a {gbit:g} Gb/s management interface",
                        "the network plugin was not found and sockets took over",
                        "check the plugin and NCCL_SOCKET_IFNAME, NCCL_NET")  # fmt: skip
    if slot is not None and fabric.intra.kind in ("nvlink", "xgmi"):
        yield cause("pcie-inside", slot[1], f"{slot[0]} in the place of {fabric.intra.name}",
                    "GPUs do not see each other's NVLink or xGMI (containers, isolation, a down link)",
                    "check the link state and peer access")  # fmt: skip
    if fabric.intra.kind == "pcie":
        yield cause("no-peer-access", 2e9, "no peer access across sockets",
                    "2 GB/s seen with 8 L40S on two sockets",
                    "allow peer access, or keep groups on one socket")  # fmt: skip
    if fabric.oversubscription > 1.0 or fabric.pod_oversubscription > 1.0:
        return
    if between:
        for over in (2.0, 4.0):
            yield cause("oversubscription", most / over, f"uplinks are shared {over:g}:1",
                        "the fabric has fewer uplinks than the cluster file says",
                        f"oversubscription: {over:g}, with leaf_nodes")  # fmt: skip
