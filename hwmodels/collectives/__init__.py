"""Seconds of a collective on a `Fabric`. One file per member; `seconds` is the front door."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hwmodels.collectives import curves, custom, selection
from hwmodels.collectives.all_gather import AllGather
from hwmodels.collectives.all_reduce import AllReduce
from hwmodels.collectives.all_to_all import AllToAll
from hwmodels.collectives.base import Collective, Group, bandwidth_bound
from hwmodels.collectives.beside import Beside, beside, expert_beside
from hwmodels.collectives.broadcast import Broadcast
from hwmodels.collectives.coefficients import BETWEEN, coefficient
from hwmodels.collectives.expert import expert_bound, expert_seconds, expert_sms
from hwmodels.collectives.overlap import Taken, overlap
from hwmodels.collectives.reduce_scatter import ReduceScatter
from hwmodels.collectives.send_recv import SendRecv
from hwmodels.collectives.spread import LARGE_BYTES, NO_EVIDENCE_NODES, NO_EVIDENCE_SPREAD, evidence, relative_spread
from hwmodels.errors import Fault, InputError
from hwmodels.estimate import Estimate, FloatArray
from hwmodels.network import Fabric
from hwmodels.records import dataclass
from hwmodels.topology import GroupShape

if TYPE_CHECKING:
    from hwmodels.cluster import Cluster

MEMBERS: dict[str, Collective] = {
    member.name: member for member in (AllReduce(), AllGather(), ReduceScatter(), Broadcast(), AllToAll(), SendRecv())
}
"""Registry: name -> member."""

__all__ = [
    "LARGE_BYTES",
    "MEMBERS",
    "NO_EVIDENCE_NODES",
    "NO_EVIDENCE_SPREAD",
    "Beside",
    "Taken",
    "beside",
    "bound",
    "chosen",
    "evidence",
    "expert_beside",
    "expert_bound",
    "expert_seconds",
    "expert_sms",
    "names",
    "overlap",
    "seconds",
]


def names() -> tuple[str, ...]:
    """Names of the collectives."""
    return tuple(MEMBERS)


@dataclass(frozen=True, slots=True, eq=False)
class _Priced:
    """Seconds by law, the options that were weighed, and which was taken inside a node and over nodes."""

    seconds: FloatArray
    taken: NDArray[np.str_]


def _fabric(where: Cluster | Fabric) -> Fabric:
    return where if isinstance(where, Fabric) else where.fabric


def _member(op: str) -> Collective:
    if op not in MEMBERS:
        raise InputError(Fault(f"collective {op!r} is unknown", "collectives", fix="one of " + ", ".join(MEMBERS)))
    return MEMBERS[op]


def _arguments(
    fabric: Fabric, nbytes: ArrayLike, shape: GroupShape, skew: ArrayLike
) -> tuple[FloatArray, Group, FloatArray]:
    size, uneven = np.asarray(nbytes, dtype=np.float64), np.asarray(skew, dtype=np.float64)
    faults = []
    if size.size and not (np.all(np.isfinite(size)) and size.min() >= 0):
        bad = size[~(np.isfinite(size) & (size >= 0))].flat[0]
        faults.append(Fault(f"nbytes is {bad:g}", "collective", "sizes are finite and >= 0", "a size of 0 or more"))
    if uneven.size and not (np.all(np.isfinite(uneven)) and uneven.min() >= 1.0):
        bad = uneven[~(np.isfinite(uneven) & (uneven >= 1.0))].flat[0]
        why = "it is the largest over the mean of the bytes of a pair"
        faults.append(Fault(f"skew is {bad:g}", "collective", why, "1 (even) or more"))
    if faults:
        raise InputError(faults)
    fabric.check(shape)
    parts = (shape.ranks_per_node, shape.nodes, shape.stride)
    ranks, nodes, stride = (np.asarray(part, np.float64) for part in parts)
    size, uneven, ranks, nodes, stride = np.broadcast_arrays(size, uneven, ranks, nodes, stride)
    if not (np.any(shape.leaf) or np.any(shape.pod)):
        return size, Group(ranks, nodes, stride), uneven
    leaf, pod = (np.broadcast_to(np.asarray(part, np.float64), ranks.shape) for part in (shape.leaf, shape.pod))
    return size, Group(ranks, nodes, stride, leaf, pod), uneven


def _checked(member: Collective, impl: str, algorithm: str | None, skew: FloatArray) -> str:
    """Framework of a custom kernel that `impl` and `algorithm` ask for; empty for NCCL."""
    framework = impl.split("-")[0]
    if framework and framework not in (*custom.FRAMEWORKS, "nccl", "rccl", "torch"):
        known = ", ".join((*custom.FRAMEWORKS, "nccl", "rccl", "torch"))
        raise InputError(Fault(f"implementation {impl!r} of a collective is unknown", "collective", fix=known))
    if member.name != "all_to_all" and bool((skew != 1.0).any()):
        raise InputError(Fault(f"{member.name} has a skew", "collective", "only pairs of an all-to-all differ", "1"))
    engine = framework in custom.FRAMEWORKS
    if algorithm in custom.SHOTS and member.name != "all_reduce":
        fix = "ring" if not member.pairwise else "no algorithm"
        raise InputError(Fault(f"algorithm {algorithm!r} cannot run {member.name}", "collective", fix=fix))
    return framework if engine or not framework else ""


def _runs(group: Group, algorithm: str | None) -> None:
    """Refuse algorithms that some group of a batch cannot run: nothing else is priced in their place.

    Raises
    ------
    InputError
        For a custom kernel over several nodes, and for ``hierarchical`` within one.
    """
    several, many = group.nodes > 1.5, group.size > 1.0
    if algorithm in custom.SHOTS and bool(several.any()):
        why = f"its GPUs read each other's memory in one node, and a group spans {group.nodes.max():g}"
        raise InputError(Fault(f"algorithm {algorithm!r} cannot run", "collective", why, "ring, tree or nvls"))
    if algorithm == "hierarchical" and bool((~several & many).any()):
        why = "it joins levels of nodes, and a group lies in one"
        raise InputError(Fault(f"algorithm {algorithm!r} cannot run", "collective", why, "ring, tree or nvls"))


def _as_shipped(fabric: Fabric, op: str) -> Fabric:
    """The fabric with pairs over the network as NCCL's own settings leave them: fewer channels a peer than tuned."""
    if fabric.inter is None or not MEMBERS[op].pairwise:
        return fabric
    less = coefficient(fabric.inter, op, "pair.default_efficiency", BETWEEN)
    link = replace(fabric.inter, coefficients={**fabric.inter.coefficients, f"{op}.pair.efficiency": less})
    return replace(fabric, inter=link)


def _law(
    member: Collective, fabric: Fabric, nbytes: FloatArray, group: Group, algorithm: str | None, protocol: str | None
) -> _Priced:
    """Seconds of NCCL and what it takes: by the tuner inside a node, the least over nodes."""
    one = group.nodes < 1.5
    seconds, taken = np.zeros(nbytes.shape), np.full(nbytes.shape, "", dtype="<U16")
    switch = algorithm == "nvls"
    if one.any() or not nbytes.size:
        options = selection.choices(member, fabric, group, False, algorithm, protocol)
        seconds, index = selection.within_nodes(member, fabric, nbytes, group, options, switch)
        taken = np.where(one, selection.names(options)[index], taken)
    if not one.all():
        options = selection.choices(member, fabric, group, True, algorithm, protocol)
        across, index = selection.over_nodes(member, fabric, nbytes, group, options, switch)
        seconds = np.where(one, seconds, across)
        taken = np.where(one, taken, selection.names(options)[index])
    return _Priced(seconds, np.asarray(taken))


def _price(
    fabric: Fabric, member: Collective, nbytes: FloatArray, group: Group, algorithm: str | None, protocol: str | None,
    framework: str,
) -> _Priced:  # fmt: skip
    """As `_law`, with the custom kernels of a framework where they run."""
    shots = (algorithm,) if algorithm in custom.SHOTS else custom.SHOTS
    nccl = _law(member, fabric, nbytes, group, None if algorithm in custom.SHOTS else algorithm, protocol)
    own = member.name == "all_reduce" and (algorithm in custom.SHOTS or (bool(framework) and algorithm is None))
    if not own or protocol is not None:
        return nccl
    seconds, which = custom.replace(fabric.intra, framework, nbytes, group, nccl.seconds, shots)
    words = np.asarray([*shots, ""], dtype=np.str_)
    return _Priced(seconds, np.where(which >= 0, words[which], nccl.taken))


def seconds(
    cluster_or_fabric: Cluster | Fabric,
    op: str,
    nbytes: ArrayLike,
    shape: GroupShape,
    *,
    algorithm: str | None = None,
    protocol: str | None = None,
    impl: str = "",
    skew: ArrayLike = 1.0,
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
    algorithm : {None, 'ring', 'tree', 'nvls', 'hierarchical', 'one_shot', 'two_shot'}
        Forces what NCCL would otherwise choose. ``tree``, ``nvls``, ``hierarchical`` and the custom ``one_shot`` and
        ``two_shot`` are all-reduces; ``nvls`` needs a fabric that has it, and groups too small for it run a ring.
        Custom kernels run inside a node, ``hierarchical`` over several: other groups are refused.
    protocol : {None, 'll', 'll128', 'simple'}
        Forces the protocol.
    impl : str
        ``""`` or ``"nccl..."``: NCCL, with a network tuned for pairs unless the name ends in ``-default``;
        ``"trtllm..."``, ``"sglang..."``, ``"vllm..."``: all-reduce by the custom kernels of that engine up to their
        largest message, NCCL beyond (`hwmodels.implementations`).
    skew : array_like
        Largest over mean bytes of a pair, >= 1; all-to-all only.

    Returns
    -------
    Estimate
        Seconds; 0 for a group of one and for no bytes. Laws in `hwmodels.collectives.protocols`.

    Raises
    ------
    InputError
        For an unknown `op`, `algorithm`, `protocol` or `impl`, one that cannot run the op, a negative size, a skew
        below 1, or a group that the fabric cannot hold.
    """
    member, fabric = _member(op), _fabric(cluster_or_fabric)
    size, group, uneven = _arguments(fabric, nbytes, shape, skew)
    framework = _checked(member, impl, algorithm, uneven)
    _runs(group, algorithm)
    fabric = _as_shipped(fabric, op) if impl.endswith("-default") else fabric
    found = _price(fabric, member, size * uneven, group, algorithm, protocol, framework).seconds
    spread = relative_spread(fabric, op, size, group, framework, "kernel" in impl.split("-"))
    if algorithm is None and protocol is None and not framework and op in fabric.tables:
        law = np.where(group.nodes > 1.0, 0.0, found)
        inside, curve_spread = curves.replace(fabric, op, size * uneven, group, law)
        found = np.where(group.nodes > 1.0, np.maximum(found, inside), inside)
        spread = np.where(group.nodes > 1.0, spread, curve_spread(spread))
    busy = (group.size > 1.0) & (size > 0)
    return Estimate.of(np.where(busy, found, 0.0), spread)


def chosen(
    cluster_or_fabric: Cluster | Fabric,
    op: str,
    nbytes: ArrayLike,
    shape: GroupShape,
    *,
    algorithm: str | None = None,
    protocol: str | None = None,
    impl: str = "",
) -> NDArray[np.str_]:
    """Algorithm and protocol of each price of `seconds`: ``ring/ll``, ``nvls/simple``, ``tree/simple``, ``pairs/ll``,
    ``one_shot`` ...; empty for groups of one and for no bytes.

    Raises
    ------
    InputError
        As `seconds`.
    """
    member, fabric = _member(op), _fabric(cluster_or_fabric)
    size, group, uneven = _arguments(fabric, nbytes, shape, 1.0)
    framework = _checked(member, impl, algorithm, uneven)
    _runs(group, algorithm)
    fabric = _as_shipped(fabric, op) if impl.endswith("-default") else fabric
    taken = _price(fabric, member, size, group, algorithm, protocol, framework).taken
    return np.where((group.size > 1.0) & (size > 0), taken, "")


def bound(
    cluster_or_fabric: Cluster | Fabric, op: str, nbytes: ArrayLike, shape: GroupShape, *, skew: ArrayLike = 1.0
) -> FloatArray:
    """Seconds at full wire speed on the tightest link of each group; never above `seconds`.

    Raises
    ------
    InputError
        As `seconds`.
    """
    fabric = _fabric(cluster_or_fabric)
    size, group, uneven = _arguments(fabric, nbytes, shape, skew)
    return np.where(group.size > 1.0, bandwidth_bound(_member(op), fabric, size, group, uneven), 0.0)
