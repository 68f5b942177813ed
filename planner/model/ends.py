"""What feeds the decoder layers besides a token table: patches of an image, and whole vision towers."""

from __future__ import annotations

from hwmodels.records import dataclass
from planner.model.weights import Parameter, Vector, Weight


@dataclass(frozen=True, slots=True)
class PatchEmbedding:
    """A convolution as wide as its stride: one matrix product for each patch, and learned positions.

    Attributes
    ----------
    channels, patch, frames : int
        Colours, pixels of a side, and images that a patch spans (2 in Qwen-VL towers).
    patches : int
        Patches of an image.
    positions : int
        Rows of the learned position table, without the class token's.
    class_token : bool
        Whether a learned token with a position of its own stands before the patches.
    """

    channels: int
    patch: int
    patches: int
    positions: int
    frames: int = 1
    bias: bool = True
    class_token: bool = False

    @property
    def tokens(self) -> int:
        """Tokens of one image, the class token included."""
        return self.patches + self.class_token

    def parameters(self, hidden: int) -> tuple[Parameter, ...]:
        """Weights and vectors for a width of `hidden`."""
        n_in = self.channels * self.frames * self.patch * self.patch
        return (
            Weight("patch", n_in, hidden, "replicated", self.bias),
            Vector("positions", (self.positions + 2 * self.class_token) * hidden),
        )


@dataclass(frozen=True, slots=True)
class FrozenBlock:
    """A part beside the decoder with its size: a vision tower or the projector behind it."""

    name: str
    parameters: int
    note: str = ""
