"""The collective law of each kind of link from ``collectives_measured.csv``.

A coefficient belongs to a kind of link, never to a named system. The table below turns the systems
of the file into fabrics of the catalog's links; rows of custom all-reduce kernels are another
implementation and take no part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hwmodels import catalog, measured
from hwmodels.collectives import MEMBERS, seconds
from hwmodels.device import Coefficient
from hwmodels.estimate import FloatArray
from hwmodels.fit.solve import Free, rms, solve
from hwmodels.laws import Block, Section
from hwmodels.measured import Rows
from hwmodels.network import Fabric, Link
from hwmodels.topology import GroupShape

OPS = {
    "all_reduce": "all_reduce", "all_gather": "all_gather", "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "sendrecv": "send_recv", "broadcast": "broadcast",
}  # fmt: skip
"""``op`` of the file -> name of the law."""


@dataclass(frozen=True, slots=True)
class System:
    """Part of a ``system`` cell, and the fabric that it stands for."""

    part: str
    gpus_per_node: int
    intra: str
    inter: str = ""
    ports: int = 0


SYSTEMS = (
    System("8xA100-SXM4-80GB NVSwitch", 8, "nvlink3"), System("8xA100-SXM4 NVSwitch", 8, "nvlink3"),
    System("DGX A100 (8xA100", 8, "nvlink3"), System("BM.GPU.B4.8", 8, "nvlink3", "roce-200g", 8),
    System("p4de.24xlarge", 8, "nvlink3", "efa-v1", 4),
    System("8xH100-SXM5 NVSwitch", 8, "nvlink4"), System("p5.48xlarge (8xH100) single node", 8, "nvlink4"),
    System("DGX H100", 8, "nvlink4", "infiniband-ndr", 8), System("HGX H100 + 8x NDR400 IB", 8, "nvlink4",
    "infiniband-ndr", 8),
    System("HGX H200 + 8x 400GbE RoCE", 8, "nvlink4", "roce-400g", 8),
    System("p5.48xlarge (8xH100, 32x100G", 8, "nvlink4", "efa-v2", 32),
    System("8xB200-SXM NVSwitch", 8, "nvlink5"), System("P6-B200", 8, "nvlink5"), System("GB200 tray", 4, "nvlink5"),
    System("HGX B200 + 8x NDR400 IB", 8, "nvlink5", "infiniband-ndr", 8),
    System("8xL40S PCIe4", 8, "pcie4"),
    System("8xMI350-series", 8, "xgmi-mi355x", "pollara-400", 8),
)  # fmt: skip
"""Systems whose links the catalog has; the first that matches. "DGX A100" of the profiles taken on Azure
has no network here: its two nodes reach 7.8 GB/s a port, and what those ports are is not stated."""

INTRA_FREE = (
    Free("ll.latency", 8e-6, 5e-7, 6e-5), Free("ll.hop", 5e-7, 1e-9, 2e-5), Free("ll.efficiency", 0.05, 0.001, 0.6),
    Free("ll128.latency", 1.2e-5, 1e-6, 1e-4), Free("ll128.hop", 1e-6, 1e-9, 2e-5), Free("ll128.efficiency",
    0.3, 0.01, 0.9),
    Free("simple.latency", 2.5e-5, 1e-6, 2e-4), Free("simple.hop", 2e-6, 1e-9, 4e-5),
    Free("simple.efficiency", 0.75, 0.02, 0.99), Free("group_half", 0.3, 0.001, 20.0),
)  # fmt: skip
NVLS_FREE = (Free("nvls.latency", 1e-4, 2e-6, 3e-4), Free("nvls.efficiency", 0.55, 0.45, 0.99))
INTER_FREE = (
    Free("small.latency", 2e-5, 1e-6, 2e-4), Free("small.efficiency", 0.1, 0.002, 0.95),
    Free("bulk.latency", 5e-5, 1e-6, 5e-4), Free("bulk.efficiency", 0.85, 0.05, 0.99),
)  # fmt: skip


def system_of(name: str) -> System | None:
    """The entry of `SYSTEMS` that a ``system`` cell names."""
    return next((s for s in SYSTEMS if s.part in name), None)


def is_custom(rows: Rows) -> NDArray[np.bool_]:
    """Rows of custom all-reduce kernels, which are another implementation than NCCL."""
    return np.asarray(["custom all-reduce" in note for note in rows.words["notes"]], dtype=np.bool_)


def usable(rows: Rows) -> Rows:
    """NCCL (or RCCL) rows of known systems and ops, without declared outliers."""
    systems = [system_of(s) for s in rows.words["system"]]
    known = np.asarray(
        [s is not None and (bool(s.inter) or n == 1) for s, n in zip(systems, rows.numbers["n_nodes"], strict=True)],
        dtype=np.bool_,
    )
    odd = np.asarray(["outlier" in n for n in rows.words["notes"]], dtype=np.bool_)
    return rows.take(known & ~is_custom(rows) & ~odd & np.isin(rows.words["op"], list(OPS)))


def shape_of(rows: Rows) -> GroupShape:
    """Group shapes of the rows; groups of the files fill nodes evenly."""
    ranks = np.maximum(rows.numbers["n_gpus"] / rows.numbers["n_nodes"], 1.0).astype(np.int64)
    return GroupShape(ranks, rows.numbers["n_nodes"].astype(np.int64), np.ones(ranks.shape, np.int64))


def fabric_of(system: System, intra: Link, inter: Link | None) -> Fabric:
    """The fabric of a system; large enough for any of its rows."""
    if inter is None:
        return Fabric(system.gpus_per_node, 1, intra)
    return Fabric(system.gpus_per_node, 1024, intra, inter, system.ports, topology="rail-fat-tree")


def link_of(name: str, links: dict[str, Link]) -> Link:
    """The link as fitted so far."""
    return links[name] if name in links else catalog.link(name)


def predict(rows: Rows, op: str, links: dict[str, Link]) -> FloatArray:
    """Seconds of every row of one op, each on the fabric of its system; `links` replace the catalog's."""
    result = np.zeros(len(rows))
    forced = np.asarray(["Ring forced" in note for note in rows.words["notes"]], dtype=np.bool_)
    for name in np.unique(rows.words["system"]):
        system = system_of(str(name))
        if system is None:
            continue
        inter = link_of(system.inter, links) if system.inter else None
        fabric = fabric_of(system, link_of(system.intra, links), inter)
        for algorithm in (None, "ring"):
            its = (rows.words["system"] == name) & (forced == (algorithm is not None))
            if its.any():
                part = rows.take(its)
                size, shape = part.numbers["bytes"], shape_of(part)
                result[its] = seconds(fabric, op, size, shape, algorithm=algorithm).mid
    return result


def with_numbers(link: Link, op: str, free: Sequence[Free], values: FloatArray) -> Link:
    """`link` with plain numbers among its coefficients (while fitting)."""
    extra = {f"{op}.{f.name}": Coefficient(float(v), "fit", 1) for f, v in zip(free, values, strict=True)}
    return replace(link, coefficients={**link.coefficients, **extra})


def _fit(rows: Rows, op: str, link: Link, free: Sequence[Free], links: dict[str, Link], text: str) -> Link:
    """`link` with `free` fitted on `rows` and recorded with source, rows and residual."""
    actual = rows.numbers["time_us"] * 1e-6
    values, errors = solve(
        lambda x: predict(rows, op, {**links, link.name: with_numbers(link, op, free, x)}),
        free,
        actual,
        row_weight(rows),
        scale=0.1,
    )
    found = {
        f"{op}.{f.name}": Coefficient(float(v), text, len(rows), rms(errors)) for f, v in zip(free, values, strict=True)
    }
    return replace(link, coefficients={**link.coefficients, **found})


def row_weight(rows: Rows) -> FloatArray:
    """Every (system, algorithm) counts alike up to a factor of 8: a few large rows fix NVLS against ring."""
    forced = np.asarray(["algo" in note for note in rows.words["notes"]], dtype=np.bool_)
    return np.where(forced, 8.0, 1.0)


def link_catalog(rows: Rows) -> dict[str, Link]:
    """Link name -> link with fitted coefficients: inside nodes first, then between them."""
    rows = usable(rows)
    systems = [system_of(s) for s in rows.words["system"]]
    intra = np.asarray([s.intra if s else "" for s in systems])
    inter = np.asarray([s.inter if s else "" for s in systems])
    law = np.asarray([OPS[op] for op in rows.words["op"]])
    one = rows.numbers["n_nodes"] == 1
    links: dict[str, Link] = {}
    for name in sorted(set(intra[one])):
        link = replace(catalog.link(name), coefficients={})
        for op in MEMBERS:
            keep = one & (intra == name) & (law == op)
            if keep.sum() < 20:
                continue
            switched = MEMBERS[op].reduces_in_switch and link.nvls
            free = (*INTRA_FREE, *NVLS_FREE) if switched else INTRA_FREE
            if link.topology == "tree":
                free = (*free, Free("group_slope", 1.0, 0.01, 3.0))
            timed = np.asarray(["kineto" not in n for n in rows.words["notes"]], dtype=np.bool_)
            if (keep & timed).sum() >= 20:
                keep &= timed  # kernel times without launch are another clock than that of nccl-tests
            text = f"least squares on collectives_measured.csv, {name}, {op} inside a node"
            link = _fit(rows.take(keep), op, link, free, links, text)
        if link.coefficients:
            links[name] = link
    for name in sorted(set(inter[~one]) - {""}):
        link = replace(catalog.link(name), coefficients={})
        for op in MEMBERS:
            keep = ~one & (inter == name) & (law == op)
            if keep.sum() < 4:
                continue
            text = f"least squares on collectives_measured.csv, {name}, {op} over 2 nodes"
            link = _fit(rows.take(keep), op, link, _inter_free(rows.take(keep)), links, text)
        links[name] = link
    return links


def _inter_free(rows: Rows) -> tuple[Free, ...]:
    """What the rows can tell: a few large sizes fix the bulk rate only."""
    large = rows.numbers["bytes"].min() > 2.0**24
    return tuple(f for f in INTER_FREE if f.name == "bulk.efficiency" or not large)


def fit(data: Path) -> dict[str, Section]:
    """Sections of the collective law from ``collectives_measured.csv`` in the folder `data`.

    Raises
    ------
    InputError
        For a missing or broken file.
    """
    links = link_catalog(measured.collectives(data / "collectives_measured.csv"))
    found = {}
    for name, link in links.items():
        groups: dict[tuple[str, int, float], dict[str, float]] = {}
        for key, c in link.coefficients.items():
            groups.setdefault((c.source, c.rows, c.residual), {})[key] = c.value
        found[name] = Section((name,), tuple(Block("", s, n, r, values) for (s, n, r), values in groups.items()))
    return found
