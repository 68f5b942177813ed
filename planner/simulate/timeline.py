"""What a `Timing` means: bars of a timeline, busy time of streams, and where a rank's step time goes.

`phases` splits the compute stream of a rank without remainder. Time in which the stream runs a
node belongs to the node's phase. A gap before a node belongs to what the node waited for:

- before an action, until its data has arrived: ``pp_comm`` while the transfer to it was running,
  ``bubble`` before that (the neighbour was still computing, or sending something else);
- before an action, after its data has arrived: ``dp_comm`` (a gather was late);
- before MIRROR, TIED or SYNC, until the last rank that it waits for has finished its actions: ``dp_comm``
  while the rank's own reductions ran, else ``bubble``; after that ``dp_comm``, since only
  reductions are left to wait for;
- after the optimizer: ``dp_comm`` while the rank's own gather ran, else ``bubble``.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from hwmodels.records import dataclass
from planner.results import TimelineEvent
from planner.simulate.costs import FloatArray
from planner.simulate.graph import COMPUTE, DP_AG, DP_RS, PP, STREAMS, Dag, IntArray, NodeKind
from planner.simulate.timing import Timing

PHASE_OF: dict[NodeKind, str] = {
    NodeKind.F: "forward",
    NodeKind.B: "backward",
    NodeKind.I: "backward",
    NodeKind.W: "backward",
    NodeKind.SEND_F: "pp_comm",
    NodeKind.SEND_B: "pp_comm",
    NodeKind.TIED: "dp_comm",
    NodeKind.MIRROR: "dp_comm",
    NodeKind.SYNC: "dp_comm",
    NodeKind.OPTIMIZER: "optimizer",
    NodeKind.STEP: "host",
}
"""Phase of the nodes that run on the compute stream."""

_ACTIONS = (NodeKind.F, NodeKind.B, NodeKind.I, NodeKind.W)


def events(dag: Dag, timing: Timing, candidate: int = 0, *, markers: bool = False) -> list[TimelineEvent]:
    """Bars of one candidate, by rank, stream and start.

    Parameters
    ----------
    dag : Dag
    timing : Timing
    candidate : int
        Index into the leading axis of `timing`.
    markers : bool
        Also nodes that take no time (RECV, RESHARD, whatever costs nothing).

    Returns
    -------
    list of planner.results.TimelineEvent
        ``args`` hold stage, micro-batch and bucket where the node has them.
    """
    start, end = timing.start[candidate], timing.end[candidate]
    nodes = dag.order if markers else dag.order[end[dag.order] > start[dag.order]]
    return [
        TimelineEvent(
            rank=int(dag.rank[v]),
            stream=STREAMS[int(dag.stream[v])],
            name=dag.label(v),
            kind=NodeKind(int(dag.kind[v])).name,
            start_s=float(start[v]),
            end_s=float(end[v]),
            args={
                name: int(value[v])
                for name, value in (("stage", dag.stage), ("microbatch", dag.microbatch), ("bucket", dag.bucket))
                if value[v] >= 0
            },
        )
        for v in nodes.tolist()
    ]


def busy_seconds(dag: Dag, timing: Timing, candidate: int = 0) -> FloatArray:
    """Seconds for which each stream runs something, shape (pp, 4) in the order of `STREAMS`."""
    took = timing.end[candidate] - timing.start[candidate]
    group = dag.rank * len(STREAMS) + dag.stream
    total: FloatArray = np.bincount(group, weights=took, minlength=dag.pp * len(STREAMS)).astype(np.float64)
    return total.reshape(dag.pp, len(STREAMS))


def bubble_fraction(dag: Dag, timing: Timing, candidate: int = 0) -> float:
    """Idle share of the compute stream, mean over ranks; waiting for communication is idle too."""
    step = float(timing.step_s[candidate])
    return float(1.0 - busy_seconds(dag, timing, candidate)[:, COMPUTE].mean() / step) if step > 0 else 0.0


def critical_rank(dag: Dag, timing: Timing, candidate: int = 0) -> int:
    """The rank whose compute stream is busy longest; the first of equals."""
    return int(np.argmax(busy_seconds(dag, timing, candidate)[:, COMPUTE]))


def hidden_seconds(dag: Dag, timing: Timing, candidate: int = 0) -> list[dict[str, float]]:
    """Per rank, seconds for which a transfer of its own streams ran while its compute stream ran too.

    Returns
    -------
    list of dict
        ``{"pp_comm": …, "dp_comm": …}``; gathers and reductions at the same time count both.
    """
    start, end = timing.start[candidate], timing.end[candidate]
    found = []
    for rank in range(dag.pp):
        compute = dag.stream_nodes(rank, COMPUTE)
        at = np.stack([start[compute], end[compute]], axis=1).ravel()
        # Seconds computed until then, at each start and end: linear in between.
        done = np.cumsum(np.stack([np.zeros(len(compute)), end[compute] - start[compute]], axis=1).ravel())

        def overlap(stream: int, rank: int = rank, at: FloatArray = at, done: FloatArray = done) -> float:
            nodes = dag.stream_nodes(rank, stream)
            return float(np.sum(np.interp(end[nodes], at, done) - np.interp(start[nodes], at, done)))

        found.append({"pp_comm": overlap(PP), "dp_comm": overlap(DP_AG) + overlap(DP_RS)})
    return found


def phases(dag: Dag, timing: Timing, candidate: int = 0) -> list[dict[str, float]]:
    """Where the step time of each rank goes; the rule is at the top of this module.

    Parameters
    ----------
    dag : Dag
    timing : Timing
        Of either engine.
    candidate : int

    Returns
    -------
    list of dict
        One a rank: seconds of forward, backward, pp_comm, dp_comm, optimizer, host and bubble, which
        sum to the step time. Exposed tp, cp and ep communication and recomputation are part of
        forward and backward, as in `StageCosts`.
    """
    start, end = timing.start[candidate], timing.end[candidate]
    step = float(timing.step_s[candidate])
    shapes = _shapes(dag)
    acted = [float(end[shape.actions].max()) for shape in shapes]
    tied = [int(rank) for rank in dag.rank[dag.kind == NodeKind.TIED]]
    finished = {NodeKind.SYNC: max(acted), NodeKind.TIED: max((acted[rank] for rank in tied), default=0.0)}
    mirrored = [max(acted[rank], acted[-1 - rank]) for rank in range(dag.pp)]
    found = []
    for rank, shape in enumerate(shapes):
        share = dict.fromkeys((*dict.fromkeys(PHASE_OF.values()), "bubble"), 0.0)
        begun, ended = start[shape.nodes], end[shape.nodes]
        took = ended - begun
        for phase, places in shape.of_phase:
            share[phase] += float(np.sum(took[places]))
        before = np.concatenate([[0.0], ended[:-1]])
        action = shape.action
        _split_action_gaps(share, before[action], begun[action], shape.send, start, end)
        for i, kind in shape.meetings:
            meant = mirrored[rank] if kind == NodeKind.MIRROR else finished[kind]
            apart = float(np.clip(meant, before[i], begun[i]))
            reducing = _overlap(shape.reductions, start, end, before[i], apart)
            share["dp_comm"] += reducing + float(begun[i]) - apart
            share["bubble"] += apart - float(before[i]) - reducing
        after = float(ended[-1])
        gathering = _overlap(shape.gathers, start, end, after, step)
        share["dp_comm"] += gathering
        share["bubble"] += step - after - gathering
        found.append(share)
    return found


@dataclass(frozen=True, slots=True, eq=False)
class _Shape:
    """What `phases` reads of one rank of a graph, whatever its timing.

    Attributes
    ----------
    nodes : ndarray (n,)
        Of the compute stream, markers left out.
    of_phase : list of (str, ndarray)
        Phase and places among `nodes` of each kind that the rank has.
    action, send : ndarray (actions,)
        Places of its actions; the send of another rank that each waits for, -1 for none.
    meetings : list of (int, NodeKind)
        Places and kinds of its MIRROR, TIED and SYNC.
    reductions, gathers : ndarray
        Nodes of those streams.
    """

    nodes: IntArray
    of_phase: list[tuple[str, IntArray]]
    action: IntArray
    send: IntArray
    meetings: list[tuple[int, NodeKind]]
    reductions: IntArray
    gathers: IntArray

    @property
    def actions(self) -> IntArray:
        """Nodes of its actions."""
        return np.asarray(self.nodes[self.action])


@lru_cache(maxsize=8)
def _shapes(dag: Dag) -> list[_Shape]:
    """Of every rank; rows of a search share few graphs."""
    send_of = _send_of(dag)
    found = []
    for rank in range(dag.pp):
        nodes = dag.stream_nodes(rank, COMPUTE)
        nodes = nodes[nodes < dag.n_core]
        kind = dag.kind[nodes]
        places = [(phase, np.flatnonzero(kind == code)) for code, phase in PHASE_OF.items()]
        action = np.flatnonzero(np.isin(kind, _ACTIONS))
        meetings = np.flatnonzero(np.isin(kind, (NodeKind.MIRROR, NodeKind.TIED, NodeKind.SYNC))).tolist()
        found.append(
            _Shape(
                nodes,
                [(phase, at) for phase, at in places if len(at)],
                action,
                send_of[nodes[action]],
                [(i, NodeKind(int(kind[i]))) for i in meetings],
                dag.stream_nodes(rank, DP_RS),
                dag.stream_nodes(rank, DP_AG),
            )
        )
    return found


def _send_of(dag: Dag) -> IntArray:
    """For each node, the send of another rank that it waits for; -1 for none."""
    target = np.repeat(np.arange(dag.n), np.diff(dag.pred_ptr))
    sends = np.isin(dag.kind[dag.pred], (NodeKind.SEND_F, NodeKind.SEND_B)) & (dag.rank[dag.pred] != dag.rank[target])
    of = np.full(dag.n, -1)
    of[target[sends]] = dag.pred[sends]
    return of


def _split_action_gaps(
    share: dict[str, float], before: FloatArray, begun: FloatArray, send: IntArray, start: FloatArray, end: FloatArray
) -> None:
    """Add the gaps (before, begun) to `share`; `send` is the transfer that each waited for, or -1."""
    arrived = np.where(send >= 0, np.clip(end[send], before, begun), before)
    running = np.where(send >= 0, np.maximum(arrived - np.maximum(before, start[send]), 0.0), 0.0)
    share["pp_comm"] += float(running.sum())
    share["bubble"] += float((arrived - before - running).sum())
    share["dp_comm"] += float((begun - arrived).sum())


def _overlap(nodes: IntArray, start: FloatArray, end: FloatArray, low: float, high: float) -> float:
    """Seconds of (low, high) in which one of the nodes of a stream runs."""
    return float(np.sum(np.maximum(np.minimum(end[nodes], high) - np.maximum(start[nodes], low), 0.0)))
