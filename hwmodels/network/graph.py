"""`Wiring`: every directed edge of a fabric as arrays, with its name, bandwidth and latency.

Each direction of a link is an edge of its own; bandwidths are per direction. Vertices::

    gpu:<node>.<i>                      a GPU
    switch:<node>                       the NVSwitch plane of a node or rack (non-blocking, so one vertex)
    pcie:<node>.<k>, root:<node>.<s>    PCIe switch k, root complex of socket s
    port:<node>.<p>                     a network port
    leaf:<block>.<rail>                 leaf switch of a block of nodes (plain fat tree: rail 0)
    spine:<pod>.<s>, core               second and third tier
    router:<node>                       a node of a torus

Prices never need this: it is for placement and contention, and is built when asked for. A wiring of 4,096 GPUs
has some 40,000 edges and takes a fraction of a second.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hwmodels.errors import Fault, InputError
from hwmodels.estimate import FloatArray
from hwmodels.network.link import CUBE_MESH, SWITCH_HOP_S
from hwmodels.records import dataclass

if TYPE_CHECKING:
    import networkx

    from hwmodels.network.fabric import Fabric

IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Wiring:
    """Directed edges of a fabric.

    Attributes
    ----------
    fabric : Fabric
    vertices : tuple of str
    tail, head : ndarray of int64 (edges,)
        Vertices of each edge.
    bandwidth : ndarray (edges,)
        Bytes/s of this direction.
    latency_s : ndarray (edges,)
    link : tuple of str (edges,)
        Name of the link that the edge is a part of.
    roles : Mapping[str, ndarray of int64]
        Edges by what they do, for routing: ``gpu_up[node, i]`` and so on; -1 where there is none.
    """

    fabric: Fabric
    vertices: tuple[str, ...]
    tail: IntArray
    head: IntArray
    bandwidth: FloatArray
    latency_s: FloatArray
    link: tuple[str, ...]
    roles: Mapping[str, IntArray]

    def __len__(self) -> int:
        return int(self.tail.size)

    def __repr__(self) -> str:
        return f"Wiring({len(self.vertices)} vertices, {len(self)} edges)"

    def edge(self, index: int) -> tuple[str, str]:
        """Names of the two ends of an edge."""
        return self.vertices[int(self.tail[index])], self.vertices[int(self.head[index])]

    def to_networkx(self) -> networkx.DiGraph:
        """The same as a `networkx.DiGraph`; edges carry ``bandwidth``, ``latency_s``, ``link`` and ``index``."""
        import networkx as nx

        graph = nx.DiGraph()
        graph.add_nodes_from((name, {"kind": name.split(":")[0]}) for name in self.vertices)
        for i in range(len(self)):
            a, b = self.edge(i)
            graph.add_edge(
                a, b, bandwidth=float(self.bandwidth[i]), latency_s=float(self.latency_s[i]), link=self.link[i], index=i
            )
        return graph


@dataclass(slots=True)
class _Builder:
    """Collects vertices and links in blocks of arrays."""

    names: list[str] = field(default_factory=list)
    tails: list[IntArray] = field(default_factory=list)
    heads: list[IntArray] = field(default_factory=list)
    bandwidths: list[FloatArray] = field(default_factory=list)
    latencies: list[FloatArray] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    roles: dict[str, IntArray] = field(default_factory=dict)
    count: int = 0

    def vertices(self, kind: str, *shape: int) -> IntArray:
        """New vertices ``kind:i.j``, as an array of that shape."""
        start = len(self.names)
        for index in np.ndindex(*shape):
            self.names.append(kind + ":" + ".".join(str(i) for i in index))
        return np.arange(start, len(self.names)).reshape(shape)

    def edges(self, tail: IntArray, head: IntArray, bandwidth: float, latency_s: float, link: str) -> IntArray:
        """One directed edge for each element; their indices."""
        tail, head = np.broadcast_arrays(tail, head)
        n = tail.size
        self.tails.append(tail.ravel())
        self.heads.append(head.ravel())
        self.bandwidths.append(np.full(n, bandwidth))
        self.latencies.append(np.full(n, latency_s))
        self.links.extend([link] * n)
        self.count += n
        return np.arange(self.count - n, self.count).reshape(tail.shape)

    def both(self, name: str, low: IntArray, high: IntArray, bandwidth: float, latency_s: float, link: str) -> None:
        """Links with both directions: roles ``<name>_up`` (low to high) and ``<name>_down``."""
        self.roles[name + "_up"] = self.edges(low, high, bandwidth, latency_s, link)
        self.roles[name + "_down"] = self.edges(high, low, bandwidth, latency_s, link)

    def lanes(self, ends: IntArray, weights: FloatArray, latency_s: float, link: str) -> None:
        """Direct edges between GPUs of a node: role ``lane[node, i, j]``; `weights` (i, j) in bytes/s."""
        nodes, n = ends.shape
        table = np.full((nodes, n, n), -1, dtype=np.int64)
        for i, j in zip(*np.nonzero(weights > 0), strict=True):
            table[:, i, j] = self.edges(ends[:, i], ends[:, j], float(weights[i, j]), latency_s, link)
        self.roles["lane"] = table

    def build(self, fabric: Fabric) -> Wiring:
        """The finished arrays."""
        none = np.zeros(0)
        return Wiring(
            fabric, tuple(self.names), np.concatenate([none.astype(np.int64), *self.tails]),
            np.concatenate([none.astype(np.int64), *self.heads]), np.concatenate([none, *self.bandwidths]),
            np.concatenate([none, *self.latencies]), tuple(self.links), MappingProxyType(self.roles),
        )  # fmt: skip


def wire(fabric: Fabric) -> Wiring:
    """Every edge of a fabric; vertices and conventions in the module docstring.

    Raises
    ------
    InputError
        For a cube mesh of more than 8 GPUs, or a mesh with fewer lanes than there are neighbours.
    """
    builder = _Builder()
    gpus = builder.vertices("gpu", fabric.nodes, fabric.gpus_per_node)
    if fabric.gpus_per_node > 1:
        _inside(builder, fabric, gpus)
    if fabric.inter is not None and fabric.nodes > 1:
        if fabric.torus:
            _torus(builder, fabric, gpus)
        else:
            _trees(builder, fabric, gpus)
    return builder.build(fabric)


def _inside(builder: _Builder, fabric: Fabric, gpus: IntArray) -> None:
    """Links between the GPUs of each node."""
    link, n = fabric.intra, fabric.gpus_per_node
    if link.topology == "mesh":
        if n - 1 > link.mesh_peers:
            why = f"{link.name} gives each GPU {link.mesh_peers} neighbours"
            raise InputError(Fault(f"a mesh of {n} GPUs", "fabric", why, f"at most {link.mesh_peers + 1} GPUs a node"))
        lane = np.full((n, n), link.bandwidth / link.mesh_peers)
        np.fill_diagonal(lane, 0.0)
        builder.lanes(gpus, lane, link.latency_s, link.name)
    elif link.topology == "cube-mesh":
        if n > len(CUBE_MESH):
            why = "the hybrid cube mesh joins 8"
            raise InputError(Fault(f"a cube mesh of {n} GPUs", "fabric", why, "at most 8 GPUs a node"))
        lanes = np.asarray(CUBE_MESH, dtype=np.float64)[:n, :n] * link.bandwidth / 6.0
        builder.lanes(gpus, lanes, link.latency_s, link.name)
    elif link.topology == "pairs":
        i = np.arange(n)
        paired = (i[:, None] // 2 == i[None, :] // 2) & (i[:, None] != i[None, :])
        builder.lanes(gpus, np.where(paired, link.bandwidth, 0.0), link.latency_s, link.name)
        _pcie(builder, fabric, gpus, link.beyond, "pcie")
    elif link.topology == "tree":
        _pcie(builder, fabric, gpus, link.bandwidth, link.name)
    else:
        hub = builder.vertices("switch", fabric.nodes)
        builder.both("gpu", gpus, hub[:, None], link.bandwidth, link.latency_s / 2.0, link.name)


def _pcie(builder: _Builder, fabric: Fabric, gpus: IntArray, bandwidth: float, name: str) -> None:
    """GPUs below PCIe switches below root complexes, the sockets joined to each other."""
    tree, n = fabric.pcie, fabric.gpus_per_node
    sockets = min(tree.sockets, n)
    socket_of = np.arange(n) * sockets // n
    roots = builder.vertices("root", fabric.nodes, sockets)
    half = fabric.intra.latency_s / 2.0
    # A switch never spans two sockets.
    rank_in_socket = np.arange(n) - np.searchsorted(socket_of, socket_of)
    keys = socket_of * n + rank_in_socket // tree.gpus_per_switch
    _, hub_of = np.unique(keys, return_inverse=True)
    count = int(hub_of.max()) + 1
    if tree.gpus_per_switch > 1:
        hubs = builder.vertices("pcie", fabric.nodes, count)
        builder.both("gpu", gpus, hubs[:, hub_of], bandwidth, half, name)
        socket_of_hub = np.zeros(count, dtype=np.int64)
        socket_of_hub[hub_of] = socket_of
        builder.both("hub", hubs, roots[:, socket_of_hub], bandwidth, half, name)
    else:
        builder.both("gpu", gpus, roots[:, socket_of], bandwidth, half, name)
    builder.roles["hub_of"] = hub_of.astype(np.int64)
    builder.roles["socket_of"] = socket_of.astype(np.int64)
    cross = np.full((fabric.nodes, sockets, sockets), -1, dtype=np.int64)
    for a in range(sockets):
        for b in range(sockets):
            if a != b:
                cross[:, a, b] = builder.edges(roots[:, a], roots[:, b], tree.socket_bandwidth, half, "socket")
    builder.roles["cross"] = cross


def _trees(builder: _Builder, fabric: Fabric, gpus: IntArray) -> None:
    """Ports, leaves, spines and the core of a (rail-optimised) fat tree."""
    link = fabric.inter
    if link is None:
        return
    nodes, g, ports = fabric.nodes, fabric.gpus_per_node, fabric.ports_per_node
    rails = ports if fabric.topology == "rail-fat-tree" else 1
    span, hop = fabric.leaf_span, SWITCH_HOP_S.get(link.kind, 0.0)
    port = builder.vertices("port", nodes, ports)
    # Slots: which GPU drives which port; as many as there are of the more numerous kind.
    slots = max(g, ports)
    slot = np.arange(slots)
    builder.roles["slot_gpu"], builder.roles["slot_port"] = slot * g // slots, slot * ports // slots
    builder.both("drive", gpus[:, slot * g // slots], port[:, slot * ports // slots], link.bandwidth, 0.0, "host")
    blocks = -(-nodes // span)
    leaf = builder.vertices("leaf", blocks, rails)
    block_of = np.arange(nodes) // span
    rail_of = np.arange(ports) if rails > 1 else np.zeros(ports, dtype=np.int64)
    ends = leaf[block_of[:, None], rail_of[None, :]]
    builder.both("port", port, ends, link.bandwidth, link.latency_s / 2.0, link.name)
    pod = fabric.pod_nodes or nodes
    pods = -(-nodes // pod)
    if blocks * rails > 1:
        spine = builder.vertices("spine", pods, fabric.spines)
        pod_of_block = np.arange(blocks) * span // pod
        up = span * (ports / rails) * fabric.port_bandwidth / fabric.spines
        tops = np.broadcast_to(spine[pod_of_block][:, None, :], (blocks, rails, fabric.spines))
        builder.both("leaf", np.broadcast_to(leaf[:, :, None], tops.shape), tops, up, hop, link.name)
        if pods > 1:
            builder.names.append("core")
            core = np.asarray(len(builder.names) - 1)
            up = pod * ports * fabric.port_bandwidth / fabric.pod_oversubscription / fabric.spines
            builder.both("spine", spine, core, up, hop, link.name)


def _torus(builder: _Builder, fabric: Fabric, gpus: IntArray) -> None:
    """Routers closed to a ring along every dimension; role ``step[node, dimension, 0 forward | 1 backward]``."""
    link = fabric.inter
    if link is None:
        return
    router = builder.vertices("router", fabric.nodes)
    out = link.bandwidth * fabric.ports_per_node
    builder.both("drive", gpus, router[:, None], out, 0.0, "host")
    grid = router.reshape(fabric.torus)
    steps = np.full((fabric.nodes, len(fabric.torus), 2), -1, dtype=np.int64)
    for axis, d in enumerate(fabric.torus):
        if d == 1:
            continue
        ahead = np.roll(grid, -1, axis=axis)
        # Of two nodes, both ports of each lead to the other: one edge with the bandwidth of two.
        wide = link.bandwidth * (2.0 if d == 2 else 1.0)
        forward = builder.edges(grid, ahead, wide, link.latency_s, link.name).ravel()
        steps[:, axis, 0] = forward
        if d == 2:
            steps[:, axis, 1] = forward
        else:
            back = builder.edges(ahead, grid, link.bandwidth, link.latency_s, link.name)
            steps[np.roll(np.arange(fabric.nodes).reshape(fabric.torus), -1, axis=axis).ravel(), axis, 1] = back.ravel()
    builder.roles["step"] = steps
