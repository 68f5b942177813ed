"""LLaVA: a Llama text model behind a CLIP tower and a two-layer projector, both frozen here.

The text_config is read through `LlamaConfig`, whose defaults (transformers 5.24.0) fill the keys
that published LLaVA configs leave out; a missing text_config is all of them. The projector has
biases unless multimodal_projector_bias is false.
"""

from __future__ import annotations

from planner.model.base import ConfigKeys, Importer
from planner.model.llama import CLASS_DEFAULTS, build_llama
from planner.model.spec import FrozenBlock, ModelSpec
from planner.model.vision import tower


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
        width = vision.integer("hidden_size", 768)
        hidden = text.integer("hidden_size", CLASS_DEFAULTS["hidden_size"])
        bias = 1 if keys.flag("multimodal_projector_bias", True) else 0
        layers = keys.config.get("vision_feature_layer")
        features = len(layers) if isinstance(layers, list) and layers else 1
        projector = FrozenBlock(
            "projector",
            features * width * hidden + bias * hidden + hidden * hidden + bias * hidden,
            "tower width to hidden to hidden",
        )
        filled = [key for key in CLASS_DEFAULTS if not text.given(key)]
        notes = (f"text_config leaves {', '.join(filled)} to the defaults of LlamaConfig",) if filled else ()
        return build_llama(
            text,
            defaults=CLASS_DEFAULTS,
            tied=keys.flag("tie_word_embeddings", False),
            frozen_blocks=(block, projector),
            notes=notes,
        )
