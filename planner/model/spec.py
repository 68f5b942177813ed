"""`ModelSpec`: a decoder model as a list of typed layers.

Each block lists its weights once (`Weight`, `Vector`). Parameter counts, memory shards and
the GEMMs of the cost model are all read from that list, so they cannot disagree.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

Shard = Literal["column", "row", "replicated"]
NormKind = Literal["rms", "layer"]


@dataclass(frozen=True, slots=True)
class Weight:
    """A matrix applied as ``y = x @ W (+ b)``.

    Attributes
    ----------
    name : str
        Role inside the block (``"q"``, ``"down"``).
    n_in, n_out : int
        Features in and out of the whole (unsharded) matrix.
    shard : {'column', 'row', 'replicated'}
        Tensor-parallel split: of the output, of the input, or none.
    bias : bool
        Whether a bias of `n_out` elements belongs to it. It is sharded with a column
        split and replicated with a row split.
    copies : int
        How many equal matrices (experts).
    expert : bool
        Routed-expert weight: sharded over ep and etp instead of tp.
    fused_with : str
        Name under which adjacent weights run as one GEMM (``"qkv"``); empty for its own.
    min_out : int
        Smallest column share: a tp degree that would cut below it copies the share instead
        (key-value heads when tp exceeds their number).
    """

    name: str
    n_in: int
    n_out: int
    shard: Shard
    bias: bool = False
    copies: int = 1
    expert: bool = False
    fused_with: str = ""
    min_out: int = 1

    @property
    def parameters(self) -> int:
        """Elements of all copies, biases included."""
        return self.copies * (self.n_in * self.n_out + (self.n_out if self.bias else 0))


@dataclass(frozen=True, slots=True)
class Vector:
    """A parameter that is no GEMM operand: norm weights, sinks, router corrections.

    `size` elements; `shard` as in `Weight` (vectors are replicated over tp unless the
    activation that they act on is split).
    """

    name: str
    size: int
    shard: Shard = "replicated"

    @property
    def parameters(self) -> int:
        """Elements."""
        return self.size


Parameter = Weight | Vector


def count(parameters: Iterable[Parameter]) -> int:
    """Elements of all the given parameters."""
    return sum(p.parameters for p in parameters)


@dataclass(frozen=True, slots=True)
class Attention:
    """Softmax attention with shared or grouped KV heads.

    Attributes
    ----------
    n_heads, n_kv_heads, head_dim : int
    qkv_bias, out_bias : bool
    qk_norm : {None, 'head', 'full'}
        RMS norm of q and k: one weight of `head_dim` each, or one over all heads.
    window : int or None
        Tokens each query sees in a sliding-window layer; None is full attention.
    softcap : bool
        Tanh soft-capping of the scores (no fused training kernel in older stacks).
    """

    n_heads: int
    n_kv_heads: int
    head_dim: int
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: Literal["head", "full"] | None = None
    window: int | None = None
    softcap: bool = False

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
        if self.qk_norm == "head":
            found += [Vector("q_norm", self.head_dim), Vector("k_norm", self.head_dim)]
        elif self.qk_norm == "full":
            found += [Vector("q_norm", q, "column"), Vector("k_norm", kv, "column")]
        return tuple(found)


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Multi-head latent attention (MLA): low-rank q and kv with a decoupled rotary part.

    Source: DeepSeek-V2 (arXiv 2405.04434), section 2.1.
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


@dataclass(frozen=True, slots=True)
class Mlp:
    """Feed-forward block: up (and gate) of `ffn_hidden`, then down."""

    ffn_hidden: int
    gated: bool = True
    bias: bool = False
    activation: str = "silu"

    def parameters(self, hidden: int) -> tuple[Parameter, ...]:
        """Weights for a residual width of `hidden`."""
        gate: tuple[Parameter, ...] = ()
        if self.gated:
            gate = (Weight("gate", hidden, self.ffn_hidden, "column", self.bias, fused_with="gate_up"),)
        return (
            *gate,
            Weight("up", hidden, self.ffn_hidden, "column", self.bias, fused_with="gate_up" if self.gated else ""),
            Weight("down", self.ffn_hidden, hidden, "row", self.bias),
        )


@dataclass(frozen=True, slots=True)
class Moe:
    """Mixture of experts: `top_k` of `n_experts` routed, and shared experts beside them.

    Attributes
    ----------
    ffn_hidden : int
        Intermediate width of one routed expert.
    shared_ffn_hidden : int
        Total width of the shared experts; 0 for none.
    shared_gate : bool
        Whether a learned scalar gate (hidden -> 1) scales the shared output.
    score_correction : bool
        Whether the router has a learned bias per expert (auxiliary-loss-free balancing).
    """

    n_experts: int
    top_k: int
    ffn_hidden: int
    gated: bool = True
    bias: bool = False
    activation: str = "silu"
    shared_ffn_hidden: int = 0
    shared_gate: bool = False
    score_correction: bool = False

    def parameters(self, hidden: int) -> tuple[Parameter, ...]:
        """Weights and vectors for a residual width of `hidden`."""
        found: list[Parameter] = [Weight("router", hidden, self.n_experts, "replicated")]
        if self.score_correction:
            found.append(Vector("score_correction", self.n_experts))
        if self.gated:
            found.append(
                Weight(
                    "expert_gate", hidden, self.ffn_hidden, "column", self.bias, self.n_experts, True, "expert_gate_up"
                )
            )
        found.append(
            Weight(
                "expert_up",
                hidden,
                self.ffn_hidden,
                "column",
                self.bias,
                self.n_experts,
                True,
                "expert_gate_up" if self.gated else "",
            )
        )
        found.append(Weight("expert_down", self.ffn_hidden, hidden, "row", self.bias, self.n_experts, True))
        if self.shared_ffn_hidden:
            if self.gated:
                found.append(
                    Weight(
                        "shared_gate", hidden, self.shared_ffn_hidden, "column", self.bias, fused_with="shared_gate_up"
                    )
                )
            found.append(
                Weight(
                    "shared_up",
                    hidden,
                    self.shared_ffn_hidden,
                    "column",
                    self.bias,
                    fused_with="shared_gate_up" if self.gated else "",
                )
            )
            found.append(Weight("shared_down", self.shared_ffn_hidden, hidden, "row", self.bias))
            if self.shared_gate:
                found.append(Weight("shared_expert_gate", hidden, 1, "replicated"))
        return tuple(found)


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """One transformer block.

    Attributes
    ----------
    n_norms : int
        Norms of the residual width in the block (2; 4 with post-norms; 1 when attention
        and feed-forward run in parallel behind one norm).
    parallel : bool
        Attention and feed-forward read the same normalised input (Phi, Falcon).
    high_precision : bool
        A precision recipe leaves this layer in the compute dtype (`planner.precision.with_plain_ends`).
    """

    attention: AnyAttention
    ffn: Mlp | Moe
    norm: NormKind = "rms"
    norm_bias: bool = False
    n_norms: int = 2
    parallel: bool = False
    high_precision: bool = False

    @property
    def is_moe(self) -> bool:
        """Whether the feed-forward part is a mixture of experts."""
        return isinstance(self.ffn, Moe)

    def norm_vectors(self, hidden: int) -> tuple[Parameter, ...]:
        """Norm weights (and biases) of the block."""
        width = hidden * (2 if self.norm_bias else 1)
        return tuple(Vector(f"norm_{i}", width) for i in range(self.n_norms))

    def parameters(self, hidden: int) -> tuple[Parameter, ...]:
        """Every weight and vector of the block."""
        return (*self.attention.parameters(hidden), *self.ffn.parameters(hidden), *self.norm_vectors(hidden))


@dataclass(frozen=True, slots=True)
class FrozenBlock:
    """A part that is loaded but not trained or sharded by the plan (a vision tower)."""

    name: str
    parameters: int
    note: str = ""


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A model: embedding, typed layers, final norm and head.

    Attributes
    ----------
    hidden, vocab : int
        Residual width; rows of the embedding.
    learned_positions : int
        Rows of a learned position table (0 with rotary positions).
    tied_embeddings : bool
        The head shares the embedding matrix.
    head_bias : bool
        The head has a bias of `vocab` elements (Phi).
    mtp_layers : tuple of DecoderLayer
        Multi-token-prediction layers, reported apart and not in `parameters`.
    rotary_fraction : float
        Share of each head that is rotated (Phi: 0.4).
    source : str
        Where the facts come from.
    """

    name: str
    family: str
    hidden: int
    vocab: int
    layers: tuple[DecoderLayer, ...]
    norm: NormKind = "rms"
    norm_bias: bool = False
    norm_eps: float = 1e-5
    tied_embeddings: bool = False
    head_bias: bool = False
    learned_positions: int = 0
    max_positions: int = 0
    rope_theta: float = 10000.0
    rotary_fraction: float = 1.0
    embedding_scale: bool = False
    frozen_blocks: tuple[FrozenBlock, ...] = ()
    mtp_layers: tuple[DecoderLayer, ...] = ()
    source: str = ""
    notes: tuple[str, ...] = field(default=())

    def __hash__(self) -> int:
        """Cheap on purpose: caches keyed by a model look it up thousands of times in a search."""
        return hash((self.name, self.hidden, self.vocab, len(self.layers)))

    @property
    def n_layers(self) -> int:
        """Decoder layers."""
        return len(self.layers)

    def layer_kinds(self) -> tuple[DecoderLayer, ...]:
        """The distinct layers, in order of first appearance."""
        return tuple(dict.fromkeys(self.layers))

    def embedding_parameters(self) -> tuple[Parameter, ...]:
        """Token table (split by vocabulary over tp) and learned positions."""
        table = Weight("embedding", self.vocab, self.hidden, "row")
        if self.learned_positions:
            return (table, Vector("positions", self.learned_positions * self.hidden))
        return (table,)

    def head_parameters(self) -> tuple[Parameter, ...]:
        """Final norm and output projection; a tied head adds no matrix of its own here."""
        width = self.hidden * (2 if self.norm_bias else 1)
        found: list[Parameter] = [Vector("final_norm", width)]
        if not self.tied_embeddings:
            found.append(Weight("head", self.hidden, self.vocab, "column", self.head_bias))
        elif self.head_bias:
            found.append(Vector("head_bias", self.vocab, "column"))
        return tuple(found)

    @property
    def frozen_parameters(self) -> int:
        """Parameters of the frozen blocks."""
        return sum(block.parameters for block in self.frozen_blocks)

    @property
    def mtp_parameters(self) -> int:
        """Parameters of the multi-token-prediction layers, which `parameters` leaves out.

        Each adds, beside its decoder layer, two norms and a 2h -> h projection of the
        joined hidden state and embedding, and a final norm (DeepSeek-V3, section 2.2).
        """
        extra = 2 * self.hidden * self.hidden + 3 * self.hidden
        return sum(count(layer.parameters(self.hidden)) + extra for layer in self.mtp_layers)

    @property
    def parameters(self) -> int:
        """All parameters, each shared tensor once, frozen blocks included."""
        body = sum(count(layer.parameters(self.hidden)) for layer in self.layers)
        return count(self.embedding_parameters()) + body + count(self.head_parameters()) + self.frozen_parameters

    @property
    def active_parameters(self) -> int:
        """Parameters that one token meets: routed experts count `top_k` of `n_experts`."""
        idle = 0
        for layer in self.layers:
            if isinstance(layer.ffn, Moe):
                experts = sum(
                    w.parameters for w in layer.ffn.parameters(self.hidden) if isinstance(w, Weight) and w.expert
                )
                idle += experts - experts * layer.ffn.top_k // layer.ffn.n_experts
        return self.parameters - idle
