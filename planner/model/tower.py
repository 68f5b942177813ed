"""Vision tower and projector of a multimodal model: encoder layers over patches, then matrices into the text width."""

from __future__ import annotations

from collections.abc import Iterable

from hwmodels.records import dataclass
from planner.model.attention import Attention
from planner.model.ends import FrozenBlock, PatchEmbedding
from planner.model.feedforward import Mlp
from planner.model.weights import Parameter, Vector, Weight, count


def _products(parameters: Iterable[Parameter]) -> float:
    """FLOPs of one row in the matrices among the given parameters."""
    return sum(2.0 * p.n_in * p.n_out for p in parameters if isinstance(p, Weight))


@dataclass(frozen=True, slots=True)
class VisionTower:
    """An encoder over the patches of each image, and the projector that makes text tokens of its output.

    Attributes
    ----------
    hidden, n_layers : int
        Width and layers of the encoder; all its norms are layer norms with biases.
    attention, ffn : Attention, Mlp
        Of each layer; attention is not causal.
    patch : PatchEmbedding
    other : int
        Elements outside layers and patches: norms at the ends, a pooling head.
    merged : int
        Patches behind one token of the text.
    projector : tuple of Weight
        Matrices that run once for each token of the text, in order.
    mergers : int
        Copies of the projector (Qwen3-VL feeds features of inner layers in by more of them).
    projector_other : int
        Elements of the projector outside its matrices.
    note : str
    """

    hidden: int
    n_layers: int
    attention: Attention
    ffn: Mlp
    patch: PatchEmbedding
    other: int
    merged: int
    projector: tuple[Weight, ...]
    mergers: int = 1
    projector_other: int = 0
    note: str = ""

    @property
    def image_tokens(self) -> int:
        """Tokens of the text sequence that one image takes."""
        return self.patch.patches // self.merged

    def layer_parameters(self) -> tuple[Parameter, ...]:
        """Weights and vectors of one encoder layer."""
        norms = Vector("norms", 4 * self.hidden)
        return (*self.attention.parameters(self.hidden), *self.ffn.parameters(self.hidden), norms)

    def tower_parameters(self) -> tuple[Parameter, ...]:
        """Of the encoder: every layer, patches and ends."""
        return (*self.layer_parameters() * self.n_layers, *self.patch.parameters(self.hidden), Vector("o", self.other))

    def projector_parameters(self) -> tuple[Parameter, ...]:
        """Of all copies of the projector."""
        return (*self.projector * self.mergers, Vector("projector_other", self.projector_other))

    def forward_flops(self) -> tuple[float, float]:
        """FLOPs of one image in the encoder, and in the projector: matrices and full attention."""
        a, patch = self.attention, self.patch
        layer = _products(self.layer_parameters()) + 2.0 * patch.tokens * a.n_heads * (a.qk_dim + a.v_dim)
        encoder = patch.tokens * self.n_layers * layer + patch.patches * _products(patch.parameters(self.hidden))
        return encoder, self.image_tokens * self.mergers * _products(self.projector)

    def blocks(self) -> tuple[FrozenBlock, ...]:
        """Both parts with their sizes."""
        return (
            FrozenBlock("vision_tower", count(self.tower_parameters()), self.note),
            FrozenBlock("projector", count(self.projector_parameters()), "tower width to text width"),
        )
