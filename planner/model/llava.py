"""LLaVA: a Llama text model behind a CLIP tower and a two-layer projector.

The text_config is read through `LlamaConfig`, whose defaults (transformers 5.24.0) fill the keys
that published LLaVA configs leave out; a missing text_config is all of them. The projector has
biases unless multimodal_projector_bias is false.
"""

from __future__ import annotations

from planner.model.base import ConfigKeys, Importer
from planner.model.llama import CLASS_DEFAULTS, build_llama
from planner.model.spec import ModelSpec, Weight
from planner.model.vision import projected, tower


class Llava(Importer):
    """`model_type` llava with a Llama text model."""

    model_types = ("llava",)

    def build(self, keys: ConfigKeys) -> ModelSpec:
        """See `Importer.build`."""
        text, vision = keys.section("text_config"), keys.section("vision_config")
        kind = text.text("model_type", "llama")
        if kind != "llama":
            text.fault("model_type", f"is {kind!r}", "the text model of a LLaVA is read as a Llama", "llama")
        block = tower(vision, "clip_vision_model")
        hidden = text.integer("hidden_size", CLASS_DEFAULTS["hidden_size"])
        bias = keys.flag("multimodal_projector_bias", True)
        layers = keys.config.get("vision_feature_layer")
        features = len(layers) if isinstance(layers, list) and layers else 1
        matrices = (
            Weight("linear_1", features * block.hidden, hidden, "column", bias),
            Weight("linear_2", hidden, hidden, "row", bias),
        )
        filled = [key for key in CLASS_DEFAULTS if not text.given(key)]
        notes = (f"text_config leaves {', '.join(filled)} to the defaults of LlamaConfig",) if filled else ()
        return build_llama(
            text,
            defaults=CLASS_DEFAULTS,
            tied=keys.flag("tie_word_embeddings", False),
            vision=projected(block, matrices),
            notes=notes,
        )
