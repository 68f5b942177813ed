"""gpt-oss: attention sinks, a window in every second layer, biased experts and router.

Defaults are those of `GptOssConfig` (transformers 5.24.0), the shape apart: head_dim 64, window 128 in the layers
that layer_types names, else in the first of every two.
"""

from __future__ import annotations

from planner.model.base import ConfigKeys, Importer
from planner.model.spec import Attention, DecoderLayer, ModelSpec, Moe


class GptOss(Importer):
    """`model_type` gpt_oss."""

    model_types = ("gpt_oss",)

    def build(self, keys: ConfigKeys) -> ModelSpec:
        """See `Importer.build`."""
        hidden, width = keys.integer("hidden_size"), keys.integer("intermediate_size")
        n_layers, heads = keys.layer_count("num_hidden_layers"), keys.integer("num_attention_heads")
        vocab, kv, head_dim = keys.integer("vocab_size"), keys.kv_heads(heads, 8), keys.integer("head_dim", 64)
        experts, top_k = keys.experts("num_local_experts")
        window, bias = keys.optional_integer("sliding_window", 128), keys.flag("attention_bias", True)
        slides = keys.layer_types(n_layers, [i % 2 == 0 for i in range(n_layers)])
        positions, theta = keys.integer("max_position_embeddings", 131072), keys.rope_theta(150000.0)
        tied, eps = keys.flag("tie_word_embeddings", False), keys.number("rms_norm_eps", 1e-5)
        activation = keys.text("hidden_act", "silu")
        keys.finish()
        moe = Moe(experts, top_k, width, bias=True, activation=activation, router_bias=True)
        layers = tuple(
            DecoderLayer(
                Attention(
                    heads, kv, head_dim, qkv_bias=bias, out_bias=bias, window=window if slide else None, sinks=True
                ),
                moe,
            )
            for slide in slides
        )
        return ModelSpec(
            name=keys.name,
            family="gpt_oss",
            hidden=hidden,
            vocab=vocab,
            layers=layers,
            norm_eps=eps,
            tied_embeddings=tied,
            max_positions=positions,
            rope_theta=theta,
            source=keys.source,
        )
