"""Where each axis of a placement lies on the fabric, and how a framework and a scheduler are told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwmodels.cluster import Cluster
from hwmodels.network import Fabric
from planner.frameworks import of as preset_of
from planner.layout import Layout, RuleContext, faults
from planner.model.spec import ModelSpec
from planner.placement.allocation import Allocation
from planner.placement.candidates import coordinates
from planner.placement.choose import Placed
from planner.placement.loads import AxisLoad
from planner.plan import Workload

IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class AxisRow:
    """One axis: where its groups lie and what they send.

    Attributes
    ----------
    axis, phase, where : str
    ranks, groups : int
    bytes_per_gpu, network_bytes_per_gpu, spine_bytes : float
        In a step: sent by a GPU, of that over the network, and all that crosses leaf uplinks.
    seconds : float
        On its fullest link.
    """

    axis: str
    phase: str
    where: str
    ranks: int
    groups: int
    bytes_per_gpu: float
    network_bytes_per_gpu: float
    spine_bytes: float
    seconds: float


def axis_rows(placed: Placed, fabric: Fabric) -> list[AxisRow]:
    """A row for each axis and pattern, those with most traffic first."""
    rows = [_row(load, placed.layout.world, fabric) for load in placed.loads.axes]
    return sorted(rows, key=lambda row: (-row.bytes_per_gpu, row.axis))


def _row(load: AxisLoad, world: int, fabric: Fabric) -> AxisRow:
    ranks = load.demand.ranks
    return AxisRow(
        load.demand.axis, load.demand.phase, where(load, fabric), ranks.shape[1], len(ranks), load.demand.total / world,
        load.nbytes.get("node", 0.0) / world, load.nbytes.get("leaf", 0.0), load.least_s,
    )  # fmt: skip


def where(load: AxisLoad, fabric: Fabric) -> str:
    """The outermost part of the fabric that an axis crosses, in words."""
    if fabric.torus:
        return "over the torus" if load.nbytes["node"] else "inside a node"
    if load.nbytes.get("pod", 0.0) and fabric.pod_nodes:
        return "crosses pods"
    if load.nbytes.get("leaf", 0.0):
        return "crosses the spine"
    if load.nbytes.get("node", 0.0):
        return "rails of a leaf" if fabric.topology == "rail-fat-tree" else "below a leaf switch"
    return f"inside {fabric.intra.kind}"


def in_order(layout: Layout, order: str, gpus: IntArray) -> IntArray:
    """GPU of every rank, ranks numbered by another order."""
    at = coordinates(layout)
    shard = layout.fsdp or layout.dp
    axes = {"tp": at["tp"], "cp": at["cp"], "dp": at["replica"] * shard + at["shard"], "pp": at["pp"]}
    number, run = np.zeros(layout.world, dtype=np.int64), 1
    for axis in order.split("-"):
        number, run = number + axes[axis] * run, run * getattr(layout, axis)
    found = np.empty(layout.world, dtype=np.int64)
    found[number] = gpus
    return found


def node_sequence(gpus: IntArray, gpus_per_node: int) -> tuple[int, ...] | None:
    """Nodes in the order in which ranks fill them GPU by GPU, as many on each; None where they do not."""
    node, gpu = np.divmod(gpus, gpus_per_node)
    held = int(np.argmax(node != node[0])) or len(gpus)
    first = np.arange(0, len(gpus), held)
    same = np.array_equal(gpu, np.arange(len(gpus)) % held)
    if not same or not np.array_equal(node, np.repeat(node[first], held)[: len(gpus)]):
        return None
    return tuple(int(n) for n in node[first])


@dataclass(frozen=True, slots=True)
class Told:
    """How to run a placement.

    Attributes
    ----------
    layout : Layout
        With the order that its framework is told, and the placement in that order.
    hosts : tuple of int
        Nodes in the order of their ranks; empty where ranks do not fill nodes one after another.
    flags : tuple of str
        What the framework is told beyond its defaults.
    """

    layout: Layout
    hosts: tuple[int, ...]
    flags: tuple[str, ...]


def told(placed: Placed, model: ModelSpec, workload: Workload, cluster: Cluster) -> Told:
    """The order of the framework, and of the hosts, that give a placement; else every rank by itself."""
    layout, preset = placed.layout, preset_of(workload)
    context = RuleContext.of(model, workload, layout.world)
    orders = dict.fromkeys((layout.order, *preset.orders))
    for order in orders:
        other = replace(layout, order=order, placement=())
        gpus = in_order(layout, order, placed.gpus)
        hosts = node_sequence(gpus, cluster.gpus_per_node)
        if hosts is not None and not faults(other, context):
            plain = np.array_equal(gpus, np.arange(cluster.n_ranks))
            seats = () if plain else tuple(int(gpu) for gpu in gpus)
            held = layout.world // len(hosts)
            fewer = held < min(cluster.gpus_per_node, layout.world)
            partly = (f"{held} ranks a node (torchrun --nproc-per-node {held})",) if fewer else ()
            flags = (*order_flags(other, preset.name, preset.orders), *partly)
            return Told(replace(other, placement=seats), hosts, flags)
    flags = (*order_flags(layout, preset.name, preset.orders), "each rank on the GPU of its line (rank map)")
    return Told(layout, (), flags)


def order_flags(layout: Layout, framework: str, orders: Sequence[str]) -> tuple[str, ...]:
    """What a framework is told of the order of its axes, in its own words; nothing for its default.

    Megatron-Core ``--use-tp-pp-dp-mapping``, Megatron-Bridge's ``dist.use_tp_pp_dp_mapping``, DeepSpeed's
    ``ProcessTopology`` (axes slowest first), PyTorch's ``DeviceMesh`` with dimensions slowest first.
    """
    order = layout.order
    if order == orders[0]:
        return ()
    slow = [axis for axis in reversed(order.split("-")) if getattr(layout, axis) > 1]
    if framework.startswith("megatron-bridge") or framework == "nemo":
        return ("dist.use_tp_pp_dp_mapping=true",)
    if framework.startswith("megatron") or framework == "primus":
        return ("--use-tp-pp-dp-mapping",)
    sizes = [getattr(layout, axis) for axis in slow]
    if framework == "deepspeed" and layout.cp == 1:
        names = [{"pp": "pipe", "dp": "data", "tp": "model"}[axis] for axis in slow]
        return (f"PipelineModule(topology=ProcessTopology(axes={names}, dims={sizes}))",)
    return (f"init_device_mesh(device_type, {tuple(sizes)}, mesh_dim_names={tuple(slow)})",)


def host_lines(placed: Told, allocation: Allocation, gpus_per_node: int) -> list[str]:
    """A host for each rank, in the order of ranks: ``SLURM_HOSTFILE`` of ``srun --distribution=arbitrary``."""
    gpus = placed.layout.placement or range(placed.layout.world)
    return [allocation.name(gpu // gpus_per_node) for gpu in gpus]


def rank_lines(placed: Told, allocation: Allocation, gpus_per_node: int) -> list[str]:
    """Rank, host and GPU (``CUDA_VISIBLE_DEVICES``) of every rank, between tabs."""
    gpus = placed.layout.placement or range(placed.layout.world)
    seats = (divmod(gpu, gpus_per_node) for gpu in gpus)
    return [f"{rank}\t{allocation.name(node)}\t{gpu}" for rank, (node, gpu) in enumerate(seats)]


def summary(placed: Placed, said: Told, fabric: Fabric) -> dict[str, Any]:
    """The JSON object of a placement."""
    return {
        "order": said.layout.order,
        "moved": placed.moved,
        "hosts": list(said.hosts),
        "flags": list(said.flags),
        "step_s": placed.step_s,
        "in_order_step_s": placed.ordered_step_s,
        "link_s": placed.loads.seconds,
        "in_order_link_s": placed.ordered_loads.seconds,
        "tried": placed.tried,
        "exact": placed.exact,
        "axes": [asdict(row) for row in axis_rows(placed, fabric)],
        "notes": [NOTE],
    }


NOTE = (
    "placements were compared by the cost model: no measured evidence for moved ranks, orders other than the default "
    "or contention on uplinks"
)
