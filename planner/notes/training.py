"""What a prediction stands on in precision, optimizer, adapters and packing."""

from __future__ import annotations

from planner import optimizers
from planner.precision import recipe_of
from planner.priced import PricedModel


def training_notes(priced: PricedModel) -> list[str]:
    """What precision, optimizer, adapters and packing stand on."""
    work, recipe = priced.workload, recipe_of(priced.workload, priced.preset)
    optimizer = optimizers.get(work.optimizer)
    found = [f"precision {recipe.name}: {recipe.source}", f"optimizer {optimizer.name}: {optimizer.source}"]
    if priced.preset.offload_core:
        found.append("attention scores offloaded to host memory: transfers taken as hidden; no measured evidence")
    if recipe.quantised:
        plain = sum(layer.high_precision for layer in priced.model.layers)
        found.append(f"MFU and HFU count against the dense {recipe.forward} peak")
        found.append(f"embedding, head, router and attention core in {recipe.compute}"
                     + (f", and all of {plain} of {priced.model.n_layers} layers" if plain else ""))  # fmt: skip
    if work.lora is not None:
        where = ", ".join(work.lora.modules)
        found.append(f"LoRA: rank {work.lora.rank} on {where}; 4 FLOPs instead of 6 for each frozen matrix parameter")
    if work.documents is not None and work.documents.batching == "packed":
        whole = priced.preset.attention.startswith("unfused")
        how = "the whole sequence, masked: scores are materialised" if whole else f"{work.attended_tokens:.0f} tokens"
        found.append(f"packed documents: attention as over documents of {how}")
    return found
