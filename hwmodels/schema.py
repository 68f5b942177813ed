"""What catalog and cluster YAML files may say, as declarations (the file boundary only)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, Any, Literal

from hwmodels import laws, units
from hwmodels.declared import BeforeValidator, Field, PlainValidator, Strict
from hwmodels.device import Coefficient, Device
from hwmodels.errors import Fault, InputError
from hwmodels.network import Link, PcieTree
from hwmodels.reliability import KINDS, Reliability, Storage


def _quantity(parse: Callable[[object], float], positive: bool) -> Any:
    """A number with a unit; faults of the parser become faults of the file."""

    def check(value: Any) -> float:
        try:
            result = parse(value)
        except InputError as error:
            # a ValueError becomes a fault with its path; the cause keeps our wording
            raise _ours(error) from None
        if positive and result <= 0:
            raise _ours(InputError(Fault(f"value {value!r} is zero", why="it must be above zero", fix="a value > 0")))
        return result

    return PlainValidator(check)


class RefusedError(ValueError):
    """Carries `InputError` faults through pydantic."""

    def __init__(self, error: InputError) -> None:
        super().__init__(str(error))
        self.faults = error.faults


def _ours(error: InputError) -> RefusedError:
    return RefusedError(error)


def _no_quotes(value: Any) -> Any:
    if isinstance(value, (bool, str)):
        what = f"value {value!r} is not a number"
        raise _ours(InputError(Fault(what, why="numbers stand without quotes", fix="a bare number")))
    return value


Bytes = Annotated[float, _quantity(units.parse_bytes, True)]
AnyBytes = Annotated[float, _quantity(units.parse_bytes, False)]
Bandwidth = Annotated[float, _quantity(units.parse_bandwidth, True)]
Flops = Annotated[float, _quantity(units.parse_flops, True)]
Duration = Annotated[float, _quantity(units.parse_duration, False)]
Power = Annotated[float, _quantity(units.parse_power, True)]
Number = Annotated[float, BeforeValidator(_no_quotes)]
Text = Annotated[str, Field(strict=True, min_length=1)]
Count = Annotated[int, Field(strict=True, ge=0)]
Degree = Annotated[int, Field(strict=True, ge=1)]


class CoefficientFile(Strict):
    """A fitted number."""

    value: Number
    source: Text
    rows: Count = 0
    residual: Annotated[Number, Field(ge=0)] = 0.0

    def build(self) -> Coefficient:
        """The domain object."""
        return Coefficient(self.value, self.source, self.rows, self.residual)


class BlockFile(Strict):
    """Coefficients that were fitted together."""

    prefix: Annotated[str, Field(strict=True)] = ""
    source: Text
    rows: Count
    residual: Annotated[Number, Field(ge=0)]
    values: Annotated[dict[Text, Number], Field(min_length=1)]
    measured: list[Text] = []

    def build(self) -> laws.Block:
        """The domain object."""
        return laws.Block(self.prefix, self.source, self.rows, self.residual, dict(self.values), tuple(self.measured))


class SectionFile(Strict):
    """One device generation or kind of link."""

    measured: list[Text] = []
    blocks: Annotated[list[BlockFile], Field(min_length=1)]


class LawFile(Strict):
    """`catalog/laws/KIND.yaml`."""

    law: Literal["gemm", "attention", "memory", "power", "collectives", "expert"]
    notes: str = ""
    sections: dict[Text, SectionFile]

    def build(self) -> laws.LawSections:
        """The sections by name."""
        return {
            name: laws.Section(
                tuple(section.measured),
                tuple(block.build() for block in section.blocks),
            )
            for name, section in self.sections.items()
        }


class DeviceFile(Strict):
    """`catalog/devices/NAME.yaml`."""

    name: Text
    vendor: Text
    kind: Literal["gpu", "cpu"]
    generation: Text
    peak_flops: dict[Literal["fp32", "tf32", "bf16", "fp16", "fp8", "fp4", "int8"], Flops]
    memory: Bytes
    memory_bandwidth: Bandwidth
    l2: Bytes | None = None
    n_sm: Degree | None = None
    tdp: Power | None = None
    launch: Duration
    host_link: Literal["pcie3", "pcie4", "pcie5", "c2c"] | None = None
    confidence: Literal["A", "B", "C"]
    sources: dict[str, Text]
    notes: str = ""
    laws_of: Text | None = None
    coefficients: dict[str, CoefficientFile] = {}

    def build(self) -> Device:
        """`Device`, with the laws of its generation (or of `laws_of`) where it has no coefficient of its own."""
        own = {name: c.build() for name, c in self.coefficients.items()}
        inherited = laws.coefficients(laws.DEVICE_KINDS, self.name, self.laws_of or self.generation, self.generation)
        peaks: dict[str, float] = {str(dtype): peak for dtype, peak in self.peak_flops.items()}
        return Device(
            self.name, self.vendor, self.kind, self.generation, peaks, self.memory, self.memory_bandwidth,
            self.l2 or 0.0, self.n_sm or 0, self.tdp or 0.0, self.launch, {**inherited, **own},
            dict(self.sources), self.confidence, self.host_link or "",
        )  # fmt: skip


class LinkFile(Strict):
    """`catalog/networks/NAME.yaml`."""

    name: Text
    kind: Literal["nvlink", "xgmi", "ici", "pcie", "infiniband", "roce", "efa", "ethernet", "loopback"]
    generation: Text | None = None
    bandwidth: Bandwidth
    latency: Duration
    topology: Literal[
        "switch", "mesh", "cube-mesh", "pairs", "tree", "rail-fat-tree", "fat-tree", "torus", "loopback"
    ] = "switch"
    beyond: Bandwidth | None = None
    mesh_peers: Count = 0
    nvls: Annotated[bool, Field(strict=True)] = False
    source: Text
    notes: str = ""
    confidence: Literal["A", "B", "C"] = "B"
    laws_of: Text | None = None
    coefficients: dict[str, CoefficientFile] = {}

    def build(self) -> Link:
        """`Link`, with the laws of its own name (or of `laws_of`) where it has no coefficient of its own."""
        own = {name: c.build() for name, c in self.coefficients.items()}
        inherited = laws.coefficients(laws.LINK_KINDS, self.name, self.laws_of or self.name)
        return Link(
            self.name, self.kind, self.bandwidth, self.latency, self.source, self.topology, self.mesh_peers, self.nvls,
            {**inherited, **own}, self.generation or "", self.beyond or 0.0,
        )  # fmt: skip


class InterNode(Strict):
    """The network between nodes."""

    link: Text | LinkFile
    ports_per_node: Degree
    topology: Literal["rail-fat-tree", "fat-tree", "torus"] = "rail-fat-tree"
    oversubscription: Annotated[Number, Field(ge=1)] = 1.0
    leaf_nodes: Count = 0
    pod_nodes: Count = 0
    pod_oversubscription: Annotated[Number, Field(ge=1)] = 1.0
    spines: Degree = 1
    torus: list[Degree] = []


class PcieFile(Strict):
    """The PCIe tree of a node."""

    sockets: Degree = 2
    gpus_per_switch: Degree = 1
    socket_bandwidth: Bandwidth
    source: Text

    def build(self) -> PcieTree:
        """The domain object."""
        return PcieTree(self.sockets, self.gpus_per_switch, self.socket_bandwidth, self.source)


class FabricFile(Strict):
    """Links inside and between nodes."""

    intra_node: Text | LinkFile
    inter_node: InterNode | None = None
    pcie: PcieFile | None = None


class Price(Strict):
    """$/GPU-hour: an input, dated."""

    usd_per_gpu_hour: Annotated[Number, Field(ge=0)]
    source: Text
    residual: Annotated[Number, Field(ge=0)] = 0.0


class Mtbf(Strict):
    """Mean GPU-hours between failures that stop a job."""

    gpu_hours: Annotated[Number, Field(gt=0)]
    source: Text
    residual: Annotated[Number, Field(ge=0)] = 0.0


class PoolFile(Strict):
    """Nodes of one kind."""

    device: Text | DeviceFile
    gpus_per_node: Degree
    nodes: Degree
    name: Text | None = None
    fabric: FabricFile | None = None
    price: Price | None = None


class TrafficPrice(Strict):
    """$ a gigabyte that leaves a region: an input, dated."""

    usd: Annotated[Number, Field(ge=0)]
    source: Text
    residual: Annotated[Number, Field(ge=0)] = 0.0


class PoolLinkFile(Strict):
    """What joins two pools that have fabrics of their own."""

    between: tuple[Text, Text]
    link: Text | LinkFile
    ports: Degree = 1
    usd_per_gb: TrafficPrice | None = None


class FailureFile(Strict):
    """Mean hours between failures of one component of a kind."""

    hours: Annotated[Number, Field(gt=0)]
    source: Text
    residual: Annotated[Number, Field(ge=0)] = 0.0

    def build(self) -> Coefficient:
        """The domain object."""
        return Coefficient(self.hours, self.source, 0, self.residual)


class FailuresFile(Strict):
    """Failures by kind of component."""

    gpu: FailureFile | None = None
    nic: FailureFile | None = None
    node: FailureFile | None = None
    link: FailureFile | None = None
    switch: FailureFile | None = None
    software: FailureFile | None = None


class RepairFile(Strict):
    """How long a failed node is away."""

    time: Duration
    source: Text
    residual: Annotated[Number, Field(ge=0)] = 0.0


class StorageFile(Strict):
    """Shared storage; what is left out of the totals is bounded by the nodes alone."""

    write_per_node: Bandwidth
    read_per_node: Bandwidth
    write_total: Bandwidth = math.inf
    read_total: Bandwidth = math.inf
    latency: Duration = 0.0
    source: Text

    def build(self) -> Storage:
        """The domain object."""
        return Storage(
            self.write_per_node, self.read_per_node, self.write_total, self.read_total, self.latency, self.source
        )


Point = tuple[Annotated[Number, Field(ge=0)], Annotated[Number, Field(gt=0)]]


class CollectiveTables(Strict):
    """Measured curves: op -> ranks in a node -> [[bytes, seconds], ...]."""

    source: Text
    rows: Count = 0
    residual: Annotated[Number, Field(ge=0)] = 0.0
    curves: dict[
        Literal["all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "send_recv"],
        dict[Annotated[int, Field(strict=True, ge=2)], Annotated[list[Point], Field(min_length=1)]],
    ]


class ClusterFile(Strict):
    """`catalog/clusters/NAME.yaml`, and what `calibrate` writes."""

    name: Text
    pools: Annotated[list[PoolFile], Field(min_length=1)]
    fabric: FabricFile | None = None
    links: list[PoolLinkFile] = []
    price: Price | None = None
    mtbf: Mtbf | None = None
    failures: FailuresFile | None = None
    repair: RepairFile | None = None
    spares: Count | None = None
    storage: StorageFile | None = None
    overlap: CoefficientFile | None = None
    skew: CoefficientFile | None = None
    context: AnyBytes
    context_source: Text
    host_memory: Bytes | None = None
    device_coefficients: dict[str, CoefficientFile] = {}
    collectives: CollectiveTables | None = None
    notes: str = ""

    def reliability(self) -> Reliability:
        """Failures by component, repair and spare nodes as the domain object."""
        stated = [(kind, getattr(self.failures, kind)) for kind in KINDS if self.failures is not None]
        repair = self.repair
        return Reliability(
            {kind: entry.build() for kind, entry in stated if entry is not None},
            Coefficient(repair.time, repair.source, 0, repair.residual) if repair else None,
            self.spares,
        )
