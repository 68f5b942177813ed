"""Domain objects as the plain content of their YAML files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hwmodels.device import Coefficient, Device
from hwmodels.laws import NO_LAWS
from hwmodels.network import Fabric, Link

if TYPE_CHECKING:
    from hwmodels.cluster import Cluster
    from hwmodels.pools import Pool, PoolLink


def number(value: float, digits: int = 6) -> float:
    """`value` with few digits: what a fit knows, and files that do not change with rounding noise."""
    return float(f"{value:.{digits}g}")


def coefficient_content(coefficient: Coefficient) -> dict[str, Any]:
    """value, source, rows, residual."""
    return {
        "value": float(coefficient.value),
        "source": coefficient.source,
        "rows": int(coefficient.rows),
        "residual": float(coefficient.residual),
    }


def _plain(value: float, unit: str) -> str:
    """Exact text: repr keeps every bit of a float, so a file read back gives the same object."""
    return f"{value!r}{unit}" if value != int(value) else f"{int(value)}{unit}"


def device_content(device: Device) -> dict[str, Any]:
    """Every field of a `Device`, with its coefficients spelt out."""
    content: dict[str, Any] = {
        "name": device.name,
        "vendor": device.vendor,
        "kind": device.kind,
        "generation": device.generation,
        "peak_flops": {dtype: _plain(peak, "FLOP/s") for dtype, peak in device.peak_flops.items()},
        "memory": _plain(device.memory_bytes, "B"),
        "memory_bandwidth": _plain(device.memory_bandwidth, "B/s"),
    }
    if device.host_link:
        content["host_link"] = device.host_link
    if device.l2_bytes:
        content["l2"] = _plain(device.l2_bytes, "B")
    if device.n_sm:
        content["n_sm"] = int(device.n_sm)
    if device.tdp_w:
        content["tdp"] = _plain(device.tdp_w, "W")
    content["launch"] = _plain(device.launch_s, "s")
    content["confidence"] = device.confidence
    content["sources"] = dict(device.sources)
    content["laws_of"] = NO_LAWS
    if device.coefficients:
        content["coefficients"] = {name: coefficient_content(c) for name, c in device.coefficients.items()}
    return content


def link_content(link: Link) -> dict[str, Any]:
    """Every field of a `Link`, with its coefficients spelt out."""
    content: dict[str, Any] = {
        "name": link.name,
        "kind": link.kind,
        "bandwidth": _plain(link.bandwidth, "B/s"),
        "latency": _plain(link.latency_s, "s"),
        "topology": link.topology,
        "mesh_peers": int(link.mesh_peers),
        "nvls": bool(link.nvls),
        "source": link.source,
    }
    if link.generation:
        content["generation"] = link.generation
    if link.beyond:
        content["beyond"] = _plain(link.beyond, "B/s")
    content["laws_of"] = NO_LAWS
    if link.coefficients:
        content["coefficients"] = {name: coefficient_content(c) for name, c in link.coefficients.items()}
    return content


def fabric_content(fabric: Fabric) -> dict[str, Any]:
    """The ``fabric`` of a cluster or of a pool."""
    content: dict[str, Any] = {"intra_node": link_content(fabric.intra)}
    if fabric.inter is not None:
        content["inter_node"] = {
            "link": link_content(fabric.inter),
            "ports_per_node": fabric.ports_per_node,
            "topology": fabric.topology,
            "oversubscription": float(fabric.oversubscription),
            "leaf_nodes": int(fabric.leaf_nodes),
            "pod_nodes": int(fabric.pod_nodes),
            "pod_oversubscription": float(fabric.pod_oversubscription),
            "spines": int(fabric.spines),
            "torus": [int(d) for d in fabric.torus],
        }
    content["pcie"] = {
        "sockets": int(fabric.pcie.sockets),
        "gpus_per_switch": int(fabric.pcie.gpus_per_switch),
        "socket_bandwidth": _plain(fabric.pcie.socket_bandwidth, "B/s"),
        "source": fabric.pcie.source,
    }
    return content


def pool_content(pool: Pool) -> dict[str, Any]:
    """One entry of ``pools``."""
    content: dict[str, Any] = {"device": device_content(pool.device)}
    content |= {"gpus_per_node": pool.gpus_per_node, "nodes": pool.nodes}
    if pool.name:
        content["name"] = pool.name
    if pool.fabric is not None:
        content["fabric"] = fabric_content(pool.fabric)
    if pool.usd_per_gpu_hour is not None:
        content["price"] = _priced("usd_per_gpu_hour", pool.usd_per_gpu_hour)
    return content


def pool_link_content(link: PoolLink) -> dict[str, Any]:
    """One entry of ``links``."""
    content: dict[str, Any] = {"between": list(link.between), "link": link_content(link.link), "ports": link.ports}
    if link.usd_per_gb is not None:
        content["usd_per_gb"] = _priced("usd", link.usd_per_gb)
    return content


def _priced(key: str, value: Coefficient) -> dict[str, Any]:
    return {key: float(value.value), "source": value.source, "residual": float(value.residual)}


def cluster_content(cluster: Cluster) -> dict[str, Any]:
    """The whole cluster file."""
    fabric = cluster.fabric
    content: dict[str, Any] = {"name": cluster.name, "pools": [pool_content(pool) for pool in cluster.pools]}
    if any(pool.fabric is None for pool in cluster.pools):
        content["fabric"] = fabric_content(fabric)
    if cluster.links:
        content["links"] = [pool_link_content(link) for link in cluster.links]
    for key, field, value in (
        ("price", "usd_per_gpu_hour", cluster.usd_per_gpu_hour),
        ("mtbf", "gpu_hours", cluster.mtbf_gpu_hours),
    ):
        if value is not None:
            content[key] = _priced(field, value)
    content.update(_reliability_content(cluster))
    if cluster.overlap is not None:
        content["overlap"] = coefficient_content(cluster.overlap)
    if cluster.skew is not None:
        content["skew"] = coefficient_content(cluster.skew)
    content["context"] = _plain(cluster.context_bytes, "B")
    if cluster.host_memory_bytes is not None:
        content["host_memory"] = _plain(cluster.host_memory_bytes, "B")
    content["context_source"] = "carried over from the cluster that was calibrated"
    if fabric.tables:
        source = fabric.tables_source or Coefficient(1.0, "not stated", 0, 0.15)
        content["collectives"] = {
            "source": source.source,
            "rows": int(source.rows),
            "residual": float(source.residual),
            "curves": {
                op: {int(n): [[float(b), float(s)] for b, s in points] for n, points in table.items()}
                for op, table in fabric.tables.items()
            },
        }
    return content


def _reliability_content(cluster: Cluster) -> dict[str, Any]:
    """Failures, repair, spares and storage, as far as the cluster states them."""
    found: dict[str, Any] = {}
    stated, storage = cluster.reliability, cluster.storage
    if stated.hours:
        found["failures"] = {kind: _priced("hours", c) for kind, c in stated.hours.items()}
    if stated.repair_s is not None:
        repair = stated.repair_s
        time = _plain(repair.value, "s")
        found["repair"] = {"time": time, "source": repair.source, "residual": float(repair.residual)}
    if stated.spares is not None:
        found["spares"] = stated.spares
    if storage is not None:
        rates = ("write_per_node", "read_per_node", "write_total", "read_total")
        named = {name: getattr(storage, name) for name in rates}
        found["storage"] = {
            **{name: _plain(rate, "B/s") for name, rate in named.items() if rate != float("inf")},
            "latency": _plain(storage.latency_s, "s"),
            "source": storage.source,
        }
    return found
