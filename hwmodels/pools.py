"""Pools of one cluster: what each is by itself, and what joins two of them.

Pools without a fabric of their own lie on the cluster's and are joined by it. A pool with its own fabric is an
island: a `PoolLink` joins it to another one, and all that passes between the two shares that link.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from hwmodels.device import Coefficient, Device
from hwmodels.errors import Fault, InputError
from hwmodels.network import Fabric, Link
from hwmodels.network.fabric import torus_shape
from hwmodels.records import dataclass

if TYPE_CHECKING:
    from hwmodels.cluster import Cluster


@dataclass(frozen=True, slots=True)
class Pool:
    """Nodes of one kind: `nodes` of `gpus_per_node` times `device`. Checked when built.

    Attributes
    ----------
    device : Device
    gpus_per_node, nodes : int
    name : str
        What links and answers call it; the device's name where none is given.
    fabric : Fabric or None
        Of the pool alone; None: it lies on the cluster's.
    usd_per_gpu_hour : Coefficient or None
        Of this pool; None: the cluster's.
    """

    device: Device
    gpus_per_node: int
    nodes: int
    name: str = ""
    fabric: Fabric | None = None
    usd_per_gpu_hour: Coefficient | None = None

    def __post_init__(self) -> None:
        if self.gpus_per_node < 1 or self.nodes < 1:
            what = f"a pool has {self.nodes} nodes of {self.gpus_per_node} GPUs"
            raise InputError(Fault(what, f"pool {self.device.name}", fix="at least one of each"))
        if self.fabric is not None and (self.fabric.gpus_per_node, self.fabric.nodes) != (
            self.gpus_per_node, self.nodes,
        ):  # fmt: skip
            what = f"its fabric has {self.fabric.nodes} nodes of {self.fabric.gpus_per_node} GPUs"
            why = f"the pool has {self.nodes} of {self.gpus_per_node}"
            raise InputError(Fault(what, f"pool {self.label}", why, "the same numbers"))

    @property
    def label(self) -> str:
        """Its name, else its device's."""
        return self.name or self.device.name

    @property
    def n_ranks(self) -> int:
        """GPUs."""
        return self.gpus_per_node * self.nodes


@dataclass(frozen=True, slots=True)
class PoolLink:
    """What joins two pools that have fabrics of their own. Checked when built.

    Attributes
    ----------
    between : (str, str)
        Names of the pools.
    link : Link
        One of `ports` equal ones; bandwidth per direction.
    ports : int
    usd_per_gb : Coefficient or None
        Price of a gigabyte (10^9 bytes) that crosses it; None: nothing is charged.
    """

    between: tuple[str, str]
    link: Link
    ports: int = 1
    usd_per_gb: Coefficient | None = None

    def __post_init__(self) -> None:
        where, faults = f"link {' - '.join(self.between)}", []
        if self.between[0] == self.between[1]:
            faults.append(Fault("it joins a pool to itself", where, fix="two pools"))
        if self.ports < 1:
            faults.append(Fault(f"ports is {self.ports}", where, fix="1 or more"))
        if self.usd_per_gb is not None and not (math.isfinite(self.usd_per_gb.value) and self.usd_per_gb.value >= 0):
            faults.append(Fault(f"usd_per_gb is {self.usd_per_gb.value}", where, fix="0 or more"))
        if faults:
            raise InputError(faults)

    @property
    def bandwidth(self) -> float:
        """Bytes/s per direction of all its ports."""
        return self.link.bandwidth * self.ports

    def joins(self, one: str, other: str) -> bool:
        """Whether it is the link between these two."""
        return {one, other} == set(self.between)


def pool_faults(pools: Sequence[Pool], links: Sequence[PoolLink], where: str) -> list[Fault]:
    """What pools and links say against one another."""
    found = []
    names = [pool.label for pool in pools]
    twice = sorted({name for name in names if names.count(name) > 1})
    apart = [pool for pool in pools if pool.fabric is not None]
    if twice and (links or apart):
        why = "links and answers tell pools apart by name"
        found.append(Fault(f"several pools are called {', '.join(twice)}", where, why, "name: of each pool"))
    on_one = {pool.gpus_per_node for pool in pools if pool.fabric is None}
    if len(on_one) > 1:
        why = "process groups are placed on nodes of equal size, and these pools lie on one fabric"
        fix = "one value for all of them, or fabric: in each pool and links: between them"
        found.append(Fault("pools have unlike gpus_per_node", where, why, fix))
    seen: list[set[str]] = []
    for i, link in enumerate(links):
        at = f"{where}.links[{i}]"
        unknown = [name for name in link.between if name not in names]
        if unknown:
            found.append(Fault(f"no pool is called {' or '.join(unknown)}", at, "", "one of " + ", ".join(names)))
            continue
        if set(link.between) in seen:
            found.append(Fault(f"{' - '.join(link.between)} is joined twice", at, fix="one link, with ports: 2"))
        seen.append(set(link.between))
        ends = [pool for pool in pools if pool.label in link.between]
        if all(pool.fabric is None for pool in ends):
            why = "both pools lie on the cluster's fabric, which joins them"
            found.append(Fault(f"{' - '.join(link.between)} needs no link", at, why, "fabric: in one of the pools"))
    return found


def is_mixed(cluster: Cluster) -> bool:
    """Whether the pools differ in what a layout sees: device, node size, fabric or price."""
    first = cluster.pools[0]
    same = all(
        pool.device == first.device and pool.gpus_per_node == first.gpus_per_node and pool.fabric is None
        and pool.usd_per_gpu_hour == first.usd_per_gpu_hour
        for pool in cluster.pools
    )  # fmt: skip
    return len(cluster.pools) > 1 and not same


def described(cluster: Cluster) -> str:
    """What it is made of, in words for people."""
    if not is_mixed(cluster):
        return f"{cluster.n_ranks} x {cluster.device.name}, {cluster.gpus_per_node} a node"
    return " + ".join(f"{p.label} ({p.nodes} nodes of {p.gpus_per_node} x {p.device.name})" for p in cluster.pools)


def island(cluster: Cluster, pool: int) -> int:
    """Which fabric a pool lies on: its own number, or -1 for the cluster's, which several may share."""
    return -1 if cluster.pools[pool].fabric is None else pool


def pool_link(cluster: Cluster, one: int, other: int) -> PoolLink | None:
    """The fastest link between the fabrics of two pools; None where nothing joins them, or where they are one."""
    here, there = island(cluster, one), island(cluster, other)
    number = {pool.label: island(cluster, i) for i, pool in enumerate(cluster.pools)}
    found = [link for link in cluster.links if {number[name] for name in link.between} == {here, there}]
    return max(found, key=lambda link: link.bandwidth, default=None) if here != there else None


def joined(cluster: Cluster, pools: Sequence[int]) -> bool:
    """Whether every two of these pools have a path: one fabric, or a link."""
    chosen = sorted({island(cluster, i): i for i in pools}.values())
    return all(pool_link(cluster, a, b) is not None for i, a in enumerate(chosen) for b in chosen[i + 1 :])


def subcluster(cluster: Cluster, index: int, nodes: int | None = None) -> Cluster:
    """One pool as a cluster of its own, with `nodes` nodes (all of the pool unless given; more are allowed).

    What the file states for the whole cluster (context, overlap, MTBF, host memory) holds for each pool.
    """
    pool = cluster.pools[index]
    count = pool.nodes if nodes is None else nodes
    fabric = resized(pool.fabric or cluster.fabric, count)
    own = replace(pool, nodes=count, fabric=None)
    price = pool.usd_per_gpu_hour or cluster.usd_per_gpu_hour
    return replace(
        cluster, name=f"{cluster.name}/{pool.label}", pools=(own,), fabric=fabric, usd_per_gpu_hour=price, links=()
    )


def with_nodes(cluster: Cluster, nodes: Sequence[int]) -> Cluster:
    """The cluster with other numbers of nodes of its pools; fabrics have as many, prices and all else are as they are.

    Parameters
    ----------
    nodes : sequence of int
        Of each pool.
    """
    pools = tuple(
        replace(pool, nodes=count, fabric=pool.fabric and resized(pool.fabric, count))
        for pool, count in zip(cluster.pools, nodes, strict=True)
    )
    shared = sum(pool.nodes for pool in pools if pool.fabric is None)
    return replace(cluster, pools=pools, fabric=resized(cluster.fabric, shared) if shared else cluster.fabric)


def resized(fabric: Fabric, nodes: int) -> Fabric:
    """The fabric with another number of nodes, of a torus the most even one."""
    torus = fabric.torus if math.prod(fabric.torus) == nodes else torus_shape(nodes, len(fabric.torus))
    if nodes > 1 and fabric.inter is None:
        why = f"{nodes} nodes must be joined by a network"
        raise InputError(Fault("no path between nodes", "fabric", why, "inter_node: {link: ..., ports_per_node: 8}"))
    return replace(fabric, nodes=nodes, torus=torus if fabric.torus else ())


def bridge(cluster: Cluster, pools: Sequence[int], flows: int) -> Fabric:
    """The links between islands as a fabric whose nodes are islands, while `flows` GPUs of each send at once.

    All flows share the narrowest link of the pools, and none is faster than a GPU's own way out of its node. The
    collective laws price on it as on any other fabric: an island is a node with one port, and groups side
    by side share the port (``GroupShape(1, islands, flows)``).

    Raises
    ------
    InputError
        Where two of the pools have no link.
    """
    chosen = sorted({island(cluster, i): i for i in pools}.values())
    found = []
    for i, a in enumerate(chosen):
        for b in chosen[i + 1 :]:
            link = pool_link(cluster, a, b)
            if link is None:
                one, other = cluster.pools[a].label, cluster.pools[b].label
                fix = f"links: [{{between: [{one}, {other}], link: {{...}}}}] in the cluster file"
                raise InputError(Fault(f"nothing joins {one} and {other}", cluster.name, "no link is given", fix))
            found.append(link)
    narrow = min(found, key=lambda link: link.bandwidth)
    ways = [(cluster.pools[i].fabric or cluster.fabric).inter_bandwidth_per_gpu for i in chosen]
    least = min((way for way in ways if way > 0), default=math.inf)
    slowest = max(link.link.latency_s for link in found)
    port = replace(narrow.link, bandwidth=min(narrow.bandwidth, least * flows), latency_s=slowest)
    inside = [(cluster.pools[i].fabric or cluster.fabric).intra for i in chosen]
    intra = min(inside, key=lambda link: (link.bandwidth, link.name))
    return Fabric(max(flows, 1), len(chosen), intra, port, ports_per_node=1, topology="fat-tree")
