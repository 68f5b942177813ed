"""GPT-2 and GPT-3-like models: learned positions, layer norms and biases everywhere, tied head.

Defaults are those of `GPT2Config` (transformers 5.24.0): n_inner null means 4 * n_embd,
tie_word_embeddings true, activation gelu_new, layer_norm_epsilon 1e-5.
"""

from __future__ import annotations

from planner.model.base import ConfigKeys, Importer
from planner.model.spec import Attention, DecoderLayer, Mlp, ModelSpec


class Gpt2(Importer):
    """`model_type` gpt2."""

    model_types = ("gpt2",)

    def build(self, keys: ConfigKeys) -> ModelSpec:
        """See `Importer.build`."""
        hidden, heads = keys.integer("n_embd"), keys.integer("n_head")
        n_layers = keys.layer_count("n_layer")
        positions, vocab = keys.integer("n_positions"), keys.integer("vocab_size")
        inner = keys.integer("n_inner", 4 * hidden)
        head_dim = keys.head_dim(hidden, heads, hidden_key="n_embd", heads_key="n_head", key="")
        activation = keys.text("activation_function", "gelu_new")
        tied, eps = keys.flag("tie_word_embeddings", True), keys.number("layer_norm_epsilon", 1e-5)
        keys.finish()
        layer = DecoderLayer(
            Attention(heads, heads, head_dim, qkv_bias=True, out_bias=True),
            Mlp(inner, gated=False, bias=True, activation=activation),
            norm="layer",
            norm_bias=True,
        )
        return ModelSpec(
            name=keys.name,
            family="gpt2",
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
