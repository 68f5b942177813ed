"""notes: the assumptions behind a prediction, each in a sentence, with what has no measured evidence."""

from __future__ import annotations

from planner import power
from planner.flops import formula_of
from planner.layout import Layout
from planner.notes.device import device_notes
from planner.notes.expert import expert_notes
from planner.notes.layout import overlap_notes, pipeline_notes, placement_notes, recompute_notes
from planner.notes.memory import memory_notes
from planner.notes.model import model_notes
from planner.notes.storage import storage_notes
from planner.notes.training import training_notes
from planner.notes.unused import unused_notes
from planner.precision import recipe_of
from planner.priced import PricedModel
from planner.step.intervals import UNEXPLAINED

__all__ = ["memory_notes", "notes", "storage_notes"]


def notes(priced: PricedModel, layout: Layout, exposed_share: float = 0.0) -> list[str]:
    """Assumptions behind one prediction; `exposed_share`: exposed expert exchange over the step."""
    preset = priced.preset
    found = [
        f"framework preset {preset.name}: {preset.notes}",
        f"FLOPs: {formula_of(priced.workload)}",
        f"interval: each law at its residual, in quadrature with {UNEXPLAINED.relative:.0%} ({UNEXPLAINED.source})",
    ]
    device = priced.cluster.device
    if device.tdp_w > 0:
        found.append(power.note())
    if device.kind == "gpu":
        found.append(power.sustained_note(device, recipe_of(priced.workload, priced.preset).forward))
    found += expert_notes(priced, layout, exposed_share)
    found += placement_notes(layout)
    found += pipeline_notes(priced, layout)
    found += training_notes(priced)
    found += recompute_notes(priced, layout)
    found += model_notes(priced)
    found += device_notes(priced)
    found += overlap_notes(priced, layout)
    found += unused_notes(priced, layout)
    return found
