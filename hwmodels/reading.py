"""The plain content of cluster files as domain objects: the way back from `hwmodels.writing`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from hwmodels import catalog, prices, yamlfile
from hwmodels.cluster import Cluster
from hwmodels.device import Coefficient, Device
from hwmodels.errors import Fault, InputError
from hwmodels.network import Fabric, Link, PcieTree
from hwmodels.network.fabric import torus_shape
from hwmodels.pools import Pool, PoolLink
from hwmodels.records import dataclass

if TYPE_CHECKING:
    from hwmodels.schema import ClusterFile, FabricFile, PoolFile

Curves = Mapping[str, Mapping[int, tuple[tuple[float, float], ...]]]
Where = tuple[str | int, ...]


def cluster_of(text: str, file: str, nodes: int | None = None) -> Cluster:
    """As `hwmodels.cluster.parse`."""
    from hwmodels.catalog import checks
    from hwmodels.schema import ClusterFile

    data, marks = yamlfile.parse(text, file)
    parsed = yamlfile.validate(ClusterFile, data, file, marks)
    faults = checks.inline_faults(data, file, marks)
    if faults:
        raise InputError(faults)
    if nodes is not None:
        if len(parsed.pools) > 1:
            what, fix = f"a node count for {parsed.name}", f"{parsed.name} alone, or a copy of {file} with other nodes"
            why = f"it has {len(parsed.pools)} pools, and which grows is not said"
            raise InputError(Fault(what, "cluster", why, fix))
        parsed = _resized(parsed.with_values(pools=[parsed.pools[0].with_values(nodes=nodes)]))
    return _Reading(parsed, file, marks).cluster()


def _resized(parsed: ClusterFile) -> ClusterFile:
    """The file with a torus of as many dimensions for the number of nodes that was asked for."""
    network = parsed.fabric.inter_node if parsed.fabric is not None else None
    total = sum(pool.nodes for pool in parsed.pools)
    if parsed.fabric is None or network is None or not network.torus or math.prod(network.torus) == total:
        return parsed
    shape = list(torus_shape(total, len(network.torus)))
    fabric = parsed.fabric.with_values(inter_node=network.with_values(torus=shape))
    return parsed.with_values(fabric=fabric)


def _device(pool: PoolFile, extra: Mapping[str, Coefficient]) -> Device:
    entry: Any = pool.device
    device: Device = catalog.device(entry) if isinstance(entry, str) else entry.build()
    return replace(device, coefficients={**device.coefficients, **extra}) if extra else device


def _link(entry: Any) -> Link:
    if isinstance(entry, str):
        return catalog.link(entry)
    built: Link = entry.build()
    return built


@dataclass(slots=True)
class _Reading:
    """One use: a valid file on its way to a `Cluster`; faults that need several keys get their lines here."""

    parsed: ClusterFile
    file: str
    marks: yamlfile.Marks
    faults: list[Fault] = field(default_factory=list)

    def cluster(self) -> Cluster:
        """The domain object, or every fault."""
        parsed = self.parsed
        extra = {name: c.build() for name, c in parsed.device_coefficients.items()}
        devices = [
            self._attempt(("pools", i, "device"), partial(_device, pool, extra)) for i, pool in enumerate(parsed.pools)
        ]
        own = [self._own_fabric(i, pool) for i, pool in enumerate(parsed.pools)]
        links = [self._attempt(("links", i), partial(self._pool_link, i)) for i in range(len(parsed.links))]
        common = self._common_fabric(own)
        self._stop()
        pools = [self._pool(*found) for found in zip(devices, parsed.pools, own, strict=True)]
        fabric = next(each for each in (common, *own) if each is not None)
        cluster = self._attempt(("pools",), partial(self._built, tuple(pools), fabric, tuple(links)))
        self._stop()
        built: Cluster = cluster
        return built

    def _attempt(self, loc: Where, build: Callable[[], Any]) -> Any:
        try:
            return build()
        except InputError as error:
            self.faults += [replace(f, where=yamlfile.where(self.file, loc, self.marks)) for f in error.faults]
            return None

    def _stop(self) -> None:
        if self.faults:
            raise InputError(self.faults)

    def _own_fabric(self, i: int, pool: PoolFile) -> Fabric | None:
        """Of a pool that is an island."""
        if pool.fabric is None:
            return None
        at = ("pools", i, "fabric")
        return self._fabric(pool.fabric, at, pool.gpus_per_node, pool.nodes, {}, None)

    def _common_fabric(self, own: list[Fabric | None]) -> Fabric | None:
        """Of the pools that have none of their own, sized for all nodes where all lie on it."""
        parsed = self.parsed
        if parsed.fabric is None:
            bare = [i for i, pool in enumerate(parsed.pools) if pool.fabric is None]
            for i in bare:
                where = yamlfile.where(self.file, ("pools", i), self.marks)
                why = "neither the pool nor the cluster says how its GPUs are joined"
                self.faults.append(Fault("no fabric", where, why, "fabric: {intra_node: ...} of the pool or above"))
            return None
        on_it = [pool for pool, fabric in zip(parsed.pools, own, strict=True) if fabric is None] or parsed.pools
        tables = parsed.collectives
        curves = {str(op): {n: tuple(p) for n, p in t.items()} for op, t in tables.curves.items()} if tables else {}
        source = Coefficient(1.0, tables.source, tables.rows, tables.residual) if tables else None
        nodes = sum(pool.nodes for pool in on_it)
        return self._fabric(parsed.fabric, ("fabric",), on_it[0].gpus_per_node, nodes, curves, source)

    def _fabric(
        self, entry: FabricFile, at: Where, gpus_per_node: int, nodes: int, curves: Curves, source: Coefficient | None
    ) -> Fabric | None:
        """The fabric of an entry, with its tiers or torus; None where it has faults."""
        network = entry.inter_node
        before = len(self.faults)
        intra = self._attempt((*at, "intra_node"), lambda: _link(entry.intra_node))
        inter: Link | None = None
        more: dict[str, Any] = {}
        if network is not None:
            inter = self._attempt((*at, "inter_node", "link"), lambda: _link(network.link))
            names = ("ports_per_node", "oversubscription", "topology", "leaf_nodes", "pod_nodes",
                     "pod_oversubscription", "spines")  # fmt: skip
            more = {**{name: getattr(network, name) for name in names}, "torus": tuple(network.torus)}
        if len(self.faults) > before:
            return None
        pcie = entry.pcie.build() if entry.pcie else PcieTree()
        more |= {"tables": curves, "tables_source": source, "pcie": pcie}
        built: Fabric | None = self._attempt(at, partial(Fabric, gpus_per_node, nodes, intra, inter, **more))
        return built

    def _pool_link(self, i: int) -> PoolLink:
        entry = self.parsed.links[i]
        price = entry.usd_per_gb
        usd = Coefficient(price.usd, price.source, 0, price.residual) if price else None
        return PoolLink(entry.between, _link(entry.link), entry.ports, usd)

    def _pool(self, device: Device, entry: PoolFile, fabric: Fabric | None) -> Pool:
        """A pool; with several, each has a price of its own unless the file has one for all."""
        price = entry.price
        usd = Coefficient(price.usd_per_gpu_hour, price.source, 0, price.residual) if price else None
        if usd is None and self.parsed.price is None and len(self.parsed.pools) > 1:
            usd = prices.default_price(device)
        return Pool(device, entry.gpus_per_node, entry.nodes, entry.name or "", fabric, usd)

    def _built(self, pools: tuple[Pool, ...], fabric: Fabric, links: tuple[PoolLink, ...]) -> Cluster:
        parsed = self.parsed
        price, mtbf = parsed.price, parsed.mtbf
        return Cluster(
            parsed.name,
            pools,
            fabric,
            Coefficient(price.usd_per_gpu_hour, price.source, 0, price.residual) if price else _mean_price(pools),
            Coefficient(mtbf.gpu_hours, mtbf.source, 0, mtbf.residual) if mtbf else None,
            parsed.overlap.build() if parsed.overlap else None,
            parsed.context,
            parsed.skew.build() if parsed.skew else None,
            parsed.host_memory,
            links,
            parsed.reliability(),
            parsed.storage.build() if parsed.storage else None,
        )


def _mean_price(pools: tuple[Pool, ...]) -> Coefficient | None:
    """$/GPU-hour over the GPUs of all pools where the file has no price for all; None where one is not known."""
    if all(pool.usd_per_gpu_hour is None for pool in pools) or len(pools) == 1:
        own = pools[0].usd_per_gpu_hour
        return own if own is not None else prices.mixed_price((p.device, p.n_ranks) for p in pools)
    known = [(pool.usd_per_gpu_hour, pool.n_ranks) for pool in pools if pool.usd_per_gpu_hour is not None]
    if len(known) < len(pools):
        return None
    if len({price.value for price, _ in known}) == 1:
        return known[0][0]
    mean = sum(price.value * count for price, count in known) / sum(count for _, count in known)
    source = "mean over the GPUs of the pools: " + "; ".join(price.source for price, _ in known)
    return Coefficient(mean, source, 0, max(price.residual for price, _ in known))
