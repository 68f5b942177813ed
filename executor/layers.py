"""The blocks of the executor's decoder: norms, projections, attention, feed-forward, experts."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812 - the name that PyTorch's own documentation uses
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from executor.device import rms_norm
from executor.tensor import SINGLE, TensorParallel
from executor.timing import recompute_in_backward
from planner.model.spec import Attention, DecoderLayer, Mlp, Moe, NormKind

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "swish": F.silu,
    "gelu": F.gelu,
    "gelu_new": lambda x: F.gelu(x, approximate="tanh"),
    "gelu_fast": lambda x: F.gelu(x, approximate="tanh"),
    "gelu_pytorch_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "relu2": lambda x: F.relu(x).square(),
}


def mark(
    parameter: nn.Parameter, shape: tuple[int, ...], dim: int | None, partial: bool, kind: str = "normal"
) -> nn.Parameter:
    """Note on a parameter its whole shape, how tp splits it, and how it is initialised."""
    parameter.whole_shape = torch.Size(shape)
    parameter.shard_dim = dim
    parameter.tp_partial = partial
    parameter.init_kind = kind
    return parameter


class Norm(nn.Module):
    """RMSNorm or LayerNorm over the last dimension; its weight sees part of the tokens under `sp`."""

    def __init__(self, width: int, kind: NormKind, bias: bool, eps: float, partial: bool) -> None:
        super().__init__()
        self.kind, self.width, self.eps = kind, width, eps
        self.weight = mark(nn.Parameter(torch.empty(width)), (width,), None, partial, "one")
        self.bias = mark(nn.Parameter(torch.empty(width)), (width,), None, partial, "zero") if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """Normalise and scale."""
        if self.kind == "layer":
            return F.layer_norm(x, (self.width,), self.weight, self.bias, self.eps)
        y = rms_norm(x, self.weight, self.eps)
        return y if self.bias is None else y + self.bias


class Projection(nn.Module):
    """Part of a matrix on this rank: split by output (column), by input (row), or whole.

    A row split leaves partial sums; its bias is added by `finish`, after they are reduced.
    """

    def __init__(self, n_in: int, n_out: int, shard: str, bias: bool, tp: TensorParallel) -> None:
        super().__init__()
        dim = {"column": 0, "row": 1, "replicated": None}[shard] if tp.size > 1 else None
        local = [n_out, n_in]
        if dim is not None:
            local[dim] //= tp.size
        self.row = shard == "row"
        self.weight = mark(nn.Parameter(torch.empty(local)), (n_out, n_in), dim, False)
        self.bias: nn.Parameter | None = None
        if bias:
            split = dim == 0
            self.bias = mark(
                nn.Parameter(torch.empty(local[0])), (n_out,), 0 if split else None, self.row and tp.sp, "zero"
            )

    def forward(self, x: Tensor) -> Tensor:
        """``x @ W^T``, with the bias unless the sums are still partial."""
        return F.linear(x, self.weight, None if self.row else self.bias)

    def finish(self, y: Tensor) -> Tensor:
        """Add the bias of a row split to the reduced sums."""
        return y if self.bias is None or not self.row else y + self.bias


def rotary_table(seq_len: int, dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """Cosine and sine (seq_len, dim/2) of rotary embeddings (Su et al. 2021, arXiv 2104.09864)."""
    frequency = theta ** (-torch.arange(0, dim, 2, dtype=torch.float32) / dim)
    angle = torch.outer(torch.arange(seq_len, dtype=torch.float32), frequency)
    return angle.cos(), angle.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the first ``2 * cos.shape[-1]`` features of each head; x is (batch, heads, seq, dim)."""
    n = 2 * cos.shape[-1]
    first, second, rest = x[..., : n // 2], x[..., n // 2 : n], x[..., n:]
    cos, sin = cos.to(x.dtype), sin.to(x.dtype)
    turned = [first * cos - second * sin, second * cos + first * sin]
    return torch.cat([*turned, rest] if rest.shape[-1] else turned, dim=-1)


def _core(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    with recompute_in_backward():
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])


class SelfAttention(nn.Module):
    """Causal grouped-query attention through `scaled_dot_product_attention`."""

    def __init__(self, spec: Attention, hidden: int, eps: float, tp: TensorParallel) -> None:
        super().__init__()
        self.tp, self.head_dim, self.recompute = tp, spec.head_dim, False
        width, kv = spec.n_heads * spec.head_dim, spec.n_kv_heads * spec.head_dim
        self.q = Projection(hidden, width, "column", spec.qkv_bias, tp)
        self.k = Projection(hidden, kv, "column", spec.qkv_bias, tp)
        self.v = Projection(hidden, kv, "column", spec.qkv_bias, tp)
        self.o = Projection(width, hidden, "row", spec.out_bias, tp)
        self.per_head_norm = spec.qk_norm == "head"
        if spec.qk_norm:
            norm_q, norm_k = (spec.head_dim, spec.head_dim) if self.per_head_norm else (width, kv)
            self.q_norm = Norm(norm_q, "rms", False, eps, tp.size > 1)
            self.k_norm = Norm(norm_k, "rms", False, eps, tp.size > 1)
        self.has_norm = spec.qk_norm is not None

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor] | None) -> Tensor:
        """Partial (batch, seq, hidden) sums of this rank's heads."""
        q, k, v = self.q(x), self.k(x), self.v(x)
        if self.has_norm and not self.per_head_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k, v = self._heads(q), self._heads(k), self._heads(v)
        if self.has_norm and self.per_head_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        if rope is not None:
            q, k = rotate(q, *rope), rotate(k, *rope)
        if self.recompute:
            mixed = checkpoint(_core, q, k, v, use_reentrant=False, preserve_rng_state=False)
        else:
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])
        out: Tensor = self.o(mixed.transpose(1, 2).flatten(2))
        return out


class FeedForward(nn.Module):
    """Plain or gated feed-forward block."""

    def __init__(self, spec: Mlp, hidden: int, tp: TensorParallel) -> None:
        super().__init__()
        self.activation = _ACTIVATIONS[spec.activation]
        self.gate = Projection(hidden, spec.ffn_hidden, "column", spec.bias, tp) if spec.gated else None
        self.up = Projection(hidden, spec.ffn_hidden, "column", spec.bias, tp)
        self.down = Projection(spec.ffn_hidden, hidden, "row", spec.bias, tp)

    def forward(self, x: Tensor) -> Tensor:
        """Partial (batch, seq, hidden) sums of this rank's columns."""
        inner = self.activation(self.up(x)) if self.gate is None else self.activation(self.gate(x)) * self.up(x)
        out: Tensor = self.down(inner)
        return out

    def finish(self, y: Tensor) -> Tensor:
        """Add the bias of the down projection."""
        return self.down.finish(y)


class Experts(nn.Module):
    """Dropless top-k mixture of experts on one rank: tokens sorted by expert, one GEMM an expert.

    Router probabilities are a softmax over the chosen k (Jiang et al. 2024, arXiv 2401.04088,
    section 2.1); a score correction takes part in the choice only (DeepSeek-V3, arXiv
    2412.19437, section 2.1.2).
    """

    def __init__(self, spec: Moe, hidden: int) -> None:
        super().__init__()
        self.top_k, self.n_experts = spec.top_k, spec.n_experts
        self.activation = _ACTIVATIONS[spec.activation]
        self.router = Projection(hidden, spec.n_experts, "replicated", False, SINGLE)
        self.score_correction: nn.Parameter | None = None
        if spec.score_correction:
            # Balancing adjusts it outside backpropagation, so it takes no gradient.
            empty = nn.Parameter(torch.empty(spec.n_experts), requires_grad=False)
            self.score_correction = mark(empty, (spec.n_experts,), None, False, "zero")
        self.expert_gate = self._stack(spec.ffn_hidden, hidden) if spec.gated else None
        self.expert_up = self._stack(spec.ffn_hidden, hidden)
        self.expert_down = self._stack(hidden, spec.ffn_hidden)
        self.biases = nn.ParameterDict()
        if spec.bias:
            widths = {"up": spec.ffn_hidden, "down": hidden} | ({"gate": spec.ffn_hidden} if spec.gated else {})
            for role, n in widths.items():
                self.biases[role] = mark(
                    nn.Parameter(torch.empty(spec.n_experts, n)), (spec.n_experts, n), None, False, "zero"
                )
        self.shared: FeedForward | None = None
        self.shared_expert_gate: Projection | None = None
        if spec.shared_ffn_hidden:
            self.shared = FeedForward(Mlp(spec.shared_ffn_hidden, spec.gated, False, spec.activation), hidden, SINGLE)
            if spec.shared_gate:
                self.shared_expert_gate = Projection(hidden, 1, "replicated", False, SINGLE)

    def _stack(self, n_out: int, n_in: int) -> nn.Parameter:
        shape = (self.n_experts, n_out, n_in)
        return mark(nn.Parameter(torch.empty(shape)), shape, None, False)

    def _bias(self, role: str, expert: int) -> Tensor | None:
        return self.biases[role][expert] if role in self.biases else None

    def _one(self, x: Tensor, e: int) -> Tensor:
        up = F.linear(x, self.expert_up[e], self._bias("up", e))
        if self.expert_gate is None:
            inner = self.activation(up)
        else:
            inner = self.activation(F.linear(x, self.expert_gate[e], self._bias("gate", e))) * up
        return F.linear(inner, self.expert_down[e], self._bias("down", e))

    def forward(self, x: Tensor) -> Tensor:
        """(batch, seq, hidden) -> the same shape."""
        tokens = x.flatten(0, 1)
        scores = self.router(tokens).float()
        biased = scores if self.score_correction is None else scores + self.score_correction
        chosen = biased.topk(self.top_k, dim=-1).indices
        weight = scores.gather(1, chosen).softmax(-1).to(x.dtype).flatten()
        order = chosen.flatten().argsort(stable=True)
        source = order // self.top_k
        sizes = torch.bincount(chosen.flatten(), minlength=self.n_experts).tolist()
        # Every expert runs, if on no token, so that each parameter has a gradient on each rank.
        parts = [self._one(part, e) for e, part in enumerate(tokens[source].split(sizes))]
        routed = torch.zeros_like(tokens).index_add(0, source, torch.cat(parts) * weight[order, None])
        if self.shared is not None:
            shared = self.shared(tokens)
            if self.shared_expert_gate is not None:
                shared = shared * self.shared_expert_gate(tokens).sigmoid()
            routed = routed + shared
        return routed.view_as(x)

    def finish(self, y: Tensor) -> Tensor:
        """Nothing is left to add."""
        return y


class Layer(nn.Module):
    """One decoder block: pre-norm, sandwich norm (four norms) or parallel (one norm)."""

    def __init__(self, spec: DecoderLayer, hidden: int, eps: float, tp: TensorParallel) -> None:
        super().__init__()
        if not isinstance(spec.attention, Attention) or spec.ffn is None:
            raise TypeError(f"{type(spec.attention).__name__} is refused by executor.support")
        self.tp, self.parallel, self.n_norms = tp, spec.parallel, spec.n_norms
        self.norms = nn.ModuleList(Norm(hidden, spec.norm, spec.norm_bias, eps, tp.sp) for _ in range(spec.n_norms))
        self.attention = SelfAttention(spec.attention, hidden, eps, tp)
        self.ffn: FeedForward | Experts
        self.ffn = Experts(spec.ffn, hidden) if isinstance(spec.ffn, Moe) else FeedForward(spec.ffn, hidden, tp)
        self.recompute = "none"

    def set_recompute(self, policy: str) -> None:
        """Choose what the backward computes again: nothing, the attention core, or the block."""
        self.recompute = policy
        self.attention.recompute = policy == "selective"

    def _attend(self, x: Tensor, rope: tuple[Tensor, Tensor] | None) -> Tensor:
        return self.attention.o.finish(self.tp.leave(self.attention(self.tp.enter(x), rope)))

    def _feed(self, x: Tensor) -> Tensor:
        return self.ffn.finish(self.tp.leave(self.ffn(self.tp.enter(x))))

    def _run(self, x: Tensor, rope: tuple[Tensor, Tensor] | None) -> Tensor:
        with recompute_in_backward():
            if self.parallel:
                # One entry for both branches where they share a norm: one reduction of its gradient.
                if self.n_norms == 1:
                    inner = self.tp.enter(self.norms[0](x))
                    both = self.tp.leave(self.attention(inner, rope) + self.ffn(inner))
                    return x + self.ffn.finish(self.attention.o.finish(both))
                return x + self._attend(self.norms[0](x), rope) + self._feed(self.norms[1](x))
            if self.n_norms == 4:
                x = x + self.norms[1](self._attend(self.norms[0](x), rope))
                return x + self.norms[3](self._feed(self.norms[2](x)))
            x = x + self._attend(self.norms[0](x), rope)
            return x + self._feed(self.norms[1](x))

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor] | None) -> Tensor:
        """(batch, seq, hidden) residual stream in and out (split along seq under `sp`)."""
        if self.recompute == "full" and torch.is_grad_enabled():
            out: Tensor = checkpoint(self._run, x, rope, use_reentrant=False, preserve_rng_state=False)
            return out
        return self._run(x, rope)
