"""What a prediction says about the kinds of layers of its model: how they are priced, and on what evidence."""

from __future__ import annotations

from planner.model.spec import DeltaNet, Mamba1, Mamba2, VisionTower
from planner.priced import PricedModel
from planner.training import Workload

_SCANS = {
    Mamba1: "Mamba: the scan is priced by the bytes it moves; where exponentials bound it, it takes longer",
    Mamba2: "Mamba-2: the chunked scan is priced as batched GEMMs of a chunk's size (mamba_ssm), states in fp32",
    DeltaNet: "gated delta rule: products over chunks of 64 (flash-linear-attention); the pass over chunks in order, "
    "which few heads leave short of a whole GPU, has no law of its own",
}


def model_notes(priced: PricedModel) -> list[str]:
    """Notes about mixers, windows, encoders, images and prediction steps; none for a plain transformer."""
    model, workload = priced.model, priced.workload
    found = list(model.notes)
    kinds = {type(layer.recurrent) for layer in model.layer_kinds() if layer.recurrent is not None}
    found += [f"{text}; no measured evidence" for kind, text in _SCANS.items() if kind in kinds]
    softmax = [layer.softmax for layer in model.layer_kinds() if layer.softmax is not None]
    if any(a.softcap for a in softmax) and not priced.preset.attention.startswith("unfused"):
        found.append("capped scores: a fused kernel that caps (FlashAttention 2.6 on) is assumed, at its speed without")
    if any(a.sinks for a in softmax) and not priced.preset.attention.startswith("unfused"):
        found.append("attention sinks: a fused kernel that takes them is assumed, at its speed without")
    if any(not a.causal for a in softmax):
        found.append("encoder: attention in both directions, every pair is run; no measured evidence")
    if model.vision is not None:
        found.append(_vision_note(model.vision, workload))
    if workload.mtp_layers:
        own = "its config has" if model.mtp_layers else "its config has none; they are built like the last layer:"
        count = len(model.mtp_layers) if model.mtp_layers else workload.mtp_layers
        found.append(
            f"prediction steps: {workload.mtp_layers} on the last stage, with embedding and head shared ({own} {count})"
        )
    elif model.mtp_layers:
        found.append(f"the config has {len(model.mtp_layers)} prediction layers, not trained here; --mtp trains them")
    return found + _batching_notes(workload)


def _vision_note(tower: VisionTower, workload: Workload) -> str:
    """What of a multimodal model is run."""
    if not workload.images:
        return "vision tower: not part of this run, text alone is trained; --images states images of a sequence"
    how = "trained" if workload.vision == "trained" else "frozen, its projector trained"
    each = f"{workload.images:g} images of {tower.patch.patches} patches and {tower.image_tokens} tokens a sequence"
    return f"vision tower ({tower.note}) on the first stage: {how}; {each}; no measured evidence"


def _batching_notes(workload: Workload) -> list[str]:
    """What sequences of unequal length cost; `planner.evaluate` speaks of packed ones."""
    documents = workload.documents
    if documents is None or documents.batching == "packed":
        return []
    mean = f"{documents.mean_tokens:.0f}"
    if documents.batching == "padded":
        share = f"{workload.padding_share:.0%} of the tokens are padding ({mean} of {workload.seq_len} are not)"
        slower = "run and counted like any other; real tokens go through slower by that share"
        return [f"padded sequences: {share}, {slower}"]
    equal = "micro-batches and ranks are taken as equally loaded; no measured evidence for unequal ones"
    return [f"sequences of {mean} tokens on average without padding: {equal}"]
