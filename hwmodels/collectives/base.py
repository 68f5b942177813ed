"""The contract of a collective: what each member says of its traffic, and the physical bound.

A member says what moves; `hwmodels.collectives.protocols` says how long that takes, `hwmodels.collectives.tuner`
which protocol NCCL takes inside a node. For a group of `r` ranks in each of `N` nodes (``n = r N``) and `b` bytes
by the nccl-tests convention, `wire` is the bytes that one GPU sends (or receives) inside its node per byte of
`b`, `out` those that leave the fullest node, and `steps` the hops that the first byte takes inside nodes and
between them.
"""

from __future__ import annotations

from dataclasses import field
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from hwmodels.estimate import FloatArray
from hwmodels.network import Fabric, Link
from hwmodels.records import dataclass

NVLS_RANKS = 5.0
"""Fewest ranks of a node whose reduction NCCL gives to the switch (data/README, trap 4)."""
NVLS_TREE_RANKS = 8.0
"""Largest NVLink domain whose switches take part in a reduction over several domains: NCCL turns NVLSTree off in
multi-node NVLink domains (``src/graph/tuning.cc``, MNNVL)."""


def _one() -> FloatArray:
    return np.asarray(1.0)


def _none() -> FloatArray:
    return np.asarray(0.0)


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """A batch of groups as the laws see them, all float64 and of shapes that broadcast.

    Attributes
    ----------
    ranks : ndarray
        Ranks in a node.
    nodes : ndarray
        Nodes spanned.
    stride : ndarray
        Groups that use the ports of the same nodes side by side.
    leaf, pod : ndarray
        Nodes below one leaf switch and in one pod; 0 where the stride says how many.
    """

    ranks: FloatArray
    nodes: FloatArray
    stride: FloatArray = field(default_factory=_one)
    leaf: FloatArray = field(default_factory=_none)
    pod: FloatArray = field(default_factory=_none)

    @property
    def size(self) -> FloatArray:
        """Ranks of the group."""
        return np.asarray(self.ranks * self.nodes)


@runtime_checkable
class Collective(Protocol):
    """What a member states; one file each, listed in `hwmodels.collectives.MEMBERS`."""

    name: str
    """Name of the operation, also the prefix of its coefficients."""
    passes: float
    """Times that the data goes round the group: 2 for all-reduce, 1 for the others."""
    reduces_in_switch: bool
    """NVLink SHARP serves it (all-reduce only; trap 4)."""
    pairwise: bool
    """Made of sends between pairs, without rings or trees."""
    single_port: bool
    """Between nodes it uses one port of one GPU, however many ranks a node has."""

    def wire(self, group: Group) -> FloatArray:
        """Bytes that one GPU sends inside its node per byte of `b` (ring or direct)."""

    def least_wire(self, group: Group) -> FloatArray:
        """As `wire`, by the best algorithm there could be (for the bound)."""

    def out(self, group: Group) -> FloatArray:
        """Bytes that leave (or enter) the fullest node per byte of `b`, by a ring or pair by pair."""

    def least_out(self, group: Group) -> FloatArray:
        """As `out`, by the best algorithm there could be (for the bound, and for trees)."""


def in_switch(member: Collective, link: Link, group: Group) -> NDArray[np.bool_]:
    """Groups whose reduction the switch can do (`NVLS_RANKS`, `NVLS_TREE_RANKS`)."""
    domain = (group.nodes < 1.5) | (group.ranks <= NVLS_TREE_RANKS)
    return np.asarray((group.ranks >= NVLS_RANKS) & domain & (member.reduces_in_switch and link.nvls))


def rail_bandwidth(member: Collective, fabric: Fabric, group: Group) -> FloatArray:
    """Bytes/s per direction that a group has out of one node, while its siblings run as well.

    See `hwmodels.network.Fabric.rail_bandwidth`: ports shared by stride, oversubscribed uplinks, tori.
    """
    pattern = "pair" if member.single_port else "all_to_all" if member.pairwise else "ring"
    return fabric.rail_bandwidth(group.ranks, group.nodes, group.stride, pattern, group.leaf, group.pod)


def bandwidth_bound(
    member: Collective, fabric: Fabric, nbytes: FloatArray, group: Group, skew: FloatArray | float = 1.0
) -> FloatArray:
    """Seconds at full wire speed on the tightest link: no algorithm is faster.

    Parameters
    ----------
    member : Collective
    fabric : Fabric
    nbytes : ndarray
    group : Group
    skew : array_like
        Largest over mean bytes of a pair (all-to-all); see `hwmodels.collectives.all_to_all`.
    """
    reach = fabric.intra.reach(group.ranks)
    wire = member.least_wire(group)
    switched = in_switch(member, fabric.intra, Group(group.ranks, np.ones(np.shape(group.ranks))))
    wire = np.where(switched, np.minimum(wire, 1.0), wire)
    inside = np.where(group.ranks > 1.0, nbytes * wire / reach, 0.0)
    if fabric.inter is None:
        return np.asarray(inside * skew)
    between = nbytes * member.least_out(group) / rail_bandwidth(member, fabric, group)
    return np.asarray(skew * np.maximum(inside, np.where(group.nodes > 1.0, between, 0.0)))
