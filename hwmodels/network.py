"""`Link` and `Fabric`: what joins GPUs inside a node and between nodes.

A *node* here is one scale-up domain: a DGX, a host, or a whole NVL72 rack. Inside it every GPU
has one scale-up link (NVLink to a switch, xGMI mesh, PCIe); between nodes it shares the node's
network ports. Bandwidths are per direction.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hwmodels.device import Coefficient
from hwmodels.errors import Fault, InputError
from hwmodels.estimate import FloatArray
from hwmodels.topology import GroupShape

if TYPE_CHECKING:
    import networkx

LINK_KINDS = ("nvlink", "xgmi", "pcie", "infiniband", "roce", "efa", "ethernet", "loopback")
TOPOLOGIES = ("switch", "mesh", "tree", "rail-fat-tree", "fat-tree", "loopback")


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
        One of `TOPOLOGIES`; ``mesh`` splits the bandwidth evenly over `mesh_peers` neighbours.
    mesh_peers : int
        Neighbours of a GPU in a mesh (0 for switched links).
    nvls : bool
        The switch reduces in flight (NVLink SHARP), which NCCL uses for all-reduce.
    coefficients : Mapping[str, Coefficient]
        Numbers of the collective laws, by name (``"all_reduce.simple.efficiency"``).
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

        All of it through a switch; in a mesh only the lanes to the ``ranks - 1`` members.
        """
        ranks_ = np.asarray(ranks, dtype=np.float64)
        if not self.mesh_peers:
            return np.full(ranks_.shape, self.bandwidth)
        return np.asarray(self.bandwidth * np.clip(ranks_ - 1.0, 1.0, self.mesh_peers) / self.mesh_peers)


CurveTable = Mapping[str, Mapping[int, tuple[tuple[float, float], ...]]]
"""Measured collectives: op -> ranks -> ((bytes, seconds), ...), sizes ascending."""


@dataclass(frozen=True, slots=True)
class Fabric:
    """The links of a cluster and how they are joined. Checked when built.

    Attributes
    ----------
    gpus_per_node, nodes : int
    intra : Link
        Inside a node.
    inter : Link or None
        One network port; None when there is a single node without network.
    ports_per_node : int
        Network ports that a node's GPUs share evenly.
    oversubscription : float
        Downlinks over uplinks of the leaf switches, >= 1; divides the bandwidth between nodes.
    topology : {'rail-fat-tree', 'fat-tree', 'none'}
    tables : CurveTable
        Measured curves inside a node; a group size that has one is priced from it.
    tables_source : Coefficient or None
        Where `tables` come from, with rows and residual.
    """

    gpus_per_node: int
    nodes: int
    intra: Link
    inter: Link | None = None
    ports_per_node: int = 0
    oversubscription: float = 1.0
    topology: str = "none"
    tables: CurveTable = field(default_factory=dict)
    tables_source: Coefficient | None = None

    def __post_init__(self) -> None:
        faults = []
        if self.gpus_per_node < 1 or self.nodes < 1:
            shape = f"{self.nodes} nodes of {self.gpus_per_node} GPUs"
            faults.append(Fault(f"the fabric has {shape}", "fabric", fix="at least one of each"))
        if self.nodes > 1 and (self.inter is None or self.ports_per_node < 1):
            why = f"{self.nodes} nodes must be joined by a network"
            faults.append(Fault("no path between nodes", "fabric", why, "inter_node: {link: ..., ports_per_node: 8}"))
        if not (math.isfinite(self.oversubscription) and self.oversubscription >= 1.0):
            faults.append(Fault(f"oversubscription is {self.oversubscription}", "fabric", fix="1 (none) or more"))
        if faults:
            raise InputError(faults)
        object.__setattr__(self, "tables", MappingProxyType({op: dict(t) for op, t in self.tables.items()}))

    def __reduce__(self) -> tuple[object, ...]:
        values = [getattr(self, name) for name in self.__slots__]
        return (type(self), tuple(dict(v) if isinstance(v, MappingProxyType) else v for v in values))

    @property
    def port_bandwidth(self) -> float:
        """Bytes/s per direction of one network port, after oversubscription; 0 without network."""
        return self.inter.bandwidth / self.oversubscription if self.inter is not None else 0.0

    @property
    def inter_bandwidth_per_gpu(self) -> float:
        """Bytes/s per direction between nodes that each GPU has when all of its node send."""
        return self.port_bandwidth * self.ports_per_node / self.gpus_per_node

    def check(self, shape: GroupShape) -> None:
        """Refuse a group that the fabric cannot hold.

        Raises
        ------
        InputError
            When a group has more ranks in a node, or more nodes, than there are, or fewer than one.
        """
        faults = []
        ranks, nodes = np.asarray(shape.ranks_per_node), np.asarray(shape.nodes)
        if ranks.size and int(ranks.max()) > self.gpus_per_node:
            why = f"a node has {self.gpus_per_node} GPUs"
            faults.append(
                Fault(f"a group has {int(ranks.max())} ranks in a node", "group", why, "a group over more nodes")
            )
        if nodes.size and int(nodes.max()) > self.nodes:
            why = f"the cluster has {self.nodes}"
            faults.append(Fault(f"a group spans {int(nodes.max())} nodes", "group", why, "a smaller group"))
        if (ranks.size and int(ranks.min()) < 1) or (nodes.size and int(nodes.min()) < 1):
            faults.append(Fault("a group has no members", "group", fix="at least one rank and one node"))
        if faults:
            raise InputError(faults)

    def group_path(self, shape: GroupShape) -> tuple[str, ...]:
        """Names of the links that a (scalar) group crosses: none for one rank, intra, inter or both."""
        self.check(shape)
        ranks, nodes = int(np.max(shape.ranks_per_node)), int(np.max(shape.nodes))
        path = []
        if ranks > 1:
            path.append(self.intra.name)
        if nodes > 1 and self.inter is not None:
            path.append(self.inter.name)
        return tuple(path)

    def graph(self) -> networkx.Graph:
        """The fabric as an undirected graph; edges carry ``bandwidth`` (bytes/s per direction) and ``link``.

        Nodes: ``gpu:<node>.<i>``; ``switch:<node>`` inside a node (none in a mesh); ``port:<node>.<p>``
        for network ports; ``leaf:<r>`` (one per rail, or one per node in a plain fat tree); ``spine``.
        """
        import networkx as nx

        graph = nx.Graph()
        for node in range(self.nodes):
            gpus = [f"gpu:{node}.{i}" for i in range(self.gpus_per_node)]
            if self.intra.topology == "mesh":
                lane = self.intra.bandwidth / self.intra.mesh_peers
                for i, a in enumerate(gpus):
                    for b in gpus[i + 1 :]:
                        graph.add_edge(a, b, bandwidth=lane, link=self.intra.name)
            else:
                for gpu in gpus:
                    graph.add_edge(gpu, f"switch:{node}", bandwidth=self.intra.bandwidth, link=self.intra.name)
            if self.inter is not None and self.nodes > 1:
                self._add_ports(graph, node, gpus)
        return graph

    def _add_ports(self, graph: networkx.Graph, node: int, gpus: list[str]) -> None:
        """Join each GPU to its share of the node's ports, ports to leaves, leaves to the spine."""
        if self.inter is None:
            return
        for p in range(self.ports_per_node):
            port = f"port:{node}.{p}"
            owners = gpus[p * len(gpus) // self.ports_per_node :][: max(1, len(gpus) // self.ports_per_node)]
            for gpu in owners:
                graph.add_edge(gpu, port, bandwidth=self.inter.bandwidth, link="host")
            leaf = f"leaf:{p}" if self.topology == "rail-fat-tree" else f"leaf:{node}"
            graph.add_edge(port, leaf, bandwidth=self.inter.bandwidth, link=self.inter.name)
            down = self.ports_per_node if self.topology != "rail-fat-tree" else self.nodes
            graph.add_edge(leaf, "spine", bandwidth=down * self.port_bandwidth, link=self.inter.name)
