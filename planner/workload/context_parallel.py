"""Context parallelism: the kernels of the fused attention core, and what crosses the cp ranks around them.

Every kind deals 2·cp chunks of a sequence so that each rank has one from either end (Llama 3, arXiv
2407.21783, section 3.3.2): under a causal mask all ranks compute seq²/(2·cp) pairs. Keys and values of grouped
or latent attention are exchanged as the core reads them (latent ones after the up-projection).

ring
    Transformer Engine ``AttnFuncWithCPAndKVP2P``: cp steps; while a rank computes one, keys and values of the
    next travel one hop. The first step is the diagonal (causal, all queries over the rank's own keys), the
    others are half of a square without a mask (the whole where attention is not causal). Backward runs the steps
    in reverse: keys and values go round again, and their gradients behind them, one step later.
all-gather
    ``AttnFuncWithCPAndKVAllGather``: keys and values are gathered first, each of the rank's two chunks is a
    kernel over the keys before it; backward gathers again and reduce-scatters the gradients.
ulysses
    ``AttnFuncWithCPAndQKVOA2A``, DeepSpeed-Ulysses (arXiv 2309.14509): four all-to-alls (q, k, v, output) turn
    sequence shards into head shards and back, four more in the backward; the kernel sees the whole sequence.
hierarchical
    Megatron-Core ``a2a+p2p`` (USP, arXiv 2405.07719): ulysses over neighbours, ring over those groups.

A sliding window changes the ring (Transformer Engine ``context_parallel_swa``, ``use_p2p_swa``): where the window
is at most (cp-1) chunks, only the keys of the window before each chunk are fetched, and the backward returns their
gradients; a wider one is gathered.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hwmodels.records import dataclass
from planner.model.spec import AnyAttention
from planner.workload.context import Shapes
from planner.workload.op import Op, Phase

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Split:
    """How one layer's attention is split over the cp ranks, as arrays over the candidates.

    Attributes
    ----------
    attended : float
        Tokens of a document, or of a chunk of a layer that attends within chunks: each is dealt over the ranks.
    heads, kv_heads : ndarray
        Heads that a rank's core runs, after an exchange of sequence for heads.
    own : ndarray
        Tokens of a document that a rank holds then.
    steps : ndarray
        Kernels of a ring: 1 where there is none.
    gathers, halo : ndarray of bool
        Keys and values are gathered; only those of the window are fetched. Both run a kernel for each chunk.
    """

    attention: AnyAttention
    s: Shapes
    attended: float
    heads: FloatArray
    kv_heads: FloatArray
    own: FloatArray
    steps: FloatArray
    gathers: BoolArray
    halo: BoolArray

    @classmethod
    def of(cls, a: AnyAttention, s: Shapes) -> Split:
        """The split of a layer's attention."""
        outer, attended = s.cp_outer, min(s.attended, float(a.chunk)) if a.chunk else s.attended
        own = np.asarray(attended / outer)
        gathers, halo = s.cp_gathers, np.zeros(np.shape(outer), dtype=np.bool_)
        if a.window is not None:
            halo = (outer > 1) & ~gathers & (a.window <= (outer - 1.0) * own / 2.0) & a.causal
            gathers = gathers | ((outer > 1) & ~halo)
        return cls(
            attention=a,
            s=s,
            attended=attended,
            heads=np.asarray(a.n_heads / s.tp / s.cp_inner),
            kv_heads=np.asarray(np.maximum(a.n_kv_heads / s.tp / s.cp_inner, 1.0)),
            own=own,
            steps=np.where(gathers | halo, 1.0, outer),
            gathers=np.asarray(gathers),
            halo=np.asarray(halo),
        )

    @property
    def documents(self) -> FloatArray:
        """Documents of a micro-batch, each dealt over the cp ranks by itself."""
        return np.asarray(self.s.sequences * self.s.seq_len / self.attended)

    def nbytes(self, heads: FloatArray, width: float, tokens: FloatArray | None = None) -> FloatArray:
        """Bytes of a tensor of the core: `tokens` of each document (its own unless given), `width` a head."""
        each = self.own if tokens is None else tokens
        return np.asarray(self.s.width * self.documents * each * heads * width)

    @property
    def q_bytes(self) -> FloatArray:
        """Bytes of a rank's queries."""
        return self.nbytes(self.heads, self.attention.qk_dim)

    @property
    def out_bytes(self) -> FloatArray:
        """Bytes of a rank's outputs."""
        return self.nbytes(self.heads, self.attention.v_dim)

    @property
    def kv_width(self) -> float:
        """Elements of a token's key and value in one head."""
        return float(self.attention.qk_dim + self.attention.v_dim)

    @property
    def halo_tokens(self) -> FloatArray:
        """Tokens before its two chunks whose keys a rank fetches."""
        return np.asarray(np.where(self.halo, 2.0 * (self.attention.window or 0), 0.0))

    @property
    def halo_bytes(self) -> FloatArray:
        """Bytes of the keys and values fetched for a window; the rank keeps them for the backward."""
        return self.nbytes(self.kv_heads, self.kv_width, self.halo_tokens)

    @property
    def transient_bytes(self) -> FloatArray:
        """Bytes held while the core runs: received keys and values and the outputs of all steps, or copies.

        A ring keeps a buffer for the keys and values of each step and each step's output until they are merged;
        an all-to-all has a sent and a received copy of q, k and v.
        """
        kv = self.nbytes(self.kv_heads, self.kv_width)
        ring = np.where(self.steps > 1, (self.steps - 1.0) * kv + self.steps * self.out_bytes, 0.0)
        gathered = np.where(self.gathers, kv * self.s.cp_outer, 0.0)
        swapped = np.where(self.s.cp_inner > 1, self.q_bytes + kv, 0.0)
        return np.asarray(ring + gathered + swapped)


def fused_core(split: Split) -> list[Op]:
    """Kernels of the core: one, one for each chunk, or one for each step of a ring; the same backward."""
    chunk, window = split.own / 2.0, split.attention.window or 0
    by_chunk = (split.gathers | split.halo) & split.attention.causal  # without a mask a rank's tokens are one piece
    queries = np.where(by_chunk, chunk, split.own)
    keys = np.where(split.gathers, split.attended, split.own)
    others = chunk if split.attention.causal else split.own
    keys = np.where(split.halo, chunk + window, keys)
    first = np.where(split.halo, chunk + window, chunk)
    once, chunks = np.ones_like(split.own), np.where(by_chunk, 1.0, 0.0)
    found: list[Op] = []
    ways: tuple[tuple[str, Phase], ...] = (("", "forward"), (".grad", "backward_input"))
    for suffix, phase in ways:
        found += [
            _kernel(split, f"attention.core{suffix}", phase, queries, keys, once),
            _kernel(split, f"attention.core.first_chunk{suffix}", phase, chunk, first, chunks),
            _kernel(split, f"attention.core.off_diagonal{suffix}", phase, split.own, others, split.steps - 1.0,
                    masked=False),
        ]  # fmt: skip
    return [*found, *_merges(split)]


def _kernel(
    split: Split,
    name: str,
    phase: Phase,
    queries: FloatArray,
    keys: FloatArray,
    count: FloatArray,
    *,
    masked: bool = True,
) -> Op:
    a, s = split.attention, split.s
    forward = phase == "forward"
    dims = {
        "batch": split.documents,
        "q_len": queries,
        "kv_len": keys,
        "n_heads": split.heads,
        "n_kv_heads": split.kv_heads,
        "qk_dim": float(a.qk_dim),
        "v_dim": float(a.v_dim),
        "causal": masked and s.preset.skips_masked and a.causal,
        "window": a.window,
        "direction": "forward" if forward else "backward",
    }
    return Op(
        name,
        "attention",
        phase,
        dims,
        s.dtype,
        count=count,
        rerun="selective" if forward else "full",
        impl=s.preset.attention_impl,
    )


def _merges(split: Split) -> list[Op]:
    """Kernels that merge the steps of a ring: outputs forward, gradients backward (3 passes each).

    Forward: every step's output is rescaled by its softmax statistics and added, which are merged too. Backward:
    every further step's gradients are added, of half of the queries or half of the keys: 3/4 of both.
    """
    s, more = split.s, split.steps - 1.0
    kv = split.nbytes(split.kv_heads, split.kv_width)
    merge = s.memory("attention.merge", "forward", 3.0 * split.out_bytes, kernels=2.0, rerun="selective")
    added = s.memory("attention.merge.grad", "backward_input", 2.25 * (split.q_bytes + kv), kernels=2.0)
    return [replace(merge, count=np.where(more > 0, split.steps, 0.0)), replace(added, count=more)]


def exchange_ops(split: Split) -> list[Op]:
    """What crosses the cp ranks around the core; with the core it runs again where that is recomputed."""
    return [*_swaps(split), *_ring(split), *_halo(split), *_gathers(split)]


def _collective(
    split: Split, name: str, op: str, phase: Phase, nbytes: FloatArray, count: FloatArray, *, inner: bool = False,
    behind: str = "",
) -> Op:  # fmt: skip
    group = "cp_inner" if inner else "cp_outer"
    return Op(
        name,
        "collective",
        phase,
        {"nbytes": nbytes},
        split.s.dtype,
        group=group,
        collective=op,
        count=count,
        rerun="selective" if phase == "forward" else "full",
        behind=behind,
    )


def _swaps(split: Split) -> list[Op]:
    """All-to-alls of q, k, v and the output, mirrored backward.

    Each tensor is laid out by receiver before and put in order after (two copies, ``flash_attn_a2a_communicate``).
    """
    s, a = split.s, split.attention
    k, v = (split.nbytes(split.kv_heads, width) for width in (a.qk_dim, a.v_dim))
    tensors = {"q": split.q_bytes, "k": k, "v": v, "o": split.out_bytes}
    count = np.where(s.cp_inner > 1, 1.0, 0.0)
    found: list[Op] = []
    ways: tuple[tuple[str, Phase], ...] = (("", "forward"), (".grad", "backward_input"))
    for suffix, way in ways:
        found += [
            _collective(split, f"attention.{n}_all_to_all{suffix}", "all_to_all", way, nbytes, count, inner=True)
            for n, nbytes in tensors.items()
        ]
        moved = np.asarray(4.0 * sum(tensors.values()))
        copies = s.memory(f"attention.reorder{suffix}", way, moved, kernels=8.0,
                          rerun="selective" if way == "forward" else "full")  # fmt: skip
        found.append(replace(copies, count=count))
    return found


def _ring(split: Split) -> list[Op]:
    """Sends of keys and values beside the steps of a ring.

    Forward: one beside each step but the last. Backward, which ends with the diagonal: keys and values beside the
    first step, gradients behind them from the second on, gradients alone beside the last.
    """
    kv = split.nbytes(split.kv_heads, split.kv_width)
    one, between = np.where(split.steps > 1, 1.0, 0.0), np.maximum(split.steps - 2.0, 0.0)
    diagonal, off = "attention.core", "attention.core.off_diagonal"

    def send(name: str, phase: Phase, nbytes: FloatArray, count: FloatArray, behind: str) -> Op:
        return _collective(split, f"attention.{name}", "send_recv", phase, nbytes, count, behind=behind)

    return [
        send("kv_send.first", "forward", kv, one, diagonal),
        send("kv_send", "forward", kv, between, off),
        send("kv_send.again.first", "backward_input", kv, one, f"{off}.grad"),
        send("kv_send.again", "backward_input", 2.0 * kv, between, f"{off}.grad"),
        send("kv_grad_send.last", "backward_input", kv, one, f"{diagonal}.grad"),
    ]


def _halo(split: Split) -> list[Op]:
    """Keys and values of a window, fetched before the kernels and returned as gradients after them."""
    count = np.where(split.halo, 1.0, 0.0)
    return [
        _collective(split, "attention.halo", "send_recv", "forward", split.halo_bytes, count),
        _collective(split, "attention.halo_grad", "send_recv", "backward_input", split.halo_bytes, count),
    ]


def _gathers(split: Split) -> list[Op]:
    """All-gather of keys and values, again for the backward, and reduce-scatter of their gradients."""
    count = np.where(split.gathers, 1.0, 0.0)
    nbytes = split.nbytes(split.kv_heads, split.kv_width) * split.s.cp_outer
    return [
        _collective(split, "attention.kv_all_gather", "all_gather", "forward", nbytes, count),
        _collective(split, "attention.kv_all_gather.again", "all_gather", "backward_input", nbytes, count),
        _collective(split, "attention.kv_grad_reduce_scatter", "reduce_scatter", "backward_input", nbytes, count),
    ]
