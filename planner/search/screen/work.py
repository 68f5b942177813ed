"""Bounds of what a micro-batch and its pipeline take, over the rows of `Survey.work`: seconds and bytes.

Seconds are those of `planner.simulate.bound` without anything that only data parallelism adds: a rank waits for the
forwards below its first stage, computes all its micro-batches, and the backwards below follow. Where the split is open,
the mean over ranks (the first of `shapes.means`) takes the place of a rank's own share: of one virtual stage a rank,
with weights under which every stage counts alike, ``sum_r l_r (sum_{s<r} w_s + M w_r) = c sum_s w_s`` for
``l_s = (c - sum_{r>s} l_r) / M``, so that ``c = 1 / (1 - (1 - 1/M)^pp)``; of several ``M / pp``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache

import numpy as np
from numpy.typing import NDArray

from hwmodels import collectives
from hwmodels.records import dataclass
from planner.layout import RECOMPUTE, SCHEDULES, LayoutBatch
from planner.layout.axes import pair_shape
from planner.layout.distinct import distinct_rows
from planner.layout.recompute import WHOLE_LAYERS
from planner.memory.outside import workspace_bytes
from planner.price import COMM_GROUPS, BlockPrice, PassPrice
from planner.priced import PricedModel
from planner.search.screen.shapes import RANKS, Cover, Shape, cover_of, shape_of, waiting

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class WorkBounds:
    """Of each row of `Survey.work`.

    Attributes
    ----------
    pipeline_s : ndarray (n,)
        Until the last backward of a rank.
    forward_s : ndarray (n,)
        Until the first backward of any rank can begin.
    kernels_s : callable
        Gives the seconds of kernels of a rank's micro-batches, mean over pipeline ranks, where they are asked for:
        ndarray (n,).
    microbatches : ndarray (n,)
    step_bytes : ndarray (n, ranks)
        Of activations, buffers and workspaces when a rank's first backward begins.
    held_bytes : ndarray (n, ranks)
        Of buffers and workspaces, all the time.
    sure : ndarray (n,) of bool
        Whether the split of the layers is known, so that the bounds are close.
    """

    pipeline_s: FloatArray
    forward_s: FloatArray
    kernels_s: Callable[[], FloatArray]
    microbatches: IntArray
    step_bytes: FloatArray
    held_bytes: FloatArray
    sure: NDArray[np.bool_]


def work_bounds(priced: PricedModel, like: IntArray, work: Mapping[str, IntArray]) -> WorkBounds:
    """Bounds of every row of a table of `WORK` fields.

    Parameters
    ----------
    priced : PricedModel
        Of the distinct micro-batches and policies.
    like : ndarray (n,)
        Which of them each row has.
    """
    return _Rows.of(priced, like, work).bounds()


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """Rows of work with the tables that they look up.

    `rows` and `policy` are places in the priced blocks; `shape` and `cover` in `shapes` and `covers`.
    """

    priced: PricedModel
    layouts: LayoutBatch
    rows: IntArray
    policy: IntArray
    microbatches: IntArray
    shapes: list[Shape]
    shape: IntArray
    covers: list[Cover]
    owner: IntArray
    cover: IntArray

    @classmethod
    def of(cls, priced: PricedModel, like: IntArray, work: Mapping[str, IntArray]) -> _Rows:
        layouts = LayoutBatch.filled(work)
        first, shape = layouts.distinct(("pp", "vpp", "schedule"))
        shapes = [
            shape_of(priced.model, int(work["pp"][f]), int(work["vpp"][f]), SCHEDULES[int(work["schedule"][f])])
            for f in first
        ]
        partial = np.isin(layouts.recompute, WHOLE_LAYERS)
        partial &= (layouts.recompute_layers > 0) | (layouts.recompute == RECOMPUTE.index("every"))
        kind, layers = (np.where(partial, v, 0) for v in (layouts.recompute, layouts.recompute_layers))
        away = np.asarray(layouts.offload_activations)
        some, cover = distinct_rows([shape, kind, layers, away], len(layouts))
        covers = [cover_of(shapes[int(shape[i])], int(kind[i]), int(layers[i]), int(away[i])) for i in some]
        counts = layouts.microbatches(priced.workload.gbs)
        return cls(priced, layouts, priced.inverse[like], priced.policy[like], counts, shapes, shape, covers,
                   shape[some], cover)  # fmt: skip

    def bounds(self) -> WorkBounds:
        pipeline, forward = self._seconds()
        step, held = self._bytes()
        return WorkBounds(pipeline, forward, cache(self._kernels), self.microbatches, step, held,
                          self._of_shape(lambda s: s.open) == 0)  # fmt: skip

    # -- looking up -------------------------------------------------------------------------------------------------

    def _of_shape(self, value: Callable[[Shape], object]) -> FloatArray:
        """A number, or numbers, of the shape of each row."""
        return np.asarray([value(shape) for shape in self.shapes], dtype=np.float64)[self.shape]

    def _per(self, values: FloatArray) -> FloatArray:
        """Values over the priced rows (or one for all) at each row."""
        return np.broadcast_to(values, self.priced.embedding.forward.compute_s.shape)[self.rows]

    def _dot(self, tables: FloatArray, values: list[FloatArray]) -> FloatArray:
        """Counts (n, ranks, blocks) times the blocks' values, each (n,): ndarray (n, ranks)."""
        return np.asarray(np.einsum("nrb,bn->nr", tables, np.asarray(values)))

    def _each(self, value: Callable[[BlockPrice], FloatArray]) -> list[FloatArray]:
        """A value of every block at each row."""
        p = self.priced
        return [self._per(value(block)) for block in (*p.layers, p.embedding, p.head)]

    def _rerun(self, part: Callable[[PassPrice], FloatArray]) -> list[FloatArray]:
        """What recomputation runs of each kind of layer, and of the head's prediction steps, under a row's policy."""
        p = self.priced
        blocks = [*p.layers, *([p.head] if p.workload.mtp_layers else [])]
        shape = p.embedding.forward.compute_s.shape
        return [
            np.stack([np.broadcast_to(part(again), shape) for again in block.rerun])[self.policy, self.rows]
            for block in blocks
        ]

    # -- seconds ----------------------------------------------------------------------------------------------------

    def _seconds(self) -> tuple[FloatArray, FloatArray]:
        """Of the pipeline, and of the forwards before any backward."""
        p, b = self.priced, self.layouts
        copies = self._of_shape(lambda s: s.plan.directions)
        own = self.microbatches / copies
        once = self._each(lambda block: block.forward.once_s)
        ahead = [f - o * (1.0 - 1.0 / own) for f, o in zip(self._each(lambda x: x.forward.total_s), once, strict=True)]
        skipped = self._each(lambda block: block.backward_weight.skipped_s)
        late = [w - s / own for w, s in zip(self._each(lambda x: x.backward_weight.total_s), skipped, strict=True)]
        back = self._each(lambda block: block.backward_input.total_s)
        split = self._of_shape(lambda s: s.plan.split_backward)
        if split.any():
            halves = [self._each(lambda x, h=half: sum(getattr(x, h).apart_s[g] for g in COMM_GROUPS))  # type: ignore[misc]
                      for half in ("backward_input", "backward_weight")]  # fmt: skip
            back, late = ([v + a * split for v, a in zip(vs, more, strict=True)]
                          for vs, more in zip((back, late), halves, strict=True))  # fmt: skip
        chain = [i + w * (1.0 - split) for i, w in zip(back, late, strict=True)]
        after = [w * split for w in late]
        again = self._rerun(lambda x: x.total_s)
        if p.workload.mtp_layers:
            chain[-1] = chain[-1] + again.pop()
        skew = 0.0 if p.cluster.skew is None else float(p.cluster.skew.value)
        slow = 1.0 + np.where((b.tp > 1) | (b.cp > 1) | (b.ep > 1), skew, 0.0)
        alone = np.where((b.tp == 1) & (b.cp == 1) & (b.ep == 1) & (b.dp > 1), skew, 0.0)
        stages = self._of_shape(lambda s: s.pp * s.vpp)
        host = float(p.preset.microbatch_s.value) / self._of_shape(lambda s: s.vpp)
        send = self._send()
        busy = self._of_shape(lambda s: s.on_ranks(s.held).sum(axis=1))
        below = self._of_shape(lambda s: s.before(s.held))
        again_busy = self._of_cover(lambda s, c: s.on_ranks(c.again).sum(axis=1))
        again_below = self._of_cover(lambda s, c: s.before(c.again))
        under = self._of_shape(lambda s: s.below)
        chunks = self._of_shape(lambda s: s.chunks)
        blocking = 0.0 if p.preset.p2p_overlap else 1.0
        sends = self._of_shape(lambda s: s.hops) * send[:, None] * blocking
        each = (self._dot(busy, ahead) + self._dot(busy, chain) + self._dot(again_busy, again)
                + (host * chunks)[:, None])  # fmt: skip
        weights = self._dot(busy, after)
        arrival = (self._dot(below, ahead) + under * host[:, None]) * slow[:, None] + under * send[:, None]
        tail = (self._dot(below, chain) + self._dot(again_below, again)) * slow[:, None] + under * send[:, None]
        count, slowed = own[:, None], slow[:, None]
        ends = arrival + count * (each * slowed + sends) + np.maximum(count * weights * slowed, tail)
        found = ends.max(axis=1)
        of_mean = self._of_shape(lambda s: s.open) > 0
        if of_mean.any():
            simple = of_mean & (self._of_shape(lambda s: s.vpp * s.plan.directions) == 1) & (split == 0)
            pp = self._of_shape(lambda s: s.pp)
            with np.errstate(divide="ignore"):
                share = np.where(simple, 1.0 / (1.0 - (1.0 - 1.0 / own) ** pp), own / pp)
            rank = (each[:, 0] + weights[:, 0]) * slow  # the mean
            found = np.where(of_mean, np.maximum(share * pp, own) * rank, found)
        whole = (self._of_shape(lambda s: s.held.sum(axis=0))[:, None, :])
        first = self._dot(whole, ahead)[:, 0] * slow + stages * host
        wait = alone * own * (each + weights).max(axis=1)
        return np.asarray(found + wait + float(p.preset.step_s.value)), np.asarray(first)

    def _kernels(self) -> FloatArray:
        """Kernels of a rank's micro-batches, mean over pipeline ranks: those of the model, however it is split.

        Of a policy of whole layers, and of a split that is found later, without what recomputation may run.
        """
        copies = self._of_shape(lambda s: s.plan.directions)
        own = self.microbatches / copies
        passes = ("forward", "backward_input", "backward_weight")
        each = self._each(lambda x: sum((getattr(x, name).compute_s for name in passes), start=np.zeros(())))
        once = self._each(lambda x: x.forward.once_s)
        skipped = self._each(lambda x: x.backward_weight.skipped_s)
        block = [e - o * (1.0 - 1.0 / own) - k / own for e, o, k in zip(each, once, skipped, strict=True)]
        again = self._rerun(lambda x: x.compute_s)
        if self.priced.workload.mtp_layers:
            block[-1] = block[-1] + again.pop()
        whole = self._of_shape(lambda s: s.held.sum(axis=0))[:, None, :]
        rerun = self._of_cover(lambda s, c: c.again.sum(axis=0) * (not (s.open and c.partial)))[:, None, :]
        found = (self._dot(whole, block) + self._dot(rerun, again))[:, 0]
        return np.asarray(found * self.microbatches / self._of_shape(lambda s: s.pp))

    def _of_cover(self, value: Callable[[Shape, Cover], FloatArray]) -> FloatArray:
        """Numbers of the shape and the policy of each row."""
        each = [value(self.shapes[int(i)], c) for i, c in zip(self.owner, self.covers, strict=True)]
        return np.asarray(each)[self.cover]

    def _send(self) -> FloatArray:
        """Least seconds of one hop of the boundary tensor: ndarray (n,)."""
        p = self.priced
        first, same = distinct_rows([self.rows, self.layouts.dp, self.layouts.pp], len(self.layouts))
        few, cluster = self.layouts.take(first), p.cluster
        boundary = self._per(np.asarray(p.lowered.boundary_bytes))[first]
        shares = p.preset.scatter_gather_p2p & (few.sp == 0) & (few.tp > 1)
        sent = boundary / np.where(shares, few.tp, 1)
        ends = np.zeros(1, dtype=np.int64)  # of hops that all are alike: candidates are not placed
        stride = few.axis("pp")[1]
        found = np.full(len(few), np.inf)
        several = np.full(len(few), cluster.n_ranks > cluster.gpus_per_node)
        for nodes, may in ((1, stride < cluster.gpus_per_node), (2, several)):
            rows = np.flatnonzero(may & (few.pp > 1))
            if len(rows):
                pair = pair_shape(few.take(rows), nodes, ends, ends, cluster)
                seconds = collectives.seconds(cluster, "send_recv", sent[rows], pair).mid
                found[rows] = np.minimum(found[rows], seconds)
        return np.asarray(np.where(few.pp > 1, found, 0.0)[same])

    # -- bytes ------------------------------------------------------------------------------------------------------

    def _bytes(self) -> tuple[FloatArray, FloatArray]:
        """When a rank's first backward begins, and all the time."""
        p, low = self.priced, self.priced.lowered
        blocks = (*low.layers, low.embedding, low.head)
        sized = [*p.recomputed[1:-1], p.recomputed[0], p.recomputed[-1]]
        kept = [each[0][self.policy, self.rows] for each in sized]
        whole = [self._per(np.asarray(block.saved_bytes)) for block in blocks]
        times = self._waiting()
        saved = self._dot(times[0], kept)
        if times[1].any():
            saved = saved + self._dot(times[1], whole)
        here = self._of_shape(lambda s: s.on_ranks(s.held[:, :-2]).sum(axis=1) > 0)  # kinds on a rank
        partial = np.asarray([c.partial for c in self.covers])[self.cover]
        rebuilt = [np.where(partial, 0.0, each[1][self.policy, self.rows]) for each in p.recomputed[1:-1]]
        needs = [self._per(np.asarray(b.backward_bytes)) + r for b, r in zip(low.layers, rebuilt, strict=True)]
        back = np.where(here, np.stack(needs).T[:, None, :], 0.0)
        open_ = self._of_shape(lambda s: s.open)[:, None] > 0
        least = back.min(axis=2) if back.shape[2] else np.zeros(back.shape[:2])
        work = np.where(open_, least, back.max(axis=2))
        logits = self._per(np.maximum(np.asarray(low.head.logits_bytes), np.asarray(low.head.logits_backward_bytes)))
        last = self._of_shape(lambda s: [0.0 if s.open else float((s.held[parts, -1] > 0).any()) for parts in s.parts])
        work = np.maximum(work, last * logits[:, None])
        pp = self._of_shape(lambda s: s.pp)
        boundary = self._per(np.asarray(low.boundary_bytes))
        pipeline = boundary * np.where(pp > 1, 2.0 * self._of_shape(lambda s: s.plan.directions), 0.0)
        exchanged = np.max([self._per(np.asarray(b.exchange_bytes)) for b in low.layers], axis=0)
        gathered = np.maximum(
            np.where(self.layouts.sp == 1, boundary * self.layouts.tp, 0.0), self._per(np.asarray(low.shared_bytes))
        )
        held = (pipeline + gathered + exchanged + workspace_bytes(p.cluster.device, p.preset))[:, None]
        held = np.broadcast_to(held, (len(pp), RANKS))
        return np.asarray(held + saved + work), np.asarray(held)

    def _waiting(self) -> tuple[FloatArray, FloatArray]:
        """How often each block's bytes are there, kept and whole: ndarray (n, ranks, blocks) each."""
        some, same = distinct_rows([self.cover, self.microbatches], len(self.cover))
        kept, whole = [], []
        for i in some:
            shape, cover = self.shapes[int(self.shape[i])], self.covers[int(self.cover[i])]
            times = waiting(shape, int(self.microbatches[i]))[:, None, :]
            kept.append((times @ shape.on_ranks(cover.kept))[:, 0, :])
            whole.append((times @ shape.on_ranks(cover.whole))[:, 0, :])
        return np.asarray(kept)[same], np.asarray(whole)[same]
