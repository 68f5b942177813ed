"""Prices of an arrangement: every pool's by itself, put together rank by rank.

A pipeline rank takes the durations that the uniform layout would have on a cluster of its own pool. What uniform
layouts do not have is priced here, by the same laws on the links between the pools:

- a transfer between stages on two fabrics: ``send_recv`` while all replicas' ranks of the two stages send;
- gradients of a stage whose replicas lie on several fabrics: within each by the uniform layout with as many replicas
  as lie there, then an all-reduce of the shards over the fabrics, all stages' at the same time on the one link
  (hierarchical reduction: Cho et al., "BlueConnect", MLSys 2019; Megatron-Core's several instances of the
  distributed optimizer reduce in the same two steps);
- the gradient norm and a tied embedding that cross it.

Replicas on one fabric form one group of it, as in every layout.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, fields, is_dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwmodels import collectives
from hwmodels.cluster import Cluster
from hwmodels.network import Link
from hwmodels.pools import bridge, island, pool_link, subcluster
from hwmodels.records import dataclass
from hwmodels.topology import GroupShape
from planner.elements import stage_elements
from planner.layout import Layout, LayoutBatch
from planner.memory import MemoryEstimate
from planner.mixed.arrangement import Arrangement, Replicas
from planner.model.spec import ModelSpec
from planner.plan import Workload
from planner.priced import PricedModel, price_model
from planner.schedule import get as get_schedule
from planner.state import gradient_bytes
from planner.step.assemble import Group, Shape, assemble, dag_groups, group_memory
from planner.step.single import Single
from planner.vocabulary import padded_vocab

FloatArray = NDArray[np.float64]
STAND_IN = Link("none", "ethernet", 1e9, 0.0, "stands for a network that is not there", "fat-tree")
"""Between the node of a pool that has no network and ranks that lie in other pools."""


@dataclass(slots=True, eq=False)
class Piece:
    """A layout priced on one pool as if all its ranks lay there; put together when it is asked for."""

    pool: int
    priced: PricedModel
    shape: Shape
    _group: Group | None = None
    _memory: MemoryEstimate | None = None

    @property
    def group(self) -> Group:
        """Durations of its nodes."""
        if self._group is None:
            self._group = assemble(self.priced, np.arange(1), *self.shape[1:])
        return self._group

    @property
    def memory(self) -> MemoryEstimate:
        """Bytes of every pipeline rank."""
        if self._memory is None:
            self._memory = group_memory(self.priced, np.arange(1), *self.shape[1:4])
        return self._memory

    @property
    def cluster(self) -> Cluster:
        """The pool as a cluster."""
        return self.priced.cluster


@dataclass(frozen=True, slots=True, eq=False)
class Crossing:
    """Bytes over the links between fabrics in a step, by phase, and the dollars that they cost."""

    nbytes: dict[str, float]
    usd: float


@dataclass(slots=True, eq=False)
class Pieces:
    """Prices of a model on the pools of a cluster, kept for the arrangements that share them.

    Parameters
    ----------
    bases : LayoutBatch or None
        Layouts whose blocks are priced at once for each pool; others are priced when they are met.
    """

    model: ModelSpec
    cluster: Cluster
    workload: Workload
    bases: LayoutBatch | None = None
    _priced: dict[Any, PricedModel] = field(default_factory=dict)
    _pieces: dict[Any, Piece] = field(default_factory=dict)

    def base(self, pool: int) -> PricedModel:
        """All `bases` on one pool."""
        if self.bases is None:
            raise ValueError("no bases were given")
        if pool not in self._priced:
            own = self._cluster(pool, int(self.bases.world.max()))
            self._priced[pool] = price_model(self.model, self.workload, self.bases, own)
        return self._priced[pool]

    def piece(self, pool: int, layout: Layout, shape: Shape, microbatches: int, base: int | None = None) -> Piece:
        """`layout` (with its dp on that fabric) on one pool.

        Parameters
        ----------
        shape : Shape
            Of the whole arrangement: which communication nodes a step has.
        base : int or None
            Position among `bases` of the layout that differs from it in dp and stages alone.
        """
        key = (pool, layout, microbatches, shape[5:])
        if key not in self._pieces:
            gbs = layout.dp * microbatches * layout.mbs
            work, one = replace(self.workload, gbs=gbs), LayoutBatch.of([layout])
            own = self._cluster(pool, layout.world)
            if base is None:
                priced = price_model(self.model, work, one, own)
            else:
                priced = replace(self.base(pool), cluster=own).chosen(base, one, work)
            self._pieces[key] = Piece(pool, priced, shape)
        return self._pieces[key]

    def _cluster(self, pool: int, ranks: int) -> Cluster:
        """Devices of one pool on all nodes of the fabric that it lies on, and on more where `ranks` need them."""
        home, each = island(self.cluster, pool), self.cluster.pools[pool].gpus_per_node
        nodes = sum(p.nodes for i, p in enumerate(self.cluster.pools) if island(self.cluster, i) == home)
        wanted = max(nodes, -(-ranks // each))
        fabric = self.cluster.pools[pool].fabric or self.cluster.fabric
        if wanted == 1 or fabric.inter is not None:
            return subcluster(self.cluster, pool, wanted)
        # One node has no network. Only ranks that lie elsewhere would be reached over one, and what they exchange is
        # priced on the links between pools; a stand-in without latency lets the rest be laid out.
        here = subcluster(self.cluster, pool, nodes)
        joined_up = replace(here.fabric, nodes=wanted, inter=STAND_IN, ports_per_node=1, topology="fat-tree")
        return replace(here, pools=(replace(here.pools[0], nodes=wanted),), fabric=joined_up)

    def of(self, arrangement: Arrangement, each: Replicas, base: int | None = None) -> list[Piece]:
        """The piece that every pipeline rank of one kind of replica is taken from."""
        shape = self._shape(arrangement.layout)
        found = []
        for stage, pool in enumerate(each.pools):
            own = replace(arrangement.layout, dp=arrangement.sharers(self.cluster, stage, pool))
            found.append(self.piece(pool, own, shape, each.microbatches, base))
        return found

    def _shape(self, layout: Layout) -> Shape:
        """Communication nodes of a step of the whole: they depend on no device."""
        key = ("shape", layout)
        if key not in self._priced:
            first = next((p for k, p in self._priced.items() if isinstance(k, int)), None)
            one = LayoutBatch.of([layout])
            if first is None:
                first = price_model(self.model, self.workload, one, self._cluster(0, layout.world))
            whole = replace(first, layouts=one)
            self._priced[key] = whole
        return next(iter(dag_groups(self._priced[key], np.arange(1))))


def joined(pieces: Sequence[Piece]) -> Single:
    """One layout whose pipeline rank r is that of the r-th piece; what a step has once is the slowest piece's."""
    found: Single = _by_rank([piece.group.single(0) for piece in pieces])
    return found


def _by_rank(values: Sequence[Any]) -> Any:
    """Values of the r-th for rank r, wherever arrays have an axis of ranks behind that of layouts."""
    first = values[0]
    if all(other is first for other in values) or isinstance(first, LayoutBatch):
        return first
    if isinstance(first, np.ndarray):
        if first.ndim > 1 and first.shape[1] == len(values):
            return np.stack([v[:, r] for r, v in enumerate(values)], axis=1)
        return np.max(np.stack(values), axis=0)
    if isinstance(first, Mapping):
        return {key: _by_rank([v[key] for v in values]) for key in first}
    if isinstance(first, tuple):
        return tuple(_by_rank(parts) for parts in zip(*values, strict=True))
    if is_dataclass(first) and not isinstance(first, type):
        parts = {f.name: _by_rank([getattr(v, f.name) for v in values]) for f in fields(first)}
        return replace(first, **parts)
    return first


def crossed(
    pieces: Pieces, arrangement: Arrangement, each: Replicas, ranks: Sequence[Piece], one: Single
) -> tuple[Single, Crossing]:
    """The layout with what crosses between fabrics, and what that is a step for all replicas of the kind."""
    cluster, layout = pieces.cluster, arrangement.layout
    home = [island(cluster, pool) for pool in each.pools]
    moved = {"pp_comm": 0.0, "dp_comm": 0.0}
    usd = 0.0
    costs = one.costs
    if len(set(home)) > 1:
        onward, back, sent, paid = _sends(cluster, arrangement, each, ranks)
        costs = replace(
            costs, send_forward_s=np.where(onward > 0, onward, costs.send_forward_s),
            send_backward_s=np.where(back > 0, back, costs.send_backward_s),
        )  # fmt: skip
        moved["pp_comm"], usd = sent, paid
        if costs.tied_s.any() and home[0] != home[-1]:
            costs = replace(costs, tied_s=_tied(pieces, layout, each, ranks[0]))
    fabrics = sorted({island(cluster, pool): pool for r in arrangement.replicas for pool in r.pools}.values())
    if len(fabrics) > 1:
        if any(float(piece.priced.sync_s.sum()) > 0 for piece in ranks):
            way = bridge(cluster, fabrics, 1)
            norm = collectives.seconds(way, "all_reduce", 4.0, _shape(1, len(fabrics), 1)).mid
            costs = replace(costs, sync_s=costs.sync_s + norm)
        over, bytes_over, paid = _reductions(cluster, arrangement, each, ranks, one)
        if over.any():
            costs = replace(costs, reduce_s=costs.reduce_s + over[..., None])
            moved["dp_comm"] = bytes_over
            usd += paid
    return replace(one, costs=costs), Crossing(moved, usd)


def _shape(ranks: int, nodes: int, stride: int) -> GroupShape:
    return GroupShape(*(np.asarray(n, dtype=np.int64) for n in (ranks, nodes, stride)))


def _sends(
    cluster: Cluster, arrangement: Arrangement, each: Replicas, ranks: Sequence[Piece]
) -> tuple[FloatArray, FloatArray, float, float]:
    """Seconds of the hops between fabrics out of every virtual stage, forward and back; bytes; dollars.

    Every such hop of the pipeline is in use at the same time, and shares the link with those of the same direction.
    Hops inside a pool that has one node stay in it, wherever a uniform layout would have put the two ranks.
    """
    layout, nodes = arrangement.layout, arrangement.nodes(cluster)
    plan = get_schedule(layout.schedule)
    pp, length = layout.pp, layout.pp * layout.vpp
    forward, back = (np.zeros((1, pp, plan.chunks(layout.vpp))) for _ in range(2))
    stages = [s for s in range(plan.n_stages(pp, layout.vpp)) if (s + 1) % length]
    hops = [(s, plan.rank_of(s, pp), plan.rank_of(s + 1, pp)) for s in stages]
    far = [hop for hop in hops if island(cluster, each.pools[hop[1]]) != island(cluster, each.pools[hop[2]])]
    nbytes = usd = 0.0
    runs = each.count * each.microbatches / plan.directions
    near = [hop for hop in hops if each.pools[hop[1]] == each.pools[hop[2]] and nodes[each.pools[hop[1]]] == 1]
    for s, here, there in (*far, *(hop for hop in near if hop[1] != hop[2])):
        ends = each.pools[here], each.pools[there]
        beside = sum((each.pools[a], each.pools[b]) == ends for _, a, b in far)
        flows = layout.tp * layout.cp * each.count * beside
        piece = ranks[here]
        boundary = float(np.broadcast_to(piece.priced.lowered.boundary_bytes, _rows(piece))[piece.priced.inverse[0]])
        shares = piece.priced.preset.scatter_gather_p2p and not layout.sp and layout.tp > 1
        sent = boundary / (layout.tp if shares else 1)
        way = bridge(cluster, ends, flows) if beside else piece.cluster.fabric
        shape = _shape(1, 2, flows) if beside else _shape(2, 1, 1)
        seconds = float(collectives.seconds(way, "send_recv", sent, shape).mid)
        onward, backward = seconds, seconds
        if shares:  # pieces come together in the receiver's pool
            onward, backward = (seconds + _gathered(ranks[receiver], boundary) for receiver in (there, here))
        forward[0, here, plan.chunk_of(s, pp)] = onward
        back[0, there, plan.chunk_of(s + 1, pp)] = backward
        amount = 2.0 * sent * layout.tp * layout.cp * runs if beside else 0.0
        nbytes += amount
        usd += amount / 1e9 * _usd_per_gb(cluster, *ends)
    return forward, back, nbytes, usd


def _rows(piece: Piece) -> tuple[int, ...]:
    return (len(piece.priced.embedding.forward.compute_s),)


def _gathered(piece: Piece, nbytes: float) -> float:
    """Seconds in which the tensor-parallel ranks of the receiver put the pieces of a boundary tensor together."""
    shape = piece.priced.layouts.group("tp", piece.cluster.gpus_per_node)
    return float(collectives.seconds(piece.cluster, "all_gather", np.asarray([nbytes]), shape).mid[0])


def _usd_per_gb(cluster: Cluster, one: int, other: int) -> float:
    link = pool_link(cluster, one, other)
    return float(link.usd_per_gb.value) if link is not None and link.usd_per_gb is not None else 0.0


def _tied(pieces: Pieces, layout: Layout, each: Replicas, first: Piece) -> FloatArray:
    """Gradient of a shared embedding between its first and last stage on two fabrics: ndarray (1,)."""
    work, preset = pieces.workload, first.priced.preset
    rows = padded_vocab(pieces.model, preset, np.asarray([layout.tp]))
    nbytes = rows * pieces.model.hidden / float(layout.tp) * gradient_bytes(work, preset)
    flows = layout.tp * layout.cp * each.count
    way = bridge(pieces.cluster, (each.pools[0], each.pools[-1]), flows)
    return np.asarray(collectives.seconds(way, "all_reduce", np.asarray(nbytes), _shape(1, 2, flows)).mid)


def _reductions(
    cluster: Cluster, arrangement: Arrangement, each: Replicas, ranks: Sequence[Piece], one: Single
) -> tuple[FloatArray, float, float]:
    """Seconds of the all-reduce of one bucket over the fabrics of each stage's replicas: ndarray (1, pp, chunks).

    Within a fabric the sharers of a stage hold a shard each; as many groups as the fewest of them reduce side by
    side, and all stages that cross do at once. Bytes and dollars are of the whole step, for one of the kinds.
    """
    layout = arrangement.layout
    across = [arrangement.islands(cluster, stage) for stage in range(layout.pp)]
    busy = sum(len(pools) > 1 for pools in across)
    first = ranks[0]
    over = np.zeros(one.costs.reduce_s.shape[:3])
    if not busy or one.comm.reduce == "none":
        return over, 0.0, 0.0
    held = stage_elements(
        first.priced.model, first.priced.workload, first.priced.layouts, first.priced.preset, one.pp, one.vpp,
        one.schedule,
    )  # fmt: skip
    grad = gradient_bytes(first.priced.workload, first.priced.preset)
    trained = held.kinds.whole(held.dense.trained + held.expert.trained)
    whole = trained * grad  # (1, pp, chunks), bytes of one tensor-parallel rank
    nbytes = usd = 0.0
    for stage, pools in enumerate(across):
        if len(pools) < 2:
            continue
        shard = min(arrangement.sharers(cluster, stage, pool) for pool in pools) * layout.cp
        flows = layout.tp * shard * busy
        size = whole[0, stage] / one.comm.buckets / shard
        way = bridge(cluster, pools, flows)
        over[0, stage] = collectives.seconds(way, "all_reduce", size, _shape(1, len(pools), flows)).mid
        n = len(pools)
        runs = each.microbatches if one.comm.reduce == "each" else 1
        amount = 2.0 * (n - 1) * float(whole[0, stage].sum()) * layout.tp * runs  # of all fabrics together, by a ring
        nbytes += amount
        usd += amount / 1e9 * max(_usd_per_gb(cluster, a, b) for a in pools for b in pools if a != b)
    return over, nbytes, usd
