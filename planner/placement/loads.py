"""What a placement's traffic puts on every tier of a fabric, and how long the fullest link of each takes.

For `v` bytes that a member of a group sends in a step (`planner.placement.demand.Demand`):

========  =====================================================  =================================================
          ring                                                   direct (all to all)
========  =====================================================  =================================================
GPU       ``v (r - 1) / r`` inside a node that holds r members   ``v (r - 1) / (n - 1)`` inside, of n members
port      ``v / r`` of each (all of them in one node: none)      ``v (n - r) / (n - 1)``
node      ``v`` for each group that leaves it                    ``r v (n - r) / (n - 1)``
leaf      ``v`` for each group that leaves it                    ``m v (n - m) / (n - 1)``, with m members below it
========  =====================================================  =================================================

A pod is to leaves what a leaf is to nodes. Rings enter a node at each of its members in turn (NCCL's channels), and
visit the nodes below a leaf one after the other, so that each block is entered and left once. A hop of a pipeline loads
what lies between its two GPUs. Bytes over bandwidth of the fullest link is the least time that the traffic takes: the
flow bound of `hwmodels.network.placement.place` without its graph. Rails are taken to be kept: a GPU sends over its own
port.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hwmodels.network import Fabric, Flows, place, traffic, wire
from planner.placement.demand import DIRECT, HOPS, RING, Demand

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
TIERS: tuple[str, ...] = ("gpu", "port", "node", "leaf", "pod")
"""Links from the inside out: of a GPU inside its node, its network port, all ports of a node, uplinks of a leaf (all
rails together), and of a pod."""


@dataclass(frozen=True, slots=True, eq=False)
class AxisLoad:
    """Load of one demand.

    Attributes
    ----------
    demand : Demand
    seconds : dict of str to float
        Of the fullest link of each tier.
    nbytes : dict of str to float
        Bytes that cross links of each tier in one direction, summed.
    leaf_out, pod_out : ndarray
        Bytes out of each leaf and each pod in a step (as much comes in).
    """

    demand: Demand
    seconds: dict[str, float]
    nbytes: dict[str, float]
    leaf_out: FloatArray
    pod_out: FloatArray

    @property
    def slowest(self) -> str:
        """Tier that takes longest."""
        return max(self.seconds, key=lambda tier: (self.seconds[tier], TIERS.index(tier)))

    @property
    def least_s(self) -> float:
        """Seconds of its slowest tier: no schedule moves these bytes faster."""
        return max(self.seconds.values())


@dataclass(frozen=True, slots=True, eq=False)
class Loads:
    """Loads of all demands of a placement."""

    axes: tuple[AxisLoad, ...]

    @property
    def seconds(self) -> float:
        """Seconds of every axis by itself, added up: what placements are compared by."""
        return sum(axis.least_s for axis in self.axes)


def loads(fabric: Fabric, wanted: Sequence[Demand], gpus: IntArray) -> Loads:
    """Loads of demands on a fabric whose GPU ``gpus[rank]`` each rank has."""
    if fabric.torus:
        return Loads(tuple(_on_graph(fabric, demand, gpus) for demand in wanted))
    return Loads(tuple(_load(fabric, demand, gpus) for demand in wanted))


def capacities(fabric: Fabric) -> dict[str, float]:
    """Bytes/s per direction of a port, of a node's ports, and of the uplinks of a leaf and of a pod."""
    if fabric.inter is None:
        return {}
    node = fabric.inter.bandwidth * fabric.ports_per_node
    leaf = node * fabric.leaf_span / fabric.oversubscription
    pod = node * (fabric.pod_nodes or fabric.nodes) / fabric.oversubscription / fabric.pod_oversubscription
    return {"port": fabric.drive_bandwidth, "node": node, "leaf": leaf, "pod": pod}


def _blocks(fabric: Fabric) -> tuple[int, int]:
    """Nodes of a leaf and of a pod; where there are no pods, all nodes."""
    return fabric.leaf_span, fabric.pod_nodes or fabric.nodes


def _load(fabric: Fabric, demand: Demand, gpus: IntArray) -> AxisLoad:
    if demand.pattern == HOPS:
        return _hops(fabric, demand, gpus)
    g, v, size = fabric.gpus_per_node, demand.nbytes, demand.ranks.shape[1]
    node = gpus[demand.ranks] // g
    owner, number, held = _held(node)
    several = np.bincount(owner)[owner] > 1
    inside, own, out = _shares(demand.pattern, v, size, owner, held, several)
    reach = fabric.intra.reach(np.asarray(held))
    seconds = {"gpu": float((inside / reach).max())}
    nbytes = {"gpu": float((inside * held).sum())}
    found = []
    for block in _blocks(fabric):
        whose, where, members = _held(node // block)
        far = np.bincount(whose)[whose] > 1
        each = np.where(far, v, 0.0) if demand.pattern == RING else members * v * (size - members) / (size - 1)
        sums = np.bincount(where, weights=each, minlength=-(-fabric.nodes // block))
        found.append(np.asarray(sums, dtype=np.float64))
    if fabric.inter is not None:
        limits = capacities(fabric)
        of_node = np.bincount(number, weights=out, minlength=fabric.nodes)
        tiers = {"node": of_node, "leaf": found[0], "pod": found[1]}
        seconds["port"] = float(own.max()) / limits["port"]
        seconds |= {tier: float(load.max()) / limits[tier] for tier, load in tiers.items()}
        nbytes |= {tier: float(load.sum()) for tier, load in tiers.items()}
        nbytes["port"] = nbytes["node"]
    return AxisLoad(demand, seconds, nbytes, found[0], found[1])


def _held(block: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """Every pair of a group and a block that holds some of it: group, block, members there."""
    width = int(block.max()) + 1
    keys, held = np.unique(np.arange(len(block))[:, None] * width + block, return_counts=True)
    return keys // width, keys % width, held.astype(np.int64)


def _shares(
    pattern: str, v: float, size: int, owner: IntArray, held: IntArray, several: NDArray[np.bool_]
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Of every group in a node: bytes of a member inside it, out of its own port, and of all of them out."""
    if pattern == DIRECT:
        away = v * (size - held) / (size - 1)
        return v * (held - 1.0) / (size - 1), away, away * held
    # Groups with unlike numbers of members in their nodes run one ring, through one port.
    most, least = np.zeros(owner.max() + 1), np.full(owner.max() + 1, np.inf)
    np.maximum.at(most, owner, held)
    np.minimum.at(least, owner, held)
    channels = np.where(most == least, most, 1.0)[owner]
    inside = np.where(several, np.where(channels == held, v * (held - 1.0) / held, v * (held > 1)), v)
    return inside, np.where(several, v / channels, 0.0), np.where(several, v, 0.0)


def _hops(fabric: Fabric, demand: Demand, gpus: IntArray) -> AxisLoad:
    """Both directions of every boundary of a pipeline."""
    places = gpus[demand.ranks]
    pairs = np.concatenate([demand.hops, demand.hops[:, ::-1]])
    source, target = places[:, pairs[:, 0]].reshape(-1), places[:, pairs[:, 1]].reshape(-1)
    g, v = fabric.gpus_per_node, demand.nbytes

    def out(block: int, count: int) -> FloatArray:
        """Bytes out of each block of so many GPUs."""
        far = source // block != target // block
        return np.asarray(np.bincount(source[far] // block, minlength=count) * v, dtype=np.float64)

    n = fabric.nodes * g
    near = source // g == target // g
    own = np.bincount(source[near], minlength=n) * v
    seconds = {"gpu": float(own.max()) / float(fabric.intra.reach(np.asarray(2)))}
    nbytes = {"gpu": float(own.sum())}
    leaf, pod = (out(block * g, -(-fabric.nodes // block)) for block in _blocks(fabric))
    if fabric.inter is not None:
        limits = capacities(fabric)
        tiers = {"port": np.bincount(source[~near], minlength=n) * v, "node": out(g, fabric.nodes), "leaf": leaf,
                 "pod": pod}  # fmt: skip
        seconds |= {tier: float(load.max()) / limits[tier] for tier, load in tiers.items()}
        nbytes |= {tier: float(load.sum()) for tier, load in tiers.items()}
    return AxisLoad(demand, seconds, nbytes, leaf, pod)


def flows_of(fabric: Fabric, demand: Demand, gpus: IntArray) -> Flows:
    """The same traffic from GPU to GPU, for the graph of the fabric."""
    places = gpus[demand.ranks]
    if demand.pattern == HOPS:
        pairs = np.concatenate([demand.hops, demand.hops[:, ::-1]])
        return Flows.of(places[:, pairs[:, 0]], places[:, pairs[:, 1]], demand.nbytes)
    op = "all_gather" if demand.pattern == RING else "all_to_all"
    size = places.shape[1]
    whole = demand.nbytes * size / (size - 1)
    rows = np.sort(places, axis=1) if demand.pattern == RING else places
    return Flows.together(
        [traffic(fabric, [divmod(int(gpu), fabric.gpus_per_node) for gpu in row], op, whole) for row in rows]
    )


def _on_graph(fabric: Fabric, demand: Demand, gpus: IntArray) -> AxisLoad:
    """On a torus the edges decide, which only the graph knows."""
    found = place(wire(fabric), flows_of(fabric, demand, gpus))
    none = np.zeros(1)
    return AxisLoad(demand, {"node": found.seconds}, {"node": float(found.load.sum())}, none, none)
