"""A lower bound of the step time, cheap enough to prune candidates before any DAG is built.

What it looks at of a pipeline is little: the stages that a rank holds are summed, and chains run through the first
virtual stage of every rank and through the last one (`Passes`). No array is as long as the pipeline has stages.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hwmodels.records import dataclass
from planner.schedule import get as get_schedule
from planner.simulate.costs import CommPlan, FloatArray, StageCosts

IntArray = NDArray[np.int64]


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
    place = Place.of(schedule_name, pp, vpp)
    return bound(place, microbatches, Folded.of(place, costs, comm), comm)


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """Where the virtual stages of a schedule lie, for C copies of a pipeline of L stages each.

    Attributes
    ----------
    rank : ndarray (C * L,)
        Rank of each stage.
    at : ndarray (C * L,)
        Its position among (rank, chunk).
    far : ndarray (C * L - 1,) of bool
        Whether a stage hands on to another rank.
    first, last : ndarray (C, pp)
        The first and the last virtual stages of each copy, one of each rank.
    of_rank : ndarray (C * L, pp)
        1 where a rank holds a stage.
    """

    copies: int
    split_backward: bool
    rank: IntArray
    at: IntArray
    far: NDArray[np.bool_]
    first: IntArray
    last: IntArray
    of_rank: FloatArray

    @classmethod
    def of(cls, schedule_name: str, pp: int, vpp: int) -> Place:
        """Of a schedule; kept."""
        return _place(schedule_name, pp, vpp)

    @property
    def length(self) -> int:
        """Virtual stages of a copy."""
        return len(self.rank) // self.copies

    def stages(self, values: FloatArray) -> FloatArray:
        """Values of (rank, chunk), (n, pp, chunks), by stage: ndarray (n, C * L)."""
        return np.asarray(values.reshape(len(values), -1)[:, self.at])

    def by_rank(self, ends: IntArray, values: FloatArray) -> FloatArray:
        """Values (n, C, pp) of the stages `ends` (C, pp) by the ranks of these: ndarray (n, C, pp)."""
        if self.copies == 1 and np.array_equal(self.rank[ends[0]], np.arange(ends.shape[1])):
            return values
        found = np.empty_like(values)
        for copy, stages in enumerate(ends):
            found[:, copy, self.rank[stages]] = values[:, copy]
        return found


@lru_cache(maxsize=1024)
def _place(schedule_name: str, pp: int, vpp: int) -> Place:
    schedule = get_schedule(schedule_name)
    every, length = range(schedule.n_stages(pp, vpp)), pp * vpp
    rank = np.array([schedule.rank_of(s, pp) for s in every])
    starts = np.array(every[::length])[:, None]
    return Place(
        len(starts),
        schedule.split_backward,
        rank,
        rank * schedule.chunks(vpp) + [schedule.chunk_of(s, pp) for s in every],
        (rank[1:] != rank[:-1]) & (np.arange(1, len(rank)) % length != 0),
        starts + np.arange(pp),
        starts + length - pp + np.arange(pp),
        (rank[:, None] == np.arange(pp)).astype(np.float64),
    )


@dataclass(frozen=True, slots=True, eq=False)
class Passes:
    """Seconds of one micro-batch, of what the bound looks at. Linear in what it was made from, so parts add up.

    `chain` is what the stage before waits for: B, or I where the schedule splits it; `weight` follows without
    anybody waiting. Sends within a rank take no time.

    Attributes
    ----------
    each, weight : ndarray (n, pp)
        Forward and chain (with sends that hold up compute), and weight, of all stages of a rank.
    sends : ndarray (n, pp)
        Sends of a rank, both ways.
    forward, chain, own_weight, back : ndarray (n, C, pp)
        Of the first stages of each copy: forward and the send after it, chain, weight, the send back.
    tail : ndarray (n, C, pp)
        Of the last stages: chain and the send back.
    through : ndarray (n, C)
        From the begin of the first stage's forward to the end of the last one's.
    """

    each: FloatArray
    weight: FloatArray
    sends: FloatArray
    forward: FloatArray
    chain: FloatArray
    own_weight: FloatArray
    back: FloatArray
    tail: FloatArray
    through: FloatArray

    @classmethod
    def of(
        cls, place: Place, forward: FloatArray, chain: FloatArray, weight: FloatArray,
        onward: FloatArray | None = None, back: FloatArray | None = None, *, blocking: bool,
    ) -> Passes:  # fmt: skip
        """From values of every stage, (n, C * L) each; sends may be left out."""
        whole = forward + chain
        none = np.zeros(forward.shape)
        onward = none if onward is None else onward * np.append(place.far, False)
        back = none if back is None else back * np.append([False], place.far)
        if blocking:
            whole = whole + onward + back
        through = (forward + onward).reshape(len(forward), place.copies, -1).sum(axis=2)
        return cls(
            whole @ place.of_rank,
            weight @ place.of_rank,
            (onward + back) @ place.of_rank,
            (forward + onward)[:, place.first],
            chain[:, place.first],
            weight[:, place.first],
            back[:, place.first],
            (chain + back)[:, place.last],
            through,
        )

    def take(self, rows: IntArray) -> Passes:
        """Those of `rows`."""
        return Passes(*(_taken(getattr(self, name), rows) for name in self.__slots__))

    def __add__(self, other: Passes) -> Passes:
        return Passes(*(getattr(self, name) + getattr(other, name) for name in self.__slots__))


@dataclass(frozen=True, slots=True, eq=False)
class Traffic:
    """Seconds a rank of what data parallelism moves, and of what follows the schedule.

    Attributes
    ----------
    first_gather, longest_gather, gathers : ndarray (n, pp)
        Least and longest first bucket of a virtual stage, and all buckets once.
    first_reduce, reductions : ndarray (n, pp)
        The same of reductions.
    synced : ndarray (n, pp)
        What they take from the backwards beside them, once.
    mirror : ndarray (n, pp)
    after : ndarray (n,)
        Optimizer, and the gather after it.
    """

    first_gather: FloatArray
    longest_gather: FloatArray
    gathers: FloatArray
    first_reduce: FloatArray
    reductions: FloatArray
    synced: FloatArray
    mirror: FloatArray
    after: FloatArray

    def take(self, rows: IntArray) -> Traffic:
        """Those of `rows`."""
        return Traffic(*(_taken(getattr(self, name), rows) for name in self.__slots__))


@dataclass(frozen=True, slots=True, eq=False)
class Folded:
    """What the bound reads of the durations of n candidates.

    Attributes
    ----------
    most_back : ndarray (n, pp)
        Longest send back of a rank's stages.
    last_backward : ndarray (n, pp)
        Least first bucket of a backward of a rank, read where parameters are gathered for each.
    sync, tied, step : ndarray (n,)
        As in `StageCosts`.
    """

    passes: Passes
    traffic: Traffic
    most_back: FloatArray
    last_backward: FloatArray
    sync: FloatArray
    tied: FloatArray
    step: FloatArray

    @classmethod
    def of(cls, place: Place, costs: StageCosts, comm: CommPlan) -> Folded:
        """From the durations of every node."""
        forward, chain, weight, synced = (
            _whole(value)
            for value in (costs.forward_s, costs.backward_input_s, costs.backward_weight_s, costs.backward_sync_extra_s)
        )
        if comm.reduce == "each":
            weight = weight + synced
        if not place.split_backward:
            chain, weight = chain + weight, np.zeros_like(weight)
        onward, back = place.stages(costs.send_forward_s), place.stages(costs.send_backward_s)
        forward, chain, weight = (place.stages(value) for value in (forward, chain, weight))
        last = costs.backward_input_s[..., 0]
        if not place.split_backward:
            last = last + costs.backward_weight_s[..., 0]
        return cls(
            Passes.of(place, forward, chain, weight, onward, back, blocking=comm.p2p_blocking),
            Traffic(
                costs.unshard_s[..., 0].min(axis=2),
                costs.unshard_s[..., 0].max(axis=2),
                _whole(costs.unshard_s).sum(axis=2),
                costs.reduce_s[..., 0].min(axis=2),
                _whole(costs.reduce_s).sum(axis=2),
                synced.sum(axis=2),
                costs.mirror_s,
                after(costs.optimizer_s, costs.gather_s, comm),
            ),
            most_back(place, back),
            last.min(axis=2),
            costs.sync_s,
            costs.tied_s,
            costs.step_s,
        )


def after(optimizer: FloatArray, gather: FloatArray, comm: CommPlan) -> FloatArray:
    """Seconds of the slowest rank's optimizer, and of the gather behind it: ndarray (n,)."""
    return np.asarray((optimizer + gather if comm.gather_after_step else optimizer).max(axis=1))


def most_back(place: Place, back: FloatArray) -> FloatArray:
    """Longest send back (n, stages) among the stages of each rank: ndarray (n, pp)."""
    far = back * np.append([False], place.far)
    chunks = np.argsort(place.at).reshape(place.of_rank.shape[1], -1)
    return np.asarray(far[:, chunks].max(axis=2))


def bound(place: Place, microbatches: ArrayLike, folded: Folded, comm: CommPlan) -> FloatArray:
    """`lower_bound` of what was folded: ndarray (n,)."""
    count = np.broadcast_to(np.asarray(microbatches, np.float64) / place.copies, folded.step.shape)
    arrival, begun = _arrival(place, folded, comm)
    start = place.by_rank(place.first, arrival).min(axis=1)
    end = _compute_end(place, start, _busy(place, count, folded, comm), count, folded, comm)
    ready = np.maximum(end, _streams(place, start, begun, end, count, folded, comm))
    if place.copies > 1:
        ready = np.maximum(ready, ready[:, ::-1]) + folded.traffic.mirror
    before_sync = ready.max(axis=1)
    first, last = place.rank[0], place.rank[-1]
    if comm.tied_embedding and first != last:
        before_sync = np.maximum(before_sync, np.maximum(ready[:, first], ready[:, last]) + folded.tied)
    return np.asarray(before_sync + folded.sync + folded.traffic.after)


def _arrival(place: Place, folded: Folded, comm: CommPlan) -> tuple[FloatArray, FloatArray]:
    """Earliest start of compute on the first stages (n, C, pp), and end of a forward of the last one (n, C).

    ``arrival[s] = max over j <= s of (gathered[j] + forwards j .. s-1)``: a running maximum beside a running sum.
    """
    passes = folded.passes
    until = _before(passes.forward)
    if comm.unshard == "none":
        return folded.step[:, None, None] + until, folded.step[:, None] + passes.through
    gathered = folded.step[:, None] + folded.traffic.first_gather
    latest = _running(np.maximum, gathered[:, place.rank[place.first]] - until)
    return latest + until, latest[:, :, -1] + passes.through


def _before(values: FloatArray) -> FloatArray:
    """Sum of the values before each one on the last axis."""
    found = np.empty_like(values)
    found[..., 0] = 0.0
    found[..., 1:] = _running(np.add, values[..., :-1])
    return found


def _busy(place: Place, count: FloatArray, folded: Folded, comm: CommPlan) -> FloatArray:
    """Seconds for which the compute stream of each rank cannot do anything else, (n, pp), weight gradients apart."""
    busy = count[:, None] * folded.passes.each
    if comm.reduce == "bucketed" and not place.split_backward:
        busy = busy + folded.traffic.synced
    if comm.unshard != "none" and comm.prefetch == 0:
        # Every gather but the rank's first one, which `_arrival` has.
        busy = busy + _gathers(count, folded, comm) - folded.traffic.longest_gather
    return busy


def _gathers(count: FloatArray, folded: Folded, comm: CommPlan) -> FloatArray:
    times = {"each": 2.0 * count, "forward": count}.get(comm.unshard, np.ones_like(count))
    total: FloatArray = times[:, None] * folded.traffic.gathers
    return total


def _compute_end(
    place: Place, start: FloatArray, busy: FloatArray, count: FloatArray, folded: Folded, comm: CommPlan
) -> FloatArray:
    """Earliest end of each rank's share of the schedule, (n, pp), the last blocking send included."""
    passes = folded.passes
    # The last backward of a rank comes after all its forwards; a W may come later still.
    last_chain = start + busy
    end = last_chain + count[:, None] * passes.weight if place.split_backward else last_chain
    if place.copies > 1:  # which copy has the last backward of a rank is not known
        return end
    # Out of stage r the chain runs down to stage 0: the end there is the latest over all r above.
    chain, back = passes.chain[:, 0], passes.back[:, 0]
    hop = chain.copy()
    hop[:, :-1] += back[:, :-1] if comm.p2p_blocking else back[:, 1:]
    below = _before(hop)
    rank = place.rank[place.first[0]]
    latest = _running(np.maximum, (last_chain[:, rank] + below)[:, ::-1])[:, ::-1] - below
    carried = np.empty_like(end)
    carried[:, rank] = latest + passes.own_weight[:, 0]
    return np.maximum(end, carried)


def _streams(
    place: Place, start: FloatArray, begun: FloatArray, end: FloatArray, count: FloatArray, folded: Folded,
    comm: CommPlan,
) -> FloatArray:  # fmt: skip
    """Earliest end of each rank's other streams, (n, pp)."""
    ready: FloatArray = end
    traffic = folded.traffic
    if not comm.p2p_blocking:
        ready = np.maximum(ready, start + count[:, None] * folded.passes.sends)
    if comm.unshard != "none":
        # of a gather for each pass the last one is for bucket 0 of some backward
        after_it = folded.last_backward if comm.unshard == "each" else 0.0
        ready = np.maximum(ready, folded.step[:, None] + _gathers(count, folded, comm) + after_it)
    if comm.reduce == "none":
        return ready
    total = traffic.reductions * count[:, None] if comm.reduce == "each" else traffic.reductions
    computed = end
    if comm.p2p_blocking:  # a reduction need not wait for the send after the last backward
        computed = end - folded.most_back
    if comm.reduce == "end":
        return np.asarray(np.maximum(ready, computed + total))
    # Earliest start of a backward of each rank: after the chain from the end of the pipeline.
    back = begun[:, :, None] + _before(folded.passes.tail[:, :, ::-1])[:, :, ::-1]
    first = place.by_rank(place.last, back).min(axis=1)
    ready = np.maximum(ready, computed + traffic.first_reduce)
    return np.asarray(np.maximum(ready, first + total))


def _taken(values: FloatArray, rows: IntArray) -> FloatArray:
    """The `rows` of values (n, ...), rank after rank in memory: sums and maxima over few ranks run along many rows."""
    return values.T.take(rows, axis=-1).T


def _running(operation: np.ufunc, values: FloatArray) -> FloatArray:
    """`operation.accumulate` along the last axis; of many rows each step for all of them together."""
    if len(values) < _MANY_ROWS:
        return np.asarray(operation.accumulate(values, axis=-1))
    found = values.copy(order="K")
    for i in range(1, values.shape[-1]):
        operation(found[..., i - 1], found[..., i], out=found[..., i])
    return found


_MANY_ROWS = 256
"""Rows from which on a call for each rank is faster than a loop for each row."""


def _whole(pieces: FloatArray) -> FloatArray:
    """Sum over the buckets (..., K): ndarray (...); equal buckets in one place of memory are not added one by one."""
    if pieces.strides[-1] == 0:
        return np.asarray(pieces[..., 0] * pieces.shape[-1])
    if pieces.shape[-1] <= 2:
        return np.asarray(pieces[..., 0] + pieces[..., 1] if pieces.shape[-1] == 2 else pieces[..., 0])
    return np.asarray(pieces.sum(axis=-1))
