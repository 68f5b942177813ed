"""Grok-1: eight wide experts in every layer, norms before and after each part, capped scores, tied head.

There is no official Hugging Face class: the keys are those of public ports of the published weights (github
xai-org/grok-1 ``model.py``: RMS norms around both parts, experts of three matrices with GELU, no biases,
attn_output_multiplier and a tanh cap of 30 on the scores). The shape has to be given.
"""

from __future__ import annotations

from planner.model.base import ConfigKeys, Importer
from planner.model.spec import Attention, DecoderLayer, ModelSpec, Moe


class Grok(Importer):
    """`model_type` grok-1."""

    model_types = ("grok-1",)

    def build(self, keys: ConfigKeys) -> ModelSpec:
        """See `Importer.build`."""
        hidden, width = keys.integer("hidden_size"), keys.integer("intermediate_size")
        n_layers, heads = keys.layer_count("num_hidden_layers"), keys.integer("num_attention_heads")
        vocab, kv, head_dim = keys.integer("vocab_size"), keys.kv_heads(heads, heads), keys.head_dim(hidden, heads)
        experts, top_k = keys.experts("num_experts")
        positions, tied = keys.integer("max_position_embeddings", 8192), keys.flag("tie_word_embeddings", True)
        theta, eps = keys.rope_theta(), keys.number("rms_norm_eps", 1e-5)
        keys.finish()
        layer = DecoderLayer(
            Attention(heads, kv, head_dim, softcap=True), Moe(experts, top_k, width, activation="gelu"), n_norms=4
        )
        return ModelSpec(
            name=keys.name,
            family="grok-1",
            hidden=hidden,
            vocab=vocab,
            layers=(layer,) * n_layers,
            norm_eps=eps,
            tied_embeddings=tied,
            max_positions=positions,
            rope_theta=theta,
            embedding_scale=True,
            source=keys.source,
        )
