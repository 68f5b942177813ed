"""What a GPU sends in a step, by phase and by link: inside its node, and over the network between nodes.

Seconds alone do not tell a hybrid layout from a plain one: full sharding sends more over the network, hybrid sharding
less, for more memory and a second reduction. Bytes by link do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from hwmodels.cluster import Cluster
from hwmodels.collectives.expert_traffic import NORMAL
from hwmodels.collectives.expert_traffic import traffic as expert_copies
from hwmodels.kernels.formats import format_of
from hwmodels.network.traffic import RING_BYTES
from hwmodels.records import dataclass
from planner.elements import stage_elements
from planner.layout import LayoutBatch
from planner.layout.axes import crossings
from planner.layout.recompute import Policy
from planner.price import COMM_GROUPS, GROUP_OF, BlockPrice
from planner.priced import PricedModel
from planner.recompute import kind_counts
from planner.results import LinkBytes
from planner.schedule import get as get_schedule
from planner.state import gradient_bytes
from planner.step.assemble import Group
from planner.workload.op import Op
from planner.workload.recompute import rerun_share

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

SENT: Mapping[str, Callable[[float], float]] = {
    **RING_BYTES,
    "all_to_all": lambda n: (n - 1) / n,
    "send_recv": lambda n: 1.0,
}
"""Bytes that a rank sends per byte of a collective (nccl-tests convention), by the ring where there is one."""


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """One layout of a group: what the sums below read of it."""

    priced: PricedModel
    group: Group
    layouts: LayoutBatch
    row: int
    policy: Policy
    microbatches: int

    @classmethod
    def of(cls, priced: PricedModel, group: Group, position: int) -> Case:
        """The layout at `position` of `group`."""
        index = int(group.index[position])
        policy = priced.policies[int(priced.policy[index])]
        layouts, row = group.layouts.take(np.asarray([position])), int(priced.inverse[index])
        return cls(priced, group, layouts, row, policy, int(group.microbatches[position]))

    @property
    def pp(self) -> int:
        """Pipeline ranks."""
        return self.group.pp

    def layer_counts(self) -> tuple[list[int], list[int]]:
        """`planner.recompute.kind_counts` of this layout."""
        return kind_counts(self.priced.model, self.layouts, self.group.pp, self.group.vpp, self.group.schedule)

    def sent(self, op: str, nbytes: float, axis: str) -> tuple[float, float]:
        """`sent_bytes` of this layout."""
        return sent_bytes(op, nbytes, self.layouts, axis, self.priced.cluster)


def link_traffic(priced: PricedModel, group: Group, position: int = 0) -> dict[str, LinkBytes]:
    """Bytes that a GPU sends in a step of one layout of `group`, mean over the pipeline ranks, by phase.

    Rings run over nodes as NCCL's channels do (`hwmodels.network.traffic`): of a group with r ranks in each of its
    nodes, one r-th of what a rank sends leaves the node. Of an all-to-all the share of ranks on other nodes does.
    Expert kernels send a token once to each node and once to each rank there (`hwmodels.collectives.expert_traffic`,
    the normal kernels of DeepEP). Phases without traffic are left out.
    """
    found: dict[str, LinkBytes] = {}
    one = Case.of(priced, group, position)
    for phase, inside, between in (*_block_traffic(one), *_stream_traffic(one), *_boundary_traffic(one)):
        if inside + between > 0.0:
            before = found.get(phase, LinkBytes(0.0, 0.0))
            found[phase] = LinkBytes(before.intra_node + inside, before.inter_node + between)
    return found


def sent_bytes(op: str, nbytes: float, layouts: LayoutBatch, axis: str, cluster: Cluster) -> tuple[float, float]:
    """Bytes that a rank sends inside its node and between nodes in one collective over `axis` of a single layout."""
    shape = layouts.group(axis, cluster)
    each, nodes = int(shape.ranks_per_node.reshape(-1)[0]), int(shape.nodes.reshape(-1)[0])
    size = each * nodes
    if size == 1:
        return 0.0, 0.0
    whole = nbytes * SENT[op](float(size))
    if nodes == 1:
        return whole, 0.0
    share = (size - each) / (size - 1) if op == "all_to_all" else 1.0 / each
    return whole * (1.0 - share), whole * share


def _block_traffic(case: Case) -> Iterator[tuple[str, float, float]]:
    """(phase, bytes inside, bytes between) of every collective of the micro-batches, recomputation included."""
    for op, runs in block_moves(case):
        inside, between = _op_bytes(op, case)
        yield phase_of(op.group), runs * inside, runs * between


def phase_of(axis: str) -> str:
    """Phase that the collectives of an axis inside a micro-batch belong to."""
    group = GROUP_OF.get(axis, axis)
    return f"{group}_comm" if group in COMM_GROUPS else "dp_comm"


def block_moves(case: Case) -> Iterator[tuple[Op, float]]:
    """Every collective of the micro-batches, with how often a rank runs it in a step, mean over pipeline ranks."""
    priced = case.priced
    layers = zip(priced.layers, *case.layer_counts(), strict=True)
    blocks: list[tuple[BlockPrice, float, float]] = [(priced.embedding, 1.0, 0.0), *layers, (priced.head, 1.0, 0.0)]
    for block, copies, again in blocks:
        for op in (p.op for p in block.ops if p.op.kind == "collective"):
            share = rerun_share(op, case.policy) if op.phase == "forward" else 0.0
            runs = case.microbatches * (copies + again * share) / case.pp * _at(op.count, case.row)
            if runs > 0.0:
                yield op, runs


def _at(value: object, row: int) -> float:
    array = np.asarray(value, dtype=np.float64).reshape(-1)
    return float(array[row if array.size > 1 else 0])


def _op_bytes(op: Op, case: Case) -> tuple[float, float]:
    """Bytes that a rank sends in one run of a collective."""
    if not op.collective.startswith("expert_"):
        return case.sent(op.collective, _at(op.dims["nbytes"], case.row), op.group)
    shape = case.layouts.group(op.group, case.priced.cluster)
    d = {name: np.asarray([_at(op.dims[name], case.row)]) for name in ("tokens", "topk", "experts", "skew")}
    ranks, nodes = (np.asarray(v, dtype=np.float64).reshape(-1)[:1] for v in (shape.ranks_per_node, shape.nodes))
    limits = {name: op.dims[name] for name in ("groups", "group_limit")}
    moved = expert_copies(NORMAL, d["tokens"], d["topk"], d["experts"], ranks, nodes, d["skew"], **limits)
    width = _at(op.dims["hidden"], case.row) * format_of(op.dtype).activation_bytes
    return float(moved.wire[0]) * width, float(moved.port[0]) * width


def _stream_traffic(case: Case) -> Iterator[tuple[str, float, float]]:
    """The same of gradients and parameters over data parallelism."""
    for op, nbytes, axis in stream_moves(case):
        yield ("dp_comm", *case.sent(op, nbytes, axis))


def stream_moves(case: Case) -> Iterator[tuple[str, float, str]]:
    """(collective, bytes in a step, axis) of gradients and parameters, mean over pipeline ranks."""
    priced, group, layouts, m, pp = case.priced, case.group, case.layouts, case.microbatches, case.pp
    zero, comm, preset = int(layouts.zero_stage[0]), group.comm, priced.preset
    held = stage_elements(priced.model, priced.workload, layouts, preset, pp, group.vpp, group.schedule)
    gathers = {"none": 0, "once": 1, "forward": m, "each": 2 * m}[comm.unshard] + comm.gather_after_step
    reductions = {"none": 0, "end": 1, "bucketed": 1, "each": m}[comm.reduce]
    grad = gradient_bytes(priced.workload, preset)
    whole = zero == 1 and preset.zero1_all_reduce and not np.any(held.expert.all > 0)
    axes = ((held.dense, "fsdp", "replica", "dp_cp"), (held.expert, "expert_shard", "expert_replica", "edp"))
    for part, shard, replica, every in axes:
        gathered = float(held.kinds.total(part.gathered_bytes(held.weights, whole=zero >= 3))[0]) / pp * gathers
        reduced = float(held.kinds.total(part.trained)[0]) * grad / pp * reductions
        moves = [("all_gather", gathered, shard)]
        if zero == 0 or whole:
            moves.append(("all_reduce", reduced, shard if whole else every))
        else:
            size = float(np.asarray(layouts.axis(shard)[0]).reshape(-1)[0])
            moves += [("reduce_scatter", reduced, shard), ("all_reduce", reduced / size, replica)]
        yield from moves


def _boundary_traffic(case: Case) -> Iterator[tuple[str, float, float]]:
    """Activations and their gradients over the boundaries between ranks, and their gather where pieces are sent."""
    priced, layouts, pp = case.priced, case.layouts, case.pp
    pairs = hops(case)
    if not len(pairs):
        return
    crossing = float(crossings(layouts, pairs[:, 0], pairs[:, 1], priced.cluster.gpus_per_node).mean())
    runs = 2.0 * case.microbatches / get_schedule(case.group.schedule).directions * len(pairs) / pp
    boundary, pieces = boundary_pieces(case)
    sent = runs * boundary / pieces
    yield "pp_comm", sent * (1.0 - crossing), sent * crossing
    if pieces > 1:
        yield ("pp_comm", *case.sent("all_gather", runs * boundary, "tp"))


def hops(case: Case) -> IntArray:
    """Pipeline ranks that hand a micro-batch on to another rank, one row for each boundary: ndarray (hops, 2)."""
    plan, pp, vpp = get_schedule(case.group.schedule), case.pp, case.group.vpp
    stages = [s for s in range(plan.n_stages(pp, vpp)) if (s + 1) % (pp * vpp)]
    found = [(plan.rank_of(s, pp), plan.rank_of(s + 1, pp)) for s in stages]
    return np.asarray([hop for hop in found if hop[0] != hop[1]], dtype=np.int64).reshape(-1, 2)


def boundary_pieces(case: Case) -> tuple[float, int]:
    """Bytes that a micro-batch hands on, and in how many pieces the ranks of a tp group send them."""
    priced = case.priced
    shared = priced.preset.scatter_gather_p2p and not int(case.layouts.sp[0])
    return _at(priced.lowered.boundary_bytes, case.row), int(case.layouts.tp[0]) if shared else 1
