"""Readers of the vision_config of multimodal models: CLIP, SigLIP and Qwen3-VL towers, with their projectors.

Shapes and defaults are those of the transformers 5.24.0 classes (`CLIPVisionModel`, `SiglipVisionModel`,
`Qwen3VLMoeVisionModel`). All linear layers and layer norms have biases.
"""

from __future__ import annotations

from dataclasses import replace

from planner.model.attention import Attention
from planner.model.base import ConfigKeys
from planner.model.ends import PatchEmbedding
from planner.model.feedforward import Mlp
from planner.model.tower import VisionTower
from planner.model.weights import Weight

TOWER_TYPES = ("clip_vision_model", "siglip_vision_model")


def _image_side(keys: ConfigKeys, default_image: int, default_patch: int) -> tuple[int, int]:
    image, patch = keys.integer("image_size", default_image), keys.integer("patch_size", default_patch)
    if patch > image:
        keys.fault("patch_size", f"is {patch}", f"it is cut out of an image of {image}", f"at most {image}")
    return image // patch, patch


def _encoder(keys: ConfigKeys, hidden: int, heads: int, ffn: int) -> tuple[Attention, Mlp]:
    if hidden % heads:
        keys.fault("num_attention_heads", f"is {heads}", f"a head is {hidden}/heads wide", f"a divisor of {hidden}")
    dim = max(hidden // heads, 1)
    attention = Attention(heads, heads, dim, qkv_bias=True, out_bias=True, causal=False, rotary=False)
    return attention, Mlp(ffn, gated=False, bias=True, activation="gelu")


def tower(keys: ConfigKeys, default_type: str) -> VisionTower:
    """The tower of a vision_config, without a projector; an unknown kind is a fault that names the known.

    CLIP has a class token, no bias on the patches, and norms before and after. SigLIP has one position a
    patch and a norm after; vision_use_head adds an attention-pooling head: a probe, attention with packed
    projections, a norm and an MLP.
    """
    kind = keys.text("model_type", default_type)
    if kind not in TOWER_TYPES:
        keys.fault("model_type", f"is {kind!r}", "it is no known vision tower", " or ".join(TOWER_TYPES))
    clip = kind == "clip_vision_model"
    hidden, ffn = keys.integer("hidden_size", 768), keys.integer("intermediate_size", 3072)
    layers, channels = keys.layer_count("num_hidden_layers", 12), keys.integer("num_channels", 3)
    heads = keys.integer("num_attention_heads", 12)
    side, size = _image_side(keys, 224, 32 if clip else 16)
    attention, mlp = _encoder(keys, hidden, heads, ffn)
    patch = PatchEmbedding(channels, size, side * side, side * side, bias=not clip, class_token=clip)
    other = 4 * hidden if clip else 2 * hidden  # two norms; one norm
    if not clip and keys.flag("vision_use_head", True):
        other += hidden + 4 * (hidden * hidden + hidden) + 2 * hidden + 2 * hidden * ffn + ffn + hidden
    note = f"{'CLIP' if clip else 'SigLIP'}, {layers} layers of {hidden}"
    return VisionTower(hidden, layers, attention, mlp, patch, other, 1, (), note=note)


def projected(found: VisionTower, weights: tuple[Weight, ...], *, merged: int = 1, other: int = 0) -> VisionTower:
    """The tower with the projector of its model."""
    return replace(found, projector=weights, merged=merged, projector_other=other)


def qwen_vl(keys: ConfigKeys, text_hidden: int) -> VisionTower:
    """Qwen3-VL and Qwen3.5: patches over two frames, and mergers of spatial_merge_size² patches.

    A merger is a layer norm and two matrices; one stands behind the last layer, one behind each of
    deepstack_visual_indexes (its norm over the merged width). The position table is interpolated to an image's own
    grid; images are taken as large as the table.
    """
    hidden, ffn = keys.integer("hidden_size", 1152), keys.integer("intermediate_size", 4304)
    layers, heads = keys.layer_count("depth", 27), keys.integer("num_heads", 16)
    out = keys.integer("out_hidden_size", text_hidden)
    if out != text_hidden and keys.sound("out_hidden_size"):
        keys.fault("out_hidden_size", f"is {out}", f"the text is {text_hidden} wide", str(text_hidden))
    positions, merge = keys.integer("num_position_embeddings", 2304), keys.integer("spatial_merge_size", 2)
    deep = len(keys.integers("deepstack_visual_indexes"))
    size, channels = keys.integer("patch_size", 16), keys.integer("in_channels", 3)
    frames = keys.integer("temporal_patch_size", 2)
    attention, mlp = _encoder(keys, hidden, heads, ffn)
    wide = hidden * merge * merge
    return VisionTower(
        hidden=hidden,
        n_layers=layers,
        attention=replace(attention, rotary=True),
        ffn=mlp,
        patch=PatchEmbedding(channels, size, positions, positions, frames),
        other=0,
        merged=merge * merge,
        projector=(Weight("fc1", wide, wide, "column", True), Weight("fc2", wide, out, "row", True)),
        mergers=1 + deep,
        projector_other=2 * hidden + deep * 2 * wide,
        note=f"Qwen3-VL, {layers} layers of {hidden}; images of {positions} patches",
    )
