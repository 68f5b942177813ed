"""DeepSeek-V2, V2-Lite, V3 and R1: latent attention, shared and routed experts, leading dense layers.

The first first_k_dense_replace layers have a plain MLP of intermediate_size; the rest (every
moe_layer_freq) route. Shared experts are one MLP of n_shared_experts * moe_intermediate_size.
Multi-token-prediction layers (num_nextn_predict_layers, or num_mtp_layers in transformers 5) are
reported apart: the library does not build them. The router correction of V3 is a buffer there,
no parameter, and is left out of the count. Defaults are those of the transformers 5.24.0 classes;
among them q_lora_rank, which is 1536 where it is absent and no compression where it is null (as
V2-Lite was published). The rest of the shape has to be given.
"""

from __future__ import annotations

from planner.model.base import ConfigKeys, Importer
from planner.model.spec import DecoderLayer, LatentAttention, Mlp, ModelSpec, Moe

_Q_LORA_RANK = 1536


class DeepSeek(Importer):
    """`model_type` deepseek_v2 and deepseek_v3."""

    model_types = ("deepseek_v2", "deepseek_v3")

    def build(self, keys: ConfigKeys) -> ModelSpec:
        """See `Importer.build`."""
        third = keys.config.get("model_type") == "deepseek_v3"
        hidden, ffn = keys.integer("hidden_size"), keys.integer("intermediate_size")
        n_layers, heads = keys.layer_count("num_hidden_layers"), keys.integer("num_attention_heads")
        vocab, attention = keys.integer("vocab_size"), self._attention(keys, heads)
        activation = keys.text("hidden_act", "silu")
        mlp = Mlp(ffn, bias=keys.flag("mlp_bias", False) and not third, activation=activation)
        moe = self._moe(keys, activation)
        leading, every = keys.integer("first_k_dense_replace", minimum=0), keys.integer("moe_layer_freq", 1)
        if leading > n_layers and keys.sound("num_hidden_layers"):
            keys.fault("first_k_dense_replace", f"is {leading}", f"there are {n_layers} layers", f"at most {n_layers}")
        mtp = keys.integer("num_nextn_predict_layers", keys.integer("num_mtp_layers", 0, minimum=0), minimum=0)
        if mtp > n_layers and keys.sound("num_hidden_layers"):
            keys.fault("num_nextn_predict_layers", f"is {mtp}", f"there are {n_layers} layers", "1, as in DeepSeek-V3")
        positions, theta = keys.integer("max_position_embeddings", 4096 if third else 2048), keys.rope_theta()
        tied, eps = keys.flag("tie_word_embeddings", False), keys.number("rms_norm_eps", 1e-6)
        keys.finish()
        notes = []
        if third:
            notes.append("the router correction is a buffer and not in the parameter count")
        if "q_lora_rank" not in keys.config:
            notes.append(f"q_lora_rank is absent, so the class default of {_Q_LORA_RANK} is taken; null means none")
        dense, sparse = DecoderLayer(attention, mlp), DecoderLayer(attention, moe)
        layers = tuple(sparse if i >= leading and i % every == 0 else dense for i in range(n_layers))
        return ModelSpec(
            name=keys.name,
            family="deepseek_v3" if third else "deepseek_v2",
            hidden=hidden,
            vocab=vocab,
            layers=layers,
            norm_eps=eps,
            tied_embeddings=tied,
            max_positions=positions,
            rope_theta=theta,
            mtp_layers=(sparse,) * mtp,
            source=keys.source,
            notes=tuple(notes),
        )

    def _attention(self, keys: ConfigKeys, heads: int) -> LatentAttention:
        return LatentAttention(
            n_heads=heads,
            q_lora_rank=keys.optional_integer("q_lora_rank", _Q_LORA_RANK),
            kv_lora_rank=keys.integer("kv_lora_rank"),
            nope_dim=keys.integer("qk_nope_head_dim"),
            rope_dim=keys.integer("qk_rope_head_dim"),
            v_head_dim=keys.integer("v_head_dim"),
            qkv_bias=keys.flag("attention_bias", False),
        )

    def _moe(self, keys: ConfigKeys, activation: str) -> Moe:
        experts, top_k = keys.experts("n_routed_experts")
        width, shared = keys.integer("moe_intermediate_size"), keys.integer("n_shared_experts", minimum=0)
        third = keys.config.get("model_type") == "deepseek_v3"
        groups, limit = keys.integer("n_group", 8 if third else 1), keys.integer("topk_group", 4 if third else 1)
        if experts % groups or limit > groups or experts // groups * limit < top_k:
            groups, limit = 1, 1  # a cut model: groups of the published one do not hold its experts
        return Moe(
            experts, top_k, width, activation=activation, shared_ffn_hidden=shared * width, groups=groups,
            group_limit=limit,
        )  # fmt: skip
