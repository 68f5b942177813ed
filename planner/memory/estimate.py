"""memory: bytes of every pipeline rank by category and moment.

A rank's moments: *load* (the model and its optimizer are built), *step* (forward and backward, at the largest
moment of the schedule's own action list), *optimizer* (activations are gone, the update's buffers are there) and
*save* (a checkpoint is written). The largest sets the peak.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hwmodels.cluster import Cluster
from planner.elements import stage_elements
from planner.frameworks import FrameworkPreset
from planner.layout import LayoutBatch
from planner.memory.allocator import Footprint, footprint, fragments
from planner.memory.in_flight import (
    Peak,
    StageBytes,
    beside_bytes,
    largest,
    peak,
    waiting_bytes,
)
from planner.memory.moments import ACTIONS
from planner.memory.outside import communicator_bytes, empty_gradient_bytes, workspace_bytes
from planner.memory.states import States, states
from planner.memory.windows import Windows, windows
from planner.model.spec import ModelSpec
from planner.offload import in_transit, offloaded
from planner.plan import Workload
from planner.recompute import Stages
from planner.results import MEMORY_CATEGORIES, OUTSIDE_CATEGORIES
from planner.workload.lower import Lowered

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

MOMENTS: tuple[str, ...] = ("load", "step", "optimizer", "save")


@dataclass(frozen=True, slots=True, eq=False)
class MemoryEstimate:
    """Bytes of every rank (arrays (n, pp)).

    Attributes
    ----------
    by_moment : dict
        Moment of `MOMENTS` -> category of `MEMORY_CATEGORIES` -> bytes. Categories that are 0 throughout are left
        out.
    action : ndarray of int
        What runs at the moment *step*: index into `planner.memory.moments.ACTIONS`.
    moment : ndarray of int
        The moment of the peak: index into `MOMENTS`.
    host : ndarray
        Bytes in host memory, activations of at most as many micro-batches as the pipeline is deep among them.
    """

    by_moment: dict[str, dict[str, FloatArray]]
    action: IntArray
    moment: IntArray
    host: FloatArray

    @property
    def by_category(self) -> dict[str, FloatArray]:
        """Bytes by category at the moment of the peak; they sum to `peak_bytes`."""
        shape = self.moment.shape
        found = {}
        for name in MEMORY_CATEGORIES:
            each = [np.broadcast_to(self.by_moment[m].get(name, np.zeros(())), shape) for m in MOMENTS]
            found[name] = np.choose(self.moment, each)
        return found

    @property
    def peak_bytes(self) -> FloatArray:
        """Bytes on the device at the peak, with the fragmentation that is expected."""
        each = [np.broadcast_to(sum(self.by_moment[m].values()), self.moment.shape) for m in MOMENTS]
        return np.choose(self.moment, each)

    @property
    def footprint(self) -> Footprint:
        """The peak as allocated, reserved and device bytes, with the interval behind the verdict."""
        found = self.by_category
        outside = sum(found[name] for name in OUTSIDE_CATEGORIES)
        return footprint(self.peak_bytes - outside - found["allocator"], outside)

    def moment_name(self, i: int, rank: int) -> str:
        """The moment of the peak of one rank, in words."""
        name = MOMENTS[int(self.moment[i, rank])]
        return ACTIONS[int(self.action[i, rank])] if name == "step" else name


def memory(
    model: ModelSpec,
    workload: Workload,
    layouts: LayoutBatch,
    cluster: Cluster,
    preset: FrameworkPreset,
    lowered: Lowered,
    pp: int,
    vpp: int,
    schedule: str,
) -> MemoryEstimate:
    """Bytes of each pipeline rank for layouts that share (pp, vpp, schedule).

    Parameters
    ----------
    layouts : LayoutBatch, shape (n,)
    lowered : Lowered
        Of the same n layouts.
    """
    elements = stage_elements(model, workload, layouts, preset, pp, vpp, schedule)
    held = states(workload, layouts, preset, elements, pp)
    window = windows(model, workload, layouts, lowered, elements, pp, vpp, schedule, preset)
    stages = Stages(model, layouts, pp, vpp, schedule)
    whole, kept, rebuilt = (
        [getattr(block, name) for block in lowered.layers] for name in ("saved_bytes", "kept_bytes", "rebuilt_bytes")
    )
    away = offloaded(stages, whole)
    saved = stages.saved(whole, kept, lowered.embedding.kept_bytes, lowered.head.kept_bytes) - away
    stage = StageBytes(
        saved=saved,
        beside=beside_bytes(model, layouts, lowered, saved, pp, vpp, schedule, preset),
        waiting=waiting_bytes(model, layouts, lowered, pp, vpp, schedule),
        backward=largest(model, layouts, [b.backward_bytes for b in lowered.layers], pp, vpp, schedule),
        rebuilt=stages.rebuilt(whole, rebuilt) + in_transit(stages, whole),
        logits=lowered.head.logits_bytes,
        logits_forward=lowered.head.logits_forward_bytes,
        logits_backward=lowered.head.logits_backward_bytes,
        gathered_forward=window.forward,
        gathered_backward=window.backward,
    )
    most = peak(stage, schedule, pp, layouts.microbatches(workload.gbs), vpp)
    scratch = empty_gradient_bytes(model, workload, layouts, preset, pp, vpp, schedule)
    scratch = scratch + workspace_bytes(cluster.device, preset)
    flights = np.minimum(layouts.microbatches(workload.gbs), pp)[:, None]
    found = _estimate(held, window, most, scratch, cluster, layouts, preset)
    return replace(found, host=held.host + away.sum(axis=2) * flights)


def _estimate(
    held: States, window: Windows, most: Peak, workspace: FloatArray, cluster: Cluster, layouts: LayoutBatch,
    preset: FrameworkPreset,
) -> MemoryEstimate:  # fmt: skip
    """Put the moments together and find the largest of each rank."""
    shape = held.parameters.shape
    always = {
        "parameters": held.parameters,
        "optimizer": held.optimizer,
        "workspace": workspace,
    }
    kept = always | {"gradients": held.gradients, "comm_buffers": window.buffers}
    inside: dict[str, dict[str, FloatArray]] = {
        "load": {**always, "temporary": held.loading},
        "step": {**kept, "activations": most.activations, "temporary": most.working, "recompute": most.recompute,
                 "logits": most.logits, "gathered": most.gathered},
        "optimizer": {**kept, "temporary": held.stepping},
        "save": {**kept, "gathered": held.saving},
    }  # fmt: skip
    outside = {
        "nccl": np.broadcast_to(communicator_bytes(cluster, layouts, preset)[:, None], shape),
        "context": np.broadcast_to(np.asarray(float(cluster.context_bytes)), shape),
    }
    sums = {name: np.asarray(sum(parts.values())) for name, parts in inside.items()}
    moment = np.stack([sums[name] for name in MOMENTS]).argmax(axis=0)
    # Flat tensors fit no free block that activations left: what step and optimizer take is held side by side.
    base = sum(kept.values())
    apart = np.minimum(sums["step"], sums["optimizer"]) - base if preset.flat_gradients else np.zeros(shape)
    apart = apart + held.flattened
    gpu = float(cluster.device.kind == "gpu")
    by_moment = {
        name: {**inside[name], "allocator": (fragments(sums[name]) + apart) * gpu, **outside} for name in MOMENTS
    }
    return MemoryEstimate(by_moment, most.action, moment, held.host)
