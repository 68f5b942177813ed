"""Softmax attention: with shared or grouped key-value heads, and latent."""

from __future__ import annotations

from typing import Literal

from hwmodels.records import dataclass
from planner.model.weights import Parameter, Vector, Weight


@dataclass(frozen=True, slots=True)
class Attention:
    """Softmax attention with shared or grouped KV heads.

    Attributes
    ----------
    n_heads, n_kv_heads, head_dim : int
    qkv_bias, out_bias : bool
    qk_norm : {None, 'head', 'full', 'unit'}
        RMS norm of q and k: one weight of `head_dim` each, or one over all heads; ``unit`` has no weight (Llama 4).
    window : int or None
        Tokens each query sees in a sliding-window layer; None is full attention.
    softcap : bool
        Tanh soft-capping of the scores (no fused training kernel in older stacks).
    causal : bool
        A query sees the tokens before it alone; False: every token (encoders).
    chunk : int or None
        Tokens of the blocks that the sequence is cut into, each attending to itself alone (Llama 4).
    sinks : bool
        One learned logit a head joins the softmax (gpt-oss).
    gated : bool
        A sigmoid gate, projected beside q, scales the output (Qwen3-Next).
    rotary : bool
        q and k are rotated; False: no positions in the layer (Llama 4's NoPE, Jamba, ALiBi).
    """

    n_heads: int
    n_kv_heads: int
    head_dim: int
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: Literal["head", "full", "unit"] | None = None
    window: int | None = None
    softcap: bool = False
    causal: bool = True
    chunk: int | None = None
    sinks: bool = False
    gated: bool = False
    rotary: bool = True

    @property
    def kv_elements(self) -> int:
        """Elements that a key-value cache keeps of a token."""
        return 2 * self.n_kv_heads * self.head_dim

    @property
    def qk_dim(self) -> int:
        """Features of one query or key head."""
        return self.head_dim

    @property
    def v_dim(self) -> int:
        """Features of one value head."""
        return self.head_dim

    def parameters(self, hidden: int) -> tuple[Parameter, ...]:
        """Weights and vectors for a residual width of `hidden`."""
        q, kv = self.n_heads * self.head_dim, self.n_kv_heads * self.head_dim
        found: list[Parameter] = [
            Weight("q", hidden, q, "column", self.qkv_bias, fused_with="qkv"),
            Weight("k", hidden, kv, "column", self.qkv_bias, fused_with="qkv", min_out=self.head_dim),
            Weight("v", hidden, kv, "column", self.qkv_bias, fused_with="qkv", min_out=self.head_dim),
            Weight("o", q, hidden, "row", self.out_bias),
        ]
        if self.gated:
            found.insert(1, Weight("gate", hidden, q, "column", self.qkv_bias, fused_with="qkv"))
        if self.qk_norm == "head":
            found += [Vector("q_norm", self.head_dim), Vector("k_norm", self.head_dim)]
        elif self.qk_norm == "full":
            found += [Vector("q_norm", q, "column"), Vector("k_norm", kv, "column")]
        if self.sinks:
            found.append(Vector("sinks", self.n_heads, "column"))
        return tuple(found)


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Multi-head latent attention (MLA): low-rank q and kv with a decoupled rotary part.

    Source: DeepSeek-V2 (arXiv 2405.04434), section 2.1. The other fields as in `Attention`.
    """

    n_heads: int
    q_lora_rank: int | None
    kv_lora_rank: int
    nope_dim: int
    rope_dim: int
    v_head_dim: int
    qkv_bias: bool = False
    window: int | None = None
    softcap: bool = False
    causal: bool = True
    chunk: int | None = None
    sinks: bool = False
    gated: bool = False
    rotary: bool = True

    @property
    def kv_elements(self) -> int:
        """Elements that a key-value cache keeps of a token: one latent and one rotary key for all heads."""
        return self.kv_lora_rank + self.rope_dim

    @property
    def n_kv_heads(self) -> int:
        """Each query head has its own expanded key and value in training."""
        return self.n_heads

    @property
    def qk_dim(self) -> int:
        """Features of one query or key head."""
        return self.nope_dim + self.rope_dim

    @property
    def v_dim(self) -> int:
        """Features of one value head."""
        return self.v_head_dim

    def parameters(self, hidden: int) -> tuple[Parameter, ...]:
        """Weights and vectors for a residual width of `hidden`."""
        q_out = self.n_heads * self.qk_dim
        kv_out = self.n_heads * (self.nope_dim + self.v_head_dim)
        if self.q_lora_rank is None:
            query: tuple[Parameter, ...] = (Weight("q", hidden, q_out, "column"),)
        else:
            query = (
                Weight("q_a", hidden, self.q_lora_rank, "replicated", self.qkv_bias),
                Vector("q_a_norm", self.q_lora_rank),
                Weight("q_b", self.q_lora_rank, q_out, "column"),
            )
        return (
            *query,
            Weight("kv_a", hidden, self.kv_lora_rank + self.rope_dim, "replicated", self.qkv_bias),
            Vector("kv_a_norm", self.kv_lora_rank),
            Weight("kv_b", self.kv_lora_rank, kv_out, "column"),
            Weight("o", self.n_heads * self.v_head_dim, hidden, "row", self.qkv_bias),
        )


AnyAttention = Attention | LatentAttention
