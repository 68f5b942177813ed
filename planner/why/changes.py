"""Changes of the hardware or of the request that `planner.why.sensitivity` tries, one file for all: each is a line.

Laws of kernels and collectives are stated against datasheet figures (`hwmodels`), so a better link or chip is the same
cluster with another figure. What was measured as a curve (`Fabric.tables`) is of the link it was measured on and is
dropped where that link changes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from types import MappingProxyType

from hwmodels.cluster import Cluster
from hwmodels.network import Link
from hwmodels.pools import with_nodes
from planner.frameworks import of as preset_of
from planner.plan import Workload
from planner.precision import workload_faults

Altered = tuple[Cluster, Workload] | None
"""The changed cluster and workload; None where the change has nothing to work on."""


@dataclass(frozen=True, slots=True)
class Change:
    """One change.

    Attributes
    ----------
    name : str
        What a person calls it; also the word of ``--change``.
    about : str
        What is altered.
    apply : callable
        ``(cluster, workload) -> Altered``.
    of_request : bool
        Whether it changes what is asked for (batch, precision, ranks) and not what the hardware does.
    """

    name: str
    about: str
    apply: Callable[[Cluster, Workload], Altered]
    of_request: bool = False


def _device(cluster: Cluster, workload: Workload, **factors: float) -> Altered:
    """The same cluster with figures of all devices scaled."""

    def scaled(value: object, factor: float) -> object:
        if isinstance(value, dict | MappingProxyType):
            return {name: peak * factor for name, peak in value.items()}
        return float(value) * factor  # type: ignore[arg-type]

    pools = tuple(
        replace(
            pool,
            device=replace(
                pool.device,
                **{name: scaled(getattr(pool.device, name), f) for name, f in factors.items()},  # type: ignore[arg-type]
            ),
        )
        for pool in cluster.pools
    )
    return replace(cluster, pools=pools), workload


def _links(
    cluster: Cluster, workload: Workload, *, intra: bool, inter: bool, bandwidth: float = 1.0, latency: float = 1.0
) -> Altered:
    fabric = cluster.fabric

    def altered(link: Link) -> Link:
        beyond = link.beyond * bandwidth
        return replace(
            link, bandwidth=link.bandwidth * bandwidth, latency_s=link.latency_s * latency, beyond=beyond, generation=""
        )

    touched = {}
    if intra and cluster.gpus_per_node > 1:
        touched["intra"] = altered(fabric.intra)
    if inter and fabric.inter is not None and cluster.nodes > 1:
        touched["inter"] = altered(fabric.inter)
    if not touched:
        return None
    if "intra" in touched:
        fabric = replace(fabric, tables={}, tables_source=None)
    return replace(cluster, fabric=replace(fabric, **touched)), workload  # type: ignore[arg-type]


def _nodes(cluster: Cluster, workload: Workload) -> Altered:
    """Twice the nodes; a torus, whose shape is its own, is left alone."""
    fabric = cluster.fabric
    if fabric.torus or fabric.inter is None:
        return None
    return with_nodes(cluster, [2 * pool.nodes for pool in cluster.pools]), workload


def _precision(cluster: Cluster, workload: Workload) -> Altered:
    """The first fp8 recipe that framework and device have."""
    if "fp8" not in cluster.device.peak_flops or "fp8" in workload.precision:
        return None
    from planner.plan import PRECISIONS

    for name in (p for p in PRECISIONS if "fp8" in p):
        other = replace(workload, precision=name)
        if not workload_faults(other, preset_of(other), ""):
            return cluster, other
    return None


def _graphs(cluster: Cluster, workload: Workload) -> Altered:
    """Kernels launched by CUDA graphs, where they are not."""
    if cluster.device.kind != "gpu" or preset_of(workload).cuda_graphs:
        return None
    return cluster, replace(workload, switches=(*workload.switches, ("cuda_graphs", "true")))


CHANGES: tuple[Change, ...] = (
    Change("compute x2", "peak FLOP/s and board power of the device",
           lambda c, w: _device(c, w, peak_flops=2.0, tdp_w=2.0)),
    Change("memory-bandwidth x2", "bytes/s of the device memory", lambda c, w: _device(c, w, memory_bandwidth=2.0)),
    Change("node-link x2", "bytes/s of the links inside a node",
           lambda c, w: _links(c, w, intra=True, inter=False, bandwidth=2.0)),
    Change("network x2", "bytes/s of the network ports",
           lambda c, w: _links(c, w, intra=False, inter=True, bandwidth=2.0)),
    Change("network /2", "bytes/s of the network ports",
           lambda c, w: _links(c, w, intra=False, inter=True, bandwidth=0.5)),
    Change("latency /2", "seconds of the first byte on all links",
           lambda c, w: _links(c, w, intra=True, inter=True, latency=0.5)),
    Change("memory -20%", "bytes of the device memory", lambda c, w: _device(c, w, memory_bytes=0.8)),
    Change("memory +20%", "bytes of the device memory", lambda c, w: _device(c, w, memory_bytes=1.2)),
    Change("memory x2", "bytes of the device memory", lambda c, w: _device(c, w, memory_bytes=2.0)),
    Change("batch x2", "sequences of a step", lambda c, w: (c, replace(w, gbs=2 * w.gbs)), of_request=True),
    Change("batch /2", "sequences of a step",
           lambda c, w: (c, replace(w, gbs=w.gbs // 2)) if w.gbs % 2 == 0 else None, of_request=True),
    Change("nodes x2", "nodes of the cluster, at the same batch", _nodes, of_request=True),
    Change("fp8", "matrix products in 8 bits where framework and device have them", _precision, of_request=True),
    Change("cuda-graphs", "kernels launched in graphs instead of one by one", _graphs, of_request=True),
)  # fmt: skip
"""Every change that is tried; a new one is a line here."""
