"""What the groups of every axis of a layout send in a step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hwmodels.collectives.expert_traffic import NORMAL
from hwmodels.collectives.expert_traffic import traffic as expert_copies
from hwmodels.kernels.formats import format_of
from planner.layout.placed import group_ranks
from planner.priced import PricedModel
from planner.schedule import get as get_schedule
from planner.step.assemble import assemble, dag_groups
from planner.step.link_traffic import (
    SENT,
    Case,
    block_moves,
    boundary_pieces,
    hops,
    phase_of,
    stream_moves,
)
from planner.workload.op import Op

IntArray = NDArray[np.int64]
RING, DIRECT, HOPS = "ring", "direct", "hops"


@dataclass(frozen=True, slots=True, eq=False)
class Demand:
    """Traffic of one axis and pattern in a step.

    Attributes
    ----------
    axis : str
        Of `planner.layout.AXES`.
    phase : str
        Phase of a step that waits for it, such as ``dp_comm``.
    pattern : {'ring', 'direct', 'hops'}
        From each member to the next, from each to all others alike, or from pipeline rank to pipeline rank.
    nbytes : float
        Bytes that a member sends in a step (all its peers together); of hops what one boundary carries in each
        direction.
    ranks : ndarray of int64 (groups, size)
        World ranks of every group, neighbours beside each other.
    hops : ndarray of int64 (hops, 2)
        Members between which a pattern of hops sends; empty with the others.
    """

    axis: str
    phase: str
    pattern: str
    nbytes: float
    ranks: IntArray
    hops: IntArray

    @property
    def total(self) -> float:
        """Bytes that all ranks send in a step."""
        if self.pattern == HOPS:
            return 2.0 * self.nbytes * len(self.hops) * len(self.ranks)
        return self.nbytes * self.ranks.size


def demands(priced: PricedModel) -> tuple[Demand, ...]:
    """Traffic of the only layout of `priced`, by axis and pattern; none of groups of one rank.

    A ring carries what its collectives send (`planner.step.link_traffic.SENT`). Exchanges of experts are taken as one
    copy of a token to each rank that has an expert of it: kernels that send a token once to a node put less on the
    network, whatever the placement. What frameworks send once a step for bookkeeping is left out.
    """
    case = Case.of(priced, assemble(priced, *next(dag_groups(priced, np.arange(1)))), 0)
    summed: dict[tuple[str, str, str], float] = {}

    def add(axis: str, phase: str, pattern: str, nbytes: float) -> None:
        key = (axis, phase, pattern)
        summed[key] = summed.get(key, 0.0) + nbytes

    for op, runs in block_moves(case):
        pattern, nbytes = _sent(op, case)
        add(op.group, phase_of(op.group), pattern, runs * nbytes)
    for name, nbytes, axis in stream_moves(case):
        size = float(np.asarray(case.layouts.axis(axis)[0]).reshape(-1)[0])
        add(axis, "dp_comm", RING, nbytes * SENT[name](size))
    boundary, pieces = boundary_pieces(case)
    pairs = hops(case)
    if len(pairs):
        runs = case.microbatches / get_schedule(case.group.schedule).directions
        add("pp", "pp_comm", HOPS, runs * boundary / pieces)
        if pieces > 1:
            size = float(case.layouts.tp[0])
            add("tp", "pp_comm", RING, 2.0 * runs * len(pairs) / case.pp * boundary * SENT["all_gather"](size))
    found = []
    for (axis, phase, pattern), nbytes in summed.items():
        ranks = group_ranks(case.layouts, axis)
        if ranks.shape[1] > 1 and nbytes > 0.0:
            found.append(Demand(axis, phase, pattern, nbytes, ranks, pairs if pattern == HOPS else pairs[:0]))
    return tuple(found)


def _sent(op: Op, case: Case) -> tuple[str, float]:
    """Pattern of a collective, and the bytes that a member sends in one run of it."""

    def at(value: object) -> float:
        array = np.asarray(value, dtype=np.float64).reshape(-1)
        return float(array[case.row if array.size > 1 else 0])

    size = float(np.asarray(case.layouts.axis(op.group)[0]).reshape(-1)[0])
    if not op.collective.startswith("expert_"):
        pattern = DIRECT if op.collective == "all_to_all" else RING
        return pattern, at(op.dims["nbytes"]) * SENT[op.collective](size) if size > 1 else 0.0
    d = {name: np.asarray([at(op.dims[name])]) for name in ("tokens", "topk", "experts", "skew")}
    limits = {name: op.dims[name] for name in ("groups", "group_limit")}
    ranks, nodes = np.asarray([size]), np.asarray([1.0])
    moved = expert_copies(NORMAL, d["tokens"], d["topk"], d["experts"], ranks, nodes, d["skew"], **limits)
    return DIRECT, float(moved.wire[0]) * at(op.dims["hidden"]) * format_of(op.dtype).activation_bytes
