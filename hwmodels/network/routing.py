"""The edges that a flow takes from GPU to GPU, as a sparse incidence.

Inside a node: through the switch; over the direct lane of a mesh, or evenly over all two-hop ways where there is
no lane; up and down the PCIe tree. Between nodes of a tree fabric, a GPU uses all ports that it drives, evenly:

- same rail: port, rail leaf, port; through the spine when the leaves differ;
- cross rail with NVLink or xGMI and `pxn`: first to the GPU of the own node that drives the ports of the target's
  rail, then as above (PXN, "PCI x NVLink", NCCL since 2.12);
- cross rail otherwise: from the leaf of one rail through the spine to that of the other.

Spines are equal-cost paths: a flow spreads over them evenly, or (`hashed`) takes one of them by a hash, as ECMP does
with a single connection. On a torus: dimension-ordered, the shorter way round, half each way at equal distance
(Dally & Towles 2004, section 8.4.2).
"""

from __future__ import annotations

from dataclasses import field

import numpy as np
from numpy.typing import NDArray

from hwmodels.errors import Fault, InputError
from hwmodels.estimate import FloatArray
from hwmodels.network.graph import Wiring
from hwmodels.records import dataclass

IntArray = NDArray[np.int64]

PXN_KINDS = ("nvlink", "xgmi")
"""Links inside a node that forward traffic to the right rail."""


@dataclass(slots=True)
class Incidence:
    """Which share of which flow crosses which edge, element by element.

    Attributes
    ----------
    flow, edge : ndarray of int64 (entries,)
    share : ndarray (entries,)
        In (0, 1].
    """

    flow: IntArray
    edge: IntArray
    share: FloatArray


@dataclass(slots=True)
class _Collected:
    flows: list[IntArray] = field(default_factory=list)
    edges: list[IntArray] = field(default_factory=list)
    shares: list[FloatArray] = field(default_factory=list)

    def add(self, flow: IntArray, edge: IntArray, share: FloatArray) -> None:
        self.flows.append(flow)
        self.edges.append(edge)
        self.shares.append(np.broadcast_to(share, flow.shape))

    def done(self) -> Incidence:
        if not self.flows:
            return Incidence(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))
        return Incidence(np.concatenate(self.flows), np.concatenate(self.edges), np.concatenate(self.shares))


def route(wiring: Wiring, source: IntArray, target: IntArray, pxn: bool = True, hashed: int | None = None) -> Incidence:
    """Edges of each flow.

    Parameters
    ----------
    wiring : Wiring
    source, target : ndarray of int64 (flows,)
        Global GPU numbers, ``node x gpus_per_node + gpu``. Equal ones cross nothing.
    pxn : bool
        Forward cross-rail traffic inside the node where its link can.
    hashed : int, optional
        Seed: each flow takes one spine by a hash, instead of an even share of all.

    Raises
    ------
    InputError
        Between nodes of a fabric without network.
    """
    fabric, out = wiring.fabric, _Collected()
    g = fabric.gpus_per_node
    a, i, b, j = source // g, source % g, target // g, target % g
    flow, one = np.arange(source.size), np.ones(source.size)
    local = (a == b) & (i != j)
    _local(wiring, out, flow[local], a[local], i[local], j[local], one[local])
    far = a != b
    if far.any():
        if fabric.inter is None:
            raise InputError(Fault("a flow leaves its node", "fabric", "there is no network", "inter_node: {...}"))
        if fabric.torus:
            _torus(wiring, out, flow[far], a[far], i[far], b[far], j[far])
        else:
            _tree(wiring, out, flow[far], a[far], i[far], b[far], j[far], pxn, hashed)
    return out.done()


def _local(
    w: Wiring, out: _Collected, flow: IntArray, node: IntArray, i: IntArray, j: IntArray, share: FloatArray
) -> None:
    """From GPU i to GPU j of one node."""
    if not flow.size:
        return None
    lane = w.roles.get("lane")
    if lane is None:
        return _climb(w, out, flow, node, i, j, share)
    direct = lane[node, i, j]
    has = direct >= 0
    out.add(flow[has], direct[has], share[has])
    rest = ~has
    if not rest.any():
        return None
    if "cross" in w.roles:
        return _climb(w, out, flow[rest], node[rest], i[rest], j[rest], share[rest])
    known = lane[0] >= 0
    for way in range(lane.shape[1]):
        # Two hops over `way`, evenly over all that lead there.
        via = rest & known[i, way] & known[way, j]
        ways = (known[i] & known[:, j].T).sum(axis=1)
        part = share[via] / ways[via]
        out.add(flow[via], lane[node[via], i[via], way], part)
        out.add(flow[via], lane[node[via], way, j[via]], part)
    return None


def _climb(
    w: Wiring, out: _Collected, flow: IntArray, node: IntArray, i: IntArray, j: IntArray, share: FloatArray
) -> None:
    """Up and down a switch or a PCIe tree."""
    out.add(flow, w.roles["gpu_up"][node, i], share)
    out.add(flow, w.roles["gpu_down"][node, j], share)
    if "cross" not in w.roles:
        return
    hub, socket = w.roles["hub_of"], w.roles["socket_of"]
    if "hub_up" in w.roles:
        apart = hub[i] != hub[j]
        out.add(flow[apart], w.roles["hub_up"][node[apart], hub[i[apart]]], share[apart])
        out.add(flow[apart], w.roles["hub_down"][node[apart], hub[j[apart]]], share[apart])
    far = socket[i] != socket[j]
    out.add(flow[far], w.roles["cross"][node[far], socket[i[far]], socket[j[far]]], share[far])


def _tree(
    w: Wiring, out: _Collected, flow: IntArray, a: IntArray, i: IntArray, b: IntArray, j: IntArray,
    pxn: bool, hashed: int | None,
) -> None:  # fmt: skip
    """From node to node of a fat tree."""
    fabric = w.fabric
    gpu_of, port_of = w.roles["slot_gpu"], w.roles["slot_port"]
    first = np.searchsorted(gpu_of, np.arange(fabric.gpus_per_node))
    count = np.bincount(gpu_of, minlength=fabric.gpus_per_node)
    rails = fabric.topology == "rail-fat-tree"
    relay = i.copy()
    if rails and pxn and fabric.intra.kind in PXN_KINDS and fabric.intra.topology != "pairs":
        other = port_of[first[i]] != port_of[first[j]]
        relay[other] = j[other]
        _local(w, out, flow[other], a[other], i[other], j[other], np.ones(int(other.sum())))
    # One row for each port that the sending GPU drives.
    times = count[relay]
    row = np.repeat(np.arange(flow.size), times)
    k = np.arange(row.size) - np.repeat(np.cumsum(times) - times, times)
    share = 1.0 / times[row]
    f, a, b, relay, j = flow[row], a[row], b[row], relay[row], j[row]
    here = first[relay] + k
    there = first[j] + k % count[j]
    p, q = port_of[here], port_of[there]
    out.add(f, w.roles["drive_up"][a, here], share)
    out.add(f, w.roles["port_up"][a, p], share)
    out.add(f, w.roles["port_down"][b, q], share)
    out.add(f, w.roles["drive_down"][b, there], share)
    span, pod = fabric.leaf_span, fabric.pod_nodes or fabric.nodes
    rail_p, rail_q = (p, q) if rails else (np.zeros_like(p), np.zeros_like(q))
    up = (a // span != b // span) | (rail_p != rail_q)
    if not up.any():
        return
    f, a, b, rail_p, rail_q, share = f[up], a[up], b[up], rail_p[up], rail_q[up], share[up]
    spines = np.arange(fabric.spines)
    if hashed is not None:
        # What a switch sees of a connection, its ends and port, hashed.
        key = ((f * 1_000_003 + a) * 1_000_003 + b) * 1_000_003 + rail_p * 31 + hashed
        chosen = _mixed(key) % fabric.spines
        _over_spines(w, out, f, a, b, rail_p, rail_q, share, chosen, pod)
        return
    for s in spines:
        _over_spines(w, out, f, a, b, rail_p, rail_q, share / fabric.spines, np.full(f.size, s), pod)


def _mixed(key: IntArray) -> IntArray:
    """A hash that scatters neighbouring keys: the finaliser of splitmix64 (Steele, Lea & Flood 2014)."""
    with np.errstate(over="ignore"):
        z = key.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return np.asarray((z ^ (z >> np.uint64(31))) >> np.uint64(1)).astype(np.int64)


def _over_spines(
    w: Wiring, out: _Collected, f: IntArray, a: IntArray, b: IntArray, rail_p: IntArray, rail_q: IntArray,
    share: FloatArray, spine: IntArray, pod: int,
) -> None:  # fmt: skip
    """Leaf, spine, (core, spine,) leaf."""
    span = w.fabric.leaf_span
    out.add(f, w.roles["leaf_up"][a // span, rail_p, spine], share)
    out.add(f, w.roles["leaf_down"][b // span, rail_q, spine], share)
    far = a // pod != b // pod
    if far.any():
        out.add(f[far], w.roles["spine_up"][a[far] // pod, spine[far]], share[far])
        out.add(f[far], w.roles["spine_down"][b[far] // pod, spine[far]], share[far])


def _torus(w: Wiring, out: _Collected, flow: IntArray, a: IntArray, i: IntArray, b: IntArray, j: IntArray) -> None:
    """Dimension by dimension over the routers."""
    one = np.ones(flow.size)
    out.add(flow, w.roles["drive_up"][a, i], one)
    out.add(flow, w.roles["drive_down"][b, j], one)
    dims = w.fabric.torus
    step = w.roles["step"]
    at = np.stack(np.unravel_index(a, dims))
    goal = np.stack(np.unravel_index(b, dims))
    for axis, d in enumerate(dims):
        ahead = (goal[axis] - at[axis]) % d
        # (direction, share): the shorter way, or half each way when both are as long.
        ways = ((0, 1, np.where(2 * ahead < d, 1.0, np.where(2 * ahead == d, 0.5, 0.0)), ahead),
                (1, -1, np.where(2 * ahead > d, 1.0, np.where(2 * ahead == d, 0.5, 0.0)), (d - ahead) % d))  # fmt: skip
        for direction, sign, share, length in ways:
            position = at.copy()
            for taken in range(d // 2):
                on = (length > taken) & (share > 0.0)
                if not on.any():
                    break
                node = np.ravel_multi_index(tuple(position), dims)
                out.add(flow[on], step[node[on], axis, direction], share[on])
                position[axis] = (position[axis] + sign) % d
        at[axis] = goal[axis]
