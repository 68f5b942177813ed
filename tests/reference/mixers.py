"""Recurrent mixers of one micro-batch on one rank, in plain floats.

From the sources: mamba_ssm ``ssd_combined.py`` and ``selective_scan_interface.py``, flash-linear-attention
``ops/gated_delta_rule``, Megatron-Core ``mamba_context_parallel.py``. After the all-to-all a rank has cp times the
tokens and 1/cp of the heads.
"""

from __future__ import annotations

from planner.model.spec import DeltaNet, Mamba1, Mamba2
from tests.reference.ops import Rank


def mixer(rank: Rank, part: Mamba1 | Mamba2 | DeltaNet) -> float:
    """Kernels of the mixer; returns the bytes saved."""
    lay, w = rank.layout, rank.width
    inner = part.d_inner / lay.tp
    if isinstance(part, Mamba1):
        wide = 2 * part.d_inner / lay.tp
    elif isinstance(part, Mamba2):
        wide = (2 * part.d_inner + 2 * part.n_groups * part.d_state + part.n_heads) / lay.tp
    else:
        key = part.n_key_heads * part.key_dim
        wide = (2 * key + 2 * part.d_inner + 2 * part.n_value_heads) / lay.tp
    rank.enter("mixer.in", module="qkv")
    bias = 1 if getattr(part, "bias", False) else 0
    assert not bias, "no case has one"
    rank.linear("mixer.in", rank.tokens, rank.hidden, wide, module="qkv", normed=True)
    if isinstance(part, Mamba1):
        kept = _mamba(rank, part)
    elif isinstance(part, Mamba2):
        kept = _mamba2(rank, part, wide)
    else:
        kept = _delta(rank, part, wide)
    rank.linear("mixer.o", rank.tokens, inner, rank.hidden, module="o")
    rank.leave("mixer.o")
    ends = rank.input_kept(rank.tokens_kept, rank.hidden, "qkv") + rank.input_kept(rank.tokens, inner, "o")
    return ends + w * rank.tokens * wide + kept


def _swap(rank: Rank, sent: list[float], back: float) -> None:
    """Tokens for heads and back: each tensor by itself, and a pass to put chunks in order on either side."""
    if rank.layout.cp == 1:
        return
    for way in ("F", "I"):
        for nbytes in sent:
            # tensors go one by one in equal collectives: the law is asked for the mean
            rank.collective("to heads", way, "all_to_all", "cp", sum(sent) / len(sent))
            assert nbytes >= 0
        rank.moved("order", way, 2 * sum(sent))
        rank.moved("order back", way, 2 * back)
        rank.collective("to tokens", way, "all_to_all", "cp", back)


def _gated_norm(rank: Rank, inner: float) -> None:
    rank.moved("gated norm", "F", 3 * rank.width * rank.tokens * inner)
    rank.moved("gated norm.grad", "I", 5 * rank.width * rank.tokens * inner, 2)


def _products(rank: Rank, way: str, sizes: list[tuple[float, float, float]], batch: float) -> None:
    for number, (m, n, k) in enumerate(sizes):
        rank.gemm(f"scan {way}{number}", way, m, n, k, batch=batch, impl="batched")


def _mamba(rank: Rank, part: Mamba1) -> float:
    w, inner = rank.width, part.d_inner / rank.layout.tp
    row = w * rank.tokens * inner
    small = float(part.dt_rank + 2 * part.d_state)
    rank.moved("conv", "F", 2 * row)
    rank.moved("conv.grad", "I", 5 * row, 2)
    rank.linear("mixer.x", rank.tokens, inner, small, module="qkv")
    rank.linear("mixer.dt", rank.tokens, float(part.dt_rank), inner, module="qkv")
    for way in ("F", "I"):
        rank.collective("x", way, "all_reduce", "tp", w * rank.tokens * small)
    if part.inner_norms:
        rank.moved("norms", "F", 2 * w * rank.tokens * small, 3)
        rank.moved("norms.grad", "I", 3 * w * rank.tokens * small, 6)
    rank.moved("scan", "F", 5 * row)
    rank.gemm("dt again", "I", rank.tokens, inner, float(part.dt_rank), impl=rank.preset.gemm_impl)
    rank.moved("scan.grad", "I", 8 * row)
    kept = rank.input_kept(rank.tokens, inner, "qkv") + rank.input_kept(rank.tokens, float(part.dt_rank), "qkv")
    return kept + w * rank.tokens * 2 * part.d_state + row + rank.tokens / 2048 * inner * 2 * part.d_state * 4


def _mamba2(rank: Rank, part: Mamba2, wide: float) -> float:
    lay, w, tokens = rank.layout, rank.width, rank.tokens * rank.layout.cp
    heads = part.n_heads / lay.tp / lay.cp
    groups = max(part.n_groups / lay.tp / lay.cp, 1.0)
    q, p, n = float(part.chunk), float(part.head_dim), float(part.d_state)
    bc = groups * lay.cp * n  # channels of B, and of C, that go out, copies included
    own = part.n_groups / lay.tp * n
    out = wide - 2 * own + 2 * bc
    _swap(rank, [w * rank.tokens * out / 5] * 5, w * rank.tokens * part.d_inner / lay.tp)
    conv = w * tokens * (heads * p + 2 * groups * n)
    rank.moved("conv", "F", 2 * conv)
    rank.moved("conv.grad", "I", 5 * conv, 2)
    chunks, state = tokens / q, tokens / q * heads * p * n
    rank.moved("decay", "F", tokens * heads * (w + 8))
    rank.moved("pass", "F", state * (4 + w))
    _products(rank, "F", [(q, q, n)], chunks * groups)
    _products(rank, "F", [(p, n, q), (q, p, q), (q, p, n)], chunks * heads)
    rank.moved("decay again", "I", tokens * heads * (w + 8))
    rank.moved("pass again", "I", state * (4 + w))
    rank.moved("pass.grad", "I", state * 12)
    rank.moved("decay.grad", "I", tokens * heads * 16, 2)
    _products(rank, "I", [(q, q, n), (q, n, q), (q, n, q)], chunks * groups)
    # states again, dstates, dx within and across chunks, dB, dC, d(C B^T)
    per_head = [(p, n, q), (p, n, q), (q, p, q), (q, p, n), (q, n, p), (q, n, p), (q, q, p)]
    _products(rank, "I", per_head, chunks * heads)
    _gated_norm(rank, part.d_inner / lay.tp)
    return w * rank.tokens * part.d_inner / lay.tp


def _delta(rank: Rank, part: DeltaNet, wide: float) -> float:
    lay, w = rank.layout, rank.width
    inner, channels = part.d_inner / lay.tp, part.conv_dim / lay.tp
    _swap(rank, [w * rank.tokens * wide], w * rank.tokens * inner)
    rank.moved("conv", "F", 2 * w * rank.tokens * channels)
    rank.moved("conv.grad", "I", 3 * w * rank.tokens * channels)
    heads = rank.tokens * part.n_value_heads / lay.tp
    c, k, v = float(part.chunk), float(part.key_dim), float(part.value_dim)
    keys = 2 * w * rank.tokens * part.n_key_heads / lay.tp * k
    rank.moved("qk", "F", 3 * keys + 2 * w * heads * k, 4)
    rank.moved("qk.grad", "I", 4 * keys + 2 * w * heads * k, 4)
    rank.moved("gates", "F", heads * (2 * w + 8), 3)
    rank.moved("gates.grad", "I", 2 * heads * (2 * w + 8), 4)
    for way in ("F", "I"):
        rank.moved("triangle" + way, way, heads * c * (4 + w))
    states = w * heads / c * k * v
    rank.moved("states", "F", 2 * states)
    rank.moved("states", "I", 4 * states)
    score, to_k, to_v = (c, c, k), (c, k, c), (c, v, c)
    _products(rank, "F", [score, to_k, to_v, (c, v, k), (k, v, c), score, (c, v, k), to_v, (c, c, c / 6)], heads / c)
    again = [to_k, to_v, (c, v, k), (k, v, c)]
    local = [score, to_v]
    state = [(c, v, k), (k, v, c), (k, v, c)]
    outer = [(c, k, v), (c, k, v), (c, k, v), (c, c, v), to_k, to_k]
    wy = [score, (c, c, v), to_k, to_v, (c, c, c), (c, c, c), to_k, to_k]
    _products(rank, "I", again + local + state + outer + wy, heads / c)
    _gated_norm(rank, inner)
    return w * (rank.tokens * channels + heads * (2 * k + c + v))
