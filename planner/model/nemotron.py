"""Nemotron 3 and 4, Nemotron-H (layers named by a pattern, each one part behind one norm) and Nemotron-NAS.

Nemotron (``NemotronConfig``, transformers 5.24.0): layer norms with biases, squared ReLU, half of each head
rotated, no biases in matrices, untied head, 256,000 tokens.

Nemotron-H (``NemotronHConfig``; arXiv 2504.03624): ``M`` is Mamba-2, ``*`` attention without positions, ``-`` an MLP
with squared ReLU, ``E`` routed experts. Nemotron-NAS (``DeciLMConfig``, remote code): each entry of block_configs
says how many query heads share a key-value head and how wide the MLP is (2/3 of ffn_mult x hidden, rounded up to
256); a part that is no_op is absent with its norm; one that is replaced by a matrix is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planner.model.base import ConfigKeys, Importer, kind_of
from planner.model.spec import Attention, DecoderLayer, Mamba2, Mlp, ModelSpec, Moe

_PARTS = "M*-E"


class Nemotron(Importer):
    """`model_type` nemotron."""

    model_types = ("nemotron",)

    def build(self, keys: ConfigKeys) -> ModelSpec:
        """See `Importer.build`."""
        hidden, ffn = keys.integer("hidden_size"), keys.integer("intermediate_size")
        n_layers, heads = keys.layer_count("num_hidden_layers"), keys.integer("num_attention_heads")
        vocab = keys.integer("vocab_size", 256000)
        kv, head_dim = keys.kv_heads(heads, heads), keys.head_dim(hidden, heads)
        bias, mlp_bias = keys.flag("attention_bias", False), keys.flag("mlp_bias", False)
        positions, theta = keys.integer("max_position_embeddings", 4096), keys.rope_theta()
        tied, rotary = keys.flag("tie_word_embeddings", False), keys.rotary_fraction(0.5)
        activation, eps = keys.text("hidden_act", "relu2"), keys.number("norm_eps", 1e-5)
        keys.finish()
        layer = DecoderLayer(
            Attention(heads, kv, head_dim, qkv_bias=bias, out_bias=bias),
            Mlp(ffn, gated=False, bias=mlp_bias, activation=activation),
            norm="layer",
            norm_bias=True,
        )
        return ModelSpec(
            name=keys.name,
            family="nemotron",
            hidden=hidden,
            vocab=vocab,
            layers=(layer,) * n_layers,
            norm="layer",
            norm_bias=True,
            norm_eps=eps,
            tied_embeddings=tied,
            max_positions=positions,
            rope_theta=theta,
            rotary_fraction=rotary,
            source=keys.source,
        )


class NemotronH(Importer):
    """`model_type` nemotron_h."""

    model_types = ("nemotron_h",)

    def build(self, keys: ConfigKeys) -> ModelSpec:
        """See `Importer.build`."""
        hidden, vocab = keys.integer("hidden_size"), keys.integer("vocab_size")
        n_layers, pattern = keys.layer_count("num_hidden_layers"), keys.text("hybrid_override_pattern", "")
        if not pattern:
            keys.fault("hybrid_override_pattern", "is missing", "it says what each layer is", "a text of M, *, - and E")
        elif set(pattern) - set(_PARTS):
            strange = "".join(sorted(set(pattern) - set(_PARTS)))
            keys.fault("hybrid_override_pattern", f"has {strange!r}", "each layer is one of M, *, - and E", "M-M-M*-")
        elif len(pattern) != n_layers and keys.sound("num_hidden_layers"):
            keys.fault("hybrid_override_pattern", f"has {len(pattern)} layers", f"num_hidden_layers is {n_layers}",
                       f"{n_layers} characters")  # fmt: skip
        kinds = {part: self._layer(keys, part, hidden) for part in _PARTS if part in pattern}
        tied, eps = keys.flag("tie_word_embeddings", False), keys.number("layer_norm_epsilon", 1e-5)
        positions = keys.integer("max_position_embeddings", 4096)
        keys.finish()
        return ModelSpec(
            name=keys.name,
            family="nemotron_h",
            hidden=hidden,
            vocab=vocab,
            layers=tuple(kinds[part] for part in pattern),
            norm_eps=eps,
            tied_embeddings=tied,
            max_positions=positions,
            source=keys.source,
        )

    def _layer(self, keys: ConfigKeys, part: str, hidden: int) -> DecoderLayer:
        """The layer that one character of the pattern stands for."""
        bias, activation = keys.flag("mlp_bias", False), keys.text("mlp_hidden_act", "relu2")
        if part == "M":
            mixer = Mamba2(
                keys.integer("mamba_num_heads"),
                keys.integer("mamba_head_dim"),
                keys.integer("n_groups"),
                keys.integer("ssm_state_size"),
                keys.integer("conv_kernel", 4),
                keys.integer("chunk_size", 128),
                keys.flag("use_conv_bias", True),
                keys.flag("mamba_proj_bias", False),
            )
            return DecoderLayer(mixer, None, n_norms=1)
        if part == "*":
            heads = keys.integer("num_attention_heads")
            width = keys.head_dim(hidden, heads, key=keys.first("attention_head_dim", "head_dim"))
            biased, kv = keys.flag("attention_bias", False), keys.kv_heads(heads, 8)
            return DecoderLayer(
                Attention(heads, kv, width, qkv_bias=biased, out_bias=biased, rotary=False), None, n_norms=1
            )
        if part == "-":
            return DecoderLayer(None, Mlp(keys.integer("intermediate_size"), False, bias, activation), n_norms=1)
        experts, top_k = keys.experts("n_routed_experts")
        shared = keys.integer("n_shared_experts", 1, minimum=0) * keys.integer("moe_shared_expert_intermediate_size", 0,
                                                                               minimum=0)  # fmt: skip
        width = keys.integer("moe_intermediate_size")
        return DecoderLayer(None, Moe(experts, top_k, width, False, bias, activation, shared), n_norms=1)


class NemotronNas(Importer):
    """`model_type` nemotron-nas."""

    model_types = ("nemotron-nas",)

    def build(self, keys: ConfigKeys) -> ModelSpec:
        """See `Importer.build`."""
        hidden, vocab = keys.integer("hidden_size"), keys.integer("vocab_size")
        heads, n_layers = keys.integer("num_attention_heads"), keys.layer_count("num_hidden_layers")
        head_dim, bias = keys.head_dim(hidden, heads), keys.flag("attention_bias", False)
        mlp_bias, activation = keys.flag("mlp_bias", False), keys.text("hidden_act", "silu")
        tied, theta = keys.flag("tie_word_embeddings", False), keys.rope_theta(5e5)
        positions, eps = keys.integer("max_position_embeddings", 131072), keys.number("rms_norm_eps", 1e-5)
        blocks = keys.config.get("block_configs")
        if not isinstance(blocks, list) or len(blocks) != n_layers:
            why = f"it says what each of the {n_layers} layers holds"
            keys.fault("block_configs", f"is {kind_of(blocks)}", why, f"{n_layers} objects")
            blocks = []
        layers = []
        for index, block in enumerate(blocks):
            parts = ConfigKeys(block if isinstance(block, Mapping) else {}, keys.name, keys.source,
                               f"block_configs[{index}].", keys.faults)  # fmt: skip
            group, mult = self._part(parts, "attention", "n_heads_in_group"), self._part(parts, "ffn", "ffn_mult")
            attention = feed = None
            if group:
                if heads % int(group):
                    parts.fault("attention.n_heads_in_group", f"is {group}", f"there are {heads} heads", "a divisor")
                kv = max(heads // max(int(group), 1), 1)
                attention = Attention(heads, kv, head_dim, qkv_bias=bias, out_bias=bias)
            if mult:
                feed = Mlp(-(-int(2 * mult * hidden / 3) // 256) * 256, bias=mlp_bias, activation=activation)
            layers.append(DecoderLayer(attention, feed, n_norms=(attention is not None) + (feed is not None)))
        keys.finish()
        return ModelSpec(
            name=keys.name,
            family="nemotron-nas",
            hidden=hidden,
            vocab=vocab,
            layers=tuple(layers),
            norm_eps=eps,
            tied_embeddings=tied,
            max_positions=positions,
            rope_theta=theta,
            source=keys.source,
        )

    def _part(self, keys: ConfigKeys, part: str, figure: str) -> Any:
        """The figure of one part of a block; None where the part is absent."""
        inner = keys.section(part)
        if inner.flag("no_op", False):
            return None
        if inner.flag("replace_with_linear", False):
            inner.fault("replace_with_linear", "is true", "a matrix in place of the part is not read", "false")
            return None
        value = inner.number(figure, 0.0)
        if not value:
            inner.fault(figure, "is missing", "the part is not no_op", f"add {figure!r}")
        return value
