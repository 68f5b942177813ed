"""The step of an arrangement: every kind of replica through the engine, and what they wait for one another.

Replicas meet where gradients are reduced, and before the optimizer. A reduction starts when the last of them has its
gradients. Times of a DAG are maxima of sums, and the reductions of a stage take the same seconds for all replicas,
so the last end of them over all replicas is the largest of the ends that each kind alone would have:
``max_k (max(e_k, r_k) + d) = max(max_k e_k, max_k r_k) + d``. The step ends with the latest meeting before the
optimizer, plus the longest optimizer and gather behind it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hwmodels.cluster import Cluster
from hwmodels.errors import InputError
from hwmodels.kernels.formats import format_of
from hwmodels.records import dataclass
from planner import power
from planner.evaluate import (
    hidden_seconds,
    host_notes,
    host_short,
    overlapped_seconds,
    phase_seconds,
    serial_seconds,
    stage_memory,
    worst,
)
from planner.explain import explain_rows
from planner.flops import formula_of, hardware_flops, model_flops
from planner.layout import RuleContext
from planner.layout import faults as layout_faults
from planner.memory import OUT
from planner.mixed.arrangement import Arrangement, Replicas, faults
from planner.mixed.pricing import Crossing, Piece, Pieces, crossed, joined
from planner.model.spec import ModelSpec
from planner.notes import memory_notes, notes
from planner.plan import Workload
from planner.precision import recipe_of
from planner.results import Interval, LinkBytes, StageMemory, Step, TimelineEvent
from planner.simulate import timeline
from planner.simulate.costs import StageCosts
from planner.simulate.dag import Dag, NodeKind, build_dag, durations
from planner.simulate.maxplus import simulate, step_seconds
from planner.simulate.timing import Timing
from planner.step.intervals import interval, shifted
from planner.step.link_traffic import link_traffic
from planner.step.single import Single

FloatArray = NDArray[np.float64]
UNIFORM_RULES = frozenset(
    {"world-product", "gbs-microbatch", "interleave-rounds", "schedule-microbatches", "step-length"}
)
"""Rules of a layout about equal shares on a whole cluster, which an arrangement states rank by rank."""


@dataclass(frozen=True, slots=True, eq=False)
class Kind:
    """One kind of replica, priced."""

    replicas: Replicas
    pieces: list[Piece]
    one: Single
    crossing: Crossing
    dag: Dag

    @property
    def costs(self) -> StageCosts:
        """Durations of its nodes."""
        return self.one.costs

    def seconds(self) -> float:
        """Of a step in which nobody is slower."""
        return float(step_seconds(self.dag, durations(self.dag, self.costs))[0])

    def memory(self) -> list[StageMemory]:
        """Of each pipeline rank, with what its own device has."""
        whole = {piece: stage_memory(piece.memory, piece.cluster) for piece in dict.fromkeys(self.pieces)}
        return [whole[piece][rank] for rank, piece in enumerate(self.pieces)]

    def meeting(self, timing: Timing) -> float:
        """When its ranks are ready for the optimizer, the norm of the gradients included."""
        return float(timing.end[0, self.dag.kind == NodeKind.SYNC].max())


@dataclass(frozen=True, slots=True, eq=False)
class Mixture:
    """An arrangement whose kinds of replicas are priced."""

    arrangement: Arrangement
    kinds: list[Kind]
    pieces: Pieces

    def seconds(self, run: Callable[[Kind], Timing] | None = None) -> tuple[float, int, list[Timing]]:
        """Step seconds, the kind that the others wait for, and the timing of each.

        Parameters
        ----------
        run : callable or None
            Engine that times a kind; the deterministic one unless given.
        """
        play = run or (lambda kind: simulate(kind.dag, durations(kind.dag, kind.costs)))
        timings = [play(kind) for kind in self.kinds]
        met = [kind.meeting(timing) for kind, timing in zip(self.kinds, timings, strict=True)]
        behind = [float(timing.step_s[0]) - at for timing, at in zip(timings, met, strict=True)]
        last = int(np.argmax(met))
        if behind[last] >= max(behind):  # its own end, bit by bit
            return float(timings[last].step_s[0]), last, timings
        return met[last] + max(behind), last, timings


def full_ranks(
    pieces: Pieces, arrangement: Arrangement, headroom: float, base: int | None = None
) -> dict[int, float]:
    """Pipeline ranks that do not leave that share of their own device free, with what they need over what they may.

    Nothing is timed for it, and what is found on one kind of replica is told before others are sized.
    """
    for each in arrangement.replicas:
        ranks = pieces.of(arrangement, each, base)
        for sized in dict.fromkeys(ranks):
            found: dict[int, float] = {}
            for rank, piece in enumerate(ranks):
                if piece is sized:
                    room = piece.cluster.device.memory_bytes * (1.0 - headroom)
                    need = float(piece.memory.peak_bytes[0, rank]) / room
                    found |= {rank: need} if need > 1.0 else {}
            if found:
                return found
    return {}


def mixture(pieces: Pieces, arrangement: Arrangement, base: int | None = None) -> Mixture:
    """Price the kinds of replicas of an arrangement.

    Parameters
    ----------
    base : int or None
        As `planner.mixed.pricing.Pieces.piece`.
    """
    kinds = [priced_kind(pieces, arrangement, each, base) for each in arrangement.replicas]
    return Mixture(arrangement, kinds, pieces)


def priced_kind(pieces: Pieces, arrangement: Arrangement, each: Replicas, base: int | None = None) -> Kind:
    """One kind of replica of an arrangement; its micro-batches need not be those that the arrangement states."""
    found = pieces.of(arrangement, each, base)
    one, crossing = crossed(pieces, arrangement, each, found, joined(found))
    dag = build_dag(one.schedule, one.pp, each.microbatches, one.vpp, one.comm)
    return Kind(each, found, one, crossing, dag)


def predict(
    model: ModelSpec,
    cluster: Cluster,
    workload: Workload,
    arrangement: Arrangement,
    *,
    with_timeline: bool = False,
    explain: bool = False,
) -> Step:
    """Predict time and memory of one step of an arrangement; explained op by op for each pool that it uses.

    Raises
    ------
    hwmodels.errors.InputError
        With every rule that its layout breaks, and everything that it asks of the pools and they do not have.
    """
    check(model, cluster, workload, arrangement)
    mix = mixture(Pieces(model, cluster, workload), arrangement)
    step = step_of(mix, with_timeline=with_timeline)
    if explain:
        for piece in {piece.pool: piece for kind in mix.kinds for piece in kind.pieces}.values():
            name = cluster.pools[piece.pool].label
            rows = explain_rows(piece.priced, piece.group)
            step.explain.extend({**row, "source": f"{name}: {row['source']}"} for row in rows)
    return step


def check(model: ModelSpec, cluster: Cluster, workload: Workload, arrangement: Arrangement) -> None:
    """Raise `InputError` with all that an arrangement breaks."""
    layout = arrangement.layout
    found = [
        fault
        for fault in layout_faults(layout, RuleContext.of(model, workload, layout.world), "layout")
        if fault.rule not in UNIFORM_RULES
    ]
    found += faults(arrangement, cluster, workload.gbs)
    if not found:
        each_pool = {
            (pool, arrangement.sharers(cluster, stage, pool), each.microbatches)
            for each in arrangement.replicas
            for stage, pool in enumerate(each.pools)
        }
        for pool, dp, microbatches in sorted(each_pool):
            own, batch = replace(layout, dp=dp), replace(workload, gbs=dp * layout.mbs * microbatches)
            where, context = f"layout on {cluster.pools[pool].label}", RuleContext.of(model, batch, own.world)
            broken = [fault for fault in layout_faults(own, context, where) if fault.rule != "zero-needs-dp"]
            found += [fault for fault in broken if fault not in found]
    if found:
        raise InputError(found)


def step_of(mix: Mixture, *, with_timeline: bool = False) -> Step:
    """The full `Step`; phases, timeline and hidden transfers are those of the kind that the others wait for."""
    arrangement, pieces = mix.arrangement, mix.pieces
    layout, cluster, work = arrangement.layout, pieces.cluster, pieces.workload
    mid, last, timings = mix.seconds()
    kind = mix.kinds[last]
    spent = _phases(mix, timings, mid)
    first = kind.pieces[0]
    low, own, high = interval(step_seconds(kind.dag, durations(kind.dag, shifted(kind.costs, kind.one.spreads, 0))))
    seconds = Interval(low * mid / own, mid, high * mid / own)
    formula = formula_of(work)
    flops = model_flops(pieces.model, work, formula)
    hardware = hardware_flops(pieces.model, work, layout, formula)
    dtype = recipe_of(work, first.priced.preset).forward
    peaks = {
        pool: cluster.pools[pool].device.peak(format_of(dtype).peak) * gpus for pool, gpus in arrangement.gpus.items()
    }
    tokens = work.gbs * work.tokens_per_sequence
    joules = _joules(mix, spent, mid, hardware, peaks, dtype)
    kwh, co2 = power.per_mtoken(joules, tokens)
    memory = _memory(mix)
    short = any(host_short(piece.memory, piece.cluster) for each in mix.kinds for piece in each.pieces)
    every = [row for rows in spent for row in rows]
    return Step(
        step_s=seconds,
        lower_bound_s=min(mid, max(overlapped_seconds(k.one) for k in mix.kinds)),
        upper_bound_s=max(mid, *(serial_seconds(k.one) for k in mix.kinds)),
        phases=spent[last],
        hidden_comm_s=hidden_seconds(kind.one, timeline.hidden_seconds(kind.dag, timings[last], 0)),
        bubble_fraction=_bubble(mix, spent, mid) if len(mix.kinds) > 1 else (
            sum(row["bubble"] for row in every) / (len(every) * mid)
        ),
        memory=memory,
        model_flops=flops,
        hardware_flops=hardware,
        mfu=flops / mid / sum(peaks.values()),
        hfu=hardware / mid / sum(peaks.values()),
        tokens_per_s_per_gpu=tokens / mid / layout.world,
        usd_per_mtoken=usd_per_mtoken(mix, mid),
        verdict=OUT if short else worst(memory),
        timeline=bars(mix, timings) if with_timeline else [],
        notes=_notes(mix, spent, mid, memory),
        energy_kwh_per_mtoken=kwh,
        co2_kg_per_mtoken=co2,
        traffic=_traffic(mix),
    )  # fmt: skip


def _phases(mix: Mixture, timings: list[Timing], step_s: float) -> list[list[dict[str, float]]]:
    """Seconds by phase of every pipeline rank of every kind; a kind that waits for another one waits in a bubble."""
    found = []
    for kind, timing in zip(mix.kinds, timings, strict=True):
        rows = phase_seconds(kind.one, timeline.phases(kind.dag, timing, 0))
        for row in rows:
            row["bubble"] += max(step_s - float(timing.step_s[0]), 0.0)
        found.append(rows)
    return found


def _bubble(mix: Mixture, spent: list[list[dict[str, float]]], step_s: float) -> float:
    """Share of the step in the phase ``bubble``, mean over the ranks of all replicas."""
    weights = [kind.replicas.count for kind in mix.kinds]
    means = [sum(row["bubble"] for row in rows) / len(rows) for rows in spent]
    return sum(w * m for w, m in zip(weights, means, strict=True)) / sum(weights) / step_s


def _memory(mix: Mixture) -> list[StageMemory]:
    """Of each pipeline rank, that of the replica whose device has the least room for it."""
    each = [kind.memory() for kind in mix.kinds]
    return [max(stages, key=lambda m: m.peak_bytes / m.capacity_bytes) for stages in zip(*each, strict=True)]


def _joules(
    mix: Mixture, spent: list[list[dict[str, float]]], step_s: float, hardware: float, peaks: dict[int, float],
    dtype: str,
) -> float | None:  # fmt: skip
    """Of all pools, each by its own device's power, phases and share of the FLOPs."""
    cluster, ranks = mix.pieces.cluster, mix.arrangement.stage_ranks
    rows: dict[int, list[dict[str, float]]] = {pool: [] for pool in peaks}
    done = dict.fromkeys(peaks, 0.0)
    for kind, phases in zip(mix.kinds, spent, strict=True):
        each = kind.one.flops[0]
        for rank, pool in enumerate(kind.replicas.pools):
            rows[pool] += [phases[rank]] * kind.replicas.count
            done[pool] += float(each[rank]) * kind.replicas.microbatches * kind.replicas.count * ranks
    total = sum(done.values())
    found = [
        power.step_joules(
            cluster.pools[pool].device, rows[pool], step_s, hardware * (done[pool] / total), peaks[pool],
            mix.arrangement.gpus[pool], dtype,
        )
        for pool in peaks
    ]  # fmt: skip
    known = [joules for joules in found if joules is not None]
    return sum(known) if len(known) == len(found) else None


def usd_per_mtoken(mix: Mixture, step_s: float) -> float | None:
    """Dollars for a million tokens: GPUs of each pool at its price, and what crosses charged links."""
    cluster, work = mix.pieces.cluster, mix.pieces.workload
    an_hour = 0.0
    for pool, gpus in mix.arrangement.gpus.items():
        price = cluster.pools[pool].usd_per_gpu_hour or cluster.usd_per_gpu_hour
        if price is None:
            return None
        an_hour += float(price.value) * gpus
    charged = max((kind.crossing.usd for kind in mix.kinds if kind.crossing.nbytes["dp_comm"] > 0), default=0.0)
    if not charged:
        charged = sum(kind.crossing.usd for kind in mix.kinds)
    return (an_hour / 3600.0 * step_s + charged) / (work.gbs * work.tokens_per_sequence) * 1e6


def _traffic(mix: Mixture) -> dict[str, LinkBytes]:
    """Bytes that a GPU sends by phase, mean over all ranks; what crosses between fabrics is between nodes."""
    world, ranks = mix.arrangement.layout.world, mix.arrangement.stage_ranks
    sums: dict[str, list[float]] = {}
    for kind in mix.kinds:
        weight = kind.replicas.count * ranks / world
        for piece in dict.fromkeys(kind.pieces):
            times = weight * kind.pieces.count(piece)
            for phase, sent in link_traffic(piece.priced, piece.group, 0).items():
                both = sums.setdefault(phase, [0.0, 0.0])
                both[0] += times * sent.intra_node
                both[1] += times * sent.inter_node
    far = {"pp_comm": sum(k.crossing.nbytes["pp_comm"] for k in mix.kinds),
           "dp_comm": max(k.crossing.nbytes["dp_comm"] for k in mix.kinds)}  # fmt: skip
    for phase, nbytes in far.items():
        if nbytes:
            sums.setdefault(phase, [0.0, 0.0])[1] += nbytes / world
    return {phase: LinkBytes(*both) for phase, both in sums.items()}


def bars(mix: Mixture, timings: list[Timing]) -> list[TimelineEvent]:
    """Bars of one replica of every kind, those of the second kind as ranks behind those of the first."""
    found = []
    for i, (kind, timing) in enumerate(zip(mix.kinds, timings, strict=True)):
        shift = i * mix.arrangement.layout.pp
        found += [replace(bar, rank=bar.rank + shift) for bar in timeline.events(kind.dag, timing, 0)]
    return found


def _notes(mix: Mixture, spent: list[list[dict[str, float]]], step_s: float, memory: list[StageMemory]) -> list[str]:
    """What each pool's prices rest on, each once, and what nobody has measured."""
    found: list[str] = []
    exchange = max(row["ep_comm"] for rows in spent for row in rows) / step_s
    seen: dict[int, Piece] = {piece.pool: piece for kind in mix.kinds for piece in kind.pieces}
    for piece in seen.values():
        layout = piece.priced.layouts.layout(0)
        found += notes(piece.priced, layout, exchange)
        found += memory_notes(piece.priced, layout, memory)
        found += host_notes(piece.memory, piece.cluster)
    if len(seen) > 1 and mix.pieces.cluster.mixed:
        found.append(
            "pools of unlike devices: each rank by the prices of its own pool, transfers between fabrics by the "
            "collective laws on the link between them. No measured step of such a cluster"
        )
    if len({kind.replicas.microbatches for kind in mix.kinds}) > 1:
        found.append("unequal shares of the batch: gradients weigh by tokens, not by replicas. No measured step")
    return list(dict.fromkeys(found))

