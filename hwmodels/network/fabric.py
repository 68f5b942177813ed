"""`Fabric`: how the links of a cluster join its GPUs, and what a process group has of them.

A *node* here is one scale-up domain: a DGX, a host, a single TPU chip, or a whole NVL72 rack. Inside it every
GPU has one scale-up link (NVLink to a switch, xGMI mesh, PCIe); between nodes it shares the node's network
ports. Bandwidths are per direction.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from hwmodels.device import Coefficient
from hwmodels.errors import Fault, InputError
from hwmodels.estimate import FloatArray
from hwmodels.network.contention import PATTERNS, torus_bandwidth, tree_factor
from hwmodels.network.link import SWITCH_HOP_S, Link, PcieTree
from hwmodels.records import dataclass
from hwmodels.topology import INSIDE, GroupShape

if TYPE_CHECKING:
    import networkx

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
        One network port; None when there is a single node without network. In a torus: one port to one neighbour.
    ports_per_node : int
        Network ports that a node's GPUs share evenly; in a torus two for each dimension.
    oversubscription : float
        Downlinks over uplinks of the leaf switches, >= 1: divides the bandwidth of what crosses them.
    topology : {'rail-fat-tree', 'fat-tree', 'torus', 'none'}
    tables : CurveTable
        Measured curves inside a node; a group size that has one is priced from it.
    tables_source : Coefficient or None
        Where `tables` come from, with rows and residual.
    leaf_nodes : int
        Nodes below one leaf switch (of each rail in a rail-optimised tree, where it holds one port of each);
        traffic between them crosses no uplink. 0: not stated, see `leaf_span`.
    pod_nodes : int
        Nodes of one pod or rack: what leaves it crosses a third tier. 0: there is none.
    pod_oversubscription : float
        Bandwidth of a pod's leaf uplinks over that of its way out, >= 1 (racks joined by a slower link).
    spines : int
        Switches over which the uplinks of a leaf are spread evenly (equal-cost paths of the graph).
    torus : tuple of int
        Nodes along each dimension, every one closed to a ring; the last varies fastest in node order.
    pcie : PcieTree
        Shape of the node's PCIe tree, for ``tree`` and ``pairs`` inside the node.
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
    leaf_nodes: int = 0
    pod_nodes: int = 0
    pod_oversubscription: float = 1.0
    spines: int = 1
    torus: tuple[int, ...] = ()
    pcie: PcieTree = PcieTree()

    def __post_init__(self) -> None:
        faults = self._tier_faults() + self._torus_faults()
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

    def _tier_faults(self) -> list[Fault]:
        faults = []
        if self.leaf_nodes < 0 or self.pod_nodes < 0 or self.spines < 1:
            what = f"leaf_nodes {self.leaf_nodes}, pod_nodes {self.pod_nodes}, spines {self.spines}"
            faults.append(Fault(what, "fabric", "counts of nodes and switches", "0 or more nodes, at least one spine"))
        elif self.pod_nodes and self.leaf_nodes and self.pod_nodes % self.leaf_nodes:
            why = f"a pod is made of whole leaves of {self.leaf_nodes} nodes"
            faults.append(Fault(f"pod_nodes is {self.pod_nodes}", "fabric", why, f"{self.leaf_nodes} times a count"))
        if not (math.isfinite(self.pod_oversubscription) and self.pod_oversubscription >= 1.0):
            faults.append(Fault(f"pod_oversubscription is {self.pod_oversubscription}", "fabric", fix="1 or more"))
        elif self.pod_oversubscription > 1.0 and not self.pod_nodes:
            faults.append(Fault("pod_oversubscription without pod_nodes", "fabric", "there is no pod", "pod_nodes: 32"))
        return faults

    def _torus_faults(self) -> list[Fault]:
        if (self.topology == "torus") != bool(self.torus):
            what = f"topology is {self.topology!r} and torus is {list(self.torus)}"
            return [Fault(what, "fabric", "they belong together", "topology: torus with torus: [16, 16]")]
        if not self.torus:
            return []
        faults = []
        if min(self.torus) < 1 or math.prod(self.torus) != self.nodes:
            why = f"their product is {math.prod(self.torus)}, the cluster has {self.nodes} nodes"
            shape = list(torus_shape(self.nodes, len(self.torus)))
            faults.append(Fault(f"torus is {list(self.torus)}", "fabric", why, f"torus: {shape}"))
        if self.nodes > 1 and self.ports_per_node != 2 * len(self.torus):
            why = f"{len(self.torus)} dimensions have two neighbours each"
            fix = f"ports_per_node: {2 * len(self.torus)}"
            faults.append(Fault(f"ports_per_node is {self.ports_per_node}", "fabric", why, fix))
        return faults

    @property
    def leaf_span(self) -> int:
        """Nodes whose traffic stays below one leaf switch.

        `leaf_nodes` where it is stated. Else all nodes of a rail-optimised tree without oversubscription, where
        it makes no difference, and one otherwise: every hop between nodes is taken to cross an uplink.
        """
        if self.leaf_nodes:
            return min(self.leaf_nodes, self.nodes)
        if self.topology == "rail-fat-tree" and self.oversubscription == 1.0:
            return min(self.nodes, self.pod_nodes or self.nodes)
        return 1

    @property
    def port_bandwidth(self) -> float:
        """Bytes/s per direction of one network port when all traffic crosses the leaf uplinks; 0 without network."""
        return self.inter.bandwidth / self.oversubscription if self.inter is not None else 0.0

    @property
    def inter_bandwidth_per_gpu(self) -> float:
        """Bytes/s per direction between nodes that each GPU has when all of its node send beyond their leaf."""
        return self.port_bandwidth * self.ports_per_node / self.gpus_per_node

    @property
    def drive_bandwidth(self) -> float:
        """Bytes/s per direction of the ports that one GPU is next to: its own, or the one that it shares."""
        if self.inter is None:
            return 0.0
        return self.inter.bandwidth * max(1.0, self.ports_per_node / self.gpus_per_node)

    def side_by_side(self, ranks: FloatArray, stride: FloatArray) -> FloatArray:
        """Groups that share the ports of a node: the stride, as far as they fit in.

        Neighbours `s` ranks apart leave room for `s` groups in step with each other; a group of stride 1 over
        several nodes has its nodes to itself. A stride of a node or more leaves a group for each of its GPUs.
        """
        room = np.maximum(np.floor(self.gpus_per_node / np.maximum(ranks, 1.0)), 1.0)
        return np.asarray(np.clip(stride, 1.0, room))

    def group_bandwidth(self, shape: GroupShape, pattern: str = "ring") -> FloatArray:
        """`rail_bandwidth` of a `GroupShape`."""
        parts = (shape.ranks_per_node, shape.nodes, shape.stride, shape.leaf, shape.pod)
        ranks, nodes, stride, leaf, pod = (np.asarray(a, np.float64) for a in parts)
        return self.rail_bandwidth(ranks, nodes, stride, pattern, leaf, pod)

    def rail_bandwidth(
        self,
        ranks: FloatArray,
        nodes: FloatArray,
        stride: FloatArray,
        pattern: str = "ring",
        leaf: FloatArray | None = None,
        pod: FloatArray | None = None,
    ) -> FloatArray:
        """Bytes/s per direction out of one node of each group, while its siblings run as well.

        The node's ports are shared by `side_by_side` groups, and a group has no more than its GPUs' own ports::

            min(ports x port / side_by_side, ranks x drive_bandwidth) x tree_factor       trees
            ports of the dimensions that the group covers                                 torus

        where `tree_factor` is what oversubscribed uplinks leave (`hwmodels.network.contention`).

        Parameters
        ----------
        ranks, nodes, stride : ndarray
            As the fields of `GroupShape`; broadcast against each other.
        pattern : {'ring', 'all_to_all', 'pair'}
            ``ring``: each node sends to the next of its group (rings and trees in node order); ``all_to_all``: to
            all of them alike; ``pair``: one rank to one rank, over one port.
        leaf, pod : ndarray, optional
            As the fields of `GroupShape`; a torus has neither.

        Returns
        -------
        ndarray
            0 for a fabric without network.

        Raises
        ------
        InputError
            For an unknown pattern.
        """
        if pattern not in PATTERNS:
            raise InputError(Fault(f"pattern is {pattern!r}", "rail_bandwidth", fix=", ".join(PATTERNS)))
        ranks, nodes, stride = np.broadcast_arrays(ranks, nodes, stride)
        if self.inter is None:
            return np.zeros(ranks.shape)
        groups = self.side_by_side(ranks, stride)
        apart = np.maximum(np.floor(stride / self.gpus_per_node), 1.0)
        if self.torus:
            whole = torus_bandwidth(self.inter.bandwidth, self.torus, nodes, apart, pattern)
            return np.asarray(whole / groups)
        total = self.inter.bandwidth * self.ports_per_node
        own = np.minimum(total / groups, ranks * self.drive_bandwidth)
        if pattern == "pair":
            own = np.minimum(own, self.inter.bandwidth)
        tiers = [(self.leaf_span, self.oversubscription)]
        if self.pod_nodes:
            tiers.append((self.pod_nodes, self.oversubscription * self.pod_oversubscription))
        return np.asarray(own * tree_factor(tiers, nodes, apart, pattern, (leaf, pod)))

    def group_latency(self, shape: GroupShape) -> FloatArray:
        """Seconds of the first byte from a node to the next of its group, without software; 0 inside one node.

        The port's latency holds below one leaf; each switch more on the way adds `SWITCH_HOP_S`.
        """
        nodes = np.asarray(shape.nodes, np.float64)
        if self.inter is None:
            return np.zeros(nodes.shape)
        apart = np.maximum(np.floor(np.asarray(shape.stride, np.float64) / self.gpus_per_node), 1.0)
        span, hop = nodes * apart, SWITCH_HOP_S.get(self.inter.kind, 0.0)
        more = np.where(np.where(shape.leaf > 0, shape.leaf < INSIDE, span > self.leaf_span), 2.0, 0.0)
        if self.pod_nodes:
            more = more + np.where(np.where(shape.pod > 0, shape.pod < INSIDE, span > self.pod_nodes), 2.0, 0.0)
        if self.torus:
            more = np.zeros(nodes.shape)
        return np.where(nodes > 1.0, self.inter.latency_s + more * hop, 0.0)

    def check(self, shape: GroupShape) -> None:
        """Refuse a group that the fabric cannot hold.

        Raises
        ------
        InputError
            When a group has more ranks in a node, or more nodes, than there are, or fewer than one, or when its
            ranks lie so far apart that a node does not hold them.
        """
        faults = []
        ranks, nodes, stride = (np.asarray(a) for a in (shape.ranks_per_node, shape.nodes, shape.stride))
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
        elif stride.size and int(stride.min()) < 1:
            why = "neighbours of a group are distinct ranks"
            faults.append(Fault(f"a group has stride {int(stride.min())}", "group", why, "a stride of 1 or more"))
        elif not faults and ranks.size and stride.size:
            far = (ranks > 1) & ((ranks - 1) * stride >= self.gpus_per_node)
            if far.any():
                each, apart = (int(np.broadcast_to(a, far.shape)[far].flat[0]) for a in (ranks, stride))
                what = f"a group has {each} ranks in a node, {apart} apart"
                fix = f"at most {-(-self.gpus_per_node // apart)} ranks in a node, or a stride below "
                fix += f"{-(-self.gpus_per_node // (each - 1))}"
                faults.append(Fault(what, "group", f"a node has {self.gpus_per_node} GPUs", fix))
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

    def graph(self) -> networkx.DiGraph:
        """The fabric as a directed graph; its edges and vertices are those of `hwmodels.network.graph.wire`.

        Each direction of a link is an edge of its own with ``bandwidth`` (bytes/s of that direction),
        ``latency_s`` and ``link``.
        """
        from hwmodels.network.graph import wire

        return wire(self).to_networkx()


def torus_shape(nodes: int, dimensions: int) -> tuple[int, ...]:
    """The most even torus of `nodes` with that many dimensions, longest first.

    >>> torus_shape(256, 2), torus_shape(128, 3), torus_shape(7, 2)
    ((16, 16), (8, 4, 4), (7, 1))
    """
    if dimensions <= 1:
        return (nodes,)
    options = [d for d in range(1, nodes + 1) if nodes % d == 0]
    shapes = [(d, *torus_shape(nodes // d, dimensions - 1)) for d in options]
    best = min(shapes, key=lambda s: (max(s), -min(s)))
    return tuple(sorted(best, reverse=True))
