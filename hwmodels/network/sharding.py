"""Parameters sharded over all nodes, or inside nodes and replicated over them: where the two cross.

For `P` bytes of parameters (gradients of the same width) on `N` nodes whose groups have `W` bytes/s out of a node:

- **full shard** gathers the parameters for the forward and for the backward pass and scatters the gradients, all over
  the network: ``3 P (N-1)/N / W`` (Zhao et al. 2023, "PyTorch FSDP", section 3.2);
- **hybrid shard** gathers and scatters inside the nodes and sums the shards of the gradients over them:
  ``2 P (N-1)/N / W`` during the backward pass.

A backward pass computes for two thirds of the step. Both hide completely behind `C` seconds of compute when
``W >= 3 P (N-1) / (N C)``: that is the crossover. Below it hybrid sharding wins, by up to a half; above it both cost
the same and full sharding saves the memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hwmodels.errors import Fault, InputError
from hwmodels.network.fabric import Fabric
from hwmodels.topology import GroupShape

if TYPE_CHECKING:
    from hwmodels.cluster import Cluster


def _group(ranks: int, nodes: int, stride: int = 1) -> GroupShape:
    return GroupShape(np.asarray(ranks), np.asarray(nodes), np.asarray(stride))


def network_seconds_per_byte(fabric: Fabric) -> tuple[float, float]:
    """Seconds of network traffic per byte of parameters and step: full shard, hybrid shard (module docstring).

    Zero for a single node.
    """
    nodes = fabric.nodes
    if nodes < 2:
        return 0.0, 0.0
    whole = float(fabric.group_bandwidth(_group(fabric.gpus_per_node, nodes)))
    side = float(fabric.group_bandwidth(_group(1, nodes, fabric.gpus_per_node))) * fabric.gpus_per_node
    return 3.0 * (nodes - 1) / nodes / whole, 2.0 * (nodes - 1) / nodes / side


@dataclass(frozen=True, slots=True)
class Sharding:
    """A step under full and under hybrid sharding.

    Attributes
    ----------
    full_s, hybrid_s : tuple of float
        Seconds of a step: with communication hidden as far as the pass that it belongs to computes, and with none
        hidden.
    crossover_bandwidth : float
        Bytes/s out of a node from which full sharding hides as well as hybrid; below it hybrid wins.
    bandwidth : float
        Bytes/s out of a node that full sharding reaches on this cluster, by the collectives' laws.
    """

    full_s: tuple[float, float]
    hybrid_s: tuple[float, float]
    crossover_bandwidth: float
    bandwidth: float

    @property
    def gain(self) -> tuple[float, float]:
        """Full over hybrid step time, with all overlap and with none: above 1 hybrid is faster."""
        return self.full_s[0] / self.hybrid_s[0], self.full_s[1] / self.hybrid_s[1]

    @property
    def hybrid_wins(self) -> bool:
        """Whether the network is too slow to hide full sharding."""
        return self.bandwidth < self.crossover_bandwidth


def sharding(cluster: Cluster, parameter_bytes: float, compute_s: float, layers: int = 32) -> Sharding:
    """Step times of full and hybrid sharding from the collectives' laws, and the crossover from the link speeds.

    Parameters
    ----------
    cluster : Cluster
    parameter_bytes : float
        Of the whole model, in the width that is gathered.
    compute_s : float
        Forward and backward of one step on each GPU, seconds.
    layers : int
        Units that are gathered one by one.

    Raises
    ------
    InputError
        For sizes or times that are not positive, or a cluster of one node.
    """
    from hwmodels import collectives

    faults = [
        Fault(f"{name} is {value}", "sharding", fix="a number above zero")
        for name, value in (("parameter_bytes", parameter_bytes), ("compute_s", compute_s), ("layers", layers))
        if not (np.isfinite(value) and value > 0)
    ]
    fabric = cluster.fabric
    r, nodes = fabric.gpus_per_node, fabric.nodes
    if nodes < 2:
        faults.append(Fault("the cluster has one node", "sharding", "both are the same there", "two nodes or more"))
    if faults:
        raise InputError(faults)
    piece = parameter_bytes / layers

    def price(op: str, nbytes: float, shape: GroupShape) -> float:
        return layers * float(collectives.seconds(cluster, op, nbytes, shape).mid)

    everyone, node, across = _group(r, nodes), _group(r, 1), _group(1, nodes, r)
    gather, scatter = price("all_gather", piece, everyone), price("reduce_scatter", piece, everyone)
    inner = price("all_gather", piece, node), price("reduce_scatter", piece, node)
    summed = price("all_reduce", piece / r, across)
    full_s = _step(compute_s, gather, gather + scatter)
    hybrid_s = _step(compute_s, inner[0], inner[0] + inner[1] + summed)
    moved = 3.0 * parameter_bytes * (nodes - 1) / nodes
    return Sharding(full_s, hybrid_s, moved / compute_s, moved / (2.0 * gather + scatter))


def _step(compute_s: float, forward_s: float, backward_s: float) -> tuple[float, float]:
    """Compute with communication of the two passes: all that can be hidden, and nothing hidden."""
    hidden = max(compute_s / 3.0, forward_s) + max(2.0 * compute_s / 3.0, backward_s)
    return hidden, compute_s + forward_s + backward_s
