"""DBRX: shape keys of its own, attention and experts in nested objects, layer norms without bias.

Defaults are those of `DbrxConfig` and its parts (transformers 5.24.0); every layer is a mixture of experts.
"""

from __future__ import annotations

from planner.model.base import ConfigKeys, Importer
from planner.model.spec import Attention, DecoderLayer, ModelSpec, Moe


class Dbrx(Importer):
    """`model_type` dbrx."""

    model_types = ("dbrx",)

    def build(self, keys: ConfigKeys) -> ModelSpec:
        """See `Importer.build`."""
        hidden, heads = keys.integer("d_model"), keys.integer("n_heads")
        n_layers, vocab = keys.layer_count("n_layers"), keys.integer("vocab_size")
        positions, tied = keys.integer("max_seq_len", 2048), keys.flag("tie_word_embeddings", False)
        head_dim = keys.head_dim(hidden, heads, hidden_key="d_model", heads_key="n_heads", key="")
        attention, ffn = keys.section("attn_config"), keys.section("ffn_config")
        kv = attention.kv_heads(heads, 1, "kv_n_heads", "n_heads")
        theta = attention.number("rope_theta", 10000.0)
        experts, top_k = ffn.experts("moe_num_experts", "moe_top_k")
        width = ffn.integer("ffn_hidden_size")
        act = ffn.section("ffn_act_fn").text("name", "silu") if ffn.given("ffn_act_fn") else "silu"
        keys.finish()
        layer = DecoderLayer(Attention(heads, kv, head_dim), Moe(experts, top_k, width, activation=act), norm="layer")
        return ModelSpec(
            name=keys.name,
            family="dbrx",
            hidden=hidden,
            vocab=vocab,
            layers=(layer,) * n_layers,
            norm="layer",
            tied_embeddings=tied,
            max_positions=positions,
            rope_theta=theta,
            source=keys.source,
        )
