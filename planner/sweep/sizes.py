"""Sizes of a cluster and the batch that goes with each: what a scaling curve runs over."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from hwmodels.cluster import Cluster
from hwmodels.errors import Fault, InputError
from hwmodels.pools import subcluster

MOST = 512
"""Sizes in one sweep."""


def parse_sizes(text: str, where: str = "--gpus") -> tuple[int, ...]:
    """Numbers of GPUs from ``"64..4096"`` (doubling, both ends), ``"64..512:64"`` (steps of 64) or ``"64,96,128"``.

    Raises
    ------
    InputError
        Naming every part that is no such thing.
    """
    found: set[int] = set()
    faults = []
    fix = f"{where} 64..4096, {where} 64..512:64 or {where} 64,96,128"
    for part in text.split(","):
        first, dots, rest = part.strip().partition("..")
        last, colon, step = rest.partition(":")
        numbers = [first] + ([last] if dots else []) + ([step] if colon else [])
        if not all(number.strip().isdecimal() and int(number) > 0 for number in numbers):
            faults.append(Fault(f"{part.strip()!r} is not a number of GPUs or a range of them", where, "", fix))
            continue
        low = int(first)
        high = int(last) if dots else low
        if low > high or (colon and (high - low) // int(step) >= MOST):
            faults.append(Fault(f"{part.strip()!r} is an empty or endless range", where, f"at most {MOST} sizes", fix))
            continue
        found |= set(range(low, high + 1, int(step))) if colon else _doubling(low, high)
    if faults:
        raise InputError(faults)
    return tuple(sorted(found))


def _doubling(low: int, high: int) -> set[int]:
    found = {high}
    while low < high:
        found.add(low)
        low *= 2
    return found


def sized(cluster: Cluster, gpus: int, where: str = "--gpus") -> Cluster:
    """The cluster with as many nodes as make `gpus`; links, prices and all else as they are.

    Raises
    ------
    InputError
        For a part of a node, several pools, or more than one node of what has no network.
    """
    if len(cluster.pools) > 1:
        why = f"it has {len(cluster.pools)} pools, and which of them is to grow is not said"
        raise InputError(Fault(f"{cluster.name} cannot be resized", where, why, "a cluster of one pool"))
    per_node = cluster.gpus_per_node
    if gpus % per_node:
        low = gpus // per_node * per_node
        near = " or ".join(str(size) for size in (low, low + per_node) if size)
        raise InputError(
            Fault(f"{gpus} GPUs of {cluster.name}", where, f"a node has {per_node}, and jobs take whole nodes", near)
        )
    if gpus == cluster.n_ranks:
        return cluster
    return replace(subcluster(cluster, 0, gpus // per_node), name=cluster.name)


def parse_share(text: str, where: str = "--gbs-per-gpu") -> Fraction:
    """Sequences a GPU of a step: ``"2"``, ``"0.25"`` or ``"1/4"``.

    Raises
    ------
    InputError
        For anything else.
    """
    try:
        share = Fraction(text.strip())
    except (ValueError, ZeroDivisionError):
        share = Fraction(0)
    if share <= 0:
        raise InputError(Fault(f"{text!r} is no number of sequences a GPU", where, "", f"{where} 2 or {where} 1/4"))
    return share


def batch_of(share: Fraction, gpus: int, where: str = "--gbs-per-gpu") -> int:
    """Sequences of a step on `gpus` GPUs under weak scaling: `share` times `gpus`.

    Raises
    ------
    InputError
        Where that is not a whole number.
    """
    batch = share * gpus
    if batch.denominator != 1:
        least = share.denominator
        why = f"{share} a GPU is {float(batch):g} sequences in all"
        raise InputError(Fault(f"{gpus} GPUs", where, why, f"a multiple of {least} GPUs"))
    return int(batch)
