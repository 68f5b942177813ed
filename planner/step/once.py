"""once: what a step runs once or between stages: sends, optimizer, norm, tied embedding."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hwmodels import collectives, kernels
from hwmodels.estimate import Estimate
from planner import optimizers
from planner.layout import LayoutBatch
from planner.layout.axes import crossings, pair_shape
from planner.offload import optimizer_seconds
from planner.precision import recipe_of
from planner.priced import BLOCK_KEYS, PricedModel
from planner.schedule import get as get_schedule
from planner.state import gradient_bytes
from planner.step.data_parallel import DataParallelCosts
from planner.step.newton_schulz import newton_schulz
from planner.vocabulary import padded_vocab

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


def sends(
    priced: PricedModel, layouts: LayoutBatch, rows: IntArray, pp: int, vpp: int, schedule: str
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Seconds to pass one micro-batch's boundary tensor to the next and to the previous virtual stage.

    Where stages lie is the schedule's: in a V chunk 1 sends up the ranks.

    Returns
    -------
    forward, backward : ndarray (b, pp, chunks)
        Out of each virtual stage; zero at the ends of the pipeline and between stages of one rank.
    spread : ndarray (b,)
        Relative spread of these, the widest of a layout's hops.
    """
    plan = get_schedule(schedule)
    first, same = layouts.distinct((*BLOCK_KEYS, "dp", "pp"))
    layouts, rows = layouts.take(first), rows[first]
    forward, backward = (np.zeros((len(layouts), pp, plan.chunks(vpp))) for _ in range(2))
    spread = np.zeros(len(layouts))
    stages = [s for s in range(plan.n_stages(pp, vpp)) if (s + 1) % (pp * vpp)]
    hops = [(s, plan.rank_of(s, pp), plan.rank_of(s + 1, pp)) for s in stages]
    hops = [hop for hop in hops if hop[1] != hop[2]]
    if not hops:
        return forward[same], backward[same], spread[same]
    cluster = priced.cluster
    boundary = np.broadcast_to(priced.lowered.boundary_bytes, (len(priced.embedding.forward.compute_s),))[rows]
    shares = priced.preset.scatter_gather_p2p & (layouts.sp == 0) & (layouts.tp > 1)
    sent = boundary / np.where(shares, layouts.tp, 1)
    numbers, here, there = (np.asarray(column) for column in zip(*hops, strict=True))
    crossing = crossings(layouts, here, there, cluster.gpus_per_node)
    seconds = np.zeros(crossing.shape)
    for nodes, chosen in ((1, ~crossing), (2, crossing)):
        if chosen.any():
            one = collectives.seconds(cluster, "send_recv", sent, pair_shape(layouts, nodes, here, there, cluster))
            seconds = np.where(chosen, one.mid[:, None], seconds)
            spread = np.where(chosen.any(axis=1), np.maximum(spread, one.spread), spread)
    if shares.any():
        shape = layouts.group("tp", cluster)
        gathered = collectives.seconds(cluster, "all_gather", boundary, shape).mid
        seconds = seconds + np.where(shares, gathered, 0.0)[:, None]
    forward[:, here, [plan.chunk_of(int(s), pp) for s in numbers]] = seconds
    backward[:, there, [plan.chunk_of(int(s) + 1, pp) for s in numbers]] = seconds
    return forward[same], backward[same], spread[same]


def optimizer(
    priced: PricedModel, data: DataParallelCosts, layouts: LayoutBatch, pp: int, vpp: int, schedule: str
) -> Estimate:
    """Seconds of the optimizer on each rank's shard: ndarray (b, pp).

    A fused kernel reads the gradient, reads and writes the state and the main weight, and writes
    the compute copy where there is one. A main weight in 16 bits is the compute copy itself; a
    remainder is read and written beside it. Eager operators: `planner.optimizers`. A gradient norm
    reads every gradient once; Muon's iterations come on top (`planner.step.newton_schulz`).
    """
    w, preset = priced.workload, priced.preset
    kind, grad = optimizers.get(w.optimizer), gradient_bytes(w, preset)
    other = 2.0 * (kind.other_state_bytes - kind.state_bytes)
    if preset.fused_optimizer:
        per, launches = grad + 2.0 * kind.state_bytes + _weight_traffic(priced), 1.0
    else:
        per, launches = kind.eager_bytes, kind.eager_kernels
    if preset.clips_gradients:
        per += grad
    impl = kind.impl if preset.fused_optimizer else ""
    nbytes = data.elements * per + data.other * other
    seconds = kernels.memory_seconds(priced.cluster.device, nbytes / launches, impl=impl) * launches
    if kind.newton_schulz:
        seconds = seconds + newton_schulz(priced, layouts, pp, vpp, schedule)
    if not np.any(layouts.offload_optimizer):
        return seconds
    width, traffic = recipe_of(w, preset).width, grad + 2.0 * kind.state_bytes + _weight_traffic(priced)
    share = layouts.offload_optimizer[:, None] / 100.0
    there = optimizer_seconds(priced.cluster, share, seconds.mid, data.elements, grad, width, traffic)
    return seconds * (there / np.maximum(seconds.mid, 1e-30))


def _weight_traffic(priced: PricedModel) -> float:
    """Bytes a parameter of main weight read and written, and of compute copy written (read too with a remainder)."""
    w, preset = priced.workload, priced.preset
    width = recipe_of(w, preset).width
    if width == 4.0:
        return 8.0
    if w.main_dtype == "bf16":
        return 2.0 * width
    if w.main_dtype == "remainder":
        return 2.0 * (optimizers.MAIN_DTYPES["remainder"] + width)
    return 8.0 + width


def data_parallel_wait(
    priced: PricedModel, layouts: LayoutBatch, busy: FloatArray, microbatches: IntArray
) -> FloatArray:
    """What data-parallel ranks wait for the slowest of them before the optimizer: ndarray (b,).

    Groups that work in step within a micro-batch have waited there already.

    Parameters
    ----------
    busy : ndarray (b, pp)
        Seconds a micro-batch of each rank.
    """
    skew = priced.cluster.skew
    alone = (layouts.tp == 1) & (layouts.cp == 1) & (layouts.ep == 1) & (layouts.dp > 1)
    if skew is None:
        return np.zeros(len(layouts))
    return np.where(alone, float(skew.value) * busy.max(axis=1) * microbatches, 0.0)


def tied(priced: PricedModel, layouts: LayoutBatch, pp: int) -> FloatArray:
    """All-reduce of a shared embedding's gradient between first and last stage; none where it is frozen.

    Tied to the head, or looked up there by prediction steps.
    """
    shared = priced.model.tied_embeddings or priced.workload.mtp_layers > 0
    if pp == 1 or not shared or priced.workload.lora is not None:
        return np.zeros(len(layouts))
    grad = gradient_bytes(priced.workload, priced.preset)
    rows = padded_vocab(priced.model, priced.preset, layouts.tp)
    nbytes = rows * priced.model.hidden / layouts.tp.astype(np.float64) * grad
    first, last = np.asarray([0]), np.asarray([pp - 1])
    ends = crossings(layouts, first, last, priced.cluster.gpus_per_node)[:, 0]
    shape = pair_shape(layouts, np.where(ends, 2, 1), first, last, priced.cluster)
    return collectives.seconds(priced.cluster, "all_reduce", np.asarray(nbytes), shape).mid
