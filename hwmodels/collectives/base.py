"""The contract of a collective, and the law that all members share.

A member says what moves; the law says how long that takes. For a group of `r` ranks in each of
`N` nodes (`n = r N`), with `b` bytes by the nccl-tests convention::

    intra(b) = min over protocols p in (ll, ll128, simple, nvls) of
               latency_p + hop_p steps + wire b / (reach(r) x efficiency_p x group(r))
    steps    = r - 1 up to 8 ranks, growing with log2 beyond
    group(r) = (r - 1)/(r - 1 + h) x (7 + h)/7 x (2/r)^slope, at most 1
               small groups reach less (trap 4); on a PCIe tree large ones do (slope > 0)
    inter(b) = min over (small, bulk) of
               latency + hop (N - 1) + out b / (rail bandwidth x efficiency)
    t = intra                                  one node
    t = inter                                  one rank per node
    t = max(intra, inter) + overlap_loss x min(intra, inter)        both
    all-reduce over nodes: the faster of a ring, and a double binary tree that sends less between
    nodes (`least_out`) and takes `tree.cost` as long inside them

`wire` is the bytes that one GPU must send (or receive) per byte of `b`, `out` those that leave the
fullest node per byte of `b` (a ring over all ranks crosses every node with nearly all of its data, a
tree that starts from in-switch reduction with less); `reach` is the GPU's bandwidth towards its
group; the rail bandwidth of a group is its GPUs' share of the node's ports, because groups of stride
`s` run side by side.
Each branch is affine and increasing in `b`, so the minimum is increasing and concave, and with
efficiencies of at most 1 nothing beats the bandwidth bound. References: Thakur et al. 2005,
"Optimization of Collective Communication Operations in MPICH" (alpha-beta costs); NCCL's
protocols LL, LL128 and Simple and its NVLS and tree algorithms (NCCL user guide and source,
``src/graph/tuning.cc``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from hwmodels.device import Coefficient
from hwmodels.estimate import FloatArray
from hwmodels.network import Fabric, Link

PROTOCOLS = ("ll", "ll128", "simple")


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """A batch of groups as the laws see them, all float64 and of one shape.

    Attributes
    ----------
    ranks : ndarray
        Ranks in a node.
    nodes : ndarray
        Nodes spanned.
    """

    ranks: FloatArray
    nodes: FloatArray

    @property
    def size(self) -> FloatArray:
        """Ranks of the group."""
        return np.asarray(self.ranks * self.nodes)


@runtime_checkable
class Collective(Protocol):
    """What a member states; one file each, listed in `hwmodels.collectives.MEMBERS`."""

    name: str
    """Name of the operation, also the prefix of its coefficients."""
    reduces_in_switch: bool
    """NVLink SHARP serves it (all-reduce only; trap 4)."""
    single_port: bool
    """Between nodes it uses one port of one GPU, however many ranks a node has."""

    def wire(self, group: Group) -> FloatArray:
        """Bytes that one GPU sends inside its node per byte of `b` (ring or direct)."""

    def least_wire(self, group: Group) -> FloatArray:
        """As `wire`, by the best algorithm there could be (for the bound)."""

    def out(self, group: Group, in_switch: NDArray[np.bool_]) -> FloatArray:
        """Bytes that leave (or enter) the fullest node per byte of `b`, as NCCL moves them."""

    def least_out(self, group: Group) -> FloatArray:
        """As `out`, by the best algorithm there could be (for the bound)."""

    def switch_wire(self, group: Group) -> FloatArray:
        """As `wire`, when the switch reduces; meaningless where `reduces_in_switch` is False."""


def _assumed(value: float, why: str, spread: float = 0.3) -> Coefficient:
    return Coefficient(value, f"assumed: {why}", 0, spread)


INTRA_DEFAULTS = {
    "ll.latency": _assumed(6e-6, "shortest NCCL collectives take 5-10 us"),
    "ll.hop": _assumed(0.5e-6, "one NVLink hop of the LL protocol"),
    "ll.efficiency": _assumed(0.10, "LL sends a flag with each 4 bytes and is latency-bound"),
    "ll128.latency": _assumed(9e-6, "LL128 starts a little later than LL"),
    "ll128.hop": _assumed(1.0e-6, "one NVLink hop of the LL128 protocol"),
    "ll128.efficiency": _assumed(0.45, "LL128 sends 120 of 128 bytes"),
    "simple.latency": _assumed(16e-6, "Simple synchronises once a chunk"),
    "simple.hop": _assumed(2.0e-6, "one hop of the Simple protocol"),
    "simple.efficiency": _assumed(0.76, "8-GPU ring busbw over link: 0.75-0.79 on NVLink 3 to 5"),
    "nvls.latency": _assumed(22e-6, "NVLS from about 2 MiB (trap 4)"),
    "nvls.hop": _assumed(0.0, "one hop through the switch whatever the group"),
    "nvls.efficiency": _assumed(0.61, "NVLS busbw 475 GB/s over 450 GB/s with 8 GPUs is 271 GB/s of data"),
    "send_recv.simple.efficiency": _assumed(0.83, "peer copies: 376-396 of 450 GB/s on NVLink 4, 746 of 900 on 5"),
    "send_recv.group_half": _assumed(0.0, "a pair is all there is"),
    "group_slope": _assumed(0.0, "a switch serves any group alike"),
    "tree.cost": _assumed(1.25, "a tree passes 2 b where the ring passes 2 (n-1)/n b, with shallower pipelines"),
    "group_half": _assumed(0.35, "2-GPU groups reach 37-78% of the link (trap 4)"),
}
INTER_DEFAULTS = {
    "small.latency": _assumed(18e-6, "shortest two-node NCCL collectives take 20-45 us"),
    "small.hop": _assumed(6e-6, "one network hop with its proxy thread"),
    "small.efficiency": _assumed(0.15, "LL over the network"),
    "bulk.latency": _assumed(40e-6, "Simple over the network"),
    "bulk.hop": _assumed(12e-6, "one network hop with its proxy thread"),
    "bulk.efficiency": _assumed(0.88, "NCCL reaches 85-95% of the line rate"),
    "all_to_all.bulk.efficiency": _assumed(0.6, "all-to-all reaches 45-75% of the ports (B200 with NDR)"),
    "send_recv.bulk.efficiency": _assumed(0.75, "half to nearly all of one port, by the environment"),
    "overlap_loss": _assumed(0.15, "pipelining inside and between nodes is not perfect"),
}


FALLBACK = {
    "reduce_scatter": ("all_gather", "all_reduce"),
    "all_gather": ("reduce_scatter", "all_reduce"),
    "broadcast": ("all_gather", "all_reduce"),
}
"""Ops that run the same rings: where one was not measured, another speaks for it."""


def link_coefficient(link: Link, op: str, name: str, defaults: Mapping[str, Coefficient]) -> Coefficient:
    """``<op>.<name>``, else that of a related op, else ``collective.<name>``, else the assumed value."""
    related = [f"{other}.{name}" for other in FALLBACK.get(op, ())]
    default = defaults.get(f"{op}.{name}", defaults[name])
    return link.find(f"{op}.{name}", *related, f"collective.{name}", default=default)


def in_switch(member: Collective, link: Link, group: Group) -> NDArray[np.bool_]:
    """Groups whose reduction the switch can do: NCCL gives it more than four GPUs only (trap 4)."""
    return np.asarray((group.ranks > 4.5) & (member.reduces_in_switch and link.nvls))


def intra_seconds(member: Collective, link: Link, nbytes: FloatArray, group: Group) -> FloatArray:
    """Seconds inside one node; 0 where a node has one rank."""

    def value(name: str) -> float:
        return link_coefficient(link, member.name, name, INTRA_DEFAULTS).value

    peers = np.maximum(group.ranks - 1.0, 0.0)
    # Beyond the eight ranks that were measured, trees keep the steps logarithmic.
    steps = np.where(peers > 7.0, 7.0 * (1.0 + np.log2(np.maximum(peers, 7.0) / 7.0)), peers)
    half = value("group_half")
    fill = peers / np.maximum(peers + half, 1e-9) * (7.0 + half) / 7.0
    fill = np.minimum(fill * (2.0 / np.maximum(group.ranks, 2.0)) ** value("group_slope"), 1.0)
    reach = link.reach(group.ranks)
    per_byte = member.wire(group) / reach
    best = np.full(nbytes.shape, np.inf)
    for p in PROTOCOLS:
        rate = np.maximum(np.minimum(value(f"{p}.efficiency"), 1.0) * fill, 1e-6)
        seconds = value(f"{p}.latency") + value(f"{p}.hop") * steps + nbytes * per_byte / rate
        best = np.minimum(best, seconds)
    if member.reduces_in_switch and link.nvls:
        start = value("nvls.latency") + value("nvls.hop") * steps
        rate = reach * min(value("nvls.efficiency"), 1.0)
        seconds = start + nbytes * member.switch_wire(group) / rate
        best = np.where(in_switch(member, link, group), np.minimum(best, seconds), best)
    return np.where(group.ranks > 1.0, best, 0.0)


def rail_bandwidth(member: Collective, fabric: Fabric, group: Group) -> FloatArray:
    """Bytes/s per direction that a group has out of one node."""
    per_gpu = fabric.inter_bandwidth_per_gpu
    if member.single_port:
        return np.full(group.ranks.shape, min(per_gpu, fabric.port_bandwidth))
    return np.asarray(per_gpu * group.ranks)


def inter_seconds(
    member: Collective, fabric: Fabric, nbytes: FloatArray, group: Group, tree: bool = False
) -> FloatArray:
    """Seconds between nodes, by a ring or (`tree`) with the least traffic; 0 where a group stays in one node."""
    link = fabric.inter
    if link is None:
        return np.zeros(nbytes.shape)

    def value(name: str) -> float:
        return link_coefficient(link, member.name, name, INTER_DEFAULTS).value

    hops = np.maximum(group.nodes - 1.0, 0.0)
    # Trees and recursive halving keep the latency logarithmic beyond a few nodes.
    hops = np.where(hops > 1.0, 1.0 + np.log2(np.maximum(hops, 1.0)), hops)
    out = member.least_out(group) if tree else member.out(group, in_switch(member, fabric.intra, group))
    per_byte = out / rail_bandwidth(member, fabric, group)
    best = np.full(nbytes.shape, np.inf)
    for p in ("small", "bulk"):
        rate = min(value(f"{p}.efficiency"), 1.0)
        seconds = link.latency_s + value(f"{p}.latency") + value(f"{p}.hop") * hops + nbytes * per_byte / rate
        best = np.minimum(best, seconds)
    return np.where(group.nodes > 1.0, best, 0.0)


def bandwidth_bound(member: Collective, fabric: Fabric, nbytes: FloatArray, group: Group) -> FloatArray:
    """Seconds at full wire speed on the tightest link: no algorithm is faster."""
    reach = fabric.intra.reach(group.ranks)
    wire = member.least_wire(group)
    if member.reduces_in_switch and fabric.intra.nvls:
        wire = np.minimum(wire, member.switch_wire(group))
    inside = np.where(group.ranks > 1.0, nbytes * wire / reach, 0.0)
    if fabric.inter is None:
        return np.asarray(inside)
    between = nbytes * member.least_out(group) / rail_bandwidth(member, fabric, group)
    return np.maximum(inside, np.where(group.nodes > 1.0, between, 0.0))
