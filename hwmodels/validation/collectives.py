"""Collective rows against the law.

Rows of custom all-reduce kernels, and kernel times that a profiler took (they hold the wait for the slowest rank), are
groups and pools of their own.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hwmodels import measured
from hwmodels.collectives import LARGE_BYTES
from hwmodels.fit import collectives as law
from hwmodels.fit import systems
from hwmodels.measured import Rows
from hwmodels.validation.scored import Scored, keys

UNSTATED_SPREAD = 0.15
"""Added over nodes where a row does not state the network: it is known from what it reached only."""


def _kind(impl: str) -> str:
    """``custom`` kernels of engines, ``kernel time`` of a profiler, ``outdated`` stacks, else ``nccl`` (and RCCL)."""
    parts = impl.split("-")
    if "custom" in parts:
        return "custom"
    if "kernel" in parts:
        return "kernel time"
    return "outdated" if "older" in parts else "nccl"


def _places(rows: Rows) -> tuple[NDArray[np.object_], NDArray[np.object_], list[str], NDArray[np.bool_]]:
    """Nodes of each row in words, the link that carries it, the fabric of the law, and if its network is stated."""
    nodes, link, fabric, known = [], [], [], []
    for name, stated, gpus in zip(rows.words["system"], rows.numbers["n_nodes"], rows.numbers["n_gpus"], strict=True):
        system = systems.system_of(str(name))
        if system is None:
            raise ValueError(name)
        spanned = system.nodes(stated, gpus)
        nodes.append("1 node" if spanned == 1 else f"{spanned} nodes")
        known.append(spanned == 1 or system.stated)
        link.append(system.intra if spanned == 1 else system.inter)
        fabric.append(system.intra if spanned == 1 else f"{system.intra}+{system.ports}x{system.inter}")
    return np.asarray(nodes, object), np.asarray(link, object), fabric, np.asarray(known, np.bool_)


def score(path: Path) -> Scored:
    """Groups are system, op, implementation, nodes and size class; sizes inside one node are not split.

    Raises
    ------
    InputError
        For a broken file.
    """
    rows = systems.named(measured.collectives(path))
    n = rows.numbers
    out = Scored.empty(str(path), "collective", rows, n["time_us"] * 1e-6)
    out.reason[:] = systems.reasons(rows)
    kept = np.asarray(out.reason == "", dtype=np.bool_)
    if not kept.any():
        return out
    part = rows.take(kept)
    price = law.estimate(systems.batches(part), len(part), law.Fitted())
    out.x[kept] = n["bytes"][kept]
    where, link, fabric, stated = _places(part)
    out.predicted_s[kept], out.spread[kept] = price.mid, price.spread + np.where(stated, 0.0, UNSTATED_SPREAD)
    size = np.asarray(np.where(part.numbers["bytes"] >= LARGE_BYTES, ">=64MiB", "<64MiB"), object)
    ops = [systems.OPS[str(op)] for op in part.words["op"]]
    impl = part.words["impl"]
    kinds = [_kind(str(i)) for i in impl]
    out.tags["size"][kept], out.tags["link"][kept] = size, link
    out.tags["custom"][kept] = ["custom" if k == "custom" else "" for k in kinds]
    out.tags["op"][kept] = ops
    classes = ["" if x == "1 node" else f" {z}" for x, z in zip(where, size, strict=True)]
    out.pool[kept] = [f"collective {k} {x}{z}" for k, x, z in zip(kinds, where, classes, strict=True)]
    out.group[kept] = [
        f"collective {s[:36].strip()} {o} {i or 'unstated'} {x}{z}{'' if known else ' (network not stated)'}"
        for s, o, i, x, z, known in zip(part.words["system"], ops, impl, where, classes, stated, strict=True)
    ]
    out.key[kept] = keys(fabric, ops, impl, part.numbers["n_gpus"], part.numbers["bytes"])
    return out
