"""A lower bound of the step time, cheap enough to prune candidates before any DAG is built."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from planner.schedule import get as get_schedule
from planner.schedule.base import Schedule
from planner.simulate.costs import CommPlan, FloatArray, StageCosts


def lower_bound(
    schedule_name: str, pp: int, microbatches: ArrayLike, vpp: int, costs: StageCosts, comm: CommPlan
) -> FloatArray:
    """Seconds that no execution of the step can undercut.

    The largest of these, plus the collective before the optimizer, the optimizer and the gather
    after it:

    - for each rank, the forward chain into its first virtual stage, all compute (and blocking
      sends, and gathers that nothing hides) of the rank, and the backward chain out of it;
    - the same and the reductions that must follow the last backward;
    - the sum of the gathers, of the reductions after the first possible gradient, and of the
      sends of a rank, each on its own stream.

    With equal stages and no communication this is the exact step time of GPipe, 1F1B and
    interleaved 1F1B: (M*vpp + pp - 1)(f + b), f and b of one virtual stage. The two copies of a
    bidirectional pipeline share ranks, so there a rank starts with the nearer chain and the chain out
    of it is left out.

    Parameters
    ----------
    schedule_name : str
    pp, vpp : int
    microbatches : array_like of int, (B,) or scalar
    costs : StageCosts
    comm : CommPlan

    Returns
    -------
    ndarray (B,)
        Never more than `planner.simulate.maxplus.step_seconds` (up to rounding).
    """
    schedule = get_schedule(schedule_name)
    count = np.broadcast_to(np.asarray(microbatches, np.float64) / schedule.directions, (costs.batch,))
    view = _Stages.of(schedule, pp, vpp, costs, comm)
    arrival = _arrival(view, costs, comm)
    busy = _busy(view, count, costs, comm)
    end = _compute_end(view, arrival, busy, count, comm)
    ready = np.maximum(end, _streams(view, arrival, end, count, costs, comm))
    if schedule.directions > 1:
        ready = np.maximum(ready, ready[:, ::-1]) + costs.mirror_s
    before_sync = ready.max(axis=1)
    first, last = view.rank[0], view.rank[-1]
    if comm.tied_embedding and first != last:
        before_sync = np.maximum(before_sync, np.maximum(ready[:, first], ready[:, last]) + costs.tied_s)
    after = costs.optimizer_s + costs.gather_s if comm.gather_after_step else costs.optimizer_s
    bound: FloatArray = before_sync + costs.sync_s + after.max(axis=1)
    return bound


@dataclass(frozen=True, slots=True)
class _Stages:
    """Costs by global virtual stage (B, S), buckets summed, sends to the same rank zero.

    `starts` are the first stages of the copies of the pipeline, `lowest` the first stage of each rank
    in each copy (copies, pp).
    """

    starts: tuple[int, ...]
    rank: np.ndarray[tuple[int, ...], np.dtype[np.int64]]
    lowest: np.ndarray[tuple[int, ...], np.dtype[np.int64]]
    pp: int
    split_backward: bool
    forward: FloatArray
    chain: FloatArray  # what the previous stage waits for: B, or I where the schedule splits it
    weight: FloatArray  # what follows without anybody waiting: W, or nothing
    send_forward: FloatArray
    send_backward: FloatArray

    @classmethod
    def of(cls, schedule: Schedule, pp: int, vpp: int, costs: StageCosts, comm: CommPlan) -> _Stages:
        """Reorder (rank, chunk) to stages."""
        stages_all, length = range(schedule.n_stages(pp, vpp)), pp * vpp
        rank = np.array([schedule.rank_of(s, pp) for s in stages_all])
        place = rank * schedule.chunks(vpp) + [schedule.chunk_of(s, pp) for s in stages_all]
        starts = tuple(stages_all[::length])
        far = (rank[1:] != rank[:-1]) & (np.arange(1, len(rank)) % length != 0)

        def stages(values: FloatArray) -> FloatArray:
            return values.reshape(costs.batch, -1)[:, place]

        weight = stages(_whole(costs.backward_weight_s))
        if comm.reduce == "each":
            weight = weight + stages(_whole(costs.backward_sync_extra_s))
        chain = stages(_whole(costs.backward_input_s))
        lowest = np.array(
            [[a + int(np.flatnonzero(rank[a : a + length] == r)[0]) for r in range(pp)] for a in starts]
        )
        return cls(
            starts,
            rank,
            lowest,
            pp,
            schedule.split_backward,
            stages(_whole(costs.forward_s)),
            chain if schedule.split_backward else chain + weight,
            weight if schedule.split_backward else np.zeros_like(weight),
            stages(costs.send_forward_s) * np.append(far, False),
            stages(costs.send_backward_s) * np.append([False], far),
        )

    def by_rank(self, values: FloatArray) -> FloatArray:
        """Sum (B, S) over the stages of each rank: (B, pp)."""
        return np.stack([values[:, self.rank == r].sum(axis=1) for r in range(self.pp)], axis=1)


def _arrival(view: _Stages, costs: StageCosts, comm: CommPlan) -> FloatArray:
    """Earliest start of any compute on each stage (B, S)."""
    # A forward needs those of the stages before it in its own copy.
    gathered = costs.step_s[:, None] + np.zeros(view.pp)
    if comm.unshard != "none":
        gathered = gathered + costs.unshard_s[:, :, :, 0].min(axis=2)
    arrival = np.empty_like(view.forward)
    at = costs.step_s
    for s in range(arrival.shape[1]):
        at = costs.step_s if s in view.starts else at
        at = arrival[:, s] = np.maximum(at, gathered[:, view.rank[s]])
        at = at + view.forward[:, s] + view.send_forward[:, s]
    return arrival


def _busy(view: _Stages, count: FloatArray, costs: StageCosts, comm: CommPlan) -> FloatArray:
    """Seconds for which the compute stream of each rank cannot do anything else, (B, pp), weight gradients apart."""
    each = view.forward + view.chain
    if comm.p2p_blocking:
        each = each + view.send_forward + view.send_backward
    busy = count[:, None] * view.by_rank(each)
    if comm.reduce == "bucketed" and not view.split_backward:
        busy = busy + _whole(costs.backward_sync_extra_s).sum(axis=2)
    if comm.unshard != "none" and comm.prefetch == 0:
        # Every gather but the rank's first one, which `_arrival` has.
        busy = busy + _gathers(count, costs, comm) - costs.unshard_s[:, :, :, 0].max(axis=2)
    return busy


def _gathers(count: FloatArray, costs: StageCosts, comm: CommPlan) -> FloatArray:
    times = {"each": 2.0 * count, "forward": count}.get(comm.unshard, np.ones_like(count))
    total: FloatArray = times[:, None] * _whole(costs.unshard_s).sum(axis=2)
    return total


def _compute_end(
    view: _Stages, arrival: FloatArray, busy: FloatArray, count: FloatArray, comm: CommPlan
) -> FloatArray:
    """Earliest end of each rank's share of the schedule, (B, pp), the last blocking send included."""
    start = arrival[:, view.lowest].min(axis=1)
    # The last backward of a rank comes after all its forwards; a W may come later still.
    last_chain = start + busy
    end = last_chain + count[:, None] * view.by_rank(view.weight)
    if len(view.starts) > 1:  # which copy has the last backward of a rank is not known
        return end
    lowest = view.lowest[0]
    top = int(lowest.max())
    carry = np.zeros(len(count))
    for s in range(top, -1, -1):
        r = int(view.rank[s])
        if s < top:
            carry = carry + view.chain[:, s]
            carry = carry + (view.send_backward[:, s] if comm.p2p_blocking else view.send_backward[:, s + 1])
        if lowest[r] == s:
            carry = np.maximum(carry, last_chain[:, r])
        end[:, r] = np.maximum(end[:, r], carry + view.weight[:, s])
    return end


def _streams(
    view: _Stages, arrival: FloatArray, end: FloatArray, count: FloatArray, costs: StageCosts, comm: CommPlan
) -> FloatArray:
    """Earliest end of each rank's other streams, (B, pp)."""
    ready: FloatArray = end
    if not comm.p2p_blocking:
        sends = count[:, None] * view.by_rank(view.send_forward + view.send_backward)
        ready = np.maximum(ready, arrival[:, view.lowest].min(axis=1) + sends)
    if comm.unshard != "none":
        after = 0.0
        if comm.unshard == "each":  # the last gather is for bucket 0 of some backward
            last = costs.backward_input_s[..., 0]
            after = (last if view.split_backward else last + costs.backward_weight_s[..., 0]).min(axis=2)
        ready = np.maximum(ready, costs.step_s[:, None] + _gathers(count, costs, comm) + after)
    if comm.reduce == "none":
        return ready
    total = _whole(costs.reduce_s).sum(axis=2) * (count[:, None] if comm.reduce == "each" else 1.0)
    computed = end
    if comm.p2p_blocking:  # a reduction need not wait for the send after the last backward
        computed = end - np.stack([view.send_backward[:, view.rank == r].max(axis=1) for r in range(view.pp)], axis=1)
    if comm.reduce == "end":
        return _later(ready, computed + total)
    back = np.empty_like(view.chain)  # earliest start of a backward on each stage
    at = np.zeros(len(count))
    for s in range(back.shape[1] - 1, -1, -1):
        if s + 1 in (*view.starts, back.shape[1]):
            at = arrival[:, s] + view.forward[:, s]
        back[:, s] = at
        at = at + view.chain[:, s] + view.send_backward[:, s]
    first = np.stack([back[:, view.rank == r].min(axis=1) for r in range(view.pp)], axis=1)
    ready = np.maximum(ready, computed + costs.reduce_s[:, :, :, 0].min(axis=2))
    return _later(ready, first + total)


def _whole(pieces: FloatArray) -> FloatArray:
    """Sum over the buckets (..., K): ndarray (...); equal buckets in one place of memory are not added one by one."""
    if pieces.strides[-1] == 0:
        return np.asarray(pieces[..., 0] * pieces.shape[-1])
    if pieces.shape[-1] <= 2:
        return np.asarray(pieces[..., 0] + pieces[..., 1] if pieces.shape[-1] == 2 else pieces[..., 0])
    return np.asarray(pieces.sum(axis=-1))


def _later(a: FloatArray, b: FloatArray) -> FloatArray:
    later: FloatArray = np.maximum(a, b)
    return later
