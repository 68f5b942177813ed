"""GLM-4.5: grouped heads with q, k and v biases, half-rotated, and DeepSeek's routing with leading dense layers.

Defaults are those of `Glm4MoeConfig` (transformers 5.24.0), the shape apart. The correction of the router's
scores is a buffer of the class and not counted. Prediction layers (num_nextn_predict_layers) are kept apart.
"""

from __future__ import annotations

from planner.model.base import ConfigKeys, Importer
from planner.model.spec import Attention, DecoderLayer, Mlp, ModelSpec, Moe


class Glm4Moe(Importer):
    """`model_type` glm4_moe."""

    model_types = ("glm4_moe",)

    def build(self, keys: ConfigKeys) -> ModelSpec:
        """See `Importer.build`."""
        hidden, ffn = keys.integer("hidden_size"), keys.integer("intermediate_size")
        n_layers, heads = keys.layer_count("num_hidden_layers"), keys.integer("num_attention_heads")
        vocab, kv = keys.integer("vocab_size"), keys.kv_heads(heads, 8)
        head_dim, bias = keys.head_dim(hidden, heads), keys.flag("attention_bias", False)
        normed, activation = keys.flag("use_qk_norm", False), keys.text("hidden_act", "silu")
        experts, top_k = keys.experts("n_routed_experts")
        width, shared = keys.integer("moe_intermediate_size"), keys.integer("n_shared_experts", 1, minimum=0)
        leading = keys.integer("first_k_dense_replace", 1, minimum=0)
        mtp = keys.integer("num_nextn_predict_layers", 0, minimum=0)
        positions, theta = keys.integer("max_position_embeddings", 131072), keys.rope_theta()
        rotated, tied = keys.rotary_fraction(0.5), keys.flag("tie_word_embeddings", False)
        eps = keys.number("rms_norm_eps", 1e-5)
        keys.finish()
        attention = Attention(heads, kv, head_dim, qkv_bias=bias, qk_norm="head" if normed else None)
        dense = DecoderLayer(attention, Mlp(ffn, activation=activation))
        moe = Moe(experts, top_k, width, activation=activation, shared_ffn_hidden=shared * width)
        sparse = DecoderLayer(attention, moe)
        return ModelSpec(
            name=keys.name,
            family="glm4_moe",
            hidden=hidden,
            vocab=vocab,
            layers=tuple(dense if i < leading else sparse for i in range(n_layers)),
            norm_eps=eps,
            tied_embeddings=tied,
            max_positions=positions,
            rope_theta=theta,
            rotary_fraction=rotated,
            mtp_layers=(sparse,) * mtp,
            source=keys.source,
            notes=("the router correction is a buffer and not in the parameter count",),
        )
