"""Mamba, Mamba-2 and Jamba: recurrent mixers alone, or with an attention layer in every eight.

Defaults are those of `MambaConfig`, `Mamba2Config` and `JambaConfig` (transformers 5.24.0), the shape apart: state
16 (Mamba-2: 128), expand 2, four taps, a step-size rank of hidden/16 rounded up. Mamba layers have one norm and no
MLP. Jamba attends in layer attn_layer_offset of every attn_layer_period, without positions, and routes in layer
expert_layer_offset of every expert_layer_period.
"""

from __future__ import annotations

from planner.model.base import ConfigKeys, Importer
from planner.model.spec import Attention, DecoderLayer, Mamba1, Mamba2, Mlp, ModelSpec, Moe


class Mamba(Importer):
    """`model_type` mamba and mamba2."""

    model_types = ("mamba", "mamba2")

    def build(self, keys: ConfigKeys) -> ModelSpec:
        """See `Importer.build`."""
        second = keys.config.get("model_type") == "mamba2"
        hidden, n_layers, vocab = (
            keys.integer("hidden_size"),
            keys.layer_count("num_hidden_layers"),
            keys.integer("vocab_size"),
        )
        expand, taps = keys.integer("expand", 2), keys.integer("conv_kernel", 4)
        bias, conv = keys.flag("use_bias", False), keys.flag("use_conv_bias", True)
        tied, eps = keys.flag("tie_word_embeddings", not second), keys.number("layer_norm_epsilon", 1e-5)
        state = keys.integer("state_size", 128 if second else 16)
        mixer: Mamba1 | Mamba2
        if second:
            heads, dim = keys.integer("num_heads", 128), keys.integer("head_dim", 64)
            if heads * dim != expand * hidden and keys.sound("num_heads", "head_dim", "expand", "hidden_size"):
                what = f"{heads} heads of {dim} are not expand*hidden_size={expand * hidden}"
                keys.fault("num_heads", what, "the heads share the inner width", str(max(expand * hidden // dim, 1)))
            groups, chunk = keys.integer("n_groups", 8), keys.integer("chunk_size", 256)
            mixer = Mamba2(heads, dim, groups, state, taps, chunk, conv, bias)
        else:
            inner = keys.integer("intermediate_size", expand * hidden)
            mixer = Mamba1(inner, state, taps, _rank(keys, "time_step_rank", hidden), conv, bias)
        keys.finish()
        return ModelSpec(
            name=keys.name,
            family="mamba2" if second else "mamba",
            hidden=hidden,
            vocab=vocab,
            layers=(DecoderLayer(mixer, None, n_norms=1),) * n_layers,
            norm_eps=eps,
            tied_embeddings=tied,
            source=keys.source,
        )


def _rank(keys: ConfigKeys, key: str, hidden: int) -> int:
    """The step-size rank: a number, or ``auto`` and absent for hidden/16 rounded up."""
    automatic = -(-hidden // 16)
    return automatic if keys.config.get(key) == "auto" else keys.integer(key, automatic)


class Jamba(Importer):
    """`model_type` jamba."""

    model_types = ("jamba",)

    def build(self, keys: ConfigKeys) -> ModelSpec:
        """See `Importer.build`."""
        hidden, ffn = keys.integer("hidden_size"), keys.integer("intermediate_size")
        n_layers, heads = keys.layer_count("num_hidden_layers"), keys.integer("num_attention_heads")
        vocab, kv, head_dim = keys.integer("vocab_size"), keys.kv_heads(heads, 8), keys.head_dim(hidden, heads, key="")
        experts, top_k = keys.integer("num_experts", 16), keys.integer("num_experts_per_tok", 2)
        every = keys.integer("attn_layer_period", 8), keys.integer("attn_layer_offset", 4, minimum=0)
        routed = keys.integer("expert_layer_period", 2), keys.integer("expert_layer_offset", 1, minimum=0)
        mixer = Mamba1(
            keys.integer("mamba_expand", 2) * hidden,
            keys.integer("mamba_d_state", 16),
            keys.integer("mamba_d_conv", 4),
            _rank(keys, "mamba_dt_rank", hidden),
            keys.flag("mamba_conv_bias", True),
            keys.flag("mamba_proj_bias", False),
            inner_norms=True,
        )
        tied, eps = keys.flag("tie_word_embeddings", False), keys.number("rms_norm_eps", 1e-6)
        positions, activation = keys.integer("max_position_embeddings", 262144), keys.text("hidden_act", "silu")
        keys.finish()
        attention = Attention(heads, kv, head_dim, rotary=False)
        dense, moe = Mlp(ffn, activation=activation), Moe(experts, top_k, ffn, activation=activation)
        layers = tuple(
            DecoderLayer(
                attention if i % every[0] == every[1] else mixer,
                moe if experts > 1 and i % routed[0] == routed[1] else dense,
            )
            for i in range(n_layers)
        )
        return ModelSpec(
            name=keys.name,
            family="jamba",
            hidden=hidden,
            vocab=vocab,
            layers=layers,
            norm_eps=eps,
            tied_embeddings=tied,
            max_positions=positions,
            source=keys.source,
        )
