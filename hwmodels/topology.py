"""`GroupShape`: what a process group looks like on the machine it is placed on."""

from __future__ import annotations

from dataclasses import field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hwmodels.records import dataclass

IntArray = NDArray[np.int64]


INSIDE = 1e9
"""`GroupShape.leaf` of a group that leaves no leaf switch: no uplink holds it up."""


def _by_stride() -> NDArray[Any]:
    return np.zeros(())


@dataclass(frozen=True, slots=True, eq=False)
class GroupShape:
    """How the members of a process group lie on nodes; array-shaped.

    A collective is priced on this, never on a rank count alone.

    Attributes
    ----------
    ranks_per_node : ndarray of int64
        Members in one node (the same in each node of the group).
    nodes : ndarray of int64
        Nodes that the group spans.
    stride : ndarray of int64
        Distance in ranks between neighbours of the group inside the world order.
        A stride of ``s`` means that ``s`` such groups use the fabric side by side.
    leaf, pod : ndarray of float64
        Nodes of the group that lie below one leaf switch, and in one pod, where every block is full of groups like it;
        `INSIDE` where it leaves none. 0: they are `stride` apart, which says so too.
    """

    ranks_per_node: IntArray
    nodes: IntArray
    stride: IntArray
    leaf: NDArray[Any] = field(default_factory=_by_stride)
    pod: NDArray[Any] = field(default_factory=_by_stride)

    @property
    def size(self) -> IntArray:
        """Number of ranks in the group."""
        return np.asarray(self.ranks_per_node * self.nodes)


def group_shape(size: ArrayLike, stride: ArrayLike, gpus_per_node: ArrayLike) -> GroupShape:
    """Shape of a group of `size` ranks, `stride` apart, with ranks filled node by node.

    The group lies in a block of ``size * stride`` ranks, which covers ``ceil(size * stride / g)``
    nodes of ``g`` GPUs, or one node for each member where they lie a node or more apart. Members
    that do not divide evenly over the nodes are rounded up: the fuller node decides the time.

    Parameters
    ----------
    size, stride, gpus_per_node : array_like of int
        Broadcast against each other.
    """
    size_, stride_, gpn = np.broadcast_arrays(
        np.asarray(size, dtype=np.int64), np.asarray(stride, dtype=np.int64), np.asarray(gpus_per_node, dtype=np.int64)
    )
    block = size_ * np.maximum(stride_, 1)
    nodes = np.clip(-(-block // gpn), 1, np.maximum(size_, 1))
    even = -(-size_ // nodes)
    return GroupShape(even, nodes, np.asarray(stride_))
