"""checkpoint: what a checkpoint of each layout holds, and how long it takes to write, to copy and to load.

A checkpoint holds the weights that are trained and the optimizer's states, each once: data-parallel ranks have equal
ones, or shards of one. The elements are those of the memory model (`planner.elements`), the bytes of one those of
`planner.state`. Quantised copies are made anew and are not saved; what is not trained is loaded but not saved.
What lies whole on every tensor-parallel rank (norms, a router) is counted on each: below a hundredth of a per cent.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hwmodels import host as hosts
from hwmodels.cluster import Cluster
from hwmodels.records import dataclass
from hwmodels.reliability import storage_of
from planner import optimizers
from planner.elements import Elements, stage_elements
from planner.frameworks import FrameworkPreset
from planner.goodput.policy import Policy
from planner.layout import SCHEDULES, LayoutBatch
from planner.layout.axes import shape
from planner.model.spec import ModelSpec
from planner.plan import Workload
from planner.schedule import get as get_schedule
from planner.state import main_bytes

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

LIMITS: tuple[str, ...] = ("storage in total", "storage per node", "network of a node", "link to the host")
"""What can bound a transfer to or from storage."""


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoints:
    """Checkpoints of n layouts: ndarray (n,) each.

    Attributes
    ----------
    total_bytes : ndarray
        Of all ranks together, everything once.
    node_bytes, rank_bytes : ndarray
        Written by the node, and by the rank, that writes most.
    write_s : ndarray
        From the device to storage.
    write_limit, load_limit : ndarray of int
        What bounds that: position in `LIMITS`.
    copy_s : ndarray
        From the device to host memory.
    load_s : ndarray
        From storage to the devices of all ranks.
    fits_host : ndarray of bool
        Whether host memory, where it is stated, holds a node's share.
    """

    total_bytes: FloatArray
    node_bytes: FloatArray
    rank_bytes: FloatArray
    write_s: FloatArray
    write_limit: IntArray
    copy_s: FloatArray
    load_s: FloatArray
    load_limit: IntArray
    fits_host: NDArray[np.bool_]

    def blocked_s(self, policy: Policy) -> FloatArray:
        """Seconds for which a checkpoint holds up training; a layout without room in host memory writes at once."""
        return np.asarray(np.where(self._apart(policy), self.copy_s, self.write_s))

    def lag_s(self, policy: Policy) -> FloatArray:
        """Seconds from there until it is in storage."""
        return np.asarray(np.where(self._apart(policy), self.write_s, 0.0))

    def _apart(self, policy: Policy) -> NDArray[np.bool_]:
        return self.fits_host & (policy.mode == "async")


def checkpoints(
    model: ModelSpec, workload: Workload, cluster: Cluster, layouts: LayoutBatch, preset: FrameworkPreset,
    policy: Policy,
) -> Checkpoints:  # fmt: skip
    """Checkpoints of layouts, shape (n,)."""
    n = len(layouts)
    sizes = {name: np.zeros(n) for name in ("total", "node", "rank", "read_total", "read_node")}
    first, same = layouts.distinct(("pp", "vpp", "schedule"))
    for i, f in enumerate(first):
        at = np.flatnonzero(same == i)
        alike = int(layouts.pp[f]), int(layouts.vpp[f]), SCHEDULES[int(layouts.schedule[f])]
        for name, value in _sizes(model, workload, layouts.take(at), preset, cluster.gpus_per_node, policy, *alike):
            sizes[name][at] = value
    storage, host = storage_of(cluster), hosts.of(cluster)
    inter, ports = cluster.fabric.inter, cluster.fabric.ports_per_node
    network = inter.bandwidth * ports if inter is not None and ports else np.inf
    gpus = cluster.gpus_per_node
    write_s, write_limit = _transfer_s(
        sizes["total"], sizes["node"], (storage.write_total, storage.write_per_node, network, host.to_host * gpus)
    )
    load_s, load_limit = _transfer_s(
        sizes["read_total"], sizes["read_node"],
        (storage.read_total, storage.read_per_node, network, host.to_device * gpus),
    )  # fmt: skip
    room = cluster.host_memory_bytes
    return Checkpoints(
        sizes["total"], sizes["node"], sizes["rank"],
        write_s + storage.latency_s, write_limit,
        sizes["rank"] / min(host.to_host, host.memory_bandwidth),
        load_s + storage.latency_s, load_limit,
        sizes["node"] <= (np.inf if room is None else room),
    )  # fmt: skip


def _transfer_s(
    total: FloatArray, node: FloatArray, rates: tuple[float, float, float, float]
) -> tuple[FloatArray, IntArray]:
    """Seconds of the slowest of `LIMITS`, and which it is."""
    each = np.stack([total / rates[0], *(node / rate for rate in rates[1:])])
    return np.asarray(each.max(axis=0)), np.asarray(each.argmax(axis=0))


def saved_bytes(workload: Workload, preset: FrameworkPreset, elements: Elements, weight: float) -> FloatArray:
    """Bytes that the trained elements of each rank are saved in, unsharded: ndarray (n, pp).

    A weight with its main copy and moments; elements outside hidden matrices have the optimizer's other states.
    """
    optimizer = optimizers.get(workload.optimizer)
    each = weight + main_bytes(workload, preset) + optimizer.state_bytes
    more = optimizer.other_state_bytes - optimizer.state_bytes
    return np.asarray(elements.trained * each + elements.other * more)


def _sizes(
    model: ModelSpec, workload: Workload, layouts: LayoutBatch, preset: FrameworkPreset, gpus_per_node: int,
    policy: Policy, pp: int, vpp: int, schedule: str,
) -> list[tuple[str, FloatArray]]:  # fmt: skip
    """Bytes of layouts that share (pp, vpp, schedule): in total, and of the node and rank with most."""
    held = stage_elements(model, workload, layouts, preset, pp, vpp, schedule)
    copies = float(get_schedule(schedule).directions)  # a bidirectional pipeline holds the model twice
    dense, expert = held.by_rank()
    whole = [saved_bytes(workload, preset, part, held.weights.trained) / copies for part in (dense, expert)]
    base = [part.frozen * held.weights.frozen / copies for part in (dense, expert)]

    def column(values: IntArray) -> FloatArray:
        return np.asarray(values, np.float64)[:, None]

    shards = [column(layouts.tp), column(layouts.ep * layouts.etp)]
    same = [column(layouts.dp * layouts.cp), column(layouts.edp)]  # ranks with equal states
    here = np.minimum(float(gpus_per_node), column(layouts.world))
    total, frozen = (sum((part * s for part, s in zip(parts, shards, strict=True)), np.zeros(())) for parts in
                     (whole, base))  # fmt: skip
    rank = sum((part / n for part, n in zip(whole, same, strict=True)), np.zeros(()))
    node = rank * here
    read_total = (total + frozen).sum(axis=1)
    read_node = (rank + sum((part / n for part, n in zip(base, same, strict=True)), np.zeros(()))) * here
    if not policy.sharded:
        # Of the replica that writes, so many ranks lie in one node.
        stages = shape(layouts, "pp", gpus_per_node).ranks_per_node
        writers = [
            np.minimum(column(shape(layouts, axis, gpus_per_node).ranks_per_node * stages), here)
            for axis in ("tp", "ep_etp")
        ]
        rank = whole[0] + whole[1]
        node = whole[0] * writers[0] + whole[1] * writers[1]
        read_node = (whole[0] + whole[1] + base[0] + base[1]) * here
        read_total = (whole[0] + whole[1] + base[0] + base[1]).sum(axis=1) * layouts.world / pp
    return [
        ("total", np.asarray(total).sum(axis=1)),
        ("node", np.asarray(node).max(axis=1)),
        ("rank", np.asarray(rank).max(axis=1)),
        ("read_total", np.asarray(read_total)),
        ("read_node", np.asarray(read_node).max(axis=1)),
    ]
