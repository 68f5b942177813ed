"""Parameter counts of the vision towers that multimodal configs carry (frozen here).

A tower is loaded beside the language model and not planned, so only its size matters. Both
counts add up the modules of the transformers 5.24.0 classes: `SiglipVisionModel`,
`CLIPVisionModel`. All linear layers and layer norms have biases.
"""

from __future__ import annotations

from planner.model.base import ConfigKeys
from planner.model.spec import FrozenBlock

TOWER_TYPES = ("clip_vision_model", "siglip_vision_model")


def _encoder_layer(hidden: int, ffn: int) -> int:
    """q, k, v, o; two MLP matrices; two layer norms; all with biases."""
    return 4 * (hidden * hidden + hidden) + 2 * hidden * ffn + ffn + hidden + 2 * 2 * hidden


def _image_side(keys: ConfigKeys, default_image: int, default_patch: int) -> tuple[int, int]:
    image, patch = keys.integer("image_size", default_image), keys.integer("patch_size", default_patch)
    if patch > image:
        keys.fault("patch_size", f"is {patch}", f"it is cut out of an image of {image}", f"at most {image}")
    return image // patch, patch


def siglip(keys: ConfigKeys) -> FrozenBlock:
    """SigLIP tower: patch convolution with bias, one position a patch, final layer norm.

    Defaults of `SiglipVisionConfig`. vision_use_head adds an attention-pooling head: a probe,
    an attention block with packed projections, a layer norm and an MLP.
    """
    hidden, ffn = keys.integer("hidden_size", 768), keys.integer("intermediate_size", 3072)
    layers, channels = keys.layer_count("num_hidden_layers", 12), keys.integer("num_channels", 3)
    side, patch = _image_side(keys, 224, 16)
    total = channels * patch * patch * hidden + hidden + side * side * hidden
    total += layers * _encoder_layer(hidden, ffn) + 2 * hidden
    if keys.flag("vision_use_head", True):
        total += hidden + 4 * (hidden * hidden + hidden) + 2 * hidden + 2 * hidden * ffn + ffn + hidden
    return FrozenBlock("vision_tower", total, f"SigLIP, {layers} layers of {hidden}")


def clip(keys: ConfigKeys) -> FrozenBlock:
    """CLIP tower: patch convolution without bias, class token, norms before and after.

    Defaults of `CLIPVisionConfig`.
    """
    hidden, ffn = keys.integer("hidden_size", 768), keys.integer("intermediate_size", 3072)
    layers, channels = keys.layer_count("num_hidden_layers", 12), keys.integer("num_channels", 3)
    side, patch = _image_side(keys, 224, 32)
    total = hidden + channels * patch * patch * hidden + (side * side + 1) * hidden
    total += 2 * hidden + layers * _encoder_layer(hidden, ffn) + 2 * hidden
    return FrozenBlock("vision_tower", total, f"CLIP, {layers} layers of {hidden}")


def tower(keys: ConfigKeys, default_type: str) -> FrozenBlock:
    """The tower that a vision_config describes; an unknown kind is a fault that names the known."""
    kind = keys.text("model_type", default_type)
    if kind not in TOWER_TYPES:
        keys.fault("model_type", f"is {kind!r}", "it is no known vision tower", " or ".join(TOWER_TYPES))
        return FrozenBlock("vision_tower", 0)
    return siglip(keys) if kind == "siglip_vision_model" else clip(keys)
