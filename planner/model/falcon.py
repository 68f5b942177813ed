"""Falcon under today's keys and under those it was first published with (RefinedWeb, RefinedWebModel).

Defaults are those of `FalconConfig` (transformers 5.24.0), the shape apart. The new decoder architecture (40B)
has grouped key-value heads and a norm for each of the parallel branches; the old one has one norm, and
multi_query gives it one key-value head whatever num_kv_heads says. The head is tied.
"""

from __future__ import annotations

from planner.model.base import ConfigKeys, Importer
from planner.model.spec import Attention, DecoderLayer, Mlp, ModelSpec


class Falcon(Importer):
    """`model_type` falcon, RefinedWeb and RefinedWebModel."""

    model_types = ("falcon", "RefinedWeb", "RefinedWebModel")

    def build(self, keys: ConfigKeys) -> ModelSpec:
        """See `Importer.build`."""
        layers_key = keys.first("num_hidden_layers", "n_layer")
        heads_key = keys.first("num_attention_heads", "n_head")
        kv_key = keys.first("num_kv_heads", "n_head_kv")
        hidden, n_layers, heads = keys.integer("hidden_size"), keys.layer_count(layers_key), keys.integer(heads_key)
        head_dim = keys.head_dim(hidden, heads, heads_key=heads_key, key="")
        new, query = keys.flag("new_decoder_architecture", False), keys.flag("multi_query", True)
        kv = keys.kv_heads(heads, heads, kv_key, heads_key) if new or not query else 1
        parallel, bias, alibi = keys.flag("parallel_attn", True), keys.flag("bias", False), keys.flag("alibi", False)
        vocab, eps = keys.integer("vocab_size"), keys.number("layer_norm_epsilon", 1e-5)
        ffn, activation = keys.integer("ffn_hidden_size", 4 * hidden), keys.text("activation", "gelu")
        norms = keys.integer("num_ln_in_parallel_attn", 2) if new else (1 if parallel else 2)
        positions, theta = keys.integer("max_position_embeddings", 2048), keys.rope_theta()
        tied = keys.flag("tie_word_embeddings", True)
        keys.finish()
        layer = DecoderLayer(
            Attention(heads, kv, head_dim, qkv_bias=bias, out_bias=bias, rotary=not alibi),
            Mlp(ffn, gated=False, bias=bias, activation=activation),
            norm="layer",
            norm_bias=True,
            n_norms=norms,
            parallel=new or parallel,
        )
        return ModelSpec(
            name=keys.name,
            family="falcon",
            hidden=hidden,
            vocab=vocab,
            layers=(layer,) * n_layers,
            norm="layer",
            norm_bias=True,
            norm_eps=eps,
            tied_embeddings=tied,
            max_positions=positions,
            rope_theta=theta,
            source=keys.source,
        )
