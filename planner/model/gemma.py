"""Gemma 1, 2 and 3, text and multimodal: wide heads, tied scaled embedding, norms around blocks.

Defaults are those of the transformers 5.24.0 classes: head_dim 256, tied head, embedding scaled
by the root of hidden. Gemma 2 and 3 have four norms a layer; Gemma 2 caps scores and slides a
window (4096) in every second layer, the first included; Gemma 3 norms each head of q and k and
slides in all but every sixth layer. A multimodal Gemma 3 nests the text model under text_config
and has a SigLIP tower and a projector.
"""

from __future__ import annotations

from planner.model.base import ConfigKeys, Importer
from planner.model.spec import Attention, DecoderLayer, Mlp, ModelSpec, VisionTower, Weight
from planner.model.vision import projected, tower

_TANH_GELU = "gelu_pytorch_tanh"


def _activation(keys: ConfigKeys) -> str:
    """`hidden_activation` (Gemma 2 and 3) before `hidden_act` (Gemma 1)."""
    key = "hidden_activation" if keys.given("hidden_activation") else "hidden_act"
    return keys.text(key, _TANH_GELU)


def _build(
    keys: ConfigKeys, generation: int, *, tied: bool | None = None, vision: VisionTower | None = None
) -> ModelSpec:
    hidden, ffn = keys.integer("hidden_size"), keys.integer("intermediate_size")
    n_layers, heads = keys.layer_count("num_hidden_layers"), keys.integer("num_attention_heads")
    vocab = keys.integer("vocab_size")
    kv = keys.kv_heads(heads, 16 if generation == 1 else 4)
    head_dim = keys.integer("head_dim", 256)
    bias, tie = keys.flag("attention_bias", False), keys.flag("tie_word_embeddings", True)
    positions = keys.integer("max_position_embeddings", 8192 if generation < 3 else 131_072)
    window = keys.optional_integer("sliding_window", 4096) if generation > 1 else None
    # only the class of Gemma 2 has a cap by default
    softcap = generation > 1 and (
        keys.given("attn_logit_softcapping") or (generation == 2 and "attn_logit_softcapping" not in keys.config)
    )
    theta, eps = keys.rope_theta(1e6 if generation == 3 else 1e4), keys.number("rms_norm_eps", 1e-6)
    activation = _activation(keys)
    period = {1: 1, 2: 2}.get(generation) or keys.integer("sliding_window_pattern", 6)
    slides = keys.layer_types(n_layers, [(i + 1) % period != 0 for i in range(n_layers)])
    keys.finish()
    layers = tuple(
        DecoderLayer(
            Attention(
                heads,
                kv,
                head_dim,
                qkv_bias=bias,
                out_bias=bias,
                qk_norm="head" if generation == 3 else None,
                window=window if slide else None,
                softcap=softcap,
            ),
            Mlp(ffn, activation=activation),
            n_norms=2 if generation == 1 else 4,
        )
        for slide in slides
    )
    return ModelSpec(
        name=keys.name,
        family=f"gemma{'' if generation == 1 else generation}",
        hidden=hidden,
        vocab=vocab,
        layers=layers,
        norm_eps=eps,
        tied_embeddings=tie if tied is None else tied,
        max_positions=positions,
        rope_theta=theta,
        embedding_scale=True,
        vision=vision,
        source=keys.source,
    )


class Gemma(Importer):
    """`model_type` gemma, gemma2 and gemma3_text."""

    model_types = ("gemma", "gemma2", "gemma3_text")

    def build(self, keys: ConfigKeys) -> ModelSpec:
        """See `Importer.build`."""
        return _build(keys, {"gemma": 1, "gemma2": 2, "gemma3_text": 3}[keys.config["model_type"]])


class Gemma3Multimodal(Importer):
    """`model_type` gemma3: text_config, a SigLIP tower and its projector."""

    model_types = ("gemma3",)

    def build(self, keys: ConfigKeys) -> ModelSpec:
        """See `Importer.build`."""
        text, vision = keys.section("text_config"), keys.section("vision_config")
        block = tower(vision, "siglip_vision_model")
        tokens = keys.integer("mm_tokens_per_image", 256)
        patches = block.patch.patches
        if patches % tokens:
            keys.fault("mm_tokens_per_image", f"is {tokens}", f"an image has {patches} patches", "a divisor of them")
        # average pooling of patches, an RMS norm of the tower's width, one matrix without bias
        hidden = text.integer("hidden_size")
        matrix = Weight("projection", block.hidden, hidden, "column")
        block = projected(block, (matrix,), merged=max(patches // tokens, 1), other=block.hidden)
        tied = keys.flag("tie_word_embeddings", True)
        return _build(text, 3, tied=tied, vision=block)
