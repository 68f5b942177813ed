"""Encoders: ViT over the patches of an image, BERT over tokens; attention sees the whole sequence.

Defaults are those of `ViTConfig` and `BertConfig` (transformers 5.24.0), the shape apart. ViT is read as
``ViTForImageClassification`` (a class token, norms before each part, a classifier of num_labels, two unless
id2label says more); a sequence is its patches and the class token. BERT is read as ``BertForMaskedLM``: norms behind
each part, position and segment tables, a dense layer with a norm before the tied head, which has a bias; the pooler
of next-sentence prediction is not part of that class.
"""

from __future__ import annotations

from collections.abc import Mapping

from planner.model.base import ConfigKeys, Importer
from planner.model.spec import Attention, DecoderLayer, Mlp, ModelSpec, PatchEmbedding


def _encoder_layer(keys: ConfigKeys, hidden: int, *, qkv_bias: bool) -> DecoderLayer:
    heads, ffn = keys.integer("num_attention_heads"), keys.integer("intermediate_size")
    head_dim, activation = keys.head_dim(hidden, heads, key=""), keys.text("hidden_act", "gelu")
    attention = Attention(heads, heads, head_dim, qkv_bias=qkv_bias, out_bias=True, causal=False, rotary=False)
    return DecoderLayer(attention, Mlp(ffn, False, True, activation), norm="layer", norm_bias=True)


class Vit(Importer):
    """`model_type` vit."""

    model_types = ("vit",)

    def build(self, keys: ConfigKeys) -> ModelSpec:
        """See `Importer.build`."""
        hidden, n_layers = keys.integer("hidden_size"), keys.layer_count("num_hidden_layers")
        image, patch = keys.integer("image_size", 224), keys.integer("patch_size", 16)
        if (patch > image or image % patch) and keys.sound("image_size", "patch_size"):
            keys.fault("patch_size", f"is {patch}", f"patches tile an image of {image}", f"a divisor of {image}")
        channels, layer = (
            keys.integer("num_channels", 3),
            _encoder_layer(keys, hidden, qkv_bias=keys.flag("qkv_bias", True)),
        )
        labels, eps = keys.config.get("id2label"), keys.number("layer_norm_eps", 1e-12)
        classes = keys.integer("num_labels", len(labels) if isinstance(labels, Mapping) and labels else 2)
        keys.finish()
        side = image // patch
        patches = PatchEmbedding(channels, patch, side * side, side * side, class_token=True)
        return ModelSpec(
            name=keys.name,
            family="vit",
            hidden=hidden,
            vocab=0,
            layers=(layer,) * n_layers,
            norm="layer",
            norm_bias=True,
            norm_eps=eps,
            learned_positions=patches.tokens,
            max_positions=patches.tokens,
            patches=patches,
            n_classes=classes,
            source=keys.source,
            notes=(f"a sequence is an image: {patches.patches} patches of {patch} pixels and the class token",),
        )


class Bert(Importer):
    """`model_type` bert."""

    model_types = ("bert",)

    def build(self, keys: ConfigKeys) -> ModelSpec:
        """See `Importer.build`."""
        hidden, n_layers = keys.integer("hidden_size"), keys.layer_count("num_hidden_layers")
        vocab, positions = keys.integer("vocab_size"), keys.integer("max_position_embeddings", 512)
        layer, segments = _encoder_layer(keys, hidden, qkv_bias=True), keys.integer("type_vocab_size", 2)
        tied, eps = keys.flag("tie_word_embeddings", True), keys.number("layer_norm_eps", 1e-12)
        keys.finish()
        return ModelSpec(
            name=keys.name,
            family="bert",
            hidden=hidden,
            vocab=vocab,
            layers=(layer,) * n_layers,
            norm="layer",
            norm_bias=True,
            norm_eps=eps,
            tied_embeddings=tied,
            head_bias=True,
            learned_positions=positions,
            max_positions=positions,
            embedding_norm=True,
            final_norm=False,
            segments=segments,
            head_transform=True,
            source=keys.source,
            notes=("a masked language model: logits of every token, no pooler and no next-sentence loss",),
        )
