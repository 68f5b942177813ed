"""Builds a `Dag` with array operations: no Python object per node."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from hwmodels.errors import Fault, InputError
from planner.schedule import COMPUTE_KINDS, Kind
from planner.schedule import get as get_schedule
from planner.simulate.costs import CommPlan
from planner.simulate.graph import COMPUTE, DP_AG, DP_RS, PP, STREAMS, Dag, IntArray, NodeKind
from planner.simulate.levels import levels
from planner.simulate.slots import SlotTable

_KIND = {
    Kind.FORWARD: NodeKind.F, Kind.BACKWARD: NodeKind.B,
    Kind.BACKWARD_INPUT: NodeKind.I, Kind.BACKWARD_WEIGHT: NodeKind.W,
}
_CODES = np.array([_KIND[kind] for kind in COMPUTE_KINDS], np.int64)
_DURATION = {NodeKind.F: "forward", NodeKind.B: "backward", NodeKind.I: "input", NodeKind.W: "weight"}
_FIELDS = ("rank", "stream", "kind", "stage", "microbatch", "bucket", "slot")


class Builder:
    """One use: `build` once, then throw away.

    Nodes are numbered as they are added: first the compute streams, rank by rank, so that the
    node before another on its compute stream is the number before it; `_renumber` sorts by level.
    """

    def __init__(self, schedule_name: str, pp: int, microbatches: int, vpp: int, comm: CommPlan) -> None:
        self.schedule = get_schedule(schedule_name)
        self.pp, self.microbatches, self.vpp, self.comm = pp, microbatches, vpp, comm
        self.length, chunks = pp * vpp, self.schedule.chunks(vpp)
        self.slots = SlotTable(pp, chunks, comm.buckets)
        self._n = 0
        self._nodes: dict[str, list[IntArray]] = {name: [] for name in _FIELDS}
        self._edges: list[tuple[IntArray, IntArray]] = []
        self._implied: set[int] = set()
        actions = self.schedule.arrays(pp, microbatches, vpp)
        self.a_rank, self.a_stage, self.a_microbatch = actions.rank, actions.stage, actions.microbatch
        self.a_kind = _CODES[actions.kind]
        n_stages = self.schedule.n_stages(pp, vpp)
        self.rank_of = np.array([self.schedule.rank_of(s, pp) for s in range(n_stages)], np.int64)
        # Index of (rank, chunk) in the duration vector, for each stage.
        self.place = self.rank_of * chunks + [self.schedule.chunk_of(s, pp) for s in range(n_stages)]
        # Each copy of the pipeline has an end of its own, where nothing comes from or goes on.
        self.enters, self.leaves = (self.a_stage % self.length == end for end in (0, self.length - 1))
        self._link_actions()
        self._classify()

    def _link_actions(self) -> None:
        """Find the neighbour's action that makes what an action receives; refuse lists that cannot run.

        Edges are needed between ranks only; on one rank the order must already be right.
        """
        n_stages, count = len(self.rank_of), self.microbatches
        forward, weight = self.a_kind == NodeKind.F, self.a_kind == NodeKind.W
        # One row of action numbers for F, one for B or I, one for W; stages padded at both ends.
        table = np.full((3, n_stages + 2, count), -1)
        row, stage, own = np.where(forward, 0, np.where(weight, 2, 1)), self.a_stage + 1, np.arange(len(forward))
        table[row, stage, self.a_microbatch] = own
        self.producer = table[row, np.where(forward, stage - 1, stage + 1), self.a_microbatch]
        self.producer[np.where(forward, self.enters, self.leaves)] = -1
        self.producer[weight] = table[1, stage, self.a_microbatch][weight]
        forward_of = table[0, stage, self.a_microbatch]
        near = self.a_rank[self.producer] == self.a_rank
        late = ((self.producer > own) & near) | (forward_of > own) | (forward_of < 0)
        ends = np.where(forward, self.enters, self.leaves & ~weight)
        if np.any(late | (~ends & (self.producer < 0))):
            raise self._deadlock()

    def _deadlock(self) -> InputError:
        return InputError(
            Fault(
                f"{self.schedule.name} deadlocks: {self.microbatches} micro-batches, pp={self.pp}, vpp={self.vpp}",
                "schedule",
                "some action waits for one that its own rank runs later, or that nobody runs",
            )
        )

    def _classify(self) -> None:
        """What each action sends and receives, and whether its buckets are nodes of their own."""
        kind, stage = self.a_kind, self.a_stage
        forward = kind == NodeKind.F
        backward = (kind == NodeKind.B) | (kind == NodeKind.I)
        grad = (kind == NodeKind.B) | (kind == NodeKind.W)
        n_stages = len(self.rank_of)
        ranks = np.concatenate([self.rank_of[:1], self.rank_of, self.rank_of[-1:]])
        next_far = (ranks[stage + 2] != self.a_rank) & ~self.leaves
        prev_far = (ranks[stage] != self.a_rank) & ~self.enters
        self.sends = (forward & next_far) | (backward & prev_far)
        self.receives = (forward & prev_far) | (backward & next_far)
        last_of = np.zeros(n_stages, np.int64)
        at = np.flatnonzero(grad)
        last_of[stage[at]] = at  # actions lie in order, so the last one of a stage stays
        self.last_grad = np.zeros(len(kind), bool)
        self.last_grad[last_of] = True
        self.uses_parameters = forward | backward
        self.reduced = {
            "none": np.zeros(len(kind), bool), "end": self.last_grad, "bucketed": self.last_grad, "each": grad,
        }[self.comm.reduce]
        self.synced = self.reduced & (self.comm.reduce in ("bucketed", "each"))
        first_of = np.full(n_stages, -1)
        at = np.flatnonzero(forward)[::-1]
        first_of[self.a_stage[at]] = at  # from the back, so the first one of a stage stays
        first_use = np.zeros(len(kind), bool)
        first_use[first_of] = True
        gathered = {"none": False, "once": first_use, "forward": forward, "each": True}[self.comm.unshard]
        self.split = self.synced | gathered

    def build(self) -> Dag:
        """Add everything, check for deadlock, sort."""
        self._add_compute()
        self._add_sends()
        self._add_unshards()
        self._add_reductions()
        self._add_end()
        n_core = self._n
        self._stream_key = 4 * np.arange(self._n)
        core_edges = len(self._edges)
        self._add_markers()
        return self._renumber(n_core, core_edges)

    def _add(self, count: int, **values: Any) -> IntArray:
        """Append `count` nodes; fields not given are -1."""
        for name in _FIELDS:
            self._nodes[name].append(np.broadcast_to(np.asarray(values.get(name, -1), np.int64), (count,)))
        self._n += count
        return np.arange(self._n - count, self._n)

    def _edge(self, source: IntArray, target: IntArray) -> None:
        self._edges.append((source, target))

    def _chain(self, nodes: IntArray, ranks: IntArray, *, implied: bool = False) -> None:
        """First in, first out: each node after the one before it on the same rank.

        `implied` where each waits for one other node, which lies further on its stream than that of the node before:
        the level of that node then says all, and `_levels` can do without these edges.
        """
        same = ranks[1:] == ranks[:-1]
        if implied:
            self._implied.add(len(self._edges))
        self._edge(nodes[:-1][same], nodes[1:][same])

    def _add_compute(self) -> None:
        """Compute streams, rank by rank: STEP, actions (and blocking sends), MIRROR or TIED, SYNC, OPTIMIZER."""
        pp, comm = self.pp, self.comm
        pieces = np.where(self.split, comm.buckets, 1)
        block = pieces + (self.sends & comm.p2p_blocking)
        paired = self._pairs()
        tail = 2 + (self.partner >= 0)
        per_rank = np.bincount(self.a_rank, weights=block, minlength=pp).astype(np.int64)
        base = np.concatenate([[0], np.cumsum(1 + per_rank + tail)])
        before = np.concatenate([[0], np.cumsum(block)])[:-1]
        self.first = base[self.a_rank] + 1 + before - np.concatenate([[0], np.cumsum(per_rank)])[self.a_rank]
        self.last = self.first + pieces - 1
        n = int(base[-1])
        field = {name: np.full(n, -1) for name in _FIELDS}
        field["rank"] = np.repeat(np.arange(pp), np.diff(base))
        field["stream"][:] = COMPUTE
        self._fill_actions(field, pieces)
        if comm.p2p_blocking:
            self._fill_sends(field, self.last[self.sends] + 1)
        self.step_node, self.optimizer_node = base[:-1], base[1:] - 1
        self.sync_node, self.pair_node = base[1:] - 2, base[1:] - 3
        self.before_tail = base[1:] - 1 - tail  # last node that belongs to the schedule
        mirror = self.schedule.directions > 1
        for nodes, kind, slot in (
            (self.step_node, NodeKind.STEP, self.slots.offset("step")),
            (self.pair_node[paired], NodeKind.MIRROR if mirror else NodeKind.TIED,
             self.slots.offset("mirror") + paired if mirror else self.slots.offset("tied")),
            (self.sync_node, NodeKind.SYNC, self.slots.offset("sync")),
            (self.optimizer_node, NodeKind.OPTIMIZER, self.slots.offset("optimizer") + np.arange(pp)),
        ):
            field["kind"][nodes] = kind
            field["slot"][nodes] = slot
        self._chain(self._add(n, **field), field["rank"])

    def _pairs(self) -> IntArray:
        """Ranks that reduce something with another one before SYNC; `partner` says with which (-1: none).

        The two that hold a tied embedding, or the mirror ranks of a bidirectional pipeline.
        """
        self.partner = np.full(self.pp, -1)
        first, last = int(self.rank_of[0]), int(self.rank_of[-1])
        if self.schedule.directions > 1:
            self.partner = np.arange(self.pp)[::-1].copy()
        elif self.comm.tied_embedding and first != last:
            self.partner[[first, last]] = last, first
        return np.flatnonzero(self.partner >= 0)

    def _fill_actions(self, field: dict[str, IntArray], pieces: IntArray) -> None:
        action = np.repeat(np.arange(len(pieces)), pieces)
        offset = np.arange(len(action)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
        node = self.first[action] + offset
        kind, split, stage = self.a_kind[action], self.split[action], self.a_stage[action]
        bucket = np.where(kind == NodeKind.F, offset, self.comm.buckets - 1 - offset)
        place = self.place[stage]
        slot = np.empty(len(node), np.int64)
        synced = self.synced[action]
        within = place * self.comm.buckets + bucket
        for code, name in _DURATION.items():
            whole = np.where(split, self.slots.offset(name) + within, self.slots.offset(f"{name}_sum") + place)
            np.copyto(slot, whole, where=kind == code)
            if code in (NodeKind.B, NodeKind.W):
                np.copyto(slot, self.slots.offset(f"{name}_sync") + within, where=synced & (kind == code))
        for name, value in (
            ("kind", kind), ("stage", stage), ("microbatch", self.a_microbatch[action]),
            ("bucket", np.where(split, bucket, -1)), ("slot", slot),
        ):
            field[name][node] = value
        self.node_action, self.action_nodes = action, node

    def _fill_sends(self, field: dict[str, IntArray], nodes: IntArray) -> None:
        """Sends of all sending actions, in their order; also of those on stream pp."""
        of = self.sends
        forward = self.a_kind[of] == NodeKind.F
        send = np.where(forward, self.slots.offset("send_forward"), self.slots.offset("send_backward"))
        field["kind"][nodes] = np.where(forward, NodeKind.SEND_F, NodeKind.SEND_B)
        field["stage"][nodes] = self.a_stage[of]
        field["microbatch"][nodes] = self.a_microbatch[of]
        field["slot"][nodes] = send + self.place[self.a_stage[of]]
        self.send_node = np.full(len(of), -1)
        self.send_node[of] = nodes

    def _add_sends(self) -> None:
        count = int(self.sends.sum())
        if not self.comm.p2p_blocking:
            field = {name: np.full(count, -1) for name in _FIELDS}
            self._fill_sends(field, np.arange(count))
            self.send_node[self.sends] += self._n
            field["rank"], field["stream"] = self.a_rank[self.sends], np.full(count, PP)
            nodes = self._add(count, **field)
            self._chain(nodes, field["rank"], implied=True)
            self._edge(self.last[self.sends], nodes)
        self.receiver = np.flatnonzero(self.receives)
        self.received_from = self.send_node[self.producer[self.receiver]]
        self._edge(self.received_from, self.first[self.receiver])

    def _add_unshards(self) -> None:
        self.users = np.zeros(0, np.int64)
        if self.comm.unshard == "none":
            return
        uses = self.a_kind == NodeKind.F if self.comm.unshard == "forward" else self.uses_parameters
        using = uses[self.node_action]
        users, action = self.action_nodes[using], self.node_action[using]
        bucket = np.concatenate(self._nodes["bucket"])[users]
        if self.comm.unshard == "once":  # the first forward of each stage, whose buckets are nodes of their own
            keep = bucket >= 0
            users, action, bucket = users[keep], action[keep], bucket[keep]
            _, first = np.unique(self.a_stage[action] * self.comm.buckets + bucket, return_index=True)
            keep = np.sort(first)
            users, action, bucket = users[keep], action[keep], bucket[keep]
        rank, stage = self.a_rank[action], self.a_stage[action]
        nodes = self._add(
            len(users), rank=rank, stream=DP_AG, kind=NodeKind.UNSHARD, stage=stage, bucket=bucket,
            microbatch=self.a_microbatch[action] if self.comm.unshard in ("each", "forward") else -1,
            slot=self.slots.offset("unshard") + self.place[stage] * self.comm.buckets + bucket,
        )
        self._chain(nodes, rank)
        self._edge(nodes, users)
        # Gather i waits until compute has reached use i - prefetch; the first ones wait for STEP.
        ahead = self.comm.prefetch
        early = np.arange(len(users)) - np.searchsorted(rank, rank) < ahead
        self._edge(self.step_node[rank[early]], nodes[early])
        self._edge(users[np.flatnonzero(~early) - ahead] - 1, nodes[~early])
        if self.comm.unshard == "each":
            self.users = users

    def _add_reductions(self) -> None:
        """REDUCE_GRAD nodes, in the order in which the backward makes the gradients."""
        self.last_reduce = np.full(self.pp, -1)
        if self.comm.reduce == "none":
            return
        buckets = self.comm.buckets
        action = np.repeat(np.flatnonzero(self.reduced), buckets)
        offset = np.tile(np.arange(buckets), len(action) // buckets)
        rank, stage, bucket = self.a_rank[action], self.a_stage[action], buckets - 1 - offset
        if self.comm.reduce == "end":
            final = np.zeros(self.pp, np.int64)
            final[self.a_rank] = self.last
            source = final[rank]
        else:
            source = self.first[action] + offset
        nodes = self._add(
            len(action), rank=rank, stream=DP_RS, kind=NodeKind.REDUCE_GRAD, stage=stage, bucket=bucket,
            microbatch=self.a_microbatch[action] if self.comm.reduce == "each" else -1,
            slot=self.slots.offset("reduce") + self.place[stage] * buckets + bucket,
        )
        self._chain(nodes, rank, implied=self.comm.reduce != "end")
        self._edge(source, nodes)
        self.last_reduce[rank] = nodes

    def _add_end(self) -> None:
        """What MIRROR, TIED and SYNC wait for on other streams and ranks; GATHER."""
        reductions = self.last_reduce[self.last_reduce >= 0]
        for own in np.flatnonzero(self.partner >= 0).tolist():
            far = self.partner[own]
            waits = np.array([self.before_tail[far], self.last_reduce[own], self.last_reduce[far]])
            waits = waits[waits >= 0]
            self._edge(waits, np.full(len(waits), self.pair_node[own]))
        waits = np.concatenate([self.sync_node - 1, reductions])
        source, target = np.tile(waits, self.pp), np.repeat(self.sync_node, len(waits))
        keep = source != target - 1  # the stream's own order has that edge already
        self._edge(source[keep], target[keep])
        if self.comm.gather_after_step:
            ranks = np.arange(self.pp)
            nodes = self._add(
                self.pp, rank=ranks, stream=DP_AG, kind=NodeKind.GATHER, slot=self.slots.offset("gather") + ranks
            )
            self._edge(self.optimizer_node, nodes)

    def _add_markers(self) -> None:
        """RECV before the compute that needs it, RESHARD after the compute that used the parameters."""
        zero = self.slots.offset("zero")
        act = self.receiver
        forward = self.a_kind[act] == NodeKind.F
        recv = self._add(
            len(act), rank=self.a_rank[act], stream=COMPUTE, kind=np.where(forward, NodeKind.RECV_F, NodeKind.RECV_B),
            stage=self.a_stage[act], microbatch=self.a_microbatch[act], slot=zero,
        )
        self._edge(self.first[act] - 1, recv)
        self._edge(self.received_from, recv)
        of = {name: np.concatenate(self._nodes[name])[self.users] for name in ("rank", "stage", "microbatch", "bucket")}
        reshard = self._add(len(self.users), stream=COMPUTE, kind=NodeKind.RESHARD, slot=zero, **of)
        self._edge(self.users, reshard)
        # Between the numbers of the core nodes of the compute stream; a RESHARD before the RECV that follows.
        self._stream_key = np.concatenate([self._stream_key, 4 * self.first[act] - 1, 4 * self.users + 1])

    def _renumber(self, n_core: int, core_edges: int) -> Dag:
        fields = {name: np.concatenate(parts) for name, parts in self._nodes.items()}
        source = np.concatenate([e[0] for e in self._edges])
        target = np.concatenate([e[1] for e in self._edges])
        said = [e for i, e in enumerate(self._edges[:core_edges]) if i not in self._implied]
        level = levels(n_core, np.concatenate([e[0] for e in said]), np.concatenate([e[1] for e in said]))
        if level is None:
            raise self._deadlock()
        rank = np.arange(self._n)  # new number -> old number
        rank[:n_core] = np.argsort(level * n_core + rank[:n_core])
        new = np.empty(self._n, np.int64)
        new[rank] = np.arange(self._n)
        fields = {name: value[rank] for name, value in fields.items()}
        source, target = new[source], new[target]
        by_target = np.argsort(target * self._n + source)  # one key: a fifth of the time that two take
        pred_ptr = np.concatenate([[0], np.cumsum(np.bincount(target, minlength=self._n))])
        group = fields["rank"] * len(STREAMS) + fields["stream"]
        order = np.argsort(group * (4 * self._n) + self._stream_key[rank])  # no two of a stream share a key
        count = np.bincount(group, minlength=self.pp * len(STREAMS))
        link = np.where(_IS_TRANSFER[fields["kind"]], fields["rank"], -1)
        dag = Dag(
            self.schedule.name,
            self.pp,
            self.microbatches,
            self.vpp,
            self.comm,
            self.slots,
            n_core,
            **fields,
            link=link,
            pred_ptr=pred_ptr,
            pred=source[by_target],
            level_ptr=np.concatenate([[0], np.cumsum(np.bincount(level))]),
            order_ptr=np.concatenate([[0], np.cumsum(count)]),
            order=order,
        )
        for value in (getattr(dag, f.name) for f in dataclasses.fields(dag)):
            if isinstance(value, np.ndarray):
                value.setflags(write=False)  # one object serves every candidate
        return dag


_IS_TRANSFER = np.isin(
    np.arange(len(NodeKind)),
    (NodeKind.SEND_F, NodeKind.SEND_B, NodeKind.UNSHARD, NodeKind.REDUCE_GRAD, NodeKind.GATHER),
)
