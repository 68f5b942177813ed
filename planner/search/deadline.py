"""How many nodes a run needs to be done in time: the fewest of a cluster on which some layout is fast enough."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from hwmodels.cluster import Cluster
from hwmodels.errors import Fault, InfeasibleError, InputError
from hwmodels.kernels.formats import format_of
from hwmodels.pools import with_nodes
from hwmodels.units import format_duration, parse_duration
from planner.flops import formula_of, model_flops
from planner.frameworks import of as preset_of
from planner.layout import divisors
from planner.model.spec import ModelSpec
from planner.plan import Workload
from planner.precision import recipe_of
from planner.search.constraints import Constraint, parse
from planner.search.objectives import OBJECTIVES, require
from planner.search.question import Question
from planner.search.result import Row

Find = Callable[[Cluster, tuple[Constraint, ...]], Row | None]
"""The fastest row of a search on a cluster under further constraints, or None where there is none."""


@dataclass(frozen=True, slots=True)
class Tried:
    """One size: its nodes and ranks, and the seconds of the run there; None where it is too slow, or nothing fits."""

    nodes: int
    ranks: int
    train_s: float | None


@dataclass(frozen=True, slots=True)
class Deadline:
    """The answer.

    Attributes
    ----------
    cluster : Cluster
        The fewest nodes that are fast enough.
    row : Row
        The fastest layout on them.
    train_s : float
        Seconds of the run there.
    tried : tuple of Tried
        Every size that was searched, in the order of its ranks.
    least_nodes : int
        Fewer than these are too slow even at the peak of every GPU.
    """

    cluster: Cluster
    row: Row
    train_s: float
    tried: tuple[Tried, ...]
    least_nodes: int


def sizes(model: ModelSpec, cluster: Cluster, workload: Workload) -> list[int]:
    """Nodes up to those of the cluster whose ranks some layout divides: tp·cp·pp·dp with dp a divisor of gbs."""
    heads = min(model.tensor_counts())
    data = divisors(workload.gbs)
    found = []
    for nodes in range(1, cluster.nodes + 1):
        world = nodes * cluster.gpus_per_node
        if any(_pipelined(world, dp, heads, model.n_layers, workload.seq_len) for dp in data if world % dp == 0):
            found.append(nodes)
    return found


def _pipelined(world: int, dp: int, heads: int, layers: int, seq_len: int) -> bool:
    """Whether tp of the heads, cp of the sequence and pp of the layers make up what dp leaves of the ranks."""
    rest = world // dp
    return any(
        (rest // tp) % pp == 0 and seq_len % (rest // tp // pp) == 0
        for tp in divisors(heads, rest)
        if rest % tp == 0
        for pp in divisors(rest // tp, layers)
    )


def least_seconds(question: Question) -> float:
    """Seconds of a step in which every GPU computes the model's FLOPs at its peak, without attention's causal half."""
    workload = question.workload
    formula = replace(formula_of(workload), causal=True)
    flops = model_flops(question.model, workload, formula)
    peak = question.cluster.device.peak(format_of(recipe_of(workload, preset_of(workload)).forward).peak)
    return flops / (peak * question.cluster.n_ranks)


def fewest(question: Question, deadline_s: float, find: Find, tell: Callable[[str], None]) -> Deadline:
    """The fewest nodes of the cluster on which the run is done in time.

    Sizes are tried by halving the list of those that a layout divides, then every smaller one, since fewer ranks may
    be faster where they divide better: the answer is the fewest of all sizes, not of those on the way.

    Raises
    ------
    hwmodels.errors.InputError
        Where the tokens of the run are not said, or the cluster has several kinds of nodes.
    hwmodels.errors.InfeasibleError
        Where the whole cluster is too slow.
    """
    require([OBJECTIVES["train_time"]], question)
    cluster = question.cluster
    if len(cluster.pools) > 1:
        what, why = f"{cluster.name} has {len(cluster.pools)} pools", "which of them is to be smaller is not said"
        raise InputError(Fault(what, "--deadline", why, "a cluster of one pool"))
    limit = (parse(f"train_time <= {deadline_s:.17g}s", "--deadline"),)
    known = sizes(question.model, cluster, question.workload)
    whole = least_seconds(question) * cluster.nodes * question.steps
    least_nodes = max(1, int(-(-whole // deadline_s)))
    left = [nodes for nodes in known if nodes >= least_nodes]
    rows: dict[int, Row | None] = {}

    def meets(nodes: int) -> bool:
        if nodes not in rows:
            row = rows[nodes] = find(with_nodes(cluster, [nodes]), limit)
            said = "too slow" if row is None else f"done in {format_duration(row.step.step_s.mid * question.steps)}"
            tell(f"{nodes * cluster.gpus_per_node:,} GPUs: {said}")
        return rows[nodes] is not None

    for nodes in _halving(left, meets):
        meets(nodes)
    chosen = next(((nodes, row) for nodes, row in sorted(rows.items()) if row is not None), None)
    if chosen is None:
        raise _too_late(question, deadline_s, find, least_nodes)

    def seconds(row: Row | None) -> float | None:
        return None if row is None else row.step.step_s.mid * question.steps

    tried = tuple(Tried(n, n * cluster.gpus_per_node, seconds(row)) for n, row in sorted(rows.items()))
    best, row = chosen
    return Deadline(with_nodes(cluster, [best]), row, row.step.step_s.mid * question.steps, tried, least_nodes)


def _halving(left: list[int], meets: Callable[[int], bool]) -> Iterator[int]:
    """Sizes in the order in which they are tried, until every one below the fewest that is fast enough has been.

    From the largest downwards to one that is fast enough, then by halving what lies below it, then every smaller one:
    fewer ranks may be faster where they divide better.
    """
    last = next((i for i in reversed(range(len(left))) if meets(left[i])), None)
    if last is None:
        return
    low, high = -1, last
    while high - low > 1:
        middle = (low + high) // 2
        yield left[middle]
        low, high = (low, middle) if meets(left[middle]) else (middle, high)
    yield from reversed(left[:high])


def _too_late(question: Question, deadline_s: float, find: Find, least_nodes: int) -> InfeasibleError:
    """The error for a cluster that is too slow as a whole."""
    cluster = question.cluster
    row = find(cluster, ())
    asked = (
        f"{cluster.n_ranks:,} GPUs of {cluster.name} do not train {question.model.name} on "
        f"{question.target.tokens:,.0f} tokens in {format_duration(deadline_s)}."
    )
    if row is None:
        return InfeasibleError(asked, "no layout fits the cluster", "a larger cluster")
    seconds = row.step.step_s.mid * question.steps
    binding = f"the fastest layout, {row.layout.label()}, takes {format_duration(seconds)}"
    need = max(least_nodes, cluster.nodes + 1) * cluster.gpus_per_node
    scaled = int(-(-cluster.n_ranks * seconds // deadline_s))
    return InfeasibleError(
        asked, binding, f"a deadline of {_no_shorter(seconds)}, or about {max(scaled, need):,} GPUs"
    )


def _no_shorter(seconds: float) -> str:
    """A duration as it is shown, rounded upwards: so told it can be met."""
    factor = 1.0
    while parse_duration(text := format_duration(seconds * factor)) < seconds:
        factor += 5e-4
    return text
