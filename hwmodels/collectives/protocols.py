"""Seconds of the algorithms and protocols: the laws that all members share.

Inside a node, ring and tree with protocol `p` and ``B`` the bytes of a GPU over ``reach x efficiency x fill``::

    LL      (L^k + B^k)^(1/k)                    L = latency + steps hop + sat (jump + steps jump_hop)
                                                 sat = x / (1 + x), x = (b / n / 4 KiB)^2
    LL128   latency + steps hop + B
    Simple  latency + steps hop + B + sqrt(tail B)
    NVLS    latency + B + sqrt(tail B)                                   B of b bytes, whatever the group
    pairs   min(latency + hop (n-1) + (b / peers) / rate,
                ((bulk_latency + bulk_hop (n-1))^k + B^k)^(1/k) + sqrt(tail B))       all-to-all, send-recv

    steps   hops of the first byte: n - 1 on a ring, twice that for all-reduce
    fill    (r-1)/(r-1+h) x (7+h)/7 x (2/r)^slope, at most 1: small groups reach less of a switch (trap 4),
            large ones less of a PCIe tree

``sat``: LL runs on one channel with few threads up to 4 KiB a rank (``NCCL_LL_THREAD_THRESHOLD`` 8 bytes x 512
threads) and spreads over more beyond. ``sqrt(tail B)`` is what the best chunk of a pipeline still costs: with chunks of
``c`` bytes it takes ``B + steps c + overhead B / c``, least at ``c ~ sqrt(B)`` (Thakur et al. 2005; NCCL shrinks
chunks for smaller messages). ``k``: NCCL adds channels as messages grow, so that time is flat and then linear.

Over nodes the latencies of both levels add, and the transfers overlap but for a loss::

    t = latency + steps hop + net latency + max(B, B_net) + loss min(B, B_net)

``B_net`` is the bytes out of the fullest node over the group's share of its ports. Rings were measured on full nodes,
where links inside may be what bounds them: of fewer ranks a node, none reaches more of a port than a send-recv of
one rank did there (`port_share`). All-reduce is the least of ring,
tree (a chain inside nodes, log2 N hops between them) and NVLSTree; there, NCCL's choice is taken as the least cost,
because its estimate for networks holds constants of the host (CPU vendor, NIC latency) that no catalog states.
Every part increases with `b`, and efficiencies are at most 1, so nothing beats the bandwidth bound.
"""

from __future__ import annotations

import numpy as np

from hwmodels.collectives.base import Collective, Group, in_switch, rail_bandwidth
from hwmodels.collectives.coefficients import between, inside
from hwmodels.estimate import FloatArray
from hwmodels.network import Fabric, Link

PROTOCOLS = ("ll", "ll128", "simple")
ALGORITHMS = ("ring", "tree", "nvls", "pairs")
LL_CHUNK_BYTES = 4096.0
FULL_PORT = 8.0
"""Senders that fill a network port together: assumed, those of a node on one port."""
NCCL_KINDS = ("infiniband", "roce", "efa")
NET_HOP = {
    "ring": {"ll": 2.7e-6, "ll128": 4.0e-6, "simple": 14.0e-6},
    "tree": {"ll": 5.0e-6, "ll128": 8.5e-6, "simple": 14.0e-6},
}
"""Seconds of one hop between nodes: NCCL src/graph/tuning.cc, ``hwLatencies`` of NET."""
NIC_KINDS = ("infiniband", "roce", "efa", "ethernet")
"""Kinds of network ports; a torus or a host has one rank a node by nature."""


def fill(link: Link, op: str, group: Group) -> FloatArray:
    """Share of its bandwidth that a group of ``group.ranks`` reaches, over that of eight; at most 1."""
    half = inside(link, op, "group_half")
    ranks = np.maximum(group.ranks, 2.0)
    peers = ranks - 1.0
    share = peers / (peers + half) * (7.0 + half) / 7.0 * (2.0 / ranks) ** inside(link, op, "group_slope")
    return np.asarray(np.minimum(share, 1.0))


def _share(value: float) -> float:
    return min(max(value, 1e-9), 1.0)


def few_ranks(fabric: Fabric, link: Link, op: str, group: Group) -> FloatArray:
    """How far a group's ranks a node are from those measured: 0 from ``least_ranks`` on, 1 for one rank.

    Ports that several GPUs of the node share are kept busy by the groups side by side, however few ranks each has:
    from one sender a port, where that is no help, to `FULL_PORT`, where it is all.
    """
    least = between(link, op, "least_ranks")
    if least <= 1.0 or link.kind not in NIC_KINDS or op == "send_recv":
        return np.zeros(np.shape(group.ranks))
    few = 1.0 - np.clip(np.log2(np.maximum(group.ranks, 1.0)) / np.log2(least), 0.0, 1.0)
    senders = group.ranks * fabric.side_by_side(group.ranks, group.stride) / max(fabric.ports_per_node, 1)
    crowd = np.clip(np.log2(np.maximum(senders, 1.0)) / np.log2(FULL_PORT), 0.0, 1.0)
    return np.asarray(few * (1.0 - crowd))


def port_share(fabric: Fabric, link: Link, op: str, share: float, group: Group) -> FloatArray:
    """Share of its network ports that a group reaches: `share` where so many ranks a node were measured.

    One rank a node reaches at most what a send-recv of one rank does on the same kind of port (36 of 50 GB/s on NDR),
    those between are interpolated in the logarithm of the ranks: no group is priced at a rate that none was seen at.
    """
    one = min(_share(between(link, "send_recv", "pair.efficiency")), _share(share))
    few = few_ranks(fabric, link, op, group)
    return np.asarray(few * one + (1.0 - few) * _share(share))


def steps(member: Collective, group: Group, algorithm: str) -> tuple[FloatArray, FloatArray]:
    """Hops of the first byte inside nodes and between them.

    A ring has ``n - 1`` hops a pass, ``N - 1`` of them between nodes; a tree passes the chain of one node and
    ``log2 N`` edges, up and down.
    """
    if algorithm == "tree":
        return np.asarray(2.0 * (group.ranks - 1.0)), np.asarray(2.0 * np.log2(np.maximum(group.nodes, 1.0)))
    if algorithm == "nvls":
        return np.zeros(np.shape(group.ranks)), np.asarray(2.0 * np.log2(np.maximum(group.nodes, 1.0)))
    inner = member.passes * group.nodes * (group.ranks - 1.0)
    return np.asarray(inner), np.asarray(member.passes * (group.nodes - 1.0))


def protocol_latency(
    member: Collective, link: Link, nbytes: FloatArray, group: Group, hops: FloatArray, p: str
) -> FloatArray:
    """Seconds of protocol `p` before bandwidth counts."""
    op = member.name
    start = inside(link, op, f"{p}.latency") + hops * (inside(link, op, f"{p}.hop") + link.latency_s)
    if p != "ll":
        return np.asarray(start)
    x = (nbytes / group.size / LL_CHUNK_BYTES) ** 2
    return np.asarray(start + x / (1.0 + x) * (inside(link, op, "ll.jump") + hops * inside(link, op, "ll.jump_hop")))


def transfer(
    member: Collective, link: Link, nbytes: FloatArray, group: Group, algorithm: str, p: str
) -> tuple[FloatArray, FloatArray]:
    """Seconds that a GPU needs for its bytes inside the node, and what chunking adds to them."""
    op = member.name
    if algorithm == "nvls":
        moved = nbytes / (link.reach(group.ranks) * _share(inside(link, op, "nvls.efficiency")))
        return np.asarray(moved), np.sqrt(moved * inside(link, op, "nvls.tail"))
    wire: FloatArray = member.wire(group)
    if algorithm == "tree":
        wire = np.where(group.size > 1.0, 2.0, 0.0) * max(inside(link, op, "tree.cost"), 1.0)
    rate = link.reach(group.ranks) * _share(inside(link, op, f"{p}.efficiency")) * fill(link, op, group)
    moved = np.where(group.ranks > 1.0, nbytes * wire / rate, 0.0)
    tail = np.sqrt(moved * inside(link, op, "simple.tail")) if p == "simple" else np.zeros(np.shape(moved))
    return np.asarray(moved), np.asarray(tail)


def inside_seconds(
    member: Collective, link: Link, nbytes: FloatArray, group: Group, algorithm: str, p: str
) -> FloatArray:
    """Seconds of one algorithm and protocol inside one node."""
    if algorithm == "pairs":
        return pair_seconds(member, link, nbytes, group, p)
    hops, _ = steps(member, group, algorithm)
    if algorithm == "nvls":
        latency = np.full(np.shape(nbytes), inside(link, member.name, "nvls.latency"))
    else:
        latency = protocol_latency(member, link, nbytes, group, hops, p)
    moved, tail = transfer(member, link, nbytes, group, algorithm, p)
    if p == "ll":
        return _flat_then_linear(latency, moved, inside(link, member.name, "ll.sharpness"))
    return np.asarray(latency + moved + tail)


def _flat_then_linear(start: FloatArray, moved: FloatArray, sharpness: float) -> FloatArray:
    """``(start^k + moved^k)^(1/k)``: sum for k = 1, larger of both for k = infinity; both may be zero."""
    k = max(sharpness, 1.0)
    largest = np.maximum(np.maximum(start, moved), 1e-30)
    return np.asarray(largest * ((start / largest) ** k + (moved / largest) ** k) ** (1.0 / k))


def _peers(member: Collective, group: Group) -> FloatArray:
    """Ranks that a rank exchanges with: all others (all-to-all) or one (send-recv)."""
    return np.ones(np.shape(group.ranks)) if member.single_port else np.maximum(group.size - 1.0, 1.0)


def _messages(member: Collective, group: Group) -> FloatArray:
    return np.ones(np.shape(group.ranks)) if member.single_port else group.size


def pair_seconds(member: Collective, link: Link, nbytes: FloatArray, group: Group, p: str) -> FloatArray:
    """Sends between pairs inside one node: LL for short messages, Simple for long ones."""
    op, peers = member.name, _peers(member, group)
    wire, reach = member.wire(group), link.reach(group.ranks)
    if p == "ll":
        start = inside(link, op, "pair.latency") + link.latency_s + (peers - 1.0) * inside(link, op, "pair.hop")
        rate = _share(inside(link, op, "pair.rate")) * link.bandwidth
        floor = nbytes * wire / reach  # pairs run side by side, but never faster than the link
        return np.asarray(start + np.maximum(nbytes / _messages(member, group) / rate, floor))
    start = inside(link, op, "pair.bulk_latency") + link.latency_s + (peers - 1.0) * inside(link, op, "pair.bulk_hop")
    moved = nbytes * wire / (reach * _share(inside(link, op, "pair.efficiency")) * fill(link, op, group))
    tail = np.sqrt(moved * inside(link, op, "pair.tail"))
    return _flat_then_linear(start, moved, inside(link, op, "pair.sharpness")) + tail


def _together(first: FloatArray, second: FloatArray, loss: float) -> FloatArray:
    """Two pipelined parts: the longer one, and a share of the shorter that does not overlap."""
    return np.asarray(np.maximum(first, second) + loss * np.minimum(first, second))


def across_seconds(
    member: Collective, fabric: Fabric, link: Link, nbytes: FloatArray, group: Group, algorithm: str, p: str
) -> FloatArray:
    """Seconds of one algorithm and protocol of groups over several nodes joined by `link`."""
    op, rail = member.name, rail_bandwidth(member, fabric, group)
    loss = max(between(link, op, "overlap_loss"), 0.0)
    if algorithm == "pairs":
        return _pairs_across(member, fabric, link, nbytes, group, p, rail)
    hops, net_hops = steps(member, group, algorithm)
    if algorithm == "nvls":
        latency = np.full(np.shape(nbytes), inside(fabric.intra, op, "nvls.latency"))
    else:
        latency = protocol_latency(member, fabric.intra, nbytes, group, hops, p)
    moved, tail = transfer(member, fabric.intra, nbytes, group, algorithm, p)
    out = member.out(group) if algorithm == "ring" else member.least_out(group)
    share = between(link, op, f"{p}.efficiency")
    if algorithm == "ring" and p == "simple":
        share = between(link, op, "ring.efficiency")
    crossing = nbytes * out / (rail * port_share(fabric, link, op, share, group))
    latency = latency + network_latency(link, op, net_hops, member.passes, algorithm, p)
    return np.asarray(latency + tail + _together(moved, crossing, loss))


def network_latency(link: Link, op: str, net_hops: FloatArray, passes: float, algorithm: str, p: str) -> FloatArray:
    """Seconds of `net_hops` hops between nodes, `passes` of which two nodes have.

    Fits saw two nodes, where a hop holds what starting the network costs as well. Each further one takes no more
    than NCCL's own estimate of a hop (`NET_HOP`).
    """
    first = between(link, op, f"{p}.hop") + link.latency_s
    further = first
    if link.kind in NCCL_KINDS:
        further = min(first, NET_HOP["ring" if algorithm == "ring" else "tree"][p])
    return np.asarray(net_hops * further + np.minimum(net_hops, passes) * (first - further))


def _pairs_across(
    member: Collective, fabric: Fabric, link: Link, nbytes: FloatArray, group: Group, p: str, rail: FloatArray
) -> FloatArray:
    """Sends between pairs, some of them in other nodes: the slower of both levels, and the network's hop."""
    op = member.name
    near = np.where(group.ranks > 1.0, pair_seconds(member, fabric.intra, nbytes, group, p), 0.0)
    if member.single_port:  # its only peer is in another node
        near = np.zeros(np.shape(near))
    start = inside(fabric.intra, op, "pair.latency") + link.latency_s
    floor: FloatArray = nbytes * member.out(group) / rail
    if p == "ll":
        far = start + between(link, op, "pair.hop")
        rate = _share(between(link, op, "pair.rate")) * fabric.port_bandwidth
        return np.asarray(np.maximum(near, far + np.maximum(nbytes / _messages(member, group) / rate, floor)))
    share = port_share(fabric, link, op, between(link, op, "pair.efficiency"), group)
    bulk = start + between(link, op, "pair.bulk_hop") + floor / share
    return np.asarray(np.maximum(near, bulk))


def candidates(member: Collective, link: Link, group: Group, several_nodes: bool) -> tuple[tuple[str, str], ...]:
    """(algorithm, protocol) that can run a member on groups inside nodes, or over several."""
    if member.pairwise:
        return (("pairs", "ll"), ("pairs", "simple"))
    rings = tuple(("ring", p) for p in PROTOCOLS)
    trees = tuple(("tree", p) for p in PROTOCOLS) if several_nodes and member.passes == 2.0 else ()
    switch = (("nvls", "simple"),) if bool(in_switch(member, link, group).any()) else ()
    return rings + trees + switch
