"""BLOOM: ALiBi instead of positions, layer norms and biases everywhere, a norm behind the embedding, tied head.

Defaults are those of `BloomConfig` (transformers 5.24.0), which also maps n_embed, n_layer and n_head to
hidden_size, num_hidden_layers and num_attention_heads; the MLP is 4 x hidden.
"""

from __future__ import annotations

from planner.model.base import ConfigKeys, Importer
from planner.model.spec import Attention, DecoderLayer, Mlp, ModelSpec


class Bloom(Importer):
    """`model_type` bloom."""

    model_types = ("bloom",)

    def build(self, keys: ConfigKeys) -> ModelSpec:
        """See `Importer.build`."""
        hidden_key = keys.first("hidden_size", "n_embed", "n_embd")
        layers_key = keys.first("num_hidden_layers", "n_layer")
        heads_key = keys.first("num_attention_heads", "n_head")
        hidden, n_layers, heads = keys.integer(hidden_key), keys.layer_count(layers_key), keys.integer(heads_key)
        head_dim = keys.head_dim(hidden, heads, hidden_key=hidden_key, heads_key=heads_key, key="")
        vocab, eps = keys.integer("vocab_size"), keys.number("layer_norm_epsilon", 1e-5)
        tied = keys.flag("tie_word_embeddings", True)
        keys.finish()
        layer = DecoderLayer(
            Attention(heads, heads, head_dim, qkv_bias=True, out_bias=True, rotary=False),
            Mlp(4 * hidden, gated=False, bias=True, activation="gelu"),
            norm="layer",
            norm_bias=True,
        )
        return ModelSpec(
            name=keys.name,
            family="bloom",
            hidden=hidden,
            vocab=vocab,
            layers=(layer,) * n_layers,
            norm="layer",
            norm_bias=True,
            norm_eps=eps,
            tied_embeddings=tied,
            embedding_norm=True,
            source=keys.source,
        )
