"""Qwen3-Next and Qwen3.5: gated delta rule in three layers of four, gated attention in the fourth, many experts.

Defaults are those of `Qwen3NextConfig` and `Qwen3_5MoeTextConfig` (transformers 5.24.0), the shape apart. Attention
has a sigmoid gate as wide as q, normed heads of q and k, and a quarter of the head rotated. Every layer routes to
experts beside a gated shared one, unless listed in mlp_only_layers. Prediction layers (mtp_num_hidden_layers) are
kept apart. Qwen3-VL and Qwen3.5 nest the text model under text_config and have a vision tower.
"""

from __future__ import annotations

from planner.model.base import ConfigKeys, Importer
from planner.model.qwen import Qwen3Moe
from planner.model.spec import Attention, DecoderLayer, DeltaNet, Mlp, ModelSpec, Moe, VisionTower
from planner.model.vision import qwen_vl

_KINDS = ("linear_attention", "full_attention")


def _layer_kinds(keys: ConfigKeys, n_layers: int) -> list[bool]:
    """Which layers attend: from `layer_types` where given, else every full_attention_interval-th."""
    every, value = keys.integer("full_attention_interval", 4), keys.config.get("layer_types")
    if value is None:
        return [(i + 1) % every == 0 for i in range(n_layers)]
    if not isinstance(value, list) or len(value) != n_layers or any(v not in _KINDS for v in value):
        keys.fault("layer_types", "is no list of them", f"one of {' or '.join(_KINDS)} for each layer", "leave it out")
        return [False] * n_layers
    return [v == "full_attention" for v in value]


def _text(keys: ConfigKeys, family: str, *, tied: bool | None = None, vision: VisionTower | None = None) -> ModelSpec:
    hidden, n_layers = keys.integer("hidden_size"), keys.layer_count("num_hidden_layers")
    heads, vocab = keys.integer("num_attention_heads"), keys.integer("vocab_size")
    kv, head_dim, bias = keys.kv_heads(heads, 2), keys.integer("head_dim", 256), keys.flag("attention_bias", False)
    mixer = DeltaNet(
        keys.integer("linear_num_key_heads", 16),
        keys.integer("linear_num_value_heads", 32),
        keys.integer("linear_key_head_dim", 128),
        keys.integer("linear_value_head_dim", 128),
        keys.integer("linear_conv_kernel_dim", 4),
    )
    if mixer.n_value_heads % mixer.n_key_heads and keys.sound("linear_num_key_heads", "linear_num_value_heads"):
        what = f"{mixer.n_value_heads} value heads on {mixer.n_key_heads} key heads"
        keys.fault("linear_num_value_heads", what, "each key head serves as many", f"a multiple of {mixer.n_key_heads}")
    attends = _layer_kinds(keys, n_layers)
    experts, top_k = keys.experts("num_experts") if keys.given("num_experts") else (0, 0)
    width, shared = (
        (keys.integer("moe_intermediate_size"), keys.integer("shared_expert_intermediate_size")) if experts else (0, 0)
    )
    ffn, plain = keys.integer("intermediate_size", 1 if experts else 5632), keys.integers("mlp_only_layers")
    step, activation = keys.integer("decoder_sparse_step", 1), keys.text("hidden_act", "silu")
    mtp = keys.integer("mtp_num_hidden_layers", 0, minimum=0)
    tie, eps = keys.flag("tie_word_embeddings", False), keys.number("rms_norm_eps", 1e-6)
    positions, theta = keys.integer("max_position_embeddings", 32768), keys.rope_theta()
    rotated = keys.rotary_fraction(0.25)
    keys.finish()
    attention = Attention(heads, kv, head_dim, qkv_bias=bias, out_bias=bias, qk_norm="head", gated=True)
    moe = Moe(experts, top_k, width, activation=activation, shared_ffn_hidden=shared, shared_gate=True)
    dense = Mlp(ffn, activation=activation)

    def feed(i: int) -> Moe | Mlp:
        return moe if experts and i not in plain and (i + 1) % step == 0 else dense

    layers = tuple(DecoderLayer(attention if full else mixer, feed(i)) for i, full in enumerate(attends))
    return ModelSpec(
        name=keys.name,
        family=family,
        hidden=hidden,
        vocab=vocab,
        layers=layers,
        norm_eps=eps,
        tied_embeddings=tie if tied is None else tied,
        max_positions=positions,
        rope_theta=theta,
        rotary_fraction=rotated,
        mtp_layers=(DecoderLayer(attention, moe if experts else dense),) * mtp,
        vision=vision,
        source=keys.source,
    )


class Qwen3Next(Importer):
    """`model_type` qwen3_next, qwen3_5_text and qwen3_5_moe_text."""

    model_types = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")

    def build(self, keys: ConfigKeys) -> ModelSpec:
        """See `Importer.build`."""
        return _text(keys, str(keys.config["model_type"]).removesuffix("_text"))


class Qwen35(Importer):
    """`model_type` qwen3_5 and qwen3_5_moe: text_config and a vision tower."""

    model_types = ("qwen3_5", "qwen3_5_moe")

    def build(self, keys: ConfigKeys) -> ModelSpec:
        """See `Importer.build`."""
        text, tied = keys.section("text_config"), keys.flag("tie_word_embeddings", False)
        vision = qwen_vl(keys.section("vision_config"), text.integer("hidden_size"))
        return _text(text, str(keys.config["model_type"]), tied=tied, vision=vision)


class Qwen3Vl(Importer):
    """`model_type` qwen3_vl_moe: the text model of Qwen3-MoE and a vision tower."""

    model_types = ("qwen3_vl_moe",)

    def build(self, keys: ConfigKeys) -> ModelSpec:
        """See `Importer.build`."""
        text, tied = keys.section("text_config"), keys.flag("tie_word_embeddings", False)
        vision = qwen_vl(keys.section("vision_config"), text.integer("hidden_size"))
        return Qwen3Moe().text(text, "qwen3_vl_moe", tied=tied, vision=vision)
