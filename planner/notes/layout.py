"""What a prediction assumes of stages, schedules, recomputation, and collectives beside compute."""

from __future__ import annotations

from planner.layout import ORDERS, Layout, split_id, split_text
from planner.price import PIECES_HIDDEN, USER_BUFFERS_HIDDEN
from planner.priced import PricedModel
from planner.schedule import get as get_schedule
from planner.stages import shares_of

_CP_NOTES: dict[str, str] = {
    "ring": "keys and values travel from rank to rank beside the steps of the core",
    "all-gather": "keys and values are gathered before the core",
    "ulysses": "all-to-alls from sequence to heads and back, exposed",
    "hierarchical": "all-to-alls between neighbours, a ring over those groups",
}


def context_note(kind: str, windowed: bool) -> str:
    """What is assumed of context parallelism, and what was measured of it."""
    window = "; of a sliding window only the keys before a rank's chunks, or all where it is wide" if windowed else ""
    measured = (
        "measured in runs of Megatron and NeMo with cp 2 to 8 alone" if kind in ("ring", "ulysses") and not windowed
        else "no measured evidence"
    )  # fmt: skip
    return f"context parallel ({kind}): {_CP_NOTES[kind]}{window}; {measured}"


def overlap_notes(priced: PricedModel, layout: Layout) -> list[str]:
    """What of tensor and context parallelism runs beside compute, and what that stands on."""
    preset, found = priced.preset, []
    if preset.tp_gemm_overlap and layout.tp > 1 and layout.sp:
        hides = USER_BUFFERS_HIDDEN if preset.user_buffers else PIECES_HIDDEN
        share = f"{hides.value:.0%} of what could be hidden is ({hides.source})"
        found.append(f"tensor-parallel collectives in pieces beside their GEMMs: {share}")
    if layout.cp > 1:
        windowed = any(layer.softmax and layer.softmax.window for layer in priced.model.layers)
        found.append(context_note(layout.cp_kind or preset.cp_kind, windowed))
    return found


def placement_notes(layout: Layout) -> list[str]:
    """What an order of the axes or moved ranks stand on."""
    found = []
    if layout.order != ORDERS[0]:
        found.append(f"order {layout.order}, the fastest axis first: no measured evidence for other than the default")
    if layout.placement:
        found.append("ranks lie where the placement says; of each axis and order of ranks the group with least "
                     "bandwidth governs. No measured evidence")  # fmt: skip
    return found


def pipeline_notes(priced: PricedModel, layout: Layout) -> list[str]:
    """What to know about the stages and the schedule of a pipeline."""
    if layout.pp == 1:
        return []
    found, schedule = [], get_schedule(layout.schedule)
    shares = shares_of(priced.model.n_layers, layout.pp, layout.vpp, split_id(layout.stage_layers))
    if len(set(shares)) > 1:
        where = "" if layout.stage_layers else " (the default rule; --stage-layers states others)"
        found.append(f"layers of the virtual stages: {split_text(shares)}{where}")
    if schedule.split_backward:
        found.append(
            f"{layout.schedule}: input and weight gradients run apart, tensor-parallel collectives of one are not "
            "hidden behind the other; inputs and output gradients of all matrices stay until the weight gradient has "
            "run. No measured evidence on GPUs"
        )
    if schedule.directions > 1:
        found.append(
            f"{layout.schedule}: two stages in full on each rank, both with gradients and optimizer; mirror ranks "
            "reduce gradients before the optimizer; a forward and a backward of opposite directions run one after "
            "the other"
        )
    return found


def recompute_notes(priced: PricedModel, layout: Layout) -> list[str]:
    """What a recompute policy stands on."""
    whole = layout.recompute in ("full", "block", "every", "op")
    found = []
    if whole and priced.preset.recompute_stops_early:
        found.append("recomputation stops once everything saved is rebuilt: a dense layer's last product is not run")
    if layout.recompute == "selective" and layout.recompute_modules:
        found.append(f"recomputed modules: {', '.join(layout.recompute_modules)} (Megatron-Core --recompute-modules)")
    if layout.recompute == "full" and layout.recompute_layers:
        found.append("chunks of several layers: rebuilt together, one input saved for each. No measured evidence")
    if layout.recompute == "block":
        found.append("the first layers of each virtual stage are recomputed. No measured evidence")
    if layout.recompute == "op":
        found.append("attention and every second matrix product keep what they made (torchtitan's per-op policy)")
    return found
