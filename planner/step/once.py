"""once: what a step runs once or between stages: sends, optimizer, norm, tied embedding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from hwmodels import collectives, kernels
from hwmodels.estimate import Estimate
from hwmodels.records import dataclass
from hwmodels.topology import GroupShape
from planner.layout import LayoutBatch
from planner.layout.axes import crossings, pair_shape, stride
from planner.layout.distinct import distinct_rows
from planner.offload import optimizer_seconds
from planner.optimizers import MAIN_DTYPES
from planner.optimizers import get as get_optimizer
from planner.precision import recipe_of
from planner.priced import PricedModel
from planner.schedule import get as get_schedule
from planner.state import gradient_bytes
from planner.step.data_parallel import DataParallelCosts
from planner.step.newton_schulz import newton_schulz
from planner.vocabulary import padded_vocab

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Hops:
    """Passages of a micro-batch from one rank to the next, h of them, in the order of the pipeline.

    Attributes
    ----------
    here, there : ndarray (h,)
        Ranks of each.
    out, into : ndarray (h,)
        Chunks of the stage that it leaves and of the stage that it enters.
    """

    here: IntArray
    there: IntArray
    out: IntArray
    into: IntArray


@lru_cache(maxsize=1024)
def hops(pp: int, vpp: int, schedule: str) -> Hops:
    """Where stages lie is the schedule's: in a V chunk 1 sends up the ranks. Kept."""
    plan = get_schedule(schedule)
    stages = [s for s in range(plan.n_stages(pp, vpp)) if (s + 1) % (pp * vpp)]
    found = [(plan.rank_of(s, pp), plan.rank_of(s + 1, pp), plan.chunk_of(s, pp), plan.chunk_of(s + 1, pp))
             for s in stages]  # fmt: skip
    between = [hop for hop in found if hop[0] != hop[1]]
    return Hops(*np.asarray(between, dtype=np.int64).reshape(-1, 4).T)


@dataclass(frozen=True, slots=True, eq=False)
class Sends:
    """Seconds to pass one micro-batch's boundary tensor to the next and to the previous virtual stage.

    Attributes
    ----------
    forward, backward : ndarray (b, pp, chunks)
        Out of each virtual stage; zero at the ends of the pipeline and between stages of one rank.
    spread : ndarray (b,)
        Relative spread of these, the widest of a layout's hops.
    """

    forward: FloatArray
    backward: FloatArray
    spread: FloatArray


Pipeline = tuple[int, int, str]
"""pp, vpp and schedule."""


def sends(priced: PricedModel, indices: Sequence[IntArray], pipelines: Sequence[Pipeline]) -> list[Sends]:
    """Of the layouts at each of `indices`, which share one of `pipelines`; priced together."""
    hopping = [_Hopping.of(priced, index, hops(*pipeline)) for index, pipeline in zip(indices, pipelines, strict=True)]
    inside, across = (_pair_seconds(priced, hopping, nodes) for nodes in (1, 2))
    found = []
    for (pp, vpp, schedule), one, near, far in zip(pipelines, hopping, inside, across, strict=True):
        forward, backward = np.zeros((2, len(one.same), pp, get_schedule(schedule).chunks(vpp)))
        seconds = np.where(one.crossing, far.mid[:, None], near.mid[:, None]) + _gathered(priced, one)[:, None]
        forward[:, one.at.here, one.at.out] = seconds[one.same]
        backward[:, one.at.there, one.at.into] = seconds[one.same]
        found.append(Sends(forward, backward, np.maximum(near.spread, far.spread)[one.same]))
    return found


@dataclass(frozen=True, slots=True, eq=False)
class _Hopping:
    """Layouts of one pipeline that send alike, k of them.

    Attributes
    ----------
    same : ndarray (b,)
        Which of them each layout sends as.
    boundary : ndarray (k,)
        Bytes of a boundary tensor on a rank.
    shares : ndarray (k,) of bool
        Whether tensor-parallel ranks send a piece of it each, and gather it there.
    crossing : ndarray (k, h) of bool
        Whether a hop leaves a node.
    """

    at: Hops
    layouts: LayoutBatch
    same: IntArray
    boundary: FloatArray
    shares: NDArray[np.bool_]
    crossing: NDArray[np.bool_]

    @classmethod
    def of(cls, priced: PricedModel, index: IntArray, at: Hops) -> _Hopping:
        """Of the layouts at `index`."""
        every = priced.layouts.take(index)
        columns = (priced.inverse[index], stride(every, "pp"), every.pp, every.world)
        first, same = distinct_rows(columns, len(index))
        layouts = every.take(first)
        boundary = np.broadcast_to(priced.lowered.boundary_bytes, (len(priced.embedding.forward.compute_s),))
        shares = priced.preset.scatter_gather_p2p & (layouts.sp == 0) & (layouts.tp > 1)
        crossing = np.zeros((len(layouts), 0), dtype=np.bool_)
        if len(at.here):
            crossing = crossings(layouts, at.here, at.there, priced.cluster.gpus_per_node)
        return cls(at, layouts, same, boundary[priced.inverse[index[first]]], shares, crossing)

    def sent(self) -> FloatArray:
        """Bytes that a rank sends: ndarray (k,)."""
        return np.asarray(self.boundary / np.where(self.shares, self.layouts.tp, 1))

    def some(self, nodes: int) -> NDArray[np.bool_]:
        """Layouts with hops within a node (1), or between two: ndarray (k,)."""
        return np.asarray((self.crossing if nodes == 2 else ~self.crossing).any(axis=1))


def _pair_seconds(priced: PricedModel, hopping: Sequence[_Hopping], nodes: int) -> list[Estimate]:
    """Seconds of a hop within a node or between two, zero where a layout has none: Estimates (k,) each."""
    chosen = [one.some(nodes) for one in hopping]
    found = [Estimate(np.zeros(len(some)), np.zeros(len(some))) for some in chosen]
    mine = [i for i, some in enumerate(chosen) if some.any()]
    if not mine:
        return found
    shapes, sizes = [], []
    for i in mine:
        one, some = hopping[i], chosen[i]
        shape = pair_shape(one.layouts.take(some), nodes, one.at.here, one.at.there, priced.cluster)
        shapes.append([np.broadcast_to(getattr(shape, f.name), shape.nodes.shape) for f in fields(GroupShape)])
        sizes.append(one.sent()[some])
    whole = GroupShape(*(np.concatenate(parts) for parts in zip(*shapes, strict=True)))
    every = collectives.seconds(priced.cluster, "send_recv", np.concatenate(sizes), whole)
    cuts = np.cumsum([len(size) for size in sizes])[:-1]
    spread = np.broadcast_to(every.spread, every.mid.shape)
    for i, mid, wide in zip(mine, np.split(every.mid, cuts), np.split(spread, cuts), strict=True):
        found[i].mid[chosen[i]], found[i].spread[chosen[i]] = mid, wide
    return found


def _gathered(priced: PricedModel, one: _Hopping) -> FloatArray:
    """Seconds in which the receiver's tensor-parallel ranks put their pieces together: ndarray (k,)."""
    found, gathering = np.zeros(len(one.layouts)), one.shares & bool(len(one.at.here))
    if gathering.any():
        shape = one.layouts.take(gathering).group("tp", priced.cluster)
        found[gathering] = collectives.seconds(priced.cluster, "all_gather", one.boundary[gathering], shape).mid
    return found


def optimizers(
    priced: PricedModel, costs: Sequence[DataParallelCosts], layouts: Sequence[LayoutBatch],
    pipelines: Sequence[Pipeline],
) -> list[Estimate]:  # fmt: skip
    """Seconds of the optimizer on each rank's shard, for groups of layouts: ndarray (b, pp) each.

    That of `elementwise_update`, Muon's iterations on top (`planner.step.newton_schulz`), and what of it the host does.
    """
    every = elementwise_update(
        priced, *(np.concatenate([v.reshape(-1) for v in parts]) for parts in (
            [data.elements for data in costs], [data.other for data in costs]))
    )  # fmt: skip
    cuts = np.cumsum([data.elements.size for data in costs])[:-1]
    parts = zip(np.split(every.mid, cuts), np.split(every.spread, cuts), strict=True)
    found = []
    for data, few, pipeline, (mid, spread) in zip(costs, layouts, pipelines, parts, strict=True):
        seconds = Estimate(mid.reshape(data.elements.shape), spread.reshape(data.elements.shape))
        if get_optimizer(priced.workload.optimizer).newton_schulz:
            seconds = seconds + newton_schulz(priced, few, *pipeline)
        found.append(beside_host(priced, few, seconds, data.elements))
    return found


def elementwise_update(priced: PricedModel, elements: FloatArray, others: FloatArray) -> Estimate:
    """Seconds in which the device updates `elements` parameters, `others` of them no hidden matrix.

    A fused kernel reads the gradient, reads and writes the state and the main weight, and writes
    the compute copy where there is one. A main weight in 16 bits is the compute copy itself; a
    remainder is read and written beside it. Eager operators: `planner.optimizers`. A gradient norm
    reads every gradient once.
    """
    w, preset = priced.workload, priced.preset
    kind, grad = get_optimizer(w.optimizer), gradient_bytes(w, preset)
    other = 2.0 * (kind.other_state_bytes - kind.state_bytes)
    if preset.fused_optimizer:
        per, launches = grad + 2.0 * kind.state_bytes + _weight_traffic(priced), 1.0
    else:
        per, launches = kind.eager_bytes, kind.eager_kernels
    if preset.clips_gradients:
        per += grad
    impl = kind.impl if preset.fused_optimizer else ""
    nbytes = elements * per + others * other
    return kernels.memory_seconds(priced.cluster.device, nbytes / launches, impl=impl) * launches


def beside_host(priced: PricedModel, layouts: LayoutBatch, seconds: Estimate, elements: FloatArray) -> Estimate:
    """An update of `seconds` on the device with the share of it that the host does meanwhile: ndarray (b, ranks)."""
    if not np.any(layouts.offload_optimizer):
        return seconds
    w, preset = priced.workload, priced.preset
    width, grad = recipe_of(w, preset).width, gradient_bytes(w, preset)
    traffic = grad + 2.0 * get_optimizer(w.optimizer).state_bytes + _weight_traffic(priced)
    share = layouts.offload_optimizer[:, None] / 100.0
    there = optimizer_seconds(priced.cluster, share, seconds.mid, elements, grad, width, traffic)
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
        return 2.0 * (MAIN_DTYPES["remainder"] + width)
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
