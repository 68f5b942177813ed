"""`Durations`: what every node of a step takes, kept for distinct micro-batches and distinct data-parallel traffic.

Layouts of a group differ in few of the two; arrays over all layouts are made for those that are asked for.
"""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
from numpy.typing import NDArray

from hwmodels.estimate import Estimate
from hwmodels.records import dataclass
from planner.simulate.bound import Folded, Passes, Traffic, after
from planner.simulate.costs import CommPlan, StageCosts
from planner.step.data_parallel import DataParallelCosts
from planner.step.microbatch import Microbatches

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Beside:
    """Data-parallel traffic of one bucket, and what it takes from compute: each ndarray (k, d) by kind of stage.

    Attributes
    ----------
    forward, backward, reduced : ndarray
        Added to a forward, to a backward, and to a backward whose bucket is being reduced.
    first_unshard, unshard, first_reduce, reduce : ndarray
        Of bucket 0, and of each other one, which runs beside compute.
    """

    forward: FloatArray
    backward: FloatArray
    reduced: FloatArray
    first_unshard: FloatArray
    unshard: FloatArray
    first_reduce: FloatArray
    reduce: FloatArray

    def take(self, rows: IntArray) -> Beside:
        """Of some of the layouts."""
        return Beside(*(getattr(self, f.name)[rows] for f in fields(self)))


@dataclass(frozen=True, slots=True, eq=False)
class Durations:
    """Seconds of the nodes of b layouts, of which j have distinct micro-batches and k distinct traffic.

    Attributes
    ----------
    micro : Microbatches
        Over j.
    same_work, same_data : ndarray (b,)
        Which of the j and of the k each layout has.
    data : DataParallelCosts
    beside : Beside
    optimizer : Estimate (k, pp)
    sync : ndarray (b,)
    step : float
    comm : CommPlan
    """

    micro: Microbatches
    same_work: IntArray
    data: DataParallelCosts
    beside: Beside
    optimizer: Estimate
    same_data: IntArray
    sync: FloatArray
    step: float
    comm: CommPlan

    def take(self, positions: IntArray) -> Durations:
        """Of some of the layouts, each with what it has alone."""
        w, d = self.same_work[positions], self.same_data[positions]
        update = Estimate(self.optimizer.mid[d], np.broadcast_to(self.optimizer.spread, self.optimizer.mid.shape)[d])
        every = np.arange(len(positions))
        return replace(
            self, micro=self.micro.take(w), same_work=every, data=self.data.take(d), beside=self.beside.take(d),
            optimizer=update, same_data=every, sync=self.sync[positions],
        )  # fmt: skip

    def costs(self, positions: IntArray) -> StageCosts:
        """Durations of every node of the layouts at `positions`."""
        w, d, k = self.same_work[positions], self.same_data[positions], self.comm.buckets
        work, kinds, beside = self.micro.work, self.data.kinds, self.beside

        def cut(value: FloatArray) -> FloatArray:
            return np.broadcast_to(value[..., None], (*value.shape, k))

        def data(value: FloatArray) -> FloatArray:
            return kinds.whole(value[d])

        def traffic(first: FloatArray, other: FloatArray) -> FloatArray:
            if k == 1:
                return data(first)[..., None]
            pieces = cut(data(other)).copy()
            pieces[..., 0] = data(first)
            return pieces

        return StageCosts(
            forward_s=self._forward_pieces(w) + data(beside.forward)[..., None],
            backward_input_s=cut(work.kinds.whole((work.backward_input / k)[w]) + data(beside.backward)),
            backward_weight_s=cut(work.kinds.whole((work.backward_weight / k)[w])),
            backward_sync_extra_s=cut(data(beside.reduced)),
            send_forward_s=self.micro.sends.forward[w],
            send_backward_s=self.micro.sends.backward[w],
            unshard_s=traffic(beside.first_unshard, beside.unshard),
            reduce_s=traffic(beside.first_reduce, beside.reduce),
            optimizer_s=self.optimizer.mid[d],
            gather_s=self.data.gather_s.mid[d],
            mirror_s=self.data.mirror_s.mid[d],
            sync_s=self.sync[positions] + self.micro.wait[w],
            tied_s=self.micro.tied[w],
            step_s=np.full(len(positions), self.step),
        )

    def _forward_pieces(self, rows: IntArray) -> FloatArray:
        """Forwards cut into buckets: layers evenly, embedding first, head last: ndarray (rows, pp, chunks, buckets)."""
        work, k = self.micro.work, self.comm.buckets
        whole = work.kinds.whole(work.forward[rows])
        if k == 1:
            return np.asarray(whole[..., None])
        first, last = work.prices.take(rows).ends()
        pieces = np.repeat(((whole - first - last) / k)[..., None], k, axis=-1)
        pieces[..., 0] += first
        pieces[..., -1] += last
        return pieces

    def folded(self, positions: IntArray) -> Folded:
        """What a lower bound reads of the layouts at `positions` (`planner.simulate.bound`)."""
        w, d = self.same_work[positions], self.same_data[positions]
        micro, beside = self.micro, self.beside
        passes = micro.passes.take(w)
        synced = self.comm.reduce == "each" and bool(beside.reduced.any())
        if synced or beside.forward.any() or beside.backward.any():
            passes = passes + self._taken(synced=synced).take(d)
        last = np.zeros(())
        if self.comm.unshard == "each":
            last = self._last_backward(w, d)
        return Folded(passes, self._traffic().take(d), micro.most_back[w], last, self.sync[positions] + micro.wait[w],
                      micro.tied[w], np.full(len(positions), self.step))  # fmt: skip

    def _taken(self, *, synced: bool) -> Passes:
        """What traffic takes from the passes of every micro-batch, over the k."""
        place, beside, buckets = self.micro.place, self.beside, float(self.comm.buckets)
        columns = self.data.kinds.kind.reshape(-1)[place.at]
        chain, weight = beside.backward, beside.reduced if synced else np.zeros_like(beside.reduced)
        if not place.split_backward:
            chain, weight = chain + weight, np.zeros_like(weight)
        forward, chain, weight = ((value * buckets)[:, columns] for value in (beside.forward, chain, weight))
        return Passes.of(place, forward, chain, weight, blocking=self.comm.p2p_blocking)

    def _traffic(self) -> Traffic:
        """Traffic of each rank and what follows the schedule, over the k."""
        kinds, beside, k = self.data.kinds, self.beside, self.comm.buckets
        first = kinds.whole(beside.first_unshard)
        return Traffic(
            first.min(axis=2),
            first.max(axis=2),
            kinds.by_rank(beside.first_unshard + beside.unshard * (k - 1)),
            kinds.whole(beside.first_reduce).min(axis=2),
            kinds.by_rank(beside.first_reduce + beside.reduce * (k - 1)),
            kinds.by_rank(beside.reduced * k),
            self.data.mirror_s.mid,
            after(self.optimizer.mid, self.data.gather_s.mid, self.comm),
        )

    def _last_backward(self, w: IntArray, d: IntArray) -> FloatArray:
        """Least bucket of a backward among the virtual stages of each rank: ndarray (positions, pp)."""
        work = self.micro.work
        chain = work.backward_input if self.micro.place.split_backward else work.backward_input + work.backward_weight
        whole = work.kinds.whole((chain / self.comm.buckets)[w]) + self.data.kinds.whole(self.beside.backward[d])
        return np.asarray(whole.min(axis=2))
