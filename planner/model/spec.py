"""`ModelSpec`: a model as a list of typed layers.

Each block lists its weights once (`Weight`, `Vector`). Parameter counts, memory shards and
the GEMMs of the cost model are all read from that list, so they cannot disagree.
"""

from __future__ import annotations

from dataclasses import field, replace
from functools import lru_cache
from typing import Literal

from hwmodels.records import dataclass
from planner.model.attention import Attention, LatentAttention
from planner.model.ends import FrozenBlock, PatchEmbedding
from planner.model.feedforward import Mlp, Moe
from planner.model.recurrent import DeltaNet, Mamba1, Mamba2, Recurrent
from planner.model.tower import VisionTower
from planner.model.weights import Parameter, Shard, Vector, Weight, count

__all__ = [
    "AnyAttention", "Attention", "DecoderLayer", "DeltaNet", "FrozenBlock", "LatentAttention", "Mamba1", "Mamba2",
    "Mixer", "Mlp", "ModelSpec", "Moe", "NormKind", "Parameter", "PatchEmbedding", "Recurrent", "Shard", "Vector",
    "VisionTower", "Weight", "count",
]  # fmt: skip

NormKind = Literal["rms", "layer"]
AnyAttention = Attention | LatentAttention
Mixer = Attention | LatentAttention | Mamba1 | Mamba2 | DeltaNet


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """One block: a sequence mixer, a feed-forward part, or both.

    Attributes
    ----------
    attention : Mixer or None
        Softmax attention or a recurrent mixer; None where the block is a feed-forward part alone.
    ffn : Mlp, Moe or None
        None where the block is a mixer alone.
    n_norms : int
        Norms of the residual width in the block (2; 4 with post-norms; 1 when attention
        and feed-forward run in parallel behind one norm).
    parallel : bool
        Attention and feed-forward read the same normalised input (Phi, Falcon).
    high_precision : bool
        A precision recipe leaves this layer in the compute dtype (`planner.precision.with_plain_ends`).
    """

    attention: Mixer | None
    ffn: Mlp | Moe | None
    norm: NormKind = "rms"
    norm_bias: bool = False
    n_norms: int = 2
    parallel: bool = False
    high_precision: bool = False

    @property
    def softmax(self) -> AnyAttention | None:
        """The mixer where it is softmax attention."""
        return self.attention if isinstance(self.attention, Attention | LatentAttention) else None

    @property
    def recurrent(self) -> Recurrent | None:
        """The mixer where it has a recurrent state."""
        return self.attention if isinstance(self.attention, Mamba1 | Mamba2 | DeltaNet) else None

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
        mixer = self.attention.parameters(hidden) if self.attention else ()
        feed = self.ffn.parameters(hidden) if self.ffn else ()
        return (*mixer, *feed, *self.norm_vectors(hidden))


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A model: embedding, typed layers, final norm and head.

    Attributes
    ----------
    hidden, vocab : int
        Residual width; rows of the embedding (0 where patches of an image come in).
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
    patches : PatchEmbedding or None
        What comes in instead of tokens (ViT).
    n_classes : int
        Outputs of a classifier on the first token, in place of a language-model head; 0 for none.
    embedding_norm, final_norm : bool
        A norm behind the embedding (BLOOM, BERT); one before the head.
    segments : int
        Rows of a table of segment embeddings (BERT: 2).
    head_transform : bool
        A dense layer, activation and layer norm before the head's matrix (BERT's masked-language-model head).
    vision : VisionTower or None
        Tower and projector of a multimodal model; their tokens take part of the sequence.
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
    patches: PatchEmbedding | None = None
    n_classes: int = 0
    embedding_norm: bool = False
    final_norm: bool = True
    segments: int = 0
    head_transform: bool = False
    vision: VisionTower | None = None
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

    def tensor_counts(self) -> tuple[int, ...]:
        """Numbers of heads and groups that a tensor-parallel degree divides; the width where there are none."""
        found: set[int] = set()
        for layer in self.layer_kinds():
            found |= {layer.softmax.n_heads} if layer.softmax else set()
            found |= set(layer.recurrent.split) if layer.recurrent else set()
        return tuple(sorted(found)) or (self.hidden,)

    def layer_kinds(self) -> tuple[DecoderLayer, ...]:
        """The distinct layers, in order of first appearance."""
        return _distinct(self)

    @property
    def norm_width(self) -> int:
        """Elements of a norm over the residual width."""
        return self.hidden * (2 if self.norm_bias else 1)

    def embedding_parameters(self) -> tuple[Parameter, ...]:
        """Token table (split by vocabulary over tp) or patches, positions, segments and the norm behind them."""
        norm: tuple[Parameter, ...] = (Vector("embedding_norm", self.norm_width),) if self.embedding_norm else ()
        if self.patches is not None:
            return (*self.patches.parameters(self.hidden), *norm)
        found: list[Parameter] = [Weight("embedding", self.vocab, self.hidden, "row")]
        rows = self.learned_positions + self.segments
        return (*found, *((Vector("positions", rows * self.hidden),) if rows else ()), *norm)

    def head_parameters(self) -> tuple[Parameter, ...]:
        """Final norm and output projection; a tied head adds no matrix of its own here."""
        found: list[Parameter] = [Vector("final_norm", self.norm_width)] if self.final_norm else []
        if self.n_classes:
            return (*found, Weight("classifier", self.hidden, self.n_classes, "replicated", True))
        if self.head_transform:
            found += [Weight("transform", self.hidden, self.hidden, "replicated", True)]
            found += [Vector("transform_norm", self.norm_width)]
        if not self.tied_embeddings:
            found.append(Weight("head", self.hidden, self.vocab, "column", self.head_bias))
        elif self.head_bias:
            found.append(Vector("head_bias", self.vocab, "column"))
        return tuple(found)

    @property
    def frozen_blocks(self) -> tuple[FrozenBlock, ...]:
        """Vision tower and projector with their sizes."""
        return self.vision.blocks() if self.vision else ()

    @property
    def frozen_parameters(self) -> int:
        """Parameters of the vision tower and projector."""
        return sum(block.parameters for block in self.frozen_blocks)

    def mtp_used(self, depth: int) -> tuple[DecoderLayer, ...]:
        """The layers of `depth` multi-token-prediction steps.

        The config's own, then more of the last kind: Megatron-Core (``--mtp-num-layers``) builds each like the
        decoder's last layer, in whatever format a recipe leaves its ends.
        """
        own = self.mtp_layers[:depth]
        like = replace((self.mtp_layers or self.layers)[-1], high_precision=False)
        return own + (like,) * (depth - len(own))

    def kv_bytes_per_token(self, width: float = 2.0) -> float:
        """Bytes that a key-value cache of all attention layers keeps of a token, no window applied."""
        return width * sum(layer.softmax.kv_elements for layer in self.layers if layer.softmax)

    def kv_bytes(self, tokens: int, width: float = 2.0, state_width: float = 4.0) -> float:
        """Bytes of one sequence's cache after `tokens`: windows keep their width, recurrent layers their state.

        Parameters
        ----------
        width, state_width : float
            Bytes of an element of keys and values, and of a recurrent state.
        """
        total = 0.0
        for layer in self.layers:
            if layer.softmax is not None:
                kept = min([tokens, *(w for w in (layer.softmax.window, layer.softmax.chunk) if w)])
                total += width * layer.softmax.kv_elements * kept
            elif layer.recurrent is not None:
                total += state_width * layer.recurrent.state_elements
        return total

    def mtp_extra(self) -> tuple[Parameter, ...]:
        """What a multi-token-prediction step has beside its decoder layer.

        Norms of hidden state and embedding, the projection of both, and a norm before the shared head.
        """
        return (
            Weight("mtp_proj", 2 * self.hidden, self.hidden, "column"),
            *(Vector(f"mtp_norm_{i}", self.norm_width) for i in range(3)),
        )

    @property
    def mtp_parameters(self) -> int:
        """Parameters of the multi-token-prediction layers, which `parameters` leaves out.

        Each adds `mtp_extra` beside its decoder layer (DeepSeek-V3, section 2.2).
        """
        extra = count(self.mtp_extra())
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


@lru_cache(maxsize=64)
def _distinct(model: ModelSpec) -> tuple[DecoderLayer, ...]:
    return tuple(dict.fromkeys(model.layers))
