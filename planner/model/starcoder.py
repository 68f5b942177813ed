"""StarCoder (gpt_bigcode) and StarCoder 2: layer norms and biases, two-matrix MLP, tied head.

Defaults are those of `GPTBigCodeConfig` and `Starcoder2Config` (transformers 5.24.0), the shape apart. The first
has learned positions and, with multi_query, one key-value head; the second rotates and slides a window in every
layer where sliding_window is given.
"""

from __future__ import annotations

from planner.model.base import ConfigKeys, Importer
from planner.model.spec import Attention, DecoderLayer, Mlp, ModelSpec


class BigCode(Importer):
    """`model_type` gpt_bigcode."""

    model_types = ("gpt_bigcode",)

    def build(self, keys: ConfigKeys) -> ModelSpec:
        """See `Importer.build`."""
        hidden, heads, n_layers = keys.integer("n_embd"), keys.integer("n_head"), keys.layer_count("n_layer")
        positions, vocab = keys.integer("n_positions"), keys.integer("vocab_size")
        inner, kv = keys.integer("n_inner", 4 * hidden), 1 if keys.flag("multi_query", True) else heads
        head_dim = keys.head_dim(hidden, heads, hidden_key="n_embd", heads_key="n_head", key="")
        activation = keys.text("activation_function", "gelu_pytorch_tanh")
        tied, eps = keys.flag("tie_word_embeddings", True), keys.number("layer_norm_epsilon", 1e-5)
        keys.finish()
        layer = DecoderLayer(
            Attention(heads, kv, head_dim, qkv_bias=True, out_bias=True),
            Mlp(inner, gated=False, bias=True, activation=activation),
            norm="layer",
            norm_bias=True,
        )
        return ModelSpec(
            name=keys.name,
            family="gpt_bigcode",
            hidden=hidden,
            vocab=vocab,
            layers=(layer,) * n_layers,
            norm="layer",
            norm_bias=True,
            norm_eps=eps,
            tied_embeddings=tied,
            learned_positions=positions,
            max_positions=positions,
            source=keys.source,
        )


class Starcoder2(Importer):
    """`model_type` starcoder2."""

    model_types = ("starcoder2",)

    def build(self, keys: ConfigKeys) -> ModelSpec:
        """See `Importer.build`."""
        hidden, ffn = keys.integer("hidden_size"), keys.integer("intermediate_size")
        n_layers, heads = keys.layer_count("num_hidden_layers"), keys.integer("num_attention_heads")
        vocab, kv = keys.integer("vocab_size"), keys.kv_heads(heads, 2)
        head_dim, bias = keys.head_dim(hidden, heads, key=""), keys.flag("use_bias", True)
        window, positions = keys.optional_integer("sliding_window"), keys.integer("max_position_embeddings", 4096)
        tied, theta = keys.flag("tie_word_embeddings", True), keys.rope_theta()
        activation, eps = keys.text("hidden_act", "gelu_pytorch_tanh"), keys.number("norm_epsilon", 1e-5)
        keys.finish()
        layer = DecoderLayer(
            Attention(heads, kv, head_dim, qkv_bias=bias, out_bias=bias, window=window),
            Mlp(ffn, gated=False, bias=bias, activation=activation),
            norm="layer",
            norm_bias=True,
        )
        return ModelSpec(
            name=keys.name,
            family="starcoder2",
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
