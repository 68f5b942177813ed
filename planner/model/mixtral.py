"""Mixtral: Mistral's attention, and a mixture of experts in every layer.

Defaults are those of `MixtralConfig` (transformers 5.24.0): 8 key-value heads, no sliding
window, head_dim hidden/heads, untied head, no biases.
"""

from __future__ import annotations

from planner.model.base import ConfigKeys, Importer
from planner.model.spec import Attention, DecoderLayer, ModelSpec, Moe


class Mixtral(Importer):
    """`model_type` mixtral."""

    model_types = ("mixtral",)

    def build(self, keys: ConfigKeys) -> ModelSpec:
        """See `Importer.build`."""
        hidden, ffn = keys.integer("hidden_size"), keys.integer("intermediate_size")
        n_layers, heads = keys.layer_count("num_hidden_layers"), keys.integer("num_attention_heads")
        vocab = keys.integer("vocab_size")
        experts, top_k = keys.experts("num_local_experts")
        kv, head_dim = keys.kv_heads(heads, 8), keys.head_dim(hidden, heads)
        window, positions = keys.optional_integer("sliding_window"), keys.integer("max_position_embeddings", 4096 * 32)
        tied, theta = keys.flag("tie_word_embeddings", False), keys.rope_theta(1e6)
        activation, eps = keys.text("hidden_act", "silu"), keys.number("rms_norm_eps", 1e-5)
        keys.finish()
        layer = DecoderLayer(
            Attention(heads, kv, head_dim, window=window), Moe(experts, top_k, ffn, activation=activation)
        )
        return ModelSpec(
            name=keys.name,
            family="mixtral",
            hidden=hidden,
            vocab=vocab,
            layers=(layer,) * n_layers,
            norm_eps=eps,
            tied_embeddings=tied,
            max_positions=positions,
            rope_theta=theta,
            source=keys.source,
        )
