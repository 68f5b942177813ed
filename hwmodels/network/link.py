"""`Link`: one kind of connection, and how much of it a GPU has towards a group inside its node."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwmodels.device import Coefficient
from hwmodels.errors import Fault, InputError
from hwmodels.estimate import FloatArray
from hwmodels.records import dataclass

LINK_KINDS = ("nvlink", "xgmi", "ici", "pcie", "infiniband", "roce", "efa", "ethernet", "loopback")
TOPOLOGIES = (
    "switch", "mesh", "cube-mesh", "pairs", "tree", "rail-fat-tree", "fat-tree", "torus", "loopback",
)  # fmt: skip

CUBE_MESH = (
    (0, 1, 1, 2, 2, 0, 0, 0),
    (1, 0, 2, 1, 0, 2, 0, 0),
    (1, 2, 0, 2, 0, 0, 1, 0),
    (2, 1, 2, 0, 0, 0, 0, 1),
    (2, 0, 0, 0, 0, 1, 1, 2),
    (0, 2, 0, 0, 1, 0, 2, 1),
    (0, 0, 1, 0, 1, 2, 0, 2),
    (0, 0, 0, 1, 2, 1, 2, 0),
)
"""NVLinks between each pair of GPUs in the hybrid cube mesh of 8 V100: six for each GPU, two quads joined by
four edges. From the NVIDIA DGX-1 with Tesla V100 system architecture white paper. A node of four has the first quad."""

SWITCH_HOP_S: Mapping[str, float] = MappingProxyType(
    {"infiniband": 0.13e-6, "roce": 0.5e-6, "efa": 0.5e-6, "ethernet": 0.5e-6}
)
"""Seconds of one switch more on the way: InfiniBand 0.13 us (pingdo.net hop figure), Ethernet 0.4-0.6 us
(kentino.com latency note)."""


@dataclass(frozen=True, slots=True)
class PcieTree:
    """The PCIe tree of a node: GPUs below switches below the root complex of a socket. Checked when built.

    Attributes
    ----------
    sockets : int
        Root complexes that share the node's GPUs evenly.
    gpus_per_switch : int
        GPUs below one PCIe switch; 1: every GPU has a root port of its own.
    socket_bandwidth : float
        Bytes/s per direction between two sockets that peer traffic reaches.
    source : str
        Where `socket_bandwidth` comes from.
    """

    sockets: int = 2
    gpus_per_switch: int = 1
    socket_bandwidth: float = 40e9
    source: str = "assumed: three UPI or xGMI links of 20-24 GB/s of which peer-to-peer traffic gets somewhat over half"

    def __post_init__(self) -> None:
        faults = []
        if self.sockets < 1 or self.gpus_per_switch < 1:
            what = f"the tree has {self.sockets} sockets and {self.gpus_per_switch} GPUs a switch"
            faults.append(Fault(what, "pcie", fix="at least one of each"))
        if not (math.isfinite(self.socket_bandwidth) and self.socket_bandwidth > 0):
            faults.append(Fault(f"socket_bandwidth is {self.socket_bandwidth}", "pcie", fix="a bandwidth > 0"))
        if faults:
            raise InputError(faults)


@dataclass(frozen=True, slots=True)
class Link:
    """One kind of link. Checked when built.

    Attributes
    ----------
    name : str
    kind : str
        One of `LINK_KINDS`.
    bandwidth : float
        Bytes/s per direction: of one GPU for links inside a node (all its lanes together), of one
        port for network links.
    latency_s : float
        Seconds for the first byte, end to end, without software.
    source : str
    topology : str
        One of `TOPOLOGIES`; ``mesh`` splits the bandwidth evenly over `mesh_peers` neighbours, ``cube-mesh``
        over the six lanes of `CUBE_MESH`, ``pairs`` joins two GPUs at a time and leaves the rest to `beyond`.
    mesh_peers : int
        Neighbours of a GPU in a mesh (0 for switched links).
    nvls : bool
        The switch reduces in flight (NVLink SHARP), which NCCL uses for all-reduce.
    coefficients : Mapping[str, Coefficient]
        Numbers of the collective laws, by name (``"all_reduce.simple.efficiency"``).
    generation : str
        The standard that fixes its lanes (``"nvlink4"``, ``"pcie5"``, ``"ndr"``); the catalog's checks hold the
        bandwidth against it. Empty where none applies.
    beyond : float
        Bytes/s per direction that a GPU has towards a group larger than a pair, for ``pairs`` (its PCIe slot).
    """

    name: str
    kind: str
    bandwidth: float
    latency_s: float
    source: str
    topology: str = "switch"
    mesh_peers: int = 0
    nvls: bool = False
    coefficients: Mapping[str, Coefficient] = field(default_factory=dict)
    generation: str = ""
    beyond: float = 0.0

    def __post_init__(self) -> None:
        where = f"link {self.name}"
        faults = []
        if self.kind not in LINK_KINDS:
            faults.append(Fault(f"kind is {self.kind!r}", where, fix=", ".join(LINK_KINDS)))
        if self.topology not in TOPOLOGIES:
            faults.append(Fault(f"topology is {self.topology!r}", where, fix=", ".join(TOPOLOGIES)))
        if not (math.isfinite(self.bandwidth) and self.bandwidth > 0):
            why = "a group over this link could never finish"
            faults.append(Fault(f"bandwidth is {self.bandwidth} bytes/s", where, why, "a bandwidth > 0, e.g. 400Gb/s"))
        if not (math.isfinite(self.latency_s) and self.latency_s >= 0):
            faults.append(Fault(f"latency is {self.latency_s} s", where, fix="a duration >= 0, e.g. 5us"))
        if self.topology == "mesh" and self.mesh_peers < 1:
            faults.append(Fault("a mesh needs mesh_peers", where, fix="mesh_peers: 7 for 8 GPUs"))
        if self.topology == "pairs" and not (math.isfinite(self.beyond) and self.beyond > 0):
            why = "more than two GPUs have no path over bridges"
            faults.append(Fault(f"beyond is {self.beyond} bytes/s", where, why, "beyond: 31GB/s (PCIe 4.0 x16)"))
        if self.topology != "pairs" and self.beyond:
            why = f"a {self.topology} joins all GPUs of the node"
            faults.append(Fault("beyond is given", where, why, "topology: pairs, or no beyond"))
        if faults:
            raise InputError(faults)
        object.__setattr__(self, "coefficients", MappingProxyType(dict(self.coefficients)))

    def __reduce__(self) -> tuple[object, ...]:
        values = [getattr(self, name) for name in self.__slots__]
        return (type(self), tuple(dict(v) if isinstance(v, MappingProxyType) else v for v in values))

    def find(self, *names: str, default: Coefficient) -> Coefficient:
        """The first of `names` that was fitted, else `default`."""
        for name in names:
            if name in self.coefficients:
                return self.coefficients[name]
        return default

    def reach(self, ranks: NDArray[Any]) -> FloatArray:
        """Bytes/s per direction that one GPU has towards a group of `ranks` in its node.

        All of it through a switch; in a mesh only the lanes to the ``ranks - 1`` members; in a cube mesh the
        lanes that the worst placed member of the first `ranks` GPUs has to the others; over a bridge the whole
        for two, the PCIe slot for more.
        """
        ranks_ = np.asarray(ranks, dtype=np.float64)
        if self.topology == "mesh":
            return np.asarray(self.bandwidth * np.clip(ranks_ - 1.0, 1.0, self.mesh_peers) / self.mesh_peers)
        if self.topology == "cube-mesh":
            lanes = np.asarray(CUBE_MESH)
            within = [6.0, 6.0] + [float(lanes[:n, :n].sum(axis=1).min()) for n in range(2, 9)]
            index = np.clip(ranks_, 0, 8).astype(np.int64)
            return np.asarray(self.bandwidth * np.asarray(within)[index] / 6.0)
        if self.topology == "pairs":
            return np.where(ranks_ > 2.0, self.beyond, self.bandwidth)
        return np.full(ranks_.shape, self.bandwidth)
