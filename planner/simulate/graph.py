"""The one DAG that both engines time: nodes, edges and an order per stream, in NumPy arrays.

A `Dag` is topology only; its nodes point into a flat vector of durations (`SlotTable`).

Streams of a rank, each first in, first out:

===========  =====================================================================
``compute``  STEP, the actions of the schedule, blocking sends, MIRROR or TIED, SYNC, OPTIMIZER
``pp``       sends that do not block
``dp_ag``    UNSHARD in the order of use, GATHER
``dp_rs``    REDUCE_GRAD in the order in which gradients appear
===========  =====================================================================

RECV and RESHARD take no time and hold nothing up beyond their own predecessors: they are
*markers*, numbered after the other nodes, and nothing but their stream waits for them.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from hwmodels.records import dataclass
from planner.simulate.costs import CommPlan
from planner.simulate.slots import SlotTable

IntArray = NDArray[np.int64]

STREAMS: tuple[str, ...] = ("compute", "pp", "dp_ag", "dp_rs")
COMPUTE, PP, DP_AG, DP_RS = range(4)


class NodeKind(IntEnum):
    """What a node does; names are those of `planner.schedule.Kind` where it has them."""

    F = 0
    B = 1
    I = 2  # noqa: E741 - the letter of the notation
    W = 3
    SEND_F = 4
    SEND_B = 5
    RECV_F = 6
    RECV_B = 7
    UNSHARD = 8
    RESHARD = 9
    REDUCE_GRAD = 10
    STEP = 11
    TIED = 12
    SYNC = 13
    OPTIMIZER = 14
    GATHER = 15
    MIRROR = 16


@dataclass(frozen=True, slots=True, eq=False)
class Dag:
    """Topology of one training step.

    Attributes
    ----------
    schedule : str
    pp, microbatches, vpp : int
    comm : CommPlan
    slots : SlotTable
        Layout of the duration vector.
    n_core : int
        Nodes 0 .. n_core-1 take time and are sorted by level (length of the longest chain of
        predecessors); the rest are markers (RECV, RESHARD).
    rank, stream, kind : ndarray (n,)
        Pipeline rank; index into `STREAMS`; `NodeKind`.
    stage, microbatch, bucket : ndarray (n,)
        Global virtual stage, micro-batch, bucket; -1 where a node has none or holds all.
    slot : ndarray (n,)
        Index into the duration vector.
    link : ndarray (n,)
        Shared resource that a transfer uses: the network port of the rank that sends, gathers or
        reduces; -1 for none. Replace it (``dataclasses.replace``) where streams use separate ports.
    pred_ptr, pred : ndarray (n+1,), (edges,)
        Predecessors in CSR form; always of core nodes.
    level_ptr : ndarray (levels+1,)
        Core nodes of level i are ``level_ptr[i] .. level_ptr[i+1]-1``.
    order_ptr, order : ndarray (pp*4+1,), (n,)
        Nodes of stream ``rank*4 + stream``, in the order in which it runs them.
    """

    schedule: str
    pp: int
    microbatches: int
    vpp: int
    comm: CommPlan
    slots: SlotTable
    n_core: int
    rank: IntArray
    stream: IntArray
    kind: IntArray
    stage: IntArray
    microbatch: IntArray
    bucket: IntArray
    slot: IntArray
    link: IntArray
    pred_ptr: IntArray
    pred: IntArray
    level_ptr: IntArray
    order_ptr: IntArray
    order: IntArray

    @property
    def n(self) -> int:
        """Number of nodes, markers included."""
        return len(self.rank)

    def stream_nodes(self, rank: int, stream: int) -> IntArray:
        """Nodes of one stream in order."""
        i = rank * len(STREAMS) + stream
        return self.order[self.order_ptr[i] : self.order_ptr[i + 1]]

    def predecessors(self, node: int) -> IntArray:
        """Nodes that must end before `node` starts."""
        return self.pred[self.pred_ptr[node] : self.pred_ptr[node + 1]]

    def label(self, node: int) -> str:
        """Action text such as ``"0F3"``, or the kind alone where no stage is meant."""
        stage, microbatch = int(self.stage[node]), int(self.microbatch[node])
        name = NodeKind(int(self.kind[node])).name
        if stage < 0:
            return name
        return f"{stage}{name}{microbatch if microbatch >= 0 else ''}"
