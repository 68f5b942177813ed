"""Llama 1-3 and Mistral: RMS norms, rotary positions, grouped key-value heads, gated MLP.

Defaults are those of `LlamaConfig` and `MistralConfig` (transformers 5.24.0): a Llama without
num_key_value_heads has one for each head; Mistral has 8 and a sliding window of 4096 unless
sliding_window is null; head_dim is hidden/heads; no biases; untied head.
"""

from __future__ import annotations

from planner.model.base import REQUIRED, ConfigKeys, Importer
from planner.model.spec import Attention, DecoderLayer, Mlp, ModelSpec, VisionTower

CLASS_DEFAULTS = {
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "vocab_size": 32000,
}
"""Shape of `LlamaConfig()`. A text_config inside another config is read through that class, so
keys that it leaves out take these values; in a config of its own they are required."""


def build_llama(
    keys: ConfigKeys,
    *,
    defaults: dict[str, int] | None = None,
    tied: bool | None = None,
    vision: VisionTower | None = None,
    notes: tuple[str, ...] = (),
) -> ModelSpec:
    """The spec of a config with Llama's keys.

    Parameters
    ----------
    keys : ConfigKeys
    defaults : dict, optional
        Values of shape keys that may be absent (`CLASS_DEFAULTS` for a nested text_config).
    tied : bool, optional
        Overrides tie_word_embeddings (an outer config decides for a nested one).
    vision, notes
        Passed to the spec.
    """
    fill = defaults or {}
    hidden = keys.integer("hidden_size", fill.get("hidden_size", REQUIRED))
    ffn = keys.integer("intermediate_size", fill.get("intermediate_size", REQUIRED))
    n_layers = keys.layer_count("num_hidden_layers", fill.get("num_hidden_layers", REQUIRED))
    heads = keys.integer("num_attention_heads", fill.get("num_attention_heads", REQUIRED))
    vocab = keys.integer("vocab_size", fill.get("vocab_size", REQUIRED))
    kv = keys.kv_heads(heads, heads)
    head_dim = keys.head_dim(hidden, heads)
    bias, mlp_bias = keys.flag("attention_bias", False), keys.flag("mlp_bias", False)
    tie = keys.flag("tie_word_embeddings", False)
    activation, eps = keys.text("hidden_act", "silu"), keys.number("rms_norm_eps", 1e-6)
    positions, theta = keys.integer("max_position_embeddings", 2048), keys.rope_theta()
    keys.finish()
    layer = DecoderLayer(
        Attention(heads, kv, head_dim, qkv_bias=bias, out_bias=bias),
        Mlp(ffn, gated=True, bias=mlp_bias, activation=activation),
    )
    return ModelSpec(
        name=keys.name,
        family="llama",
        hidden=hidden,
        vocab=vocab,
        layers=(layer,) * n_layers,
        norm_eps=eps,
        tied_embeddings=tie if tied is None else tied,
        max_positions=positions,
        rope_theta=theta,
        vision=vision,
        source=keys.source,
        notes=notes,
    )


class Llama(Importer):
    """`model_type` llama."""

    model_types = ("llama",)

    def build(self, keys: ConfigKeys) -> ModelSpec:
        """See `Importer.build`."""
        return build_llama(keys)


class Mistral(Importer):
    """`model_type` mistral."""

    model_types = ("mistral",)

    def build(self, keys: ConfigKeys) -> ModelSpec:
        """See `Importer.build`."""
        hidden, ffn = keys.integer("hidden_size"), keys.integer("intermediate_size")
        n_layers, heads = keys.layer_count("num_hidden_layers"), keys.integer("num_attention_heads")
        vocab = keys.integer("vocab_size")
        kv, head_dim = keys.kv_heads(heads, 8), keys.head_dim(hidden, heads)
        positions = keys.integer("max_position_embeddings", 4096 * 32)
        window = keys.optional_integer("sliding_window", 4096)
        tied, theta = keys.flag("tie_word_embeddings", False), keys.rope_theta()
        activation, eps = keys.text("hidden_act", "silu"), keys.number("rms_norm_eps", 1e-6)
        keys.finish()
        layer = DecoderLayer(Attention(heads, kv, head_dim, window=window), Mlp(ffn, activation=activation))
        return ModelSpec(
            name=keys.name,
            family="mistral",
            hidden=hidden,
            vocab=vocab,
            layers=(layer,) * n_layers,
            norm_eps=eps,
            tied_embeddings=tied,
            max_positions=positions,
            rope_theta=theta,
            source=keys.source,
        )
