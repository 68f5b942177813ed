"""What fails in a cluster, how often and for how long, and the storage that checkpoints and data go through.

Mean times between failures are those of one component: a job stops when any of its components fails. Where a
cluster states none, the defaults here stand in, and their sources say that they are assumed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field
from types import MappingProxyType
from typing import TYPE_CHECKING

from hwmodels.device import Coefficient
from hwmodels.errors import Fault, InputError
from hwmodels.records import dataclass

if TYPE_CHECKING:
    from hwmodels.cluster import Cluster

KINDS = ("gpu", "nic", "node", "link", "switch", "software")
"""Kinds of components: a GPU, a network port of a node, a node without both, the cable of a port, a leaf switch, and
the software of one GPU."""

ANY = "any"
"""Failures of every cause together, counted by GPU (``mtbf: {gpu_hours: ...}``)."""

TAKES_NODE = (ANY, "gpu", "nic", "node")
"""Kinds whose failure takes the node out until it is repaired; after others the job restarts where it was (assumed)."""

ASSUMED_GPU_HOURS = Coefficient(
    50700.0,
    "assumed: as 16,384 H100 of Llama 3 Herd of Models (arXiv 2407.21783), section 3.3.4: 419 unexpected interruptions "
    "in 54 days",
    0,
    0.5,
)
ASSUMED_REPAIR_S = Coefficient(86400.0, "assumed: a day until a failed node is back", 0, 1.0)


@dataclass(frozen=True, slots=True)
class Storage:
    """Shared storage as a job sees it. Checked when built.

    Attributes
    ----------
    write_per_node, read_per_node : float
        Bytes/s that one node reaches.
    write_total, read_total : float
        Bytes/s of all nodes together; infinite where nothing but the nodes bounds them.
    latency_s : float
        Seconds from a request to the first byte, once for a checkpoint and once for a step's data.
    source : str
    """

    write_per_node: float
    read_per_node: float
    write_total: float = math.inf
    read_total: float = math.inf
    latency_s: float = 0.0
    source: str = ""

    def __post_init__(self) -> None:
        faults = [
            Fault(f"{name} is {getattr(self, name):g}", "storage", "it is a rate in bytes/s", f"{name}: 2GB/s")
            for name in ("write_per_node", "read_per_node", "write_total", "read_total")
            if not getattr(self, name) > 0
        ]
        if not 0 <= self.latency_s < math.inf:
            faults.append(Fault(f"latency is {self.latency_s:g} s", "storage", "it is a finite time", "latency: 5ms"))
        if faults:
            raise InputError(faults)


ASSUMED_STORAGE = Storage(
    2e9, 4e9, 2e12, 2e12, 5e-3,
    "assumed: 2 GB/s of writes and 4 GB/s of reads a node; 2 TB/s in total is what Llama 3 Herd of Models (arXiv "
    "2407.21783), section 3.3.1, states for its storage",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Reliability:
    """What a cluster file says about failures and spare nodes. Checked when built.

    Attributes
    ----------
    hours : Mapping[str, Coefficient]
        Kind of `KINDS` -> mean hours between failures of one component; empty where nothing is stated.
    repair_s : Coefficient or None
        Seconds until a failed node is back.
    spares : int or None
        Nodes beyond those of the job that can take the place of a failed one; None where it is not stated, which is
        taken as enough of them.
    """

    hours: Mapping[str, Coefficient] = field(default_factory=dict)
    repair_s: Coefficient | None = None
    spares: int | None = None

    def __post_init__(self) -> None:
        faults = [
            Fault(f"unknown kind {kind!r}", "failures", "", "one of " + ", ".join(KINDS))
            for kind in self.hours
            if kind not in KINDS
        ]
        faults += [
            Fault(f"{kind} fails every {c.value:g} hours", "failures", "a mean time is above zero", f"{kind}: 50000h")
            for kind, c in self.hours.items()
            if not c.value > 0
        ]
        if self.repair_s is not None and not 0 <= self.repair_s.value < math.inf:
            faults.append(Fault(f"repair takes {self.repair_s.value:g} s", "repair", "it is a finite time", "24h"))
        if self.spares is not None and self.spares < 0:
            faults.append(Fault(f"there are {self.spares} spares", "spares", "a number of nodes", "spares: 0"))
        if faults:
            raise InputError(faults)
        object.__setattr__(self, "hours", MappingProxyType(dict(self.hours)))

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (dict(self.hours), self.repair_s, self.spares)


@dataclass(frozen=True, slots=True)
class Component:
    """All components of one kind that a job depends on.

    Attributes
    ----------
    kind : str
    count : int
    mtbf_s : float
        Mean seconds between failures of one.
    takes_node : bool
        Whether a failure takes the node out until it is repaired.
    source : str
    """

    kind: str
    count: int
    mtbf_s: float
    takes_node: bool
    source: str

    @property
    def rate(self) -> float:
        """Failures a second of all of them."""
        return self.count / self.mtbf_s


def components(cluster: Cluster, gpus: int) -> tuple[Component, ...]:
    """What a job on `gpus` GPUs of a cluster depends on.

    By component where the cluster says so; else every cause together by GPU (``mtbf``), else `ASSUMED_GPU_HOURS`.
    """
    nodes = -(-gpus // cluster.gpus_per_node)
    if not cluster.reliability.hours:
        hours = cluster.mtbf_gpu_hours or ASSUMED_GPU_HOURS
        return (Component(ANY, gpus, hours.value * 3600.0, True, hours.source),)
    ports = nodes * max(cluster.fabric.ports_per_node, 0)
    counts = {"gpu": gpus, "nic": ports, "node": nodes, "link": ports, "switch": _leaves(cluster, nodes)}
    return tuple(
        Component(kind, counts.get(kind, gpus), c.value * 3600.0, kind in TAKES_NODE, c.source)
        for kind, c in cluster.reliability.hours.items()
        if counts.get(kind, gpus)
    )


def _leaves(cluster: Cluster, nodes: int) -> int:
    """Leaf switches under the nodes of a job: one a rail for every `leaf_span` nodes; none inside one node."""
    fabric = cluster.fabric
    if fabric.inter is None or nodes < 2 or fabric.topology == "torus":
        return 0
    rails = fabric.ports_per_node if fabric.topology.startswith("rail") else 1
    return rails * -(-nodes // fabric.leaf_span)


def storage_of(cluster: Cluster) -> Storage:
    """The cluster's storage, or `ASSUMED_STORAGE`."""
    return cluster.storage or ASSUMED_STORAGE


def repair_of(cluster: Cluster) -> Coefficient:
    """The cluster's repair time in seconds, or `ASSUMED_REPAIR_S`."""
    return cluster.reliability.repair_s or ASSUMED_REPAIR_S
