"""Context parallelism step by step, in plain floats: the fused core and what crosses the cp ranks around it.

From Transformer Engine's ``context_parallel.py`` (ring, all-gather, all-to-all), ``context_parallel_swa.py`` (window)
and DeepSpeed-Ulysses (arXiv 2309.14509). Each step of a ring is a kernel of its own with its own transfer beside it.
"""

from __future__ import annotations

from dataclasses import dataclass

from hwmodels import kernels
from planner.model.spec import DecoderLayer
from tests.reference.ops import Item, Rank, axis_of, pair, shape_of, slow_beside


@dataclass
class Exchanged:
    """Bytes: softmax statistics, keys fetched for a window and kept, and what is held while the core runs."""

    statistics: float
    fetched: float
    transient: float


def degrees(rank: Rank) -> tuple[str, int, int]:
    """Kind, ranks that swap sequence for heads, ranks that pass keys and values on."""
    lay = rank.layout
    kind = lay.cp_kind or rank.preset.cp_kind
    inner = {"ulysses": lay.cp, "hierarchical": max(lay.cp_ulysses, 1)}.get(kind, 1)
    return kind, inner, lay.cp // inner


class Core:
    """One layer's attention core on one rank."""

    def __init__(self, rank: Rank, layer: DecoderLayer) -> None:
        assert layer.softmax is not None
        self.rank, self.a = rank, layer.softmax
        kind, self.inner, self.outer = degrees(rank)
        packed, whole = rank.workload.documents, rank.length
        packed = None if packed and packed.batching == "padded" else packed
        self.document = packed.mean_square_tokens2 / packed.mean_tokens if packed else whole
        self.document = min(self.document, self.a.chunk or self.document)
        self.count = rank.layout.mbs * whole / self.document
        self.heads = self.a.n_heads / rank.layout.tp / self.inner
        self.kv = max(self.a.n_kv_heads / rank.layout.tp / self.inner, 1.0)
        self.own = self.document / self.outer
        self.chunk = self.own / 2
        self.window = self.a.window
        shared = self.outer > 1
        near = self.window is not None and self.window <= (self.outer - 1) * self.chunk and self.a.causal
        self.gathers = shared and (kind == "all-gather" or (self.window is not None and not near))
        self.fetches = shared and near and not self.gathers
        self.rings = shared and not self.gathers and not self.fetches
        token = rank.width * self.count
        self.q, self.o = (token * self.own * self.heads * d for d in (self.a.qk_dim, self.a.v_dim))
        self.k, self.v = (token * self.own * self.kv * d for d in (self.a.qk_dim, self.a.v_dim))
        self.pair = self.k + self.v

    def kernel(self, name: str, way: str, queries: float, keys: float, masked: bool = True) -> None:
        rank, direction = self.rank, "forward" if way == "F" else "backward"
        impl = "sdpa-cpu" if rank.cluster.device.kind == "cpu" else rank.preset.attention_impl
        causal = masked and rank.preset.skips_masked and self.a.causal
        one = kernels.attention_seconds(
            rank.cluster.device, batch=self.count, q_len=queries, kv_len=keys, n_heads=self.heads, n_kv_heads=self.kv,
            qk_dim=self.a.qk_dim, v_dim=self.a.v_dim,
            causal=causal, window=self.window,
            direction=direction, dtype=rank.dtype, impl=impl,
        )  # fmt: skip
        seen = queries * keys - (queries**2 / 2 if causal else 0.0)
        seen = min(seen, queries * self.window) if self.window is not None else seen
        flop = 2.0 * self.count * self.heads * seen * (self.a.qk_dim + self.a.v_dim) * (1.0 if way == "F" else 2.5)
        hot = rank.sustained(float(one.mid), flop, rank.dtype)
        rank.kernel(name, way, hot, 1.0, "selective" if way == "F" else "full")
        if way == "F":
            rank.items[-1].by_op = 0.0  # torchtitan's per-op policy keeps what attention makes

    def send(self, way: str, nbytes: float, behind: str = "") -> None:
        """One hop of the ring: every rank sends to its neighbour; between nodes if the ring spans any."""
        rank = self.rank
        _, stride = axis_of(rank.layout, "cp_outer", self.inner)
        assert isinstance(stride, int)
        apart = int(shape_of(self.outer, stride, rank.cluster.gpus_per_node).nodes) > 1
        one = pair(rank.cluster, "send_recv", nbytes, apart, stride)
        slow = slow_beside(rank.cluster, "send_recv", self.outer, stride)
        rerun = "selective" if way == "F" else "full"
        rank.items.append(Item("hop", way, one, 1.0, "cp", "send_recv", behind, rerun, slow=slow))

    def run(self, *, fused: bool) -> Exchanged:
        """Add every transfer of both directions, and every kernel of the fused core."""
        for way, suffix in (("F", ""), ("I", ".grad")):
            rerun = "selective" if way == "F" else "full"
            if self.inner > 1:
                for nbytes in (self.q, self.k, self.v, self.o):
                    self.rank.collective("swap", way, "all_to_all", "cp_inner", nbytes, rerun=rerun)
                # a copy before and one after each of them, read and written
                self.rank.moved(f"reorder{suffix}", way, 4 * (self.q + self.k + self.v + self.o), 8, rerun)
            if self.gathers:
                whole = self.pair * self.outer
                self.rank.collective("gather", way, "all_gather", "cp_outer", whole, rerun=rerun)
                if way == "I":
                    self.rank.collective("scatter", way, "reduce_scatter", "cp_outer", whole)
            if self.fetches:
                self.send(way, self.fetched)
            if fused:
                self.kernels(way, suffix)
        received = (self.outer - 1) * self.pair + self.outer * self.o if self.rings else 0.0
        received += self.pair * self.outer if self.gathers else 0.0
        received += self.q + self.pair if self.inner > 1 else 0.0
        statistics = 4 * self.count * self.own * self.heads
        return Exchanged(statistics, self.fetched if self.fetches else 0.0, received)

    @property
    def fetched(self) -> float:
        """The window's keys and values before each of two chunks."""
        return 2 * (self.window or 0) * self.pair / self.own

    def kernels(self, way: str, suffix: str) -> None:
        if self.gathers and not self.a.causal:
            self.kernel(f"core{suffix}", way, self.own, self.document)
        elif self.gathers:
            self.kernel(f"late chunk{suffix}", way, self.chunk, self.document)
            self.kernel(f"early chunk{suffix}", way, self.chunk, self.chunk)
        elif self.fetches:
            for name in ("late", "early"):
                self.kernel(f"{name} chunk{suffix}", way, self.chunk, self.chunk + (self.window or 0))
        elif not self.rings:
            self.kernel(f"core{suffix}", way, self.own, self.own)
        else:
            self.ring(way, suffix)

    def ring(self, way: str, suffix: str) -> None:
        """Forward from the diagonal on; backward to the diagonal, gradients one hop behind."""
        names = [f"step{i}{suffix}" for i in range(self.outer)]
        self.kernel(names[0], way, self.own, self.own)
        for name in names[1:]:
            self.kernel(name, way, self.own, self.chunk if self.a.causal else self.own, masked=False)
        if way == "F":
            for name in names[:-1]:
                self.send(way, self.pair, name)
            for name in names:  # rescaled and added to what the steps before gave
                self.rank.moved(f"merge {name}", way, 3 * self.o, 2, "selective")
            return
        for i, name in enumerate(reversed(names)):
            values, gradients = i < self.outer - 1, i > 0
            self.send(way, (values + gradients) * self.pair, name)
            if gradients:  # of half of the queries or half of the keys: three quarters of both
                self.rank.moved(f"add {name}", way, 3 * 0.75 * (self.q + self.pair), 2)
