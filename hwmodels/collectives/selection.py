"""Which algorithm and protocol run, and the seconds that they take."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hwmodels.collectives import tuner
from hwmodels.collectives.base import Collective, Group, in_switch
from hwmodels.collectives.protocols import ALGORITHMS, PROTOCOLS, across_seconds, candidates, inside_seconds
from hwmodels.errors import Fault, InputError
from hwmodels.estimate import FloatArray
from hwmodels.network import Fabric

FORCED = ("ring", "tree", "nvls", "hierarchical")
"""What `algorithm` may name beside the custom kernels; ``hierarchical``: the better of tree and NVLSTree over nodes."""

MEASURED_RANKS = (2.0, 4.0, 8.0)
"""Groups inside a node whose jumps between protocols were measured."""

Choice = tuple[str, str]


def _wanted(member: Collective, fabric: Fabric, algorithm: str | None, protocol: str | None) -> None:
    """Refuse what cannot run."""
    link = fabric.intra
    faults = []
    if algorithm is not None:
        can = algorithm in FORCED
        can = can and not (member.pairwise or (algorithm != "ring" and member.passes != 2.0))
        can = can and not (algorithm == "nvls" and not (member.reduces_in_switch and link.nvls))
        if not can:
            fix = "no algorithm" if member.pairwise else "ring" if algorithm in FORCED else ", ".join(FORCED)
            what = f"algorithm {algorithm!r} cannot run {member.name} on {link.name}"
            faults.append(Fault(what, "collective", fix=fix))
    if protocol is not None and protocol not in PROTOCOLS:
        faults.append(Fault(f"protocol {protocol!r} is unknown", "collective", fix=", ".join(PROTOCOLS)))
    if protocol in ("ll", "ll128") and algorithm == "nvls":
        why = "the switch reduces whole chunks"
        faults.append(Fault(f"protocol {protocol!r} cannot run NVLS", "collective", why, "simple"))
    if protocol == "ll128" and member.pairwise:
        faults.append(Fault(f"protocol 'll128' cannot run {member.name}", "collective", fix="ll or simple"))
    if faults:
        raise InputError(faults)


def choices(
    member: Collective, fabric: Fabric, group: Group, several: bool, algorithm: str | None, protocol: str | None
) -> list[Choice]:
    """Candidates under what is forced."""
    _wanted(member, fabric, algorithm, protocol)
    found = list(candidates(member, fabric.intra, group, several))
    if algorithm in ("tree", "hierarchical"):
        trees = [("tree", p) for p in PROTOCOLS]
        found = trees + [c for c in found if c[0] == "nvls" and algorithm == "hierarchical" and several]
    elif algorithm == "ring":
        found = [c for c in found if c[0] == "ring"]
    elif algorithm == "nvls" and any(c[0] == "nvls" for c in found):
        # Groups that the switch cannot serve keep the ring.
        found = [c for c in found if c[0] in ("ring", "nvls")]
    return [c for c in found if protocol in (None, c[1])]


def within_nodes(
    member: Collective, fabric: Fabric, nbytes: FloatArray, group: Group, options: Sequence[Choice], force_switch: bool
) -> tuple[FloatArray, NDArray[np.int64]]:
    """Seconds inside one node, and the index of the option that NCCL takes.

    The range of sizes of each option comes from the tuner; a regime is held at the end of its range for
    larger sizes, so that time never falls. Groups of other sizes than `MEASURED_RANKS` may change protocol elsewhere
    than the tuner's formula has it: they are priced at powers of two of the size, straight between in log-log space.
    """
    if member.pairwise:
        return _least([inside_seconds(member, fabric.intra, nbytes, group, *c) for c in options])
    rounded = ~np.isin(group.ranks, MEASURED_RANKS)
    if len(options) == 1 or not rounded.any():
        return _by_tuner(member, fabric, nbytes, group, options, force_switch)
    below = 2.0 ** np.floor(np.log2(np.maximum(nbytes, 1e-9)))
    low, high = (_by_tuner(member, fabric, size, group, options, force_switch)[0] for size in (below, 2.0 * below))
    seconds, taken = _by_tuner(member, fabric, nbytes, group, options, force_switch)
    part = np.log2(np.maximum(nbytes, 1e-9) / below)
    smooth = np.maximum(low, 1e-30) ** (1.0 - part) * np.maximum(high, 1e-30) ** part
    return np.where(rounded, smooth, seconds), taken


def _by_tuner(
    member: Collective, fabric: Fabric, nbytes: FloatArray, group: Group, options: Sequence[Choice], force_switch: bool
) -> tuple[FloatArray, NDArray[np.int64]]:
    """As `within_nodes`, with the jumps of every group where the tuner changes the protocol."""
    link = fabric.intra
    names = ["nvls" if c[0] == "nvls" else c[1] for c in options]
    can = in_switch(member, link, group)
    ranges = tuner.ranges(member, link, group, names)
    seconds = np.zeros(nbytes.shape)
    taken = np.zeros(nbytes.shape, np.int64)
    for i, (option, name) in enumerate(zip(options, names, strict=True)):
        start, end = ranges[name].start, ranges[name].end
        if force_switch:
            start = np.where(can, 0.0 if name == "nvls" else np.inf, start)
            end = np.where(can & (name == "nvls"), np.inf, end)
        on = (end > start) & (nbytes >= start)
        price = inside_seconds(member, link, np.clip(nbytes, 0.0, np.maximum(end, 0.0)), group, *option)
        seconds = np.where(on, np.maximum(seconds, price), seconds)
        taken = np.where(on & (nbytes < end), i, taken)
    return seconds, taken


def over_nodes(
    member: Collective, fabric: Fabric, nbytes: FloatArray, group: Group, options: Sequence[Choice], force_switch: bool
) -> tuple[FloatArray, NDArray[np.int64]]:
    """Seconds over several nodes, and the index of the option: the one that takes least."""
    if fabric.inter is None:
        return np.zeros(nbytes.shape), np.zeros(nbytes.shape, np.int64)
    can = in_switch(member, fabric.intra, group)
    prices = []
    for option in options:
        price = across_seconds(member, fabric, fabric.inter, nbytes, group, *option)
        if option[0] == "nvls":
            price = np.where(can, price, np.inf)
        elif force_switch:
            price = np.where(can, np.inf, price)
        prices.append(price)
    return _least(prices)


def _least(prices: Sequence[FloatArray]) -> tuple[FloatArray, NDArray[np.int64]]:
    stacked = np.stack([np.broadcast_to(p, np.broadcast_shapes(*(q.shape for q in prices))) for p in prices])
    return np.asarray(stacked.min(axis=0)), np.asarray(stacked.argmin(axis=0), np.int64)


def names(options: Sequence[Choice]) -> NDArray[np.str_]:
    """``ring/ll``, ``nvls/simple``, ... of each option."""
    for algorithm, _ in options:
        if algorithm not in ALGORITHMS:
            raise ValueError(algorithm)
    return np.asarray([f"{a}/{p}" for a, p in options], dtype=np.str_)
