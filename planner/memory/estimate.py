"""memory: bytes of every pipeline rank by category and moment.

A rank's moments: *load* (the model and its optimizer are built), *step* (forward and backward, at the largest
moment of the schedule's own action list), *optimizer* (activations are gone, the update's buffers are there) and
*save* (a checkpoint is written). The largest sets the peak.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace

import numpy as np
from numpy.typing import NDArray

from hwmodels.cluster import Cluster
from hwmodels.records import dataclass
from planner.elements import BlockElements, stage_elements
from planner.frameworks import FrameworkPreset
from planner.layout import LayoutBatch
from planner.memory.allocator import Footprint, footprint, fragments
from planner.memory.in_flight import (
    Peak,
    StageBytes,
    beside_bytes,
    peak,
    waiting_bytes,
)
from planner.memory.moments import ACTIONS
from planner.memory.outside import communicator_bytes, empty_gradient_bytes, workspace_bytes
from planner.memory.ranks import fullest
from planner.memory.states import States, states
from planner.memory.windows import windows
from planner.model.spec import ModelSpec
from planner.offload import in_transit, offloaded
from planner.plan import Workload
from planner.recompute import Stages
from planner.results import MEMORY_CATEGORIES, OUTSIDE_CATEGORIES
from planner.workload.lower import Lowered

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

MOMENTS: tuple[str, ...] = ("load", "step", "optimizer", "save")


Parts = dict[str, dict[str, FloatArray]]
"""Moment of `MOMENTS` -> category -> bytes."""

NOT_OF_STATES = frozenset({"sp", "mbs", "recompute", "recompute_modules", "recompute_layers", "cp_kind", "cp_ulysses",
                           "offload_activations"})  # fmt: skip
"""Fields of a layout that its model states and communicators do not depend on, but for whether a step has one
micro-batch."""

NOT_OF_WORK = frozenset({"fsdp", "offload_optimizer", "offload_parameters"})
"""Fields that activations and communication buffers do not depend on; of ZeRO only whether parameters are sharded."""


@dataclass(frozen=True, slots=True, eq=False)
class MemoryEstimate:
    """Bytes of every rank for n layouts.

    Model states are found once for all layouts that have them alike, and so is what works on them; the two are put
    together where they are asked for.

    Attributes
    ----------
    of_states, of_work : dict
        Moment of `MOMENTS` -> category of `MEMORY_CATEGORIES` -> bytes, each ndarray (k, pp) of k distinct cases.
    states, work : ndarray (n,) of int
        Which case each layout has.
    outside : dict
        Bytes that the allocator does not see, by category: ndarray (k, 1) of the cases of `states`.
    sums : dict
        Moment -> bytes of all tensors: ndarray (n, pp).
    apart : ndarray (n, pp)
        Bytes that the allocator holds beside them because they fit no free block.
    fragmented : bool
        Whether the device has an allocator that holds more than it hands out.
    action : ndarray (n, pp) of int
        What runs at the moment *step*: index into `planner.memory.moments.ACTIONS`.
    host : ndarray (n, pp)
        Bytes in host memory, activations of at most as many micro-batches as the pipeline is deep among them.
    """

    of_states: Parts
    of_work: Parts
    states: IntArray
    work: IntArray
    outside: dict[str, FloatArray]
    sums: dict[str, FloatArray]
    apart: FloatArray
    fragmented: bool
    action: IntArray
    host: FloatArray

    @property
    def moment(self) -> IntArray:
        """The moment of the peak, index into `MOMENTS`: ndarray (n, pp)."""
        return np.asarray(np.stack([self.sums[name] for name in MOMENTS]).argmax(axis=0))

    def _held_by_allocator(self, tensors: FloatArray) -> FloatArray:
        """Bytes that the allocator holds beyond these tensors."""
        return (fragments(tensors) + self.apart) * float(self.fragmented)

    @property
    def by_moment(self) -> Parts:
        """Moment -> category -> bytes, each ndarray (n, pp); categories that are 0 throughout are left out."""
        shape = self.apart.shape
        outside = {name: np.broadcast_to(value[self.states], shape) for name, value in self.outside.items()}
        found: Parts = {}
        for name in MOMENTS:
            found[name] = {category: value[self.states] for category, value in self.of_states[name].items()}
            for category, value in self.of_work[name].items():
                found[name][category] = found[name].get(category, np.zeros(())) + value[self.work]
            found[name] |= {"allocator": self._held_by_allocator(self.sums[name]), **outside}
        return found

    @property
    def by_category(self) -> dict[str, FloatArray]:
        """Bytes by category at the moment of the peak; they sum to `peak_bytes`."""
        moment, by_moment = self.moment, self.by_moment
        found = {}
        for name in MEMORY_CATEGORIES:
            each = [np.broadcast_to(by_moment[m].get(name, np.zeros(())), moment.shape) for m in MOMENTS]
            found[name] = np.choose(moment, each)
        return found

    @property
    def peak_bytes(self) -> FloatArray:
        """Bytes on the device at the peak, with the fragmentation that is expected: ndarray (n, pp)."""
        load, *others = (self.sums[name] for name in MOMENTS)
        most = load.copy()
        for tensors in others:
            np.maximum(most, tensors, out=most)
        outside = sum(self.outside.values(), start=np.zeros(()))
        return np.asarray(most + self._held_by_allocator(most) + outside[self.states])

    @property
    def footprint(self) -> Footprint:
        """The peak as allocated, reserved and device bytes, with the interval behind the verdict."""
        found = self.by_category
        outside = sum(found[name] for name in OUTSIDE_CATEGORIES)
        return footprint(self.peak_bytes - outside - found["allocator"], outside)

    @property
    def moment_names(self) -> list[list[str]]:
        """The moment of the peak of each rank of each layout, in words."""

        def name(moment: int, action: int) -> str:
            return ACTIONS[action] if MOMENTS[moment] == "step" else MOMENTS[moment]

        rows = zip(self.moment.tolist(), self.action.tolist(), strict=True)
        return [list(map(name, moments, actions)) for moments, actions in rows]

    def moment_name(self, i: int, rank: int) -> str:
        """The moment of the peak of one rank, in words."""
        return self.moment_names[i][rank]


def memory(
    model: ModelSpec,
    workload: Workload,
    layouts: LayoutBatch,
    cluster: Cluster,
    preset: FrameworkPreset,
    lowered: Callable[[IntArray], Lowered],
    pp: int,
    vpp: int,
    schedule: str,
    *,
    blocks: BlockElements | None = None,
    of_fullest: bool = False,
) -> MemoryEstimate:
    """Bytes of each pipeline rank for layouts that share (pp, vpp, schedule).

    Parameters
    ----------
    layouts : LayoutBatch, shape (n,)
    lowered : callable
        The blocks of the layouts at some positions.
    blocks : BlockElements or None
        Of these layouts, where they are known already.
    of_fullest : bool
        Look only at ranks that can need most (`planner.memory.ranks.fullest`), which the estimate then has in the
        place of all pp.
    """
    ranks = fullest(model, layouts, pp, vpp, schedule) if of_fullest else None
    blocks = blocks or BlockElements.of(model, workload, layouts)

    def some(index: IntArray) -> Stages:
        return Stages(model, layouts.take(index), pp, vpp, schedule, ranks)

    names = [f.name for f in fields(LayoutBatch) if f.name not in ("pp", "vpp", "schedule")]
    once = (layouts.microbatches(workload.gbs) == 1).astype(np.int64)
    first, of_states = replace(layouts, sp=once).distinct([n for n in names if n not in NOT_OF_STATES or n == "sp"])
    stages = some(first)
    few = stages.layouts
    elements = stage_elements(model, workload, few, preset, pp, vpp, schedule, blocks.take(first)).on(stages.at)
    held = states(workload, few, preset, elements, pp)
    outside = {
        "nccl": communicator_bytes(cluster, few, preset)[:, None],
        "context": np.full((len(few), 1), float(cluster.context_bytes)),
    }
    whole = layouts.zero_stage >= 3  # of the other stages and of when parameters are freed, work knows nothing
    sharded = replace(layouts, zero_stage=np.where(whole, 3, 0), reshard=np.where(whole, layouts.reshard, 0))
    first, of_work = sharded.distinct([n for n in names if n not in NOT_OF_WORK])
    working = _working(some(first), blocks.take(first), workload, cluster, preset, lowered(first))
    return _estimate(held, of_states, working, of_work, outside, cluster, preset)


@dataclass(frozen=True, slots=True, eq=False)
class _Working:
    """Bytes that depend on what runs: ndarray (k, pp), but for the peak as there."""

    workspace: FloatArray
    buffers: FloatArray
    most: Peak
    host: FloatArray


def _working(
    stages: Stages, blocks: BlockElements, workload: Workload, cluster: Cluster, preset: FrameworkPreset,
    lowered: Lowered,
) -> _Working:  # fmt: skip
    """Activations, buffers and workspaces of layouts (shape (k,)) whose blocks are `lowered`."""
    window = windows(stages, workload, lowered, blocks, preset)
    whole, kept, rebuilt = (
        [getattr(block, name) for block in lowered.layers] for name in ("saved_bytes", "kept_bytes", "rebuilt_bytes")
    )
    away = offloaded(stages, whole)
    saved = stages.saved(whole, kept, lowered.embedding.kept_bytes, lowered.head.kept_bytes) - away
    stage = StageBytes(
        saved=saved,
        beside=beside_bytes(stages, lowered, saved, preset),
        waiting=waiting_bytes(stages, lowered),
        backward=stages.largest([b.backward_bytes for b in lowered.layers]),
        rebuilt=stages.rebuilt(whole, rebuilt) + in_transit(stages, whole),
        logits=lowered.head.logits_bytes,
        logits_forward=lowered.head.logits_forward_bytes,
        logits_backward=lowered.head.logits_backward_bytes,
        gathered_forward=window.forward,
        gathered_backward=window.backward,
    )
    counts = stages.layouts.microbatches(workload.gbs)
    scratch = empty_gradient_bytes(stages, workload, preset)
    return _Working(
        scratch + workspace_bytes(cluster.device, preset),
        window.buffers,
        peak(stage, stages, counts),
        away.sum(axis=2) * np.minimum(counts, stages.pp)[:, None],
    )


def _estimate(
    held: States, of_states: IntArray, working: _Working, of_work: IntArray, outside: dict[str, FloatArray],
    cluster: Cluster, preset: FrameworkPreset,
) -> MemoryEstimate:  # fmt: skip
    """Put the moments together."""
    most = working.most
    always = {"parameters": held.parameters, "optimizer": held.optimizer}
    kept = always | {"gradients": held.gradients, "comm_buffers": held.bucket}
    states_at: Parts = {
        "load": {**always, "temporary": held.loading},
        "step": kept,
        "optimizer": {**kept, "temporary": held.stepping},
        "save": {**kept, "gathered": held.saving},
    }
    there = {"workspace": working.workspace, "comm_buffers": working.buffers}
    work_at: Parts = {
        "load": {"workspace": working.workspace},
        "step": {**there, "activations": most.activations, "temporary": most.working, "recompute": most.recompute,
                 "logits": most.logits, "gathered": most.gathered},
        "optimizer": there,
        "save": there,
    }  # fmt: skip

    def both(one: dict[str, FloatArray], other: dict[str, FloatArray]) -> FloatArray:
        sums = (np.asarray(sum(parts.values())) for parts in (one, other))
        found = next(sums).take(of_states, axis=0)
        found += next(sums).take(of_work, axis=0)
        return found

    sums = {name: both(states_at[name], work_at[name]) for name in MOMENTS}
    apart = held.flattened.take(of_states, axis=0)
    if preset.flat_gradients:  # flat tensors fit no free block of activations: step's and optimizer's lie side by side
        apart = apart + np.minimum(sums["step"], sums["optimizer"]) - both(kept, there)
    return MemoryEstimate(
        states_at,
        work_at,
        of_states,
        of_work,
        outside,
        sums,
        apart,
        cluster.device.kind == "gpu",
        most.action.take(of_work, axis=0),
        held.host.take(of_states, axis=0) + working.host.take(of_work, axis=0),
    )
