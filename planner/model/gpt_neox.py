"""GPT-NeoX and Pythia: parallel branches with a norm each, a quarter of the head rotated, biases, untied head.

Defaults are those of `GPTNeoXConfig` (transformers 5.24.0), the shape apart. There are no grouped key-value heads.
"""

from __future__ import annotations

from planner.model.base import ConfigKeys, Importer
from planner.model.spec import Attention, DecoderLayer, Mlp, ModelSpec


class GptNeoX(Importer):
    """`model_type` gpt_neox."""

    model_types = ("gpt_neox",)

    def build(self, keys: ConfigKeys) -> ModelSpec:
        """See `Importer.build`."""
        hidden, ffn = keys.integer("hidden_size"), keys.integer("intermediate_size")
        n_layers, heads = keys.layer_count("num_hidden_layers"), keys.integer("num_attention_heads")
        vocab, head_dim = keys.integer("vocab_size"), keys.head_dim(hidden, heads, key="")
        parallel, bias = keys.flag("use_parallel_residual", True), keys.flag("attention_bias", True)
        activation, eps = keys.text("hidden_act", "gelu"), keys.number("layer_norm_eps", 1e-5)
        positions, theta = keys.integer("max_position_embeddings", 2048), keys.rope_theta()
        old = keys.number("rotary_pct", 0.25)
        rotated, tied = keys.rotary_fraction(old), keys.flag("tie_word_embeddings", False)
        keys.finish()
        layer = DecoderLayer(
            Attention(heads, heads, head_dim, qkv_bias=bias, out_bias=bias),
            Mlp(ffn, gated=False, bias=True, activation=activation),
            norm="layer",
            norm_bias=True,
            parallel=parallel,
        )
        return ModelSpec(
            name=keys.name,
            family="gpt_neox",
            hidden=hidden,
            vocab=vocab,
            layers=(layer,) * n_layers,
            norm="layer",
            norm_bias=True,
            norm_eps=eps,
            tied_embeddings=tied,
            max_positions=positions,
            rope_theta=theta,
            rotary_fraction=rotated,
            source=keys.source,
        )
