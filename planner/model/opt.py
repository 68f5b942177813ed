"""OPT: learned positions with two spare rows, layer norms before each part, biases, ReLU, tied head.

Defaults are those of `OPTConfig` (transformers 5.24.0), the shape apart. Two variants are refused: norms behind
the parts (350M, do_layer_norm_before false) and an embedding narrower than the layers (word_embed_proj_dim).
"""

from __future__ import annotations

from planner.model.base import ConfigKeys, Importer
from planner.model.spec import Attention, DecoderLayer, Mlp, ModelSpec


class Opt(Importer):
    """`model_type` opt."""

    model_types = ("opt",)

    def build(self, keys: ConfigKeys) -> ModelSpec:
        """See `Importer.build`."""
        hidden, ffn = keys.integer("hidden_size"), keys.integer("ffn_dim")
        n_layers, heads = keys.layer_count("num_hidden_layers"), keys.integer("num_attention_heads")
        vocab, head_dim = keys.integer("vocab_size"), keys.head_dim(hidden, heads, key="")
        positions, bias = keys.integer("max_position_embeddings", 2048), keys.flag("enable_bias", True)
        tied, activation = keys.flag("tie_word_embeddings", True), keys.text("activation_function", "relu")
        if keys.integer("word_embed_proj_dim", hidden) != hidden:
            why = f"an embedding of another width than hidden_size={hidden} needs projections"
            keys.fault("word_embed_proj_dim", f"is {keys.config['word_embed_proj_dim']}", why, str(hidden))
        if not keys.flag("do_layer_norm_before", True):
            keys.fault("do_layer_norm_before", "is false", "norms behind the parts are not read", "true")
        keys.finish()
        layer = DecoderLayer(
            Attention(heads, heads, head_dim, qkv_bias=bias, out_bias=bias),
            Mlp(ffn, gated=False, bias=bias, activation=activation),
            norm="layer",
            norm_bias=True,
        )
        return ModelSpec(
            name=keys.name,
            family="opt",
            hidden=hidden,
            vocab=vocab,
            layers=(layer,) * n_layers,
            norm="layer",
            norm_bias=True,
            tied_embeddings=tied,
            learned_positions=positions + 2,
            max_positions=positions,
            source=keys.source,
        )
