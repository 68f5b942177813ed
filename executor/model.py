"""The executor's decoder, built from a `ModelSpec`, whole or one virtual stage at a time.

Each parameter is filled from a generator seeded by its own name, so every split of a model
starts from the same weights without any communication.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence

import torch
import torch.nn.functional as F  # noqa: N812 - the name that PyTorch's own documentation uses
from torch import Tensor, nn

from executor.layers import Layer, Norm, Projection, mark, rotary_table
from executor.tensor import SINGLE, ParameterNote, TensorParallel
from planner.model.spec import ModelSpec

_INIT_STD = 0.02


class Embedding(nn.Module):
    """Token table split by vocabulary over tp, and learned positions where the model has them."""

    def __init__(self, spec: ModelSpec, tp: TensorParallel) -> None:
        super().__init__()
        self.tp = tp
        self.rows = spec.vocab // tp.size
        self.scale = math.sqrt(spec.hidden) if spec.embedding_scale else 1.0
        dim = 0 if tp.size > 1 else None
        self.weight = mark(nn.Parameter(torch.empty(self.rows, spec.hidden)), (spec.vocab, spec.hidden), dim, False)
        self.positions: nn.Parameter | None = None
        if spec.learned_positions:
            shape = (spec.learned_positions, spec.hidden)
            self.positions = mark(nn.Parameter(torch.empty(shape)), shape, None, tp.sp)

    def forward(self, tokens: Tensor) -> Tensor:
        """(batch, seq) token ids -> (batch, seq, hidden) residual stream."""
        if self.tp.size == 1:
            x = F.embedding(tokens, self.weight)
        else:
            local = tokens - self.tp.rank * self.rows
            inside = (local >= 0) & (local < self.rows)
            part = F.embedding(local.clamp(0, self.rows - 1), self.weight) * inside.unsqueeze(-1).to(self.weight.dtype)
            x = self.tp.leave(part)
        if self.scale != 1.0:
            x = x * self.scale
        if self.positions is not None:
            x = x + self.tp.own_rows(self.positions[: tokens.shape[1]])
        return x


class Head(nn.Module):
    """Final norm and vocabulary projection (column split)."""

    def __init__(self, spec: ModelSpec, tp: TensorParallel, tied: nn.Parameter | None) -> None:
        super().__init__()
        self.tp = tp
        self.norm = Norm(spec.hidden, spec.norm, spec.norm_bias, spec.norm_eps, tp.sp)
        if tied is None:
            self.projection = Projection(spec.hidden, spec.vocab, "column", spec.head_bias, tp)
        else:
            self.weight = tied
            self.bias: nn.Parameter | None = None
            if spec.head_bias:
                rows = spec.vocab // tp.size
                self.bias = mark(
                    nn.Parameter(torch.empty(rows)), (spec.vocab,), 0 if tp.size > 1 else None, False, "zero"
                )
        self.is_tied = tied is not None

    def forward(self, x: Tensor) -> Tensor:
        """(batch, seq, hidden) -> (batch, seq, this rank's vocabulary) logits."""
        x = self.tp.enter(self.norm(x))
        if self.is_tied:
            return F.linear(x, self.weight, self.bias)
        logits: Tensor = self.projection(x)
        return logits


class Decoder(nn.Module):
    """A run of decoder layers, with the embedding before or the head after it where asked.

    Parameters
    ----------
    spec : ModelSpec
    seq_len : int
        Tokens a sequence (rotary tables are made for it).
    layers : sequence of int, optional
        Global layer indices; all by default.
    embedding, head : bool
    tp : TensorParallel
        The group over which matrices are split.
    """

    def __init__(
        self,
        spec: ModelSpec,
        seq_len: int,
        layers: Sequence[int] | None = None,
        *,
        embedding: bool = True,
        head: bool = True,
        tp: TensorParallel = SINGLE,
    ) -> None:
        super().__init__()
        held = range(spec.n_layers) if layers is None else layers
        self.tp = tp
        self.embedding = Embedding(spec, tp) if embedding else None
        self.layers = nn.ModuleDict({str(i): Layer(spec.layers[i], spec.hidden, spec.norm_eps, tp) for i in held})
        self.head: Head | None = None
        if head:
            tied: nn.Parameter | None = None
            if spec.tied_embeddings:
                # A last stage without the embedding holds its own copy of the shared table.
                table = self.embedding if self.embedding is not None else Embedding(_table_only(spec), tp)
                tied = table.weight
            self.head = Head(spec, tp, tied)
        self.holds_tied_copy = spec.tied_embeddings and (embedding != head)
        self.rotary = not spec.learned_positions
        if self.rotary and self.layers:
            first = spec.layers[0].softmax
            if first is None:
                raise TypeError("a model without attention is refused by executor.support")
            head_dim = first.qk_dim
            cos, sin = rotary_table(seq_len, 2 * (int(head_dim * spec.rotary_fraction) // 2), spec.rope_theta)
            self.register_buffer("rope_cos", cos, persistent=False)
            self.register_buffer("rope_sin", sin, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Token ids or residual stream in; residual stream or logits out."""
        if self.embedding is not None:
            x = self.embedding(x)
        rope = (self.rope_cos, self.rope_sin) if self.rotary and self.layers else None
        for layer in self.layers.values():
            x = layer(x, rope)
        return x if self.head is None else self.head(x)


def _table_only(spec: ModelSpec) -> ModelSpec:
    from dataclasses import replace

    return replace(spec, learned_positions=0)


def global_name(name: str) -> str:
    """Name that a parameter has in the whole model (a tied head is the embedding table)."""
    name = name.removeprefix("module.")
    return "embedding.weight" if name == "head.weight" else name


def notes(model: nn.Module) -> dict[str, ParameterNote]:
    """What tensor parallelism did to each parameter, by whole-model name; read before FSDP replaces them."""
    return {
        global_name(name): ParameterNote(p.shard_dim, p.tp_partial, p.whole_shape)
        for name, p in model.named_parameters()
    }


@torch.no_grad()
def initialise(model: nn.Module, seed: int, tp: TensorParallel = SINGLE) -> None:
    """Fill every parameter from its name and `seed`: normal(0, 0.02), ones for norms, zeros for biases.

    Norms and biases get a small deterministic wobble too, so that a wrong gradient of theirs shows.
    """
    for name, p in model.named_parameters():
        generator = torch.Generator().manual_seed(zlib.crc32(global_name(name).encode()) ^ (seed & 0x7FFFFFFF))
        whole = torch.randn(p.whole_shape, generator=generator) * _INIT_STD
        if p.init_kind == "one":
            whole += 1.0
        p.copy_(tp.shard(whole, p.shard_dim))


def batch(spec: ModelSpec, gbs: int, seq_len: int, seed: int, step: int = 0) -> tuple[Tensor, Tensor]:
    """Token ids and next-token targets, each (gbs, seq_len), equal on every rank."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
    tokens = torch.randint(0, spec.vocab, (gbs, seq_len + 1), generator=generator)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
