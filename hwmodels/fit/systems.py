"""The systems of ``collectives_measured.csv`` as fabrics of the catalog's links.

A ``system`` cell is prose; what tells systems apart is their fabric alone (`hwmodels.fit.system_names`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hwmodels import catalog, implementations
from hwmodels.collectives import MEMBERS
from hwmodels.collectives.custom import FRAMEWORKS
from hwmodels.estimate import FloatArray
from hwmodels.fit.system_names import System, system_of
from hwmodels.measured import Rows
from hwmodels.network import Fabric, Link
from hwmodels.topology import GroupShape

__all__ = ["OPS", "Batch", "System", "batches", "fabric_of", "forced_of", "impl_of", "is_custom", "is_kernel_time",
           "named", "outliers", "reasons", "shape_of", "system_of", "usable"]  # fmt: skip

OPS = {
    "all_reduce": "all_reduce", "all_gather": "all_gather", "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all", "all_to_all": "all_to_all", "sendrecv": "send_recv", "send_recv": "send_recv",
    "broadcast": "broadcast",
}  # fmt: skip
"""``op`` of the file -> name of the law."""


def fabric_of(system: System, intra: Link, inter: Link | None, ranks: int) -> Fabric:
    """The fabric of a system, large enough for any of its rows.

    Measured groups run alone: the GPUs beside `ranks` of a node leave their ports, but each GPU drives its own only.
    """
    if inter is None:
        return Fabric(system.gpus_per_node, 1, intra)
    each = max(system.ports / system.gpus_per_node, 1.0)
    ports = max(1, round(min(float(system.ports), ranks * each)))
    return Fabric(ranks, 4096, intra, inter, ports, topology="rail-fat-tree")


def shape_of(system: System, rows: Rows) -> GroupShape:
    """Group shapes of the rows of one system; groups of the files fill nodes evenly, and run alone."""
    stated, gpus = rows.numbers["n_nodes"], rows.numbers["n_gpus"]
    nodes = np.asarray([system.nodes(s, g) for s, g in zip(stated, gpus, strict=True)], dtype=np.int64)
    ranks = np.maximum(np.ceil(gpus / nodes), 1.0).astype(np.int64)
    return GroupShape(ranks, nodes, np.ones(ranks.shape, np.int64))


def impl_of(source: str, notes: str) -> str:
    """Key of the implementation that a row names (`hwmodels.implementations`); a tool that names none ran NCCL."""
    return implementations.implementation(source, notes).key or "nccl"


def forced_of(impl: str) -> str:
    """Algorithm that an implementation's key forces; empty where NCCL chooses."""
    parts = impl.split("-")
    return next((p for p in ("ring", "tree", "nvls") if p in parts), "")


def named(rows: Rows) -> Rows:
    """`rows` with the words ``impl`` and ``forced`` added."""
    words = dict(rows.words)
    found = [impl_of(s, n) for s, n in zip(words["source"], words["notes"], strict=True)]
    words["impl"] = np.asarray(found, dtype=np.str_)
    words["forced"] = np.asarray([forced_of(i) for i in found], dtype=np.str_)
    return Rows(rows.numbers, words, rows.line)


def is_custom(rows: Rows) -> NDArray[np.bool_]:
    """Rows of custom all-reduce kernels, which are another implementation than NCCL."""
    return np.asarray([impl.split("-")[0] in FRAMEWORKS for impl in rows.words["impl"]], dtype=np.bool_)


def is_kernel_time(rows: Rows) -> NDArray[np.bool_]:
    """Rows that a profiler took from single kernels, which hold the wait for the slowest rank."""
    return np.asarray(["kernel" in impl.split("-") for impl in rows.words["impl"]], dtype=np.bool_)


def outliers(rows: Rows) -> NDArray[np.bool_]:
    """Rows that their source declares to be outliers, by the size in ``notes``."""
    found = []
    for note, nbytes in zip(rows.words["notes"], rows.numbers["bytes"], strict=True):
        stated = re.search(r"(\d+) (KiB|MiB|GiB) (?:out-of-place )?row is (?:an outlier|noisy)", note)
        unit = {"KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30}
        found.append(bool(stated) and float(stated.group(1)) * unit[stated.group(2)] == nbytes if stated else False)
    return np.asarray(found, dtype=np.bool_)


def reasons(rows: Rows) -> NDArray[np.object_]:
    """Why each row is left out; empty where it is used."""
    found = np.full(len(rows), "", object)
    known = np.asarray(list(OPS))
    found[~np.isin(rows.words["op"], known)] = "no law for this op"
    found[np.asarray(rows.numbers["n_gpus"] < 2)] = "a group of one"
    for i, (name, nodes) in enumerate(zip(rows.words["system"], rows.numbers["n_nodes"], strict=True)):
        system = system_of(str(name))
        if system is None:
            found[i] = "the GPU of the system is not in the table"
        elif rows.numbers["n_gpus"][i] > system.gpus_per_node * system.nodes(nodes, rows.numbers["n_gpus"][i]):
            found[i] = "more GPUs than nodes of the system hold"
        elif not system.inter and system.nodes(nodes, rows.numbers["n_gpus"][i]) > 1:
            found[i] = "the network of the system is not in the table"
    found[outliers(rows)] = "declared an outlier by its source"
    return found


def usable(rows: Rows) -> Rows:
    """Rows that a law covers, with ``impl`` and ``forced``."""
    rows = named(rows)
    return rows.take(np.asarray(reasons(rows) == "", dtype=np.bool_))


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Rows of a file that one call prices.

    Attributes
    ----------
    rows : ndarray of int
        Their positions.
    system : System
    op, impl, forced : str
    nbytes : ndarray
    shape : GroupShape
    """

    rows: NDArray[np.int64]
    system: System
    op: str
    impl: str
    forced: str
    nbytes: FloatArray
    shape: GroupShape


def _can(system: System, op: str, algorithm: str) -> bool:
    """Whether an algorithm that a row names can be forced on its op and link; NCCL itself ignores it where not."""
    if algorithm == "nvls" and not catalog.link(system.intra).nvls:
        return False
    return op == "all_reduce" or (algorithm == "ring" and not MEMBERS[op].pairwise)


def batches(rows: Rows) -> list[Batch]:
    """`rows` (with ``impl`` and ``forced``, `hwmodels.fit.systems.named`) by system, op and implementation.

    Groups over several nodes are apart by their ranks in a node, because idle GPUs leave their ports unused.
    """
    by_key: dict[tuple[object, ...], list[int]] = {}
    columns = [rows.words[c].tolist() for c in ("system", "op", "impl", "forced")]
    for i, cells in enumerate(zip(*columns, strict=True)):
        system = system_of(cells[0])
        if system is None:
            continue
        gpus = float(rows.numbers["n_gpus"][i])
        nodes = system.nodes(float(rows.numbers["n_nodes"][i]), gpus)
        by_key.setdefault((system, *cells[1:], np.ceil(gpus / nodes) if nodes > 1 else 0.0), []).append(i)
    found = []
    for (system_, op, impl, forced, _), at in by_key.items():
        if not isinstance(system_, System):
            raise TypeError(system_)
        its = np.asarray(at, dtype=np.int64)
        keep = np.zeros(len(rows), dtype=np.bool_)
        keep[its] = True
        shape = shape_of(system_, rows.take(keep))
        algorithm = str(forced) if _can(system_, OPS[str(op)], str(forced)) else ""
        found.append(Batch(its, system_, OPS[str(op)], str(impl), algorithm, rows.numbers["bytes"][its], shape))
    return found
