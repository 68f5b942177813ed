"""Phi: Phi-1/2 (parallel block, biases everywhere) and Phi-3/3.5/4-mini (Llama-like).

Phi-2 files come with two sets of keys: the class's own (`model_type` phi) and the older remote
code's (`phi-msft`: n_embd, n_head, n_inner null = 4 * n_embd, rotary_dim). Defaults are those of
`PhiConfig` and `Phi3Config` (transformers 5.24.0): key-value heads equal to the heads, half of
each head rotated in Phi and all of it in Phi-3, untied head.
"""

from __future__ import annotations

from planner.model.base import ConfigKeys, Importer
from planner.model.spec import Attention, DecoderLayer, Mlp, ModelSpec


def _phi(
    keys: ConfigKeys,
    *,
    hidden: int,
    heads: int,
    kv: int,
    head_dim: int,
    ffn: int,
    n_layers: int,
    positions: int,
    rotary: float,
    activation: str,
    eps: float,
    qk_norm: bool,
) -> ModelSpec:
    vocab, tied, theta = keys.integer("vocab_size"), keys.flag("tie_word_embeddings", False), keys.rope_theta()
    if qk_norm:
        keys.fault(
            "qk_layernorm", "is true", "layer norms of q and k with biases are not supported", "false, as in Phi-2"
        )
    keys.finish()
    layer = DecoderLayer(
        Attention(heads, kv, head_dim, qkv_bias=True, out_bias=True),
        Mlp(ffn, gated=False, bias=True, activation=activation),
        norm="layer",
        norm_bias=True,
        n_norms=1,
        parallel=True,
    )
    return ModelSpec(
        name=keys.name,
        family="phi",
        hidden=hidden,
        vocab=vocab,
        layers=(layer,) * n_layers,
        norm="layer",
        norm_bias=True,
        norm_eps=eps,
        tied_embeddings=tied,
        head_bias=True,
        max_positions=positions,
        rope_theta=theta,
        rotary_fraction=rotary,
        source=keys.source,
    )


class Phi(Importer):
    """`model_type` phi."""

    model_types = ("phi",)

    def build(self, keys: ConfigKeys) -> ModelSpec:
        """See `Importer.build`."""
        hidden, heads = keys.integer("hidden_size"), keys.integer("num_attention_heads")
        return _phi(
            keys,
            hidden=hidden,
            heads=heads,
            kv=keys.kv_heads(heads, heads),
            head_dim=keys.head_dim(hidden, heads, key=""),
            ffn=keys.integer("intermediate_size"),
            n_layers=keys.layer_count("num_hidden_layers"),
            positions=keys.integer("max_position_embeddings", 2048),
            rotary=keys.rotary_fraction(0.5),
            activation=keys.text("hidden_act", "gelu_new"),
            eps=keys.number("layer_norm_eps", 1e-5),
            qk_norm=keys.flag("qk_layernorm", False),
        )


class PhiLegacy(Importer):
    """`model_type` phi-msft: the keys of the first remote code of Phi-1.5 and Phi-2."""

    model_types = ("phi-msft",)

    def build(self, keys: ConfigKeys) -> ModelSpec:
        """See `Importer.build`."""
        hidden, heads = keys.integer("n_embd"), keys.integer("n_head")
        head_dim = keys.head_dim(hidden, heads, hidden_key="n_embd", heads_key="n_head", key="")
        rotary = keys.integer("rotary_dim", min(32, head_dim))
        if rotary > head_dim:
            keys.fault("rotary_dim", f"is {rotary}", f"a head is {head_dim} wide", f"at most {head_dim}")
        return _phi(
            keys,
            hidden=hidden,
            heads=heads,
            kv=keys.kv_heads(heads, heads, "n_head_kv", "n_head"),
            head_dim=head_dim,
            ffn=keys.integer("n_inner", 4 * hidden),
            n_layers=keys.layer_count("n_layer"),
            positions=keys.integer("n_positions", 2048),
            rotary=rotary / head_dim,
            activation=keys.text("activation_function", "gelu_new"),
            eps=keys.number("layer_norm_epsilon", 1e-5),
            qk_norm=False,
        )


class Phi3(Importer):
    """`model_type` phi3 (Phi-3, 3.5 and 4-mini)."""

    model_types = ("phi3",)

    def build(self, keys: ConfigKeys) -> ModelSpec:
        """See `Importer.build`."""
        hidden, ffn = keys.integer("hidden_size"), keys.integer("intermediate_size")
        n_layers, heads = keys.layer_count("num_hidden_layers"), keys.integer("num_attention_heads")
        vocab = keys.integer("vocab_size")
        kv, head_dim = keys.kv_heads(heads, heads), keys.head_dim(hidden, heads)
        positions, window = keys.integer("max_position_embeddings", 4096), keys.optional_integer("sliding_window")
        tied, theta, rotary = keys.flag("tie_word_embeddings", False), keys.rope_theta(), keys.rotary_fraction(1.0)
        activation, eps = keys.text("hidden_act", "silu"), keys.number("rms_norm_eps", 1e-5)
        keys.finish()
        # a window as long as the longest sequence hides nothing
        window = None if window is not None and window >= positions else window
        layer = DecoderLayer(Attention(heads, kv, head_dim, window=window), Mlp(ffn, activation=activation))
        return ModelSpec(
            name=keys.name,
            family="phi3",
            hidden=hidden,
            vocab=vocab,
            layers=(layer,) * n_layers,
            norm_eps=eps,
            tied_embeddings=tied,
            max_positions=positions,
            rope_theta=theta,
            rotary_fraction=rotary,
            source=keys.source,
        )
