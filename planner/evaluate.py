"""evaluate: assembled groups -> exact step times, and the full `Step` of single layouts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

import numpy as np
from numpy.typing import NDArray

from hwmodels import host as hosts
from hwmodels.cluster import Cluster
from hwmodels.distinct import distinct
from hwmodels.kernels.formats import format_of
from hwmodels.units import format_bytes
from planner import power
from planner.flops import formula_of, hardware_flops, model_flops
from planner.layout import Layout
from planner.memory import AT_RISK, FITS, OUT, MemoryEstimate, verdict
from planner.notes import memory_notes, notes, storage_notes
from planner.played import Played, played, serial_plan
from planner.precision import recipe_of
from planner.priced import PricedModel
from planner.results import PHASES, Interval, StageMemory, Step
from planner.schedule import get as get_schedule
from planner.simulate import timeline
from planner.simulate.bound import bound, lower_bound
from planner.simulate.dag import build_dag, durations
from planner.simulate.maxplus import step_seconds
from planner.step.assemble import Group, group_memory
from planner.step.link_traffic import link_traffic
from planner.step.single import Single

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


def bounds(group: Group, positions: IntArray | None = None) -> FloatArray:
    """Lower bound on the step time of the layouts at `positions` of a group (all unless given): ndarray (b,)."""
    positions = np.arange(len(group.index)) if positions is None else positions
    place = group.durations.micro.place
    return bound(place, group.microbatches[positions], group.durations.folded(positions), group.comm)


def exact_seconds(group: Group, positions: IntArray) -> FloatArray:
    """Step seconds of the layouts at `positions` of a group, timed by the max-plus engine."""
    result = np.empty(len(positions))
    counts = group.microbatches[positions]
    for m in distinct(counts):
        chosen = counts == m
        dag = build_dag(group.schedule, group.pp, int(m), group.vpp, group.comm)
        result[chosen] = step_seconds(dag, durations(dag, group.durations.costs(positions[chosen])))
    return result


def detail(
    priced: PricedModel, group: Group, position: int, sized: MemoryEstimate, *, with_timeline: bool = False
) -> Step:
    """The full `Step` of one layout.

    Parameters
    ----------
    position : int
        Position in the group.
    sized : MemoryEstimate
        Memory of this layout alone.
    with_timeline : bool
        Also fill `Step.timeline`.
    """
    one = group.single(position)
    (memory,) = stages_memory(sized, priced.cluster)
    return _step(priced, group, position, one, played([one])[0], memory, _host_bytes(sized, priced.cluster)[0],
                 with_timeline=with_timeline)  # fmt: skip


def details(asked: Sequence[tuple[PricedModel, Group, int]]) -> list[Step]:
    """The full `Step` of layouts, each a position of a group.

    What is alike is done once: layouts of one graph are timed together, those that share prices and a pipeline are
    sized together.
    """
    memories: dict[int, tuple[list[StageMemory], float]] = {}
    shapes: dict[tuple[int, int, int, str], list[int]] = {}
    for i, (priced, group, _) in enumerate(asked):
        shapes.setdefault((id(priced), group.pp, group.vpp, group.schedule), []).append(i)
    for (_, pp, vpp, schedule), places in shapes.items():
        priced = asked[places[0]][0]
        index = np.asarray([asked[i][1].index[asked[i][2]] for i in places])
        sized = group_memory(priced, index, pp, vpp, schedule)
        each = zip(stages_memory(sized, priced.cluster), _host_bytes(sized, priced.cluster), strict=True)
        memories.update(zip(places, each, strict=True))
    ones = [group.single(position) for _, group, position in asked]
    return [
        _step(*one, single, run, *memories[i])
        for i, (one, single, run) in enumerate(zip(asked, ones, played(ones), strict=True))
    ]


def _step(
    priced: PricedModel, group: Group, position: int, one: Single, run: Played, memory: list[StageMemory],
    host_bytes: float, *, with_timeline: bool = False,
) -> Step:  # fmt: skip
    """The `Step` of a layout that has been timed and sized; `host_bytes` lie in the host memory of a node."""
    layout, dag, timing, seconds = group.layouts.layout(position), run.dag, run.timing, run.step_s
    phases = phase_seconds(one, timeline.phases(dag, timing, 0))
    workload, cluster = priced.workload, priced.cluster
    formula = formula_of(workload)
    flops = model_flops(priced.model, workload, formula)
    hardware = hardware_flops(priced.model, workload, layout, formula)
    dtype = recipe_of(workload, priced.preset).forward
    peak = cluster.device.peak(format_of(dtype).peak) * layout.world
    tokens = workload.gbs * workload.tokens_per_sequence
    joules = power.step_joules(cluster.device, phases, seconds, hardware, peak, layout.world, dtype)
    kwh, co2 = power.per_mtoken(joules, tokens)
    return Step(
        step_s=Interval(run.low_s, seconds, run.high_s),
        lower_bound_s=min(overlapped_seconds(one), seconds),
        upper_bound_s=max(seconds, unhidden(one, run.serial_s)),
        phases=phases,
        hidden_comm_s=hidden_seconds(one, timeline.hidden_seconds(dag, timing, 0)),
        bubble_fraction=sum(p["bubble"] for p in phases) / (len(phases) * seconds),
        memory=memory,
        model_flops=flops,
        hardware_flops=hardware,
        mfu=flops / seconds / peak,
        hfu=hardware / seconds / peak,
        tokens_per_s_per_gpu=tokens / seconds / layout.world,
        usd_per_mtoken=cost(cluster, layout, tokens / seconds),
        verdict=OUT if _too_much(host_bytes, cluster) else worst(memory),
        timeline=timeline.events(dag, timing, 0) if with_timeline else [],
        notes=[
            *notes(priced, layout, max(p["ep_comm"] for p in phases) / seconds),
            *memory_notes(priced, layout, memory),
            *_host_notes(host_bytes, cluster),
            *storage_notes(priced, layout, seconds),
        ],
        energy_kwh_per_mtoken=kwh,
        co2_kg_per_mtoken=co2,
        traffic=link_traffic(priced, group, position),
    )


def stage_memory(sized: MemoryEstimate, cluster: Cluster) -> list[StageMemory]:
    """Memory of each rank of the only layout of `sized`."""
    return stages_memory(sized, cluster)[0]


def stages_memory(sized: MemoryEstimate, cluster: Cluster) -> list[list[StageMemory]]:
    """Memory of each rank of every layout of `sized`."""
    categories, print_, names = sized.by_category, sized.footprint, sized.moment_names
    sums = {name: np.asarray(sum(parts.values())) for name, parts in sized.by_moment.items()}
    return [
        [
            StageMemory(
                rank,
                {k: int(v[i, rank]) for k, v in categories.items()},
                int(cluster.device.memory_bytes),
                name,
                {name: int(v[i, rank]) for name, v in sums.items()},
                Interval(*(float(v[i, rank]) for v in (print_.low, print_.mid, print_.high))),
            )
            for rank, name in enumerate(of_layout)
        ]
        for i, of_layout in enumerate(names)
    ]


def host_short(sized: MemoryEstimate, cluster: Cluster) -> bool:
    """Whether the host of a node, where its memory is stated, is too small for what the only layout has there."""
    return _too_much(_host_bytes(sized, cluster)[0], cluster)


def host_notes(sized: MemoryEstimate, cluster: Cluster) -> list[str]:
    """What the only layout has in host memory, whether it fits, and what the way there stands on."""
    return _host_notes(_host_bytes(sized, cluster)[0], cluster)


def _host_bytes(sized: MemoryEstimate, cluster: Cluster) -> list[float]:
    """Bytes in the host memory of a node whose ranks are all like the one with most, by layout."""
    return [most * cluster.gpus_per_node for most in sized.host.max(axis=1).tolist()]


def _too_much(need: float, cluster: Cluster) -> bool:
    return cluster.host_memory_bytes is not None and need > cluster.host_memory_bytes


def _host_notes(need: float, cluster: Cluster) -> list[str]:
    if not need:
        return []
    room = cluster.host_memory_bytes
    fits = "the cluster does not state the host's memory" if room is None else f"of {format_bytes(room)}"
    short = " [host-memory]: too little; offload less, or shard over more ranks" if _too_much(need, cluster) else ""
    return [
        f"host memory: {format_bytes(need)} a node ({fits}){short}",
        f"host link: {hosts.of(cluster).source}. No measured evidence for offloading",
    ]


def worst(memory: list[StageMemory]) -> str:
    """The verdict of the rank that is worst off."""
    found = [verdict(m.interval.low, m.interval.high, m.capacity_bytes) for m in memory if m.interval is not None]
    return max(found, key=(FITS, AT_RISK, OUT).index, default=FITS)


def cost(cluster: Cluster, layout: Layout, tokens_per_s: float) -> float | None:
    """Dollars per million tokens, or None where the cluster has no price."""
    if cluster.usd_per_gpu_hour is None:
        return None
    return float(cluster.usd_per_gpu_hour.value) * layout.world / 3600.0 / tokens_per_s * 1e6


def phase_seconds(one: Single, simulated: list[dict[str, float]]) -> list[dict[str, float]]:
    """Seconds of every phase for each pipeline rank; they add up to the step time.

    `simulated` holds the forward and backward nodes and what the compute stream waited for. The
    nodes are split by the prices of a micro-batch; what overlapped traffic took from them on
    top is dp_comm.
    """
    found = []
    for rank, seen in enumerate(simulated):
        row = dict.fromkeys(PHASES, 0.0)
        row.update({name: seconds for name, seconds in seen.items() if name not in ("forward", "backward")})
        priced = {n: float(v[0, rank]) * one.microbatches for n, v in one.parts.items()}
        for name, seconds in priced.items():
            row[name] += seconds
        row["dp_comm"] += max(seen["forward"] + seen["backward"] - sum(priced.values()), 0.0)
        found.append(row)
    return found


def hidden_seconds(one: Single, transfers: list[dict[str, float]]) -> dict[str, float]:
    """Seconds of communication behind compute, by phase, on the rank that hides most of each.

    `transfers` are those of the pipeline and data-parallel streams; collectives inside a
    micro-batch are added from their prices.
    """
    hidden = {name: float(v[0].max()) * one.microbatches for name, v in one.hidden.items()}
    for name in ("pp_comm", "dp_comm"):
        hidden[name] = max(t[name] for t in transfers)
    return hidden


def overlapped_seconds(one: Single) -> float:
    """Step seconds with every transfer hidden: what compute alone takes through the pipeline, or the transfers alone.

    The bound of `planner.simulate.bound` over the nodes of each rank, cut to the kernels of a micro-batch (a node
    holds exposed collectives, and what traffic beside it takes from it); no less than the collectives of a
    micro-batch of a rank (one stream each kind), its gathers, or its reductions.
    """
    count, comm, costs, parts, inside = one.microbatches, one.comm, one.costs, one.parts, one.hidden
    kept = ("forward_s", "backward_input_s", "backward_weight_s", "optimizer_s", "step_s")
    kernels = np.asarray(sum(v[0] for n, v in parts.items() if not n.endswith("_comm")))
    nodes = np.asarray(sum(getattr(costs, name).sum(axis=(0, 2, 3)) for name in kept[:3]))
    share = (kernels * get_schedule(one.schedule).directions / np.maximum(nodes, 1e-30))[None, :, None, None]
    moved = {f.name: np.zeros_like(getattr(costs, f.name)) for f in fields(costs) if f.name not in kept}
    alone = replace(costs, **moved, **{name: getattr(costs, name) * share for name in kept[:3]})
    compute = float(lower_bound(one.schedule, one.pp, count, one.vpp, alone, comm)[0])
    streams = [
        (parts[name][0] + inside.get(name, np.zeros_like(parts[name]))[0]).max() * count
        for name in parts
        if name.endswith("_comm")
    ]
    gathers = float(costs.unshard_s.sum(axis=(2, 3)).max()) * (2 * count if comm.unshard == "each" else 1)
    reductions = float(costs.reduce_s.sum(axis=(2, 3)).max()) * (count if comm.reduce == "each" else 1)
    return max(compute, gathers, reductions, *map(float, streams))


def serial_seconds(one: Single) -> float:
    """Step seconds with nothing overlapped, through the same engine.

    Collectives beside GEMMs, gathers, sends and reductions all hold up the compute stream;
    reductions after every micro-batch follow one another at the end.
    """
    dag = build_dag(one.schedule, one.pp, one.microbatches, one.vpp, serial_plan(one.comm))
    return unhidden(one, float(step_seconds(dag, durations(dag, one.costs))[0]))


def unhidden(one: Single, seconds: float) -> float:
    """Seconds of the serial graph with what no graph has: collectives beside GEMMs, and the reductions after all
    micro-batches but the last.
    """
    hidden = sum(float(v[0].max()) for v in one.hidden.values()) * one.microbatches
    repeats = one.microbatches - 1 if one.comm.reduce == "each" else 0
    return seconds + hidden + repeats * float(one.costs.reduce_s.sum(axis=(2, 3)).max())
