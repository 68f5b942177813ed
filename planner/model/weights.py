"""Weights and vectors: what parameter counts, memory shards and GEMMs are all read from."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from hwmodels.records import dataclass

Shard = Literal["column", "row", "replicated"]


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
