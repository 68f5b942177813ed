"""Qwen 2, 2.5 and 3, dense and mixture of experts.

Defaults are those of the transformers 5.24.0 classes: Qwen2 and Qwen2-MoE have a bias on q, k
and v and none on o; Qwen3 and Qwen3-MoE norm each head of q and k, and head_dim is 128 in
Qwen3 and hidden/heads in Qwen3-MoE unless given. A window slides only with use_sliding_window;
then in layers from max_window_layers on (dense), in every second layer below it (Qwen2-MoE) or
in all (Qwen3-MoE). A layer is MoE unless listed in mlp_only_layers, every decoder_sparse_step.
"""

from __future__ import annotations

from dataclasses import replace

from hwmodels.records import dataclass
from planner.model.base import ConfigKeys, Importer
from planner.model.spec import Attention, DecoderLayer, Mlp, ModelSpec, Moe, VisionTower


@dataclass(frozen=True, slots=True)
class _Base:
    hidden: int
    ffn: int
    n_layers: int
    heads: int
    kv: int
    head_dim: int
    vocab: int
    window: int | None
    windowed_from: int
    positions: int
    tied: bool
    theta: float
    activation: str
    eps: float


def _read_base(keys: ConfigKeys, kv_default: int, head_dim_default: int | None) -> _Base:
    hidden, ffn = keys.integer("hidden_size"), keys.integer("intermediate_size")
    n_layers, heads = keys.layer_count("num_hidden_layers"), keys.integer("num_attention_heads")
    if head_dim_default is not None:
        head_dim = keys.integer("head_dim", head_dim_default)
    else:
        head_dim = keys.head_dim(hidden, heads)
    # the classes turn a null num_key_value_heads into num_attention_heads
    null_kv = "num_key_value_heads" in keys.config and not keys.given("num_key_value_heads")
    sliding = keys.flag("use_sliding_window", False)
    window = keys.optional_integer("sliding_window", 4096)
    return _Base(
        hidden=hidden,
        ffn=ffn,
        n_layers=n_layers,
        heads=heads,
        kv=keys.kv_heads(heads, heads if null_kv else kv_default),
        head_dim=head_dim,
        vocab=keys.integer("vocab_size"),
        window=window if sliding else None,
        windowed_from=keys.integer("max_window_layers", 28, minimum=0),
        positions=keys.integer("max_position_embeddings", 32768),
        tied=keys.flag("tie_word_embeddings", False),
        theta=keys.rope_theta(),
        activation=keys.text("hidden_act", "silu"),
        eps=keys.number("rms_norm_eps", 1e-6),
    )


def _read_moe(keys: ConfigKeys, base: _Base) -> tuple[int, int, int, list[bool]]:
    experts, top_k = keys.experts("num_experts")
    width = keys.integer("moe_intermediate_size")
    step, dense = keys.integer("decoder_sparse_step", 1), keys.integers("mlp_only_layers")
    sparse = [i not in dense and (i + 1) % step == 0 for i in range(base.n_layers)]
    return experts, top_k, width, sparse


def _spec(keys: ConfigKeys, family: str, base: _Base, layers: tuple[DecoderLayer, ...]) -> ModelSpec:
    return ModelSpec(
        name=keys.name,
        family=family,
        hidden=base.hidden,
        vocab=base.vocab,
        layers=layers,
        norm_eps=base.eps,
        tied_embeddings=base.tied,
        max_positions=base.positions,
        rope_theta=base.theta,
        source=keys.source,
    )


class Qwen2(Importer):
    """`model_type` qwen2 (Qwen 2 and 2.5) and qwen3 (dense)."""

    model_types = ("qwen2", "qwen3")

    def build(self, keys: ConfigKeys) -> ModelSpec:
        """See `Importer.build`."""
        third = keys.config.get("model_type") == "qwen3"
        base = _read_base(keys, 32, 128 if third else None)
        bias = keys.flag("attention_bias", False) if third else True
        slides = keys.layer_types(
            base.n_layers, [base.window is not None and i >= base.windowed_from for i in range(base.n_layers)]
        )
        keys.finish()
        layers = tuple(
            DecoderLayer(
                Attention(
                    base.heads,
                    base.kv,
                    base.head_dim,
                    qkv_bias=bias,
                    out_bias=bias and third,
                    qk_norm="head" if third else None,
                    window=base.window if slide else None,
                ),
                Mlp(base.ffn, activation=base.activation),
            )
            for slide in slides
        )
        return _spec(keys, "qwen3" if third else "qwen2", base, layers)


class Qwen2Moe(Importer):
    """`model_type` qwen2_moe: routed experts and a shared one behind a learned gate."""

    model_types = ("qwen2_moe",)

    def build(self, keys: ConfigKeys) -> ModelSpec:
        """See `Importer.build`."""
        base = _read_base(keys, 16, None)
        experts, top_k, width, sparse = _read_moe(keys, base)
        shared, bias = keys.integer("shared_expert_intermediate_size"), keys.flag("qkv_bias", True)
        slides = keys.layer_types(
            base.n_layers,
            [base.window is not None and (i + 1) % 2 == 1 and i < base.windowed_from for i in range(base.n_layers)],
        )
        keys.finish()
        moe = Moe(experts, top_k, width, activation=base.activation, shared_ffn_hidden=shared, shared_gate=True)
        dense = Mlp(base.ffn, activation=base.activation)
        layers = tuple(
            DecoderLayer(
                Attention(base.heads, base.kv, base.head_dim, qkv_bias=bias, window=base.window if slide else None),
                moe if is_moe else dense,
            )
            for slide, is_moe in zip(slides, sparse, strict=True)
        )
        return _spec(keys, "qwen2_moe", base, layers)


class Qwen3Moe(Importer):
    """`model_type` qwen3_moe: normed q and k, routed experts, no shared one."""

    model_types = ("qwen3_moe",)

    def build(self, keys: ConfigKeys) -> ModelSpec:
        """See `Importer.build`."""
        return self.text(keys, "qwen3_moe")

    def text(
        self, keys: ConfigKeys, family: str, *, tied: bool | None = None, vision: VisionTower | None = None
    ) -> ModelSpec:
        """The text model; with `vision` in front, and `tied` by the outer config, where it is nested in another."""
        base = _read_base(keys, 4, None)
        experts, top_k, width, sparse = _read_moe(keys, base)
        bias = keys.flag("attention_bias", False)
        keys.finish()
        attention = Attention(
            base.heads, base.kv, base.head_dim, qkv_bias=bias, out_bias=bias, qk_norm="head", window=base.window
        )
        moe, dense = Moe(experts, top_k, width, activation=base.activation), Mlp(base.ffn, activation=base.activation)
        layers = tuple(DecoderLayer(attention, moe if is_moe else dense) for is_moe in sparse)
        spec = _spec(keys, family, base, layers)
        return replace(spec, vision=vision, tied_embeddings=base.tied if tied is None else tied)
