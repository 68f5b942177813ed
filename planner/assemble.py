"""assemble: priced blocks -> the durations of every node of a step (`StageCosts`).

Layouts are grouped by what shapes their DAG (pp, vpp, schedule, ZeRO class, sharing); a group
is one batch from lowering to simulation. Blocks are priced once for each distinct
(tp, sp, cp, mbs, ep, etp), since nothing else changes what one micro-batch runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hwmodels import collectives, kernels
from hwmodels.cluster import Cluster
from hwmodels.topology import GroupShape
from planner.data_parallel import DataParallelCosts, comm_plan, data_parallel_costs
from planner.layout import SCHEDULES, LayoutBatch
from planner.memory import MemoryEstimate, memory
from planner.model.spec import ModelSpec
from planner.plan import Workload
from planner.presets import FrameworkPreset
from planner.presets import get as get_preset
from planner.price import COMM_GROUPS, BlockPrice, PassPrice, price_block
from planner.simulate.costs import CommPlan, StageCosts
from planner.stages import over_stages
from planner.state import OPTIMIZER_STATES
from planner.workload.lower import Lowered, lower
from planner.workload.op import BYTES, Block

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BLOCK_KEYS = ("tp", "sp", "cp", "mbs", "ep", "etp")


@dataclass(frozen=True, slots=True, eq=False)
class PricedModel:
    """A model's blocks priced for the distinct block keys of many layouts.

    Attributes
    ----------
    inverse : ndarray (n,)
        Position of each layout in the distinct rows.
    lowered, embedding, layers, head
        The blocks and their prices over the distinct rows.
    """

    model: ModelSpec
    workload: Workload
    cluster: Cluster
    preset: FrameworkPreset
    layouts: LayoutBatch
    inverse: IntArray
    lowered: Lowered
    embedding: BlockPrice
    layers: tuple[BlockPrice, ...]
    head: BlockPrice


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Layouts that share a DAG shape (micro-batches apart), with their costs and memory.

    Attributes
    ----------
    index : ndarray (b,)
        Positions in the batch that was assembled.
    parts : dict of str to ndarray (b, pp)
        Seconds a micro-batch of each rank by phase (forward, backward, recompute, tp_comm,
        cp_comm, ep_comm), host time in `host`; they add up to the compute nodes' durations.
    hidden : dict of str to ndarray (b, pp)
        Seconds a micro-batch hidden behind compute, by phase.
    spread : ndarray (b,)
        Relative spread of the step time.
    flops : ndarray (b, pp)
        FLOPs a micro-batch executed by a rank, recomputation included.
    """

    index: IntArray
    layouts: LayoutBatch
    pp: int
    vpp: int
    schedule: str
    microbatches: IntArray
    comm: CommPlan
    costs: StageCosts
    parts: dict[str, FloatArray]
    hidden: dict[str, FloatArray]
    spread: FloatArray
    flops: FloatArray


def price_model(model: ModelSpec, workload: Workload, layouts: LayoutBatch, cluster: Cluster) -> PricedModel:
    """Lower and price the blocks of one micro-batch for all `layouts` (shape (n,))."""
    preset = get_preset(workload.framework)
    keys = np.stack([getattr(layouts, k) for k in BLOCK_KEYS], axis=1)
    _, first, inverse = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    distinct = layouts.take(first)
    lowered = lower(model, workload, distinct, preset)

    def price(block: Block) -> BlockPrice:
        return price_block(block, cluster, distinct, preset)

    return PricedModel(
        model,
        workload,
        cluster,
        preset,
        layouts,
        inverse.reshape(-1),
        lowered,
        price(lowered.embedding),
        tuple(price(b) for b in lowered.layers),
        price(lowered.head),
    )


def dag_groups(priced: PricedModel, index: IntArray) -> Iterator[tuple[IntArray, int, int, str, int, bool]]:
    """Split positions `index` into runs that share (pp, vpp, schedule, ZeRO class, sharing)."""
    sub = priced.layouts.take(index)
    sharing = (sub.dp * sub.cp > 1).astype(np.int64)
    zero = np.where(sharing == 1, sub.zero_stage, 0)
    keys = np.stack([sub.pp, sub.vpp, sub.schedule, zero, sharing], axis=1)
    unique, inverse = np.unique(keys, axis=0, return_inverse=True)
    inverse = inverse.reshape(-1)
    for i, (pp, vpp, schedule, stage, shares) in enumerate(unique):
        yield index[inverse == i], int(pp), int(vpp), SCHEDULES[int(schedule)], int(stage), bool(shares)


def lowered_for(priced: PricedModel, index: IntArray) -> Lowered:
    """The lowered blocks with sizes picked for the layouts at `index` (bytes only)."""
    rows = priced.inverse[index]
    n = len(priced.lowered.boundary_bytes.reshape(-1)) if np.ndim(priced.lowered.boundary_bytes) else 0

    def pick(array: FloatArray) -> FloatArray:
        return np.asarray(array[rows]) if np.ndim(array) and n else np.broadcast_to(array, rows.shape)

    def block(b: Block) -> Block:
        return Block(
            b.name,
            (),
            pick(b.saved_bytes),
            pick(b.saved_selective_bytes),
            pick(b.saved_full_bytes),
            pick(b.logits_bytes),
        )

    low = priced.lowered
    return Lowered(block(low.embedding), tuple(block(b) for b in low.layers), block(low.head), pick(low.boundary_bytes))


def group_memory(priced: PricedModel, index: IntArray, pp: int, vpp: int, schedule: str) -> MemoryEstimate:
    """Memory of the layouts at `index`, which share (pp, vpp, schedule)."""
    return memory(
        priced.model,
        priced.workload,
        priced.layouts.take(index),
        priced.cluster,
        priced.preset,
        lowered_for(priced, index),
        pp,
        vpp,
        schedule,
    )


def assemble(
    priced: PricedModel, index: IntArray, pp: int, vpp: int, schedule: str, zero_stage: int, sharing: bool
) -> Group:
    """Durations of every node for the layouts at `index`, which share the rest of the arguments."""
    layouts = priced.layouts.take(index)
    rows = priced.inverse[index]
    preset, cluster, model = priced.preset, priced.cluster, priced.model
    comm = comm_plan(model, preset, pp, vpp, zero_stage, sharing)
    data = data_parallel_costs(model, priced.workload, layouts, cluster, preset, comm, pp, vpp, schedule, zero_stage)

    def staged(value: Callable[[BlockPrice], FloatArray]) -> FloatArray:
        return over_stages(
            model,
            pp,
            vpp,
            schedule,
            [value(b)[rows] for b in priced.layers],
            value(priced.embedding)[rows],
            value(priced.head)[rows],
        )

    full, selective = layouts.recompute == 2, layouts.recompute == 1

    def rerun(part: Callable[[PassPrice], FloatArray]) -> FloatArray:
        shape = (-1, 1, 1)
        return np.asarray(
            staged(lambda b: part(b.rerun_full)) * full.reshape(shape)
            + staged(lambda b: part(b.rerun_selective)) * selective.reshape(shape)
        )

    host = float(preset.microbatch_s.value)
    parts, hidden = _parts(staged, rerun)
    forward = staged(lambda b: b.forward.total_s) + host / vpp
    backward_input = staged(lambda b: b.backward_input.total_s) + rerun(lambda p: p.total_s)
    backward_weight = staged(lambda b: b.backward_weight.total_s)
    parts["host"] = np.full(forward.shape[:2], host)
    spread = staged(lambda b: b.forward.spread_s + b.backward_input.spread_s + b.backward_weight.spread_s) + rerun(
        lambda p: p.spread_s
    )
    taken = 1.0 - float(cluster.overlap.value)
    overlapped = comm.reduce in ("bucketed", "each")
    unshard_tax = (
        taken * data.unshard_s.mid
        if comm.prefetch > 0 and comm.unshard == "each"
        else np.zeros_like(data.unshard_s.mid)
    )
    onward, back = _sends(priced, layouts, rows, cluster, pp)
    k = comm.buckets
    costs = StageCosts(
        forward_s=_cut(staged, lambda b: b.forward.total_s, priced, rows, forward, k, pp, vpp, schedule)
        + unshard_tax[..., None],
        backward_input_s=np.repeat(backward_input[..., None] / k, k, axis=-1) + unshard_tax[..., None],
        backward_weight_s=np.repeat(backward_weight[..., None] / k, k, axis=-1),
        backward_sync_extra_s=np.repeat(
            (taken * data.reduce_s.mid if overlapped else np.zeros_like(forward))[..., None], k, axis=-1
        ),
        send_forward_s=np.broadcast_to(onward[:, :, None], forward.shape),
        send_backward_s=np.broadcast_to(back[:, :, None], forward.shape),
        unshard_s=np.repeat(data.unshard_s.mid[..., None], k, axis=-1),
        reduce_s=np.repeat(data.reduce_s.mid[..., None], k, axis=-1),
        optimizer_s=_optimizer(priced, data, zero_stage),
        gather_s=data.gather_s.mid,
        sync_s=_sync(priced, layouts),
        tied_s=_tied(priced, layouts, pp),
        step_s=np.full(len(layouts), float(preset.step_s.value)),
    )
    busy = (forward + backward_input + backward_weight).sum(axis=(1, 2))
    flops = staged(lambda b: b.forward.flops + b.backward_input.flops + b.backward_weight.flops) + rerun(
        lambda p: p.flops
    )
    return Group(
        index,
        layouts,
        pp,
        vpp,
        schedule,
        layouts.microbatches(priced.workload.gbs),
        comm,
        costs,
        parts,
        hidden,
        np.asarray(spread.sum(axis=(1, 2)) / np.maximum(busy, 1e-30)),
        flops.sum(axis=2),
    )


Staged = Callable[[Callable[[BlockPrice], FloatArray]], FloatArray]
Rerun = Callable[[Callable[[PassPrice], FloatArray]], FloatArray]


def _parts(staged: Staged, rerun: Rerun) -> tuple[dict[str, FloatArray], dict[str, FloatArray]]:
    """Seconds a micro-batch by phase, exposed and hidden: each ndarray (b, pp)."""
    exposed = {
        "forward": staged(lambda b: b.forward.compute_s),
        "backward": staged(lambda b: b.backward_input.compute_s + b.backward_weight.compute_s),
        "recompute": rerun(lambda p: p.compute_s),
    }
    hidden: dict[str, FloatArray] = {}
    for g in COMM_GROUPS:

        def total(b: BlockPrice, g: str = g) -> FloatArray:
            return b.forward.comm_s[g] + b.backward_input.comm_s[g] + b.backward_weight.comm_s[g]

        def behind(b: BlockPrice, g: str = g) -> FloatArray:
            return b.forward.hidden_s[g] + b.backward_input.hidden_s[g] + b.backward_weight.hidden_s[g]

        def again(p: PassPrice, g: str = g) -> FloatArray:
            return p.comm_s[g]

        exposed[f"{g}_comm"] = staged(total) + rerun(again)
        hidden[f"{g}_comm"] = staged(behind)
    return {n: v.sum(axis=2) for n, v in exposed.items()}, {n: v.sum(axis=2) for n, v in hidden.items()}


def _cut(
    staged: Staged,
    value: Callable[[BlockPrice], FloatArray],
    priced: PricedModel,
    rows: IntArray,
    whole: FloatArray,
    k: int,
    pp: int,
    vpp: int,
    schedule: str,
) -> FloatArray:
    """Cut the forward of each stage into k buckets: layers evenly, embedding first, head last."""
    if k == 1:
        return np.asarray(whole[..., None])
    zero = np.zeros(len(rows))
    none = [zero for _ in priced.layers]
    first = over_stages(priced.model, pp, vpp, schedule, none, value(priced.embedding)[rows], zero)
    last = over_stages(priced.model, pp, vpp, schedule, none, zero, value(priced.head)[rows])
    pieces = np.repeat(((whole - first - last) / k)[..., None], k, axis=-1)
    pieces[..., 0] += first
    pieces[..., -1] += last
    return pieces


def _crossings(layouts: LayoutBatch, pp: int, gpus_per_node: int) -> NDArray[np.bool_]:
    """Whether the hop from each pipeline rank to the next (the last one's to the first) leaves a node.

    Stage p holds ranks p*stride .. (p+1)*stride - 1, filled node by node; a hop counts as
    crossing when any of its pairs does, since the slowest pair holds up the stage.

    Returns
    -------
    ndarray (b, pp)
    """
    _, stride = layouts.axis("pp")
    here = np.arange(pp)[None, :] * stride[:, None]
    there = (np.arange(1, pp + 1) % pp)[None, :] * stride[:, None]
    last = stride[:, None] - 1
    first_pair = here // gpus_per_node != there // gpus_per_node
    last_pair = (here + last) // gpus_per_node != (there + last) // gpus_per_node
    return np.asarray(first_pair | last_pair)


def _pair(nodes: int) -> GroupShape:
    """Two ranks, in one node or in two."""
    return GroupShape(np.asarray(2 // nodes), np.asarray(nodes), np.asarray(1))


def _sends(
    priced: PricedModel, layouts: LayoutBatch, rows: IntArray, cluster: Cluster, pp: int
) -> tuple[FloatArray, FloatArray]:
    """Seconds to pass one micro-batch's boundary tensor to the next and to the previous rank.

    Returns
    -------
    forward, backward : ndarray (b, pp)
        Out of each rank; backward over the hop that leads into it.
    """
    if pp == 1:
        return np.zeros((len(layouts), 1)), np.zeros((len(layouts), 1))
    boundary = np.broadcast_to(priced.lowered.boundary_bytes, (len(priced.embedding.forward.compute_s),))[rows]
    shares = priced.preset.scatter_gather_p2p & (layouts.sp == 0) & (layouts.tp > 1)
    sent = boundary / np.where(shares, layouts.tp, 1)
    crossing = _crossings(layouts, pp, cluster.gpus_per_node)
    seconds = np.zeros(crossing.shape)
    for nodes, chosen in ((1, ~crossing), (2, crossing)):
        if chosen.any():
            one = collectives.seconds(cluster, "send_recv", sent, _pair(nodes)).mid
            seconds = np.where(chosen, one[:, None], seconds)
    if shares.any():
        shape = layouts.group("tp", cluster.gpus_per_node)
        gathered = collectives.seconds(cluster, "all_gather", boundary, shape).mid
        seconds = seconds + np.where(shares, gathered, 0.0)[:, None]
    return seconds, np.roll(seconds, 1, axis=1)


def _optimizer(priced: PricedModel, data: DataParallelCosts, zero_stage: int) -> FloatArray:
    """Seconds of the optimizer on each rank's shard: ndarray (b, pp).

    Fused Adam reads the gradient, reads and writes main weight and two moments, and writes the
    compute copy. Eager (foreach) AdamW runs eight operators over every tensor: 21 passes of
    four bytes (mul, lerp, mul, addcmul, sqrt, div, add, addcdiv: 2+3+2+4+2+2+2+4).
    A gradient norm reads every gradient once.
    """
    w = priced.workload
    states = OPTIMIZER_STATES[w.optimizer]
    grad = BYTES[priced.preset.gradient_dtype(w.precision)]
    if priced.preset.fused_optimizer:
        per = grad + 2.0 * (states + 4.0) + (0.0 if w.precision == "fp32" else BYTES[w.precision])
        launches = 1.0
    else:
        per = 84.0 if states else 12.0
        launches = 8.0 if states else 2.0
    if priced.preset.clips_gradients:
        per += grad
    return (kernels.memory_seconds(priced.cluster.device, data.elements * per / launches) * launches).mid


def _sync(priced: PricedModel, layouts: LayoutBatch) -> FloatArray:
    """Gradient norm (or finite check) over the world: an all-reduce of one number."""
    if not priced.preset.clips_gradients:
        return np.zeros(len(layouts))
    return collectives.seconds(
        priced.cluster, "all_reduce", np.full(len(layouts), 4.0), layouts.group("world", priced.cluster.gpus_per_node)
    ).mid


def _tied(priced: PricedModel, layouts: LayoutBatch, pp: int) -> FloatArray:
    """All-reduce of the tied embedding's gradient between first and last stage."""
    if pp == 1 or not priced.model.tied_embeddings:
        return np.zeros(len(layouts))
    grad = BYTES[priced.preset.gradient_dtype(priced.workload.precision)]
    nbytes = priced.model.vocab * priced.model.hidden / layouts.tp.astype(np.float64) * grad
    gpn = priced.cluster.gpus_per_node
    nodes = np.where(layouts.world <= gpn, 1, 2)
    shape = GroupShape(np.asarray(2 // nodes), nodes, np.ones_like(nodes))
    return collectives.seconds(priced.cluster, "all_reduce", np.asarray(nbytes), shape).mid
