"""What lies beside the devices of a node: the link to the host, and the host's memory.

A device names its link (`Device.host_link`); rates are those that copies reach. Host memory is shared by the devices
of a node, or by the two of a superchip.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from hwmodels.cluster import Cluster
from hwmodels.records import dataclass

STREAM_SHARE = 0.8
"""Share of its channels' peak that a long pass over host memory reaches: assumed."""

UNKNOWN = "pcie4"
"""Link of a device that names none: the most common of the catalog's."""


@dataclass(frozen=True, slots=True)
class HostLink:
    """A kind of host with its link.

    Attributes
    ----------
    to_device, to_host : float
        Bytes/s of a copy from pinned memory, per device and direction.
    memory_bandwidth : float
        Peak bytes/s of the memory behind `shared_by` devices; by all of a node where that is 0.
    source : str
    """

    to_device: float
    to_host: float
    memory_bandwidth: float
    shared_by: int
    source: str


_PCIE = "PCI Express x16 per direction at the 88% that nvbandwidth reaches on PCIe 5.0 (55.4 of 63 GB/s)"
LINKS: Mapping[str, HostLink] = MappingProxyType({
    "pcie3": HostLink(13.9e9, 13.9e9, 256e9, 0, f"{_PCIE}; two sockets of 6 DDR4-2666 channels"),
    "pcie4": HostLink(27.3e9, 27.3e9, 409.6e9, 0, f"{_PCIE}; two sockets of 8 DDR4-3200 channels"),
    "pcie5": HostLink(55.4e9, 55.4e9, 614.4e9, 0, f"{_PCIE}; two sockets of 8 DDR5-4800 channels"),
    "c2c": HostLink(359e9, 377e9, 512e9, 2, "NVLink-C2C: 359 GB/s to the device, 377 back (stas00/ml-engineering "
                    "network/README, 2026-08); 512 GB/s of LPDDR5X a Grace for two devices"),
})
"""Kinds of hosts by the name of their link."""


@dataclass(frozen=True, slots=True)
class Host:
    """The host as one rank sees it.

    Attributes
    ----------
    to_device, to_host : float
        Bytes/s.
    memory_bandwidth : float
        Bytes/s of host memory that a rank gets while all ranks of a node use it.
    source : str
    """

    to_device: float
    to_host: float
    memory_bandwidth: float
    source: str


def of(cluster: Cluster) -> Host:
    """The host of a cluster's devices."""
    device = cluster.device
    link = LINKS[device.host_link or UNKNOWN]
    sharing = link.shared_by or cluster.gpus_per_node
    assumed = "" if device.host_link else f" (assumed: {device.name} names no link)"
    return Host(
        link.to_device, link.to_host, link.memory_bandwidth * STREAM_SHARE / sharing, f"{link.source}{assumed}"
    )
