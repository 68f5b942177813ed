"""`Durations`: what every node of a step takes, kept for distinct micro-batches and distinct data-parallel traffic.

Layouts of a group differ in few of the two; arrays over all layouts are made for those that are asked for.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.simulate.costs import StageCosts
from planner.step.stage_prices import Work

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Beside:
    """Data-parallel traffic of one bucket, and what it takes from compute: each ndarray (k, pp, chunks).

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


@dataclass(frozen=True, slots=True, eq=False)
class Durations:
    """Seconds of the nodes of b layouts, of which j have distinct micro-batches and k distinct traffic.

    Attributes
    ----------
    work : Work
        One micro-batch, over j.
    same_work, same_data : ndarray (b,)
        Which of the j and of the k each layout has.
    ends : tuple of ndarray (j, pp, chunks)
        What of a forward the embedding and the head are, which lie in the first and the last bucket.
    onward, back : ndarray (j, pp, chunks)
        Sends.
    wait, tied : ndarray (j,)
        For the slowest data-parallel rank; for the gradient of a shared embedding.
    beside : Beside
        Over k.
    optimizer, gather, mirror : ndarray (k, pp)
    sync : ndarray (b,)
    step : float
    buckets : int
    """

    work: Work
    same_work: IntArray
    ends: tuple[FloatArray, FloatArray]
    onward: FloatArray
    back: FloatArray
    wait: FloatArray
    tied: FloatArray
    beside: Beside
    same_data: IntArray
    optimizer: FloatArray
    gather: FloatArray
    mirror: FloatArray
    sync: FloatArray
    step: float
    buckets: int

    def costs(self, positions: IntArray, *, folded: bool = False) -> StageCosts:
        """Durations of every node of the layouts at `positions`.

        Parameters
        ----------
        folded : bool
            Whether buckets are folded: a forward into one piece, traffic into bucket 0 and the sum of the others,
            which is all that a lower bound needs (`planner.simulate.bound`).
        """
        w, d, k = self.same_work[positions], self.same_data[positions], self.buckets
        work, beside = self.work, self.beside

        def cut(value: FloatArray) -> FloatArray:
            return np.broadcast_to(value[..., None], (*value.shape, k))

        def traffic(first: FloatArray, other: FloatArray) -> FloatArray:
            if k == 1:
                return np.asarray(first[d][..., None])
            if folded:
                return np.stack([first, other * (k - 1)], axis=-1)[d]
            pieces = cut(other[d]).copy()
            pieces[..., 0] = first[d]
            return pieces

        if folded:
            forward = (work.forward[w] + (beside.forward * k)[d])[..., None]
        else:
            forward = self._forward_pieces(w) + beside.forward[d][..., None]
        backward = (work.backward_input / k)[w]
        return StageCosts(
            forward_s=forward,
            backward_input_s=cut(backward + beside.backward[d]),
            backward_weight_s=cut((work.backward_weight / k)[w]),
            backward_sync_extra_s=cut(beside.reduced[d]),
            send_forward_s=self.onward[w],
            send_backward_s=self.back[w],
            unshard_s=traffic(beside.first_unshard, beside.unshard),
            reduce_s=traffic(beside.first_reduce, beside.reduce),
            optimizer_s=self.optimizer[d],
            gather_s=self.gather[d],
            mirror_s=self.mirror[d],
            sync_s=self.sync[positions] + self.wait[w],
            tied_s=self.tied[w],
            step_s=np.full(len(positions), self.step),
        )

    def _forward_pieces(self, rows: IntArray) -> FloatArray:
        """Forwards cut into buckets: layers evenly, embedding first, head last: ndarray (rows, pp, chunks, buckets)."""
        whole, k = self.work.forward[rows], self.buckets
        if k == 1:
            return np.asarray(whole[..., None])
        first, last = (end[rows] for end in self.ends)
        pieces = np.repeat(((whole - first - last) / k)[..., None], k, axis=-1)
        pieces[..., 0] += first
        pieces[..., -1] += last
        return pieces
