"""Llama 4: routed layers with one shared expert, attention within chunks, and every fourth layer without positions.

Defaults are those of `Llama4TextConfig` (transformers 5.24.0), the shape apart: layers rotate and attend within
attention_chunk_size tokens except every no_rope_layer_interval-th, which sees the whole sequence; q and k of rotated
layers are normed without a weight. A layer is routed every interleave_moe_layer_step. The tower of a vision_config is
not read; a config without one is read as its text model, and says so.
"""

from __future__ import annotations

from planner.model.base import ConfigKeys, Importer
from planner.model.spec import Attention, DecoderLayer, Mlp, ModelSpec, Moe


class Llama4(Importer):
    """`model_type` llama4 (text_config) and llama4_text."""

    model_types = ("llama4", "llama4_text")

    def build(self, keys: ConfigKeys) -> ModelSpec:
        """See `Importer.build`."""
        nested = keys.config.get("model_type") == "llama4"
        text = keys.section("text_config") if nested else keys
        hidden, width = text.integer("hidden_size"), text.integer("intermediate_size")
        n_layers, heads = text.layer_count("num_hidden_layers"), text.integer("num_attention_heads")
        vocab, kv, head_dim = text.integer("vocab_size"), text.kv_heads(heads, 8), text.head_dim(hidden, heads)
        dense, experts = text.integer("intermediate_size_mlp", 16384), text.experts("num_local_experts")
        step, bias = text.integer("interleave_moe_layer_step", 1), text.flag("attention_bias", False)
        chunk, every = text.optional_integer("attention_chunk_size", 8192), text.integer("no_rope_layer_interval", 4)
        given, normed = text.integers("no_rope_layers"), text.flag("use_qk_norm", True)
        rotates = [bool(v) for v in given] or [(i + 1) % every != 0 for i in range(n_layers)]
        if len(rotates) != n_layers and text.sound("num_hidden_layers"):
            text.fault("no_rope_layers", f"has {len(rotates)} entries", f"there are {n_layers} layers", "leave it out")
        listed = text.integers("moe_layers")
        tied, theta = text.flag("tie_word_embeddings", False), text.rope_theta(500000.0)
        positions, eps = text.integer("max_position_embeddings", 131072), text.number("rms_norm_eps", 1e-5)
        activation = text.text("hidden_act", "silu")
        vision = nested and keys.given("vision_config")
        keys.finish()
        moe = Moe(*experts, width, activation=activation, shared_ffn_hidden=width)
        mlp = Mlp(dense, activation=activation)
        layers = tuple(
            DecoderLayer(
                Attention(
                    heads, kv, head_dim, qkv_bias=bias, out_bias=bias, rotary=turns,
                    qk_norm="unit" if normed and turns else None, chunk=chunk if turns else None,
                ),
                moe if (i in listed if listed else (i + 1) % step == 0) else mlp,
            )
            for i, turns in enumerate(rotates)
        )  # fmt: skip
        unread = "the vision_config is not read" if vision else "no vision_config is given"
        return ModelSpec(
            name=keys.name,
            family="llama4",
            hidden=hidden,
            vocab=vocab,
            layers=layers,
            norm_eps=eps,
            tied_embeddings=tied,
            max_positions=positions,
            rope_theta=theta,
            source=keys.source,
            notes=(f"{unread}: this is the text model alone",) if nested else (),
        )
