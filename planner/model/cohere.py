"""Command-R: attention and MLP side by side behind one layer norm without bias, tied head with scaled logits.

Defaults are those of `CohereConfig` (transformers 5.24.0); use_qk_norm norms q and k over all heads.
"""

from __future__ import annotations

from planner.model.base import ConfigKeys, Importer
from planner.model.spec import Attention, DecoderLayer, Mlp, ModelSpec


class Cohere(Importer):
    """`model_type` cohere."""

    model_types = ("cohere",)

    def build(self, keys: ConfigKeys) -> ModelSpec:
        """See `Importer.build`."""
        hidden, ffn = keys.integer("hidden_size"), keys.integer("intermediate_size")
        n_layers, heads = keys.layer_count("num_hidden_layers"), keys.integer("num_attention_heads")
        vocab, kv = keys.integer("vocab_size"), keys.kv_heads(heads, heads)
        head_dim, bias = keys.head_dim(hidden, heads), keys.flag("attention_bias", False)
        normed, tied = keys.flag("use_qk_norm", False), keys.flag("tie_word_embeddings", True)
        positions, theta = keys.integer("max_position_embeddings", 8192), keys.rope_theta()
        activation, eps = keys.text("hidden_act", "silu"), keys.number("layer_norm_eps", 1e-5)
        keys.finish()
        attention = Attention(heads, kv, head_dim, qkv_bias=bias, out_bias=bias, qk_norm="full" if normed else None)
        layer = DecoderLayer(attention, Mlp(ffn, activation=activation), norm="layer", n_norms=1, parallel=True)
        return ModelSpec(
            name=keys.name,
            family="cohere",
            hidden=hidden,
            vocab=vocab,
            layers=(layer,) * n_layers,
            norm="layer",
            norm_eps=eps,
            tied_embeddings=tied,
            max_positions=positions,
            rope_theta=theta,
            source=keys.source,
        )
