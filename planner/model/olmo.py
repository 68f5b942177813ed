"""OLMo 2: RMS norms behind each part, q and k normed over all heads.

Defaults are those of `Olmo2Config` (transformers 5.24.0), the shape apart.
"""

from __future__ import annotations

from planner.model.base import ConfigKeys, Importer
from planner.model.spec import Attention, DecoderLayer, Mlp, ModelSpec


class Olmo2(Importer):
    """`model_type` olmo2."""

    model_types = ("olmo2",)

    def build(self, keys: ConfigKeys) -> ModelSpec:
        """See `Importer.build`."""
        hidden, ffn = keys.integer("hidden_size"), keys.integer("intermediate_size")
        n_layers, heads = keys.layer_count("num_hidden_layers"), keys.integer("num_attention_heads")
        vocab, kv, head_dim = keys.integer("vocab_size"), keys.kv_heads(heads, heads), keys.head_dim(hidden, heads)
        bias, tied = keys.flag("attention_bias", False), keys.flag("tie_word_embeddings", False)
        positions, theta = keys.integer("max_position_embeddings", 2048), keys.rope_theta()
        activation, eps = keys.text("hidden_act", "silu"), keys.number("rms_norm_eps", 1e-5)
        keys.finish()
        layer = DecoderLayer(
            Attention(heads, kv, head_dim, qkv_bias=bias, out_bias=bias, qk_norm="full"),
            Mlp(ffn, activation=activation),
        )
        return ModelSpec(
            name=keys.name,
            family="olmo2",
            hidden=hidden,
            vocab=vocab,
            layers=(layer,) * n_layers,
            norm_eps=eps,
            tied_embeddings=tied,
            max_positions=positions,
            rope_theta=theta,
            source=keys.source,
        )
