"""Jobs that share a fabric: traffic by link and phase, steps beside each other, and better nodes for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hwmodels.cluster import Cluster
from hwmodels.errors import Fault, InfeasibleError, InputError
from hwmodels.network import Fabric
from planner.layout import Layout, LayoutBatch
from planner.model.spec import ModelSpec
from planner.placement.allocation import Allocation
from planner.placement.choose import place
from planner.placement.contention import Job, Phase, play
from planner.placement.demand import demands
from planner.placement.loads import capacities, loads
from planner.plan import Workload
from planner.predict import step_of
from planner.priced import price_model
from planner.results import PHASES

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
GAIN = 1.005
"""By how much other nodes must be faster to be proposed: what prices tell apart."""


@dataclass(frozen=True, slots=True)
class Request:
    """A job: what it trains, and how.

    Attributes
    ----------
    layout : Layout
        Its placement, where it states one, says where it runs.
    """

    name: str
    model: ModelSpec
    workload: Workload
    layout: Layout

    def nodes(self, cluster: Cluster) -> int:
        """Nodes that it needs."""
        return -(-self.layout.world // cluster.gpus_per_node)


@dataclass(frozen=True, slots=True, eq=False)
class Seat:
    """A job on its nodes.

    Attributes
    ----------
    request : Request
    allocation : Allocation
    layout : Layout
        With the placement of its ranks.
    job : Job
        As it is played: alone, on all shared links.
    """

    request: Request
    allocation: Allocation
    layout: Layout
    job: Job


@dataclass(frozen=True, slots=True, eq=False)
class Shared:
    """Jobs side by side.

    Attributes
    ----------
    seats : tuple of Seat
    alone_s, together_s : tuple of float
        Mean step of every job with the fabric to itself, and beside the others.
    links : tuple of str
        Names of the shared links, in the order of `Phase.nbytes`.
    """

    seats: tuple[Seat, ...]
    alone_s: tuple[float, ...]
    together_s: tuple[float, ...]
    links: tuple[str, ...]

    @property
    def slowdown(self) -> tuple[float, ...]:
        """Of every job, 1 for none."""
        return tuple(t / a for t, a in zip(self.together_s, self.alone_s, strict=True))

    def contended(self) -> dict[str, dict[str, float]]:
        """Links that more than one job uses: bytes that each sends over it in a step."""
        loads_of = [np.sum([phase.nbytes for phase in s.job.phases], axis=0) for s in self.seats]
        found = {}
        for i, link in enumerate(self.links):
            users = {s.request.name: float(load[i]) for s, load in zip(self.seats, loads_of, strict=True) if load[i]}
            if len(users) > 1:
                found[link] = users
        return found


def in_turn(requests: Sequence[Request], cluster: Cluster) -> tuple[Allocation, ...]:
    """Nodes one job after another, from the first on; those of a placement where a job states one."""
    taken: set[int] = set()
    found: dict[int, Allocation] = {}
    for i, request in enumerate(requests):
        if request.layout.placement:
            held = sorted({gpu // cluster.gpus_per_node for gpu in request.layout.placement})
            found[i] = Allocation(tuple(held))
            taken.update(held)
    for i, request in enumerate(requests):
        if i not in found:
            found[i] = Allocation(tuple(_free(cluster.fabric, taken)[: request.nodes(cluster)]) or (0,))
            taken.update(found[i].nodes)
    return tuple(found[i] for i in range(len(requests)))


def _free(fabric: Fabric, taken: set[int]) -> list[int]:
    return [node for node in range(fabric.nodes) if node not in taken]


def own_leaves(requests: Sequence[Request], cluster: Cluster) -> tuple[Allocation, ...]:
    """Nodes below as few leaves as each job can do with, apart from those of the others as far as they reach.

    The largest job first; of the leaves the emptiest that a job fills, else the fullest that holds what is left of it.
    """
    span, taken = cluster.fabric.leaf_span, set[int]()
    found: dict[int, tuple[int, ...]] = {}
    for i in sorted(range(len(requests)), key=lambda i: (-requests[i].nodes(cluster), i)):
        left, mine = requests[i].nodes(cluster), list[int]()
        while left:
            leaves: dict[int, list[int]] = {}
            for node in _free(cluster.fabric, taken):
                leaves.setdefault(node // span, []).append(node)
            if not leaves:
                break
            # the smallest leaf that holds all that is left, else the largest
            enough = [held for held in leaves.values() if len(held) >= left]
            chosen = min(enough, key=lambda h: (len(h), h[0])) if enough else max(leaves.values(), key=len)
            mine += chosen[:left]
            taken.update(chosen[:left])
            left -= len(chosen[:left])
        found[i] = tuple(sorted(mine))
    return tuple(Allocation(found[i]) for i in range(len(requests)))


def check_nodes(requests: Sequence[Request], allocations: Sequence[Allocation], cluster: Cluster) -> None:
    """Refuse nodes that two jobs have, and more jobs than there are nodes for.

    Raises
    ------
    InputError, InfeasibleError
    """
    need = sum(request.nodes(cluster) for request in requests)
    if need > cluster.nodes:
        what = f"the jobs need {need} nodes of {cluster.gpus_per_node} GPUs."
        raise InfeasibleError(what, f"{cluster.name} has {cluster.nodes}", f"a cluster of {need} nodes, or fewer jobs")
    faults, owner = [], dict[int, str]()
    for request, have in zip(requests, allocations, strict=True):
        have.held(cluster.fabric)
        if len(have.nodes) < request.nodes(cluster):
            what = f"{request.name} has {len(have.nodes)} nodes and needs {request.nodes(cluster)}"
            faults.append(Fault(what, "--nodes-of", fix=f"{request.nodes(cluster)} nodes"))
        for node in have.nodes:
            if node in owner:
                what = f"node {node} belongs to {owner[node]} and to {request.name}"
                faults.append(Fault(what, "--nodes-of", "a node runs one job", "other nodes"))
            owner[node] = request.name
    if faults:
        raise InputError(faults)


def seat(request: Request, cluster: Cluster, allocation: Allocation, *, chosen: bool) -> Seat:
    """A job on its nodes, its ranks in order or where they are best placed.

    Parameters
    ----------
    chosen : bool
        Place the ranks by their traffic; else as the job states it, or in order.
    """
    g, layout = cluster.gpus_per_node, request.layout
    if chosen:
        gpus = place(request.model, cluster, request.workload, replace(layout, placement=()), allocation).gpus
    elif layout.placement:
        gpus = np.asarray(layout.placement, dtype=np.int64)
    else:
        ranks = np.arange(layout.world)
        gpus = np.asarray(allocation.nodes, dtype=np.int64)[ranks // g] * g + ranks % g
    seated = replace(layout, placement=tuple(int(gpu) for gpu in gpus))
    return Seat(request, allocation, seated, job_of(request, cluster, seated))


def job_of(request: Request, cluster: Cluster, layout: Layout) -> Job:
    """Compute and phases of a step, with what each phase puts on the uplinks of every leaf and pod."""
    priced = price_model(request.model, request.workload, LayoutBatch.of([layout]), cluster)
    step = step_of(priced)
    gpus = np.asarray(layout.placement, dtype=np.int64)
    found = loads(cluster.fabric, demands(priced), gpus)
    mean = {name: sum(rank[name] for rank in step.phases) / len(step.phases) for name in PHASES}
    phases = []
    for name in dict.fromkeys(axis.demand.phase for axis in found.axes):
        own = [axis for axis in found.axes if axis.demand.phase == name]
        nbytes = np.sum([np.concatenate([axis.leaf_out, axis.pod_out]) for axis in own], axis=0)
        exposed, hidden = mean.get(name, 0.0), step.hidden_comm_s.get(name, 0.0)
        if exposed + hidden > 0.0:
            phases.append(Phase(name, exposed, hidden, nbytes))
    compute = max(step.step_s.mid - sum(phase.exposed_s for phase in phases), 0.0)
    # Gathers and reductions hide on streams of their own: together they may be longer than what they hide behind.
    fit = (replace(phase, hidden_s=min(phase.hidden_s, compute)) for phase in phases)
    return Job(request.name, compute, tuple(fit))


def side_by_side(seats: Sequence[Seat], cluster: Cluster, steps: int, seed: int) -> Shared:
    """Every job alone and beside the others."""
    fabric = cluster.fabric
    limits = capacities(fabric)
    leaves, pods = -(-fabric.nodes // fabric.leaf_span), -(-fabric.nodes // (fabric.pod_nodes or fabric.nodes))
    capacity = np.asarray([limits.get("leaf", np.inf)] * leaves + [limits.get("pod", np.inf)] * pods)
    names = tuple([f"leaf {i} uplinks" for i in range(leaves)] + [f"pod {i} uplinks" for i in range(pods)])
    jobs = [s.job for s in seats]
    alone = tuple(play([job], capacity, steps, seed)[0] for job in jobs)
    together = tuple(play(jobs, capacity, steps, seed))
    return Shared(tuple(seats), alone, together, names)


def better(requests: Sequence[Request], cluster: Cluster, given: Shared, steps: int, seed: int) -> Shared | None:
    """The jobs on leaves of their own with their ranks placed, where that is faster in the mean; else None.

    Compared by the mean over jobs of the step beside the others, each relative to its step on the given nodes.
    """
    free = [replace(request, layout=replace(request.layout, placement=())) for request in requests]
    options = [own_leaves(free, cluster), tuple(s.allocation for s in given.seats)]
    best, least = None, 1.0 / GAIN
    for nodes in options:
        if any(len(have.nodes) < r.nodes(cluster) for have, r in zip(nodes, free, strict=True)):
            continue
        seats = [seat(r, cluster, have, chosen=True) for r, have in zip(free, nodes, strict=True)]
        found = side_by_side(seats, cluster, steps, seed)
        ratio = float(np.mean([a / b for a, b in zip(found.together_s, given.together_s, strict=True)]))
        if ratio < least:
            best, least = found, ratio
    return best
