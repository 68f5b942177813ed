"""Seconds of a collective on a `Fabric`. One file per member; `seconds` is the front door."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from hwmodels.collectives import curves
from hwmodels.collectives.all_gather import AllGather
from hwmodels.collectives.all_reduce import AllReduce
from hwmodels.collectives.all_to_all import AllToAll
from hwmodels.collectives.base import (
    INTER_DEFAULTS,
    INTRA_DEFAULTS,
    Collective,
    Group,
    bandwidth_bound,
    inter_seconds,
    intra_seconds,
    link_coefficient,
)
from hwmodels.collectives.broadcast import Broadcast
from hwmodels.collectives.reduce_scatter import ReduceScatter
from hwmodels.collectives.send_recv import SendRecv
from hwmodels.errors import Fault, InputError
from hwmodels.estimate import Estimate, FloatArray
from hwmodels.network import Fabric, Link
from hwmodels.topology import GroupShape

if TYPE_CHECKING:
    from hwmodels.cluster import Cluster

MEMBERS: dict[str, Collective] = {
    member.name: member for member in (AllReduce(), AllGather(), ReduceScatter(), Broadcast(), AllToAll(), SendRecv())
}
"""Registry: name -> member."""

NO_EVIDENCE_NODES = 4
"""Groups over more nodes were not measured (but for single systems): their spread is wider."""
NO_EVIDENCE_SPREAD = 0.20

__all__ = ["MEMBERS", "NO_EVIDENCE_NODES", "bound", "evidence", "names", "seconds"]


def names() -> tuple[str, ...]:
    """Names of the collectives."""
    return tuple(MEMBERS)


def _fabric(where: Cluster | Fabric) -> Fabric:
    return where if isinstance(where, Fabric) else where.fabric


def _member(op: str) -> Collective:
    if op not in MEMBERS:
        raise InputError(Fault(f"collective {op!r} is unknown", "collectives", fix="one of " + ", ".join(MEMBERS)))
    return MEMBERS[op]


def _arguments(fabric: Fabric, nbytes: ArrayLike, shape: GroupShape) -> tuple[FloatArray, Group]:
    size = np.asarray(nbytes, dtype=np.float64)
    if size.size and not (np.all(np.isfinite(size)) and size.min() >= 0):
        bad = size[~(np.isfinite(size) & (size >= 0))].flat[0]
        raise InputError(Fault(f"nbytes is {bad:g}", "collective", "sizes are finite and >= 0", "a size of 0 or more"))
    fabric.check(shape)
    ranks, nodes = np.asarray(shape.ranks_per_node, np.float64), np.asarray(shape.nodes, np.float64)
    size, ranks, nodes = np.broadcast_arrays(size, ranks, nodes)
    return size, Group(ranks, nodes)


def _link_spread(link: Link | None, op: str, lead: str, defaults: dict[str, object]) -> float:
    """Residual of the leading coefficient, wider for a link that was not measured."""
    if link is None:
        return 0.0
    coefficient = link_coefficient(link, op, lead, defaults)  # type: ignore[arg-type]
    return coefficient.residual


def seconds(
    cluster_or_fabric: Cluster | Fabric,
    op: str,
    nbytes: ArrayLike,
    shape: GroupShape,
    *,
    algorithm: str | None = None,
) -> Estimate:
    """Time of one collective over each group of `shape`.

    Parameters
    ----------
    cluster_or_fabric : Cluster or Fabric
    op : str
        One of `names`.
    nbytes : array_like
        Size by the nccl-tests convention (all-gather: gathered size; reduce-scatter and all-to-all:
        the whole send buffer of a rank); broadcast against the fields of `shape`.
    shape : GroupShape
    algorithm : {None, 'ring', 'tree', 'nvls'}
        Forces what NCCL would otherwise choose; ``ring`` and ``tree`` leave in-switch reduction out,
        ``tree`` is an all-reduce, ``nvls`` needs a fabric that has it.

    Returns
    -------
    Estimate
        Seconds; 0 for a group of one and for no bytes. Law in `hwmodels.collectives.base`.

    Raises
    ------
    InputError
        For an unknown `op` or `algorithm`, a negative size, or a group that the fabric cannot hold.
    """
    member, fabric = _member(op), _fabric(cluster_or_fabric)
    size, group = _arguments(fabric, nbytes, shape)
    intra = _forced(fabric.intra, member, algorithm)
    inside, curve_spread = intra_seconds(member, intra, size, group), None
    if algorithm is None and op in fabric.tables:
        inside, curve_spread = curves.replace(fabric, op, size, group, inside)
    between = inter_seconds(member, fabric, size, group)
    spread = np.full(size.shape, _link_spread(fabric.intra, op, "simple.efficiency", dict(INTRA_DEFAULTS)))
    if curve_spread is not None:
        spread = curve_spread(spread)
    if fabric.inter is not None:
        loss = link_coefficient(fabric.inter, op, "overlap_loss", INTER_DEFAULTS).value
        both = _together(inside, between, loss)
        if op == "all_reduce" and algorithm in (None, "tree"):
            cost = link_coefficient(fabric.intra, op, "tree.cost", INTRA_DEFAULTS).value
            tree = _together(inside * cost, inter_seconds(member, fabric, size, group, tree=True), loss)
            tree = np.where(group.nodes > 1.0, tree, both)
            both = tree if algorithm == "tree" else np.minimum(both, tree)
        wide = _link_spread(fabric.inter, op, "bulk.efficiency", dict(INTER_DEFAULTS))
        spread = np.where(group.nodes > 1.0, np.maximum(spread, wide), spread)
        spread = spread + np.where(group.nodes > NO_EVIDENCE_NODES, NO_EVIDENCE_SPREAD, 0.0)
    else:
        both = inside
    busy = (group.size > 1.0) & (size > 0)
    return Estimate.of(np.where(busy, both, 0.0), spread)


def _together(inside: FloatArray, between: FloatArray, loss: float) -> FloatArray:
    """Two pipelined parts: the longer one, and a share of the shorter that does not overlap."""
    return np.asarray(np.maximum(inside, between) + loss * np.minimum(inside, between))


def _forced(link: Link, member: Collective, algorithm: str | None) -> Link:
    """The link as the forced algorithm sees it."""
    if algorithm is None:
        return link
    if algorithm == "ring" or (algorithm == "tree" and member.name == "all_reduce"):
        return replace(link, nvls=False)
    if algorithm == "nvls" and member.reduces_in_switch and link.nvls:
        return link
    fix = "ring" if algorithm in ("nvls", "tree") else "ring, tree or nvls"
    raise InputError(Fault(f"algorithm {algorithm!r} cannot run {member.name} on {link.name}", "collective", fix=fix))


def bound(cluster_or_fabric: Cluster | Fabric, op: str, nbytes: ArrayLike, shape: GroupShape) -> FloatArray:
    """Seconds at full wire speed on the tightest link of each group; never above `seconds`.

    Raises
    ------
    InputError
        As `seconds`.
    """
    fabric = _fabric(cluster_or_fabric)
    size, group = _arguments(fabric, nbytes, shape)
    return np.where(group.size > 1.0, bandwidth_bound(_member(op), fabric, size, group), 0.0)


def evidence(shape: GroupShape) -> str:
    """``"no measured evidence"`` for groups over more than `NO_EVIDENCE_NODES` nodes, else empty."""
    wide = bool(np.any(np.asarray(shape.nodes) > NO_EVIDENCE_NODES))
    return f"no measured evidence beyond {NO_EVIDENCE_NODES} nodes" if wide else ""
