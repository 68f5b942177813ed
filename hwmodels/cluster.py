"""`Cluster`: pools of nodes, their fabric, prices and failure rates; reading and writing its YAML.

The file (``*`` optional)::

    name: my-cluster
    pools: [{device: h100-sxm-80gb, gpus_per_node: 8, nodes: 16,      # device: a catalog name or a mapping
             name*: h100, price*: {...},                              # of this pool; else the cluster's
             fabric*: {intra_node: ..., inter_node*: ...}}]           # an island; else it lies on the cluster's
    links*: [{between: [h100, a100], link: ethernet-100g, ports*: 2,  # between islands; link: a name or a mapping
              usd_per_gb*: {usd: 0.02, source: ...}}]
    fabric:                                                           # may be left out where every pool has its own
      intra_node: nvlink4                                             # a catalog name or a mapping
      inter_node*: {link: infiniband-ndr, ports_per_node: 8, topology: rail-fat-tree, oversubscription: 1,
                    leaf_nodes*: 32, pod_nodes*: 0, pod_oversubscription*: 1, spines*: 1}   # see `network.Fabric`
      # or {link: ici-v5e, ports_per_node: 4, topology: torus, torus: [16, 16]}
      pcie*: {sockets: 2, gpus_per_switch: 1, socket_bandwidth: 40GB/s, source: ...}
    price*: {usd_per_gpu_hour: 2.95, source: ...}                     # else the catalog's, where it has one
    mtbf*: {gpu_hours: 50000, source: ...}                            # every cause together
    failures*: {gpu*: {hours: 79000, source: ...}, nic*: ..., node*: ..., link*: ..., switch*: ..., software*: ...}
    repair*: {time: 24h, source: ...}
    spares*: 2                                                        # nodes beside those of the job
    storage*: {write_per_node: 2GB/s, read_per_node: 4GB/s, write_total*: 1TB/s, read_total*: 1TB/s, latency*: 5ms,
               source: ...}
    overlap*: {value: 0.85, source: ...}
    context: 1GiB
    context_source: ...
    device_coefficients*: {gemm.bf16.efficiency: {value: 0.8, source: ..., rows: 90, residual: 0.05}}
    collectives*: {source: ..., rows: 40, residual: 0.08, curves: {all_reduce: {2: [[1024, 2e-5], ...]}}}

A *node* is one scale-up domain: for GB200 NVL72 the whole rack of 72 GPUs. ``device_coefficients``
replace those of the catalog; ``collectives`` are measured curves inside a node (`calibrate`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from hwmodels import catalog, yamlfile
from hwmodels.device import Coefficient, Device
from hwmodels.errors import Fault, InputError
from hwmodels.network import Fabric, Link
from hwmodels.pools import Pool, PoolLink, is_mixed, pool_faults
from hwmodels.records import dataclass
from hwmodels.reliability import Reliability, Storage

__all__ = ["COLLECTIVES", "Cluster", "Pool", "PoolLink", "load", "parse", "to_yaml", "with_calibration"]

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "send_recv")


@dataclass(frozen=True, slots=True)
class Cluster:
    """Where a job runs. Checked when built.

    Attributes
    ----------
    name : str
    pools : tuple of Pool
    fabric : Fabric
    usd_per_gpu_hour : Coefficient or None
        Price, dated in its source; None when unknown.
    mtbf_gpu_hours : Coefficient or None
        Mean GPU-hours between failures that stop a job; None when unknown.
    overlap : Coefficient or None
        Measured share of an overlapped collective's duration that it does *not* take from compute, 0..1.
        None: what the links are known to take (`hwmodels.collectives.overlap`).
    context_bytes : float
        Device memory taken by context and communicators, per rank.
    skew : Coefficient or None
        By how much the slowest rank of equal ranks exceeds their mean, relative: what every group
        that works in step waits for. None where it was not measured, which counts as none.
    host_memory_bytes : float or None
        Memory of the host of one node; None where it is not stated.
    links : tuple of PoolLink
        Between pools that have fabrics of their own.
    reliability : Reliability
        Failures by component, repair and spare nodes, as far as they are stated.
    storage : Storage or None
        Where checkpoints and data lie; None where it is not stated.
    """

    name: str
    pools: tuple[Pool, ...]
    fabric: Fabric
    usd_per_gpu_hour: Coefficient | None
    mtbf_gpu_hours: Coefficient | None
    overlap: Coefficient | None
    context_bytes: float
    skew: Coefficient | None = None
    host_memory_bytes: float | None = None
    links: tuple[PoolLink, ...] = ()
    reliability: Reliability = Reliability()
    storage: Storage | None = None

    def __post_init__(self) -> None:
        faults = []
        if not self.pools:
            faults.append(Fault("there is no pool", f"cluster {self.name}", fix="pools: [{device: ...}]"))
        if self.overlap is not None and not 0.0 <= self.overlap.value <= 1.0:
            why = "it is a share of a collective's duration"
            faults.append(Fault(f"overlap is {self.overlap.value}", f"cluster {self.name}", why, "a value in 0..1"))
        if self.skew is not None and self.skew.value < 0:
            why = "the slowest rank is never faster than the mean"
            faults.append(Fault(f"skew is {self.skew.value}", f"cluster {self.name}", why, "0 or more"))
        if self.context_bytes < 0:
            faults.append(Fault(f"context is {self.context_bytes} bytes", f"cluster {self.name}", fix="0 or more"))
        faults += pool_faults(self.pools, self.links, f"cluster {self.name}")
        if faults:
            raise InputError(faults)

    @property
    def device(self) -> Device:
        """Device of the first pool, which is that of all unless the cluster is `mixed`."""
        return self.pools[0].device

    @property
    def gpus_per_node(self) -> int:
        """Ranks in a node (of the first pool)."""
        return self.pools[0].gpus_per_node

    @property
    def nodes(self) -> int:
        """Nodes of all pools."""
        return sum(pool.nodes for pool in self.pools)

    @property
    def n_ranks(self) -> int:
        """GPUs of all pools."""
        return sum(pool.n_ranks for pool in self.pools)

    @property
    def mixed(self) -> bool:
        """Whether the pools differ, so that `device` and `fabric` do not speak for all (`hwmodels.pools`)."""
        return is_mixed(self)


def load(name_or_path: str | Path) -> Cluster:
    """A preset (``"dgx-h100"``, ``"dgx-h100:16"`` for 16 nodes) or a cluster YAML file.

    Raises
    ------
    InputError
        With all faults of the file, each with file, line and key; for an unknown preset the
        closest known ones are named.
    """
    text = str(name_or_path)
    if isinstance(name_or_path, Path) or text.endswith((".yaml", ".yml")) or "/" in text:
        return parse(yamlfile.read(name_or_path), text)
    name, _, count = text.partition(":")
    source = catalog.text("clusters", name)
    nodes = None
    if ":" in text:
        if not count.isdecimal() or int(count) < 1:
            raise InputError(Fault(f"{text!r} asks for {count or 'no'} nodes", "cluster", fix=f"{name}:16"))
        nodes = int(count)
    return parse(source, f"catalog/clusters/{name}.yaml", nodes)


def parse(text: str, file: str, nodes: int | None = None) -> Cluster:
    """Cluster of YAML text; `file` names it in faults, `nodes` replaces the count of its only pool.

    Raises
    ------
    InputError
        As `load`.
    """
    from hwmodels.reading import cluster_of

    return cluster_of(text, file, nodes)


def with_calibration(
    cluster: Cluster,
    *,
    device_coefficients: Mapping[str, Coefficient],
    collective_tables: Mapping[str, Mapping[int, Sequence[tuple[float, float]]]],
    overlap: Coefficient | None = None,
    skew: Coefficient | None = None,
    launch_s: float | None = None,
    source: str,
    name: str = "",
    residual: float = 0.1,
) -> Cluster:
    """The cluster with measured numbers in the place of the catalog's.

    Parameters
    ----------
    cluster : Cluster
    device_coefficients : Mapping[str, Coefficient]
        As `hwmodels.fit.fit_device` returns them; added to those of every pool's device.
    collective_tables : Mapping
        op -> ranks in a node -> (bytes, seconds) points, as `hwmodels.fit.fit_collectives` returns.
    overlap : Coefficient, optional
        Replaces the cluster's when given.
    skew : Coefficient, optional
        Replaces the cluster's when given.
    launch_s : float, optional
        Measured host time of one eager operator.
    source : str
        What was measured, where and when.
    name : str
        New name; the old one with ``-calibrated`` by default.
    residual : float
        Relative residual of the collective curves.

    Raises
    ------
    InputError
        For points that are not finite and positive.
    """
    faults: list[Fault] = []
    curves: dict[str, dict[int, tuple[tuple[float, float], ...]]] = {}
    rows = 0
    for op, by_size in collective_tables.items():
        curves[op] = {}
        for size, points in by_size.items():
            bad = [p for p in points if not (math.isfinite(p[0]) and math.isfinite(p[1]) and p[0] >= 0 and p[1] > 0)]
            if op not in COLLECTIVES:
                faults.append(Fault(f"collective {op!r} is unknown", "tables", fix=", ".join(COLLECTIVES)))
            if bad or not points or size < 2:
                faults.append(
                    Fault(f"points {bad or list(points)}", f"{op} over {size} ranks", fix="bytes >= 0, seconds > 0")
                )
            curves[op][int(size)] = tuple(sorted((float(p[0]), float(p[1])) for p in points))
            rows += len(points)
    if faults:
        raise InputError(faults)
    pools = tuple(
        replace(
            pool,
            device=replace(
                pool.device,
                coefficients={**pool.device.coefficients, **device_coefficients},
                launch_s=pool.device.launch_s if launch_s is None else launch_s,
            ),
        )
        for pool in cluster.pools
    )
    fabric = replace(cluster.fabric, gpus_per_node=pools[0].gpus_per_node)
    if curves:
        tables = {**fabric.tables, **curves}
        intra = _as_fast_as_measured(fabric.intra, curves)
        fabric = replace(fabric, intra=intra, tables=tables, tables_source=Coefficient(1.0, source, rows, residual))
    return replace(
        cluster,
        name=name or f"{cluster.name}-calibrated",
        pools=pools,
        fabric=fabric,
        overlap=overlap or cluster.overlap,
        skew=skew or cluster.skew,
    )


def _as_fast_as_measured(link: Link, curves: Mapping[str, Mapping[int, Sequence[tuple[float, float]]]]) -> Link:
    """The link with at least the wire speed that the curves reach: a bound must hold for them as well."""
    from hwmodels.collectives import MEMBERS
    from hwmodels.collectives.base import Group

    best = link.bandwidth
    for op, by_size in curves.items():
        for size, points in by_size.items():
            group = Group(np.asarray(float(size)), np.asarray(1.0))
            wire = float(MEMBERS[op].least_wire(group)) * link.bandwidth / float(link.reach(np.asarray(float(size))))
            best = max(best, *(wire * nbytes / seconds for nbytes, seconds in points))
    return replace(link, bandwidth=best)


def to_yaml(cluster: Cluster) -> str:
    """The cluster in the format that `load` reads, complete in itself (no catalog names)."""
    from hwmodels.writing import cluster_content

    return yamlfile.dump(cluster_content(cluster))
