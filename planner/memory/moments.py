"""What each pipeline rank holds at the moments that can be its peak, from the schedule's own action list.

A moment is a row of whole numbers that multiplies the bytes of a rank's virtual stages: what waits for its backward,
what waits for its weight gradient alone, micro-batches between the forward and the backward of the loss. What
only the action that runs right then needs comes on top. The peak is the largest sum, so that one table serves any
number of layouts that share (schedule, pp, micro-batches, vpp).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from hwmodels.records import dataclass
from planner.schedule import get as get_schedule
from planner.schedule.base import Action, Kind, Schedule

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

ACTIONS: tuple[str, ...] = ("forward", "loss", "loss backward", "backward")
"""What runs at a moment: layers forward, the loss, the loss backward (logits still held), layers backward."""


@dataclass(frozen=True, slots=True, eq=False)
class Moments:
    """The moments of one rank.

    Attributes
    ----------
    rows : ndarray (k, 2 * chunks + 1)
        Activations of each virtual stage that wait for B or I (chunks), those that wait for W alone (chunks), and
        micro-batches between the forward and the backward of their loss (1).
    actions : ndarray (k,) of int
        Index into `ACTIONS`: what runs.
    runs : ndarray (k,) of bool
        Whether that needs more than is kept (a weight gradient alone does not).
    """

    rows: FloatArray
    actions: IntArray
    runs: NDArray[np.bool_]


def equivalent(plan: Schedule, pp: int, microbatches: int, vpp: int) -> int:
    """A smaller number of micro-batches with the same moments.

    Every schedule but GPipe holds no more than its pipeline is deep and repeats what it does in the steady state,
    interleaved ones where the micro-batches fill rounds of pp. 1F1B shows all of it in one pair behind the warm-up of
    its first rank, pp + 1 micro-batches; interleaved, in one round behind that of the warm-up.
    """
    if plan.name == "gpipe" or (plan.interleaved and microbatches % pp):
        return microbatches
    if plan.falling:
        return min(microbatches, 2 * pp if plan.interleaved else pp + 1)
    return microbatches if microbatches <= 6 * pp else 4 * pp + microbatches % (2 * pp)


@lru_cache(maxsize=16384)
def _moments(schedule: str, pp: int, microbatches: int, vpp: int, rank: int) -> Moments:
    plan = get_schedule(schedule)
    if plan.falling:
        return _of_rank(plan, plan.actions_of(rank, pp, microbatches, vpp), pp, vpp)
    return _of_rank(plan, _lists(schedule, pp, microbatches, vpp)[rank], pp, vpp)


@lru_cache(maxsize=4)
def _lists(schedule: str, pp: int, microbatches: int, vpp: int) -> list[list[Action]]:
    """All lists, kept while one rank after another is asked for."""
    return get_schedule(schedule).actions(pp, microbatches, vpp)


@lru_cache(maxsize=16384)
def moments_of_rank(schedule: str, pp: int, microbatches: int, vpp: int, rank: int) -> Moments:
    """The moments of one rank; cached. GPipe's grow by the same counts with every micro-batch."""
    if schedule == "gpipe" and microbatches > 2:
        a, b = (_moments(schedule, pp, m, vpp, rank) for m in (1, 2))
        return Moments(a.rows + (microbatches - 1) * (b.rows - a.rows), a.actions, a.runs)
    return _moments(schedule, pp, equivalent(get_schedule(schedule), pp, microbatches, vpp), vpp, rank)


def moments(schedule: str, pp: int, microbatches: int, vpp: int) -> tuple[Moments, ...]:
    """The moments of every rank."""
    return tuple(moments_of_rank(schedule, pp, microbatches, vpp, rank) for rank in range(pp))


_NUMBER = {kind: i for i, kind in enumerate(Kind)}


def _of_rank(plan: Schedule, order: Sequence[Action], pp: int, vpp: int) -> Moments:
    """Play a rank's list and note what it holds while each action runs.

    A forward ends with everything saved; a backward begins with it. Of a last stage the loss runs between
    the two: before it the logits are not there, after its backward they are gone.
    """
    chunks, length = plan.chunks(vpp), pp * vpp
    every = range(plan.n_stages(pp, vpp))
    stage = np.asarray([action.stage for action in order])
    chunk = np.asarray([plan.chunk_of(s, pp) for s in every])[stage]
    last = np.asarray([plan.layers_of(s, pp, vpp) == length - 1 for s in every])[stage]
    number = np.asarray([_NUMBER[action.kind] for action in order])
    kinds = (Kind.FORWARD, Kind.BACKWARD_WEIGHT, Kind.BACKWARD_INPUT)
    forward, weight, input_alone = (number == _NUMBER[kind] for kind in kinds)
    backward = ~(forward | weight)
    one = np.eye(2 * chunks + 1, dtype=np.int64)
    saved, waiting, loss = one[chunk], one[chunks + chunk], last[:, None] * one[-1]
    change = forward[:, None] * (saved + loss) - weight[:, None] * waiting
    change += input_alone[:, None] * waiting - backward[:, None] * (saved + loss)
    before = np.cumsum(change, axis=0) - change
    noted = (
        ("forward", True, (before + saved)[forward]),
        ("loss", True, (before + saved + loss)[forward & last]),
        ("loss backward", True, before[backward & last]),
        ("backward", True, (before - loss)[backward]),
        ("backward", False, before[weight]),
    )
    kept = [(ACTIONS.index(action), runs, _largest(rows)) for action, runs, rows in noted if len(rows)]
    counts = [len(rows) for _, _, rows in kept]
    return Moments(
        np.concatenate([rows for _, _, rows in kept]).astype(np.float64),
        np.repeat([action for action, _, _ in kept], counts),
        np.repeat([runs for _, runs, _ in kept], counts),
    )


def _largest(rows: IntArray) -> IntArray:
    """Rows that no other one equals or exceeds in every column, each once, sorted.

    Nothing exceeds the row with the largest sum. Rows that exceed it nowhere go with it, and of the rest the
    same is asked again: a schedule repeats itself, so that few rows are ever left.
    """
    found: list[tuple[int, ...]] = []
    while len(rows):
        most = rows[rows.sum(axis=1).argmax()]
        found.append(tuple(most.tolist()))
        rows = rows[(rows > most).any(axis=1)]
    return np.asarray(sorted(found))


@dataclass(frozen=True, slots=True, eq=False)
class RankMoments:
    """The moments of all ranks, those of a rank with fewer than k filled up with its first.

    Attributes
    ----------
    rows : ndarray (pp, k, 2 * chunks + 1)
    actions, runs : ndarray (pp, k)
        As in `Moments`.
    """

    rows: FloatArray
    actions: IntArray
    runs: NDArray[np.bool_]


@lru_cache(maxsize=4096)
def _joined(
    schedule: str, pp: int, microbatches: int, vpp: int, chosen: tuple[int, ...] | None
) -> tuple[bytes, RankMoments]:
    """The moments of all ranks or of those chosen, and bytes that are equal where the moments are."""
    ranks = [moments_of_rank(schedule, pp, microbatches, vpp, r) for r in (range(pp) if chosen is None else chosen)]
    k = max(len(m.actions) for m in ranks)
    order = [np.where(np.arange(k) < len(m.actions), np.arange(k), 0) for m in ranks]
    rows, actions, runs = (
        np.stack([getattr(m, name)[i] for m, i in zip(ranks, order, strict=True)])
        for name in ("rows", "actions", "runs")
    )
    key = b"".join(np.ascontiguousarray(part).tobytes() for part in (rows, actions, runs))
    return key, RankMoments(rows, actions, runs)


def by_table(
    schedule: str, pp: int, microbatches: IntArray, vpp: int, ranks: tuple[int, ...] | None = None
) -> list[tuple[RankMoments, IntArray]]:
    """The distinct moments of layouts with these micro-batches (n,), and the layouts that have each.

    Parameters
    ----------
    ranks : tuple of int or None
        Ranks whose moments are asked for; None: all.
    """
    counts, inverse = np.unique(microbatches, return_inverse=True)
    plan = get_schedule(schedule)
    tables: dict[bytes, RankMoments] = {}
    which = np.empty(len(counts), dtype=np.int64)
    for i, count in enumerate(counts):
        key, table = _joined(schedule, pp, equivalent(plan, pp, int(count), vpp), vpp, ranks)
        tables.setdefault(key, table)
        which[i] = list(tables).index(key)
    of = which[inverse.reshape(-1)]
    return [(table, np.flatnonzero(of == i)) for i, table in enumerate(tables.values())]
