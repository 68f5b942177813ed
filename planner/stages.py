"""Which layers each virtual stage holds, and sums of per-block values over stages."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from hwmodels.errors import Fault, InputError
from hwmodels.records import dataclass
from planner.layout import split_layers, split_of
from planner.model.spec import ModelSpec
from planner.schedule import get as get_schedule

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


def shares_of(n_layers: int, pp: int, vpp: int, split: int) -> tuple[int, ...]:
    """Layers of each virtual stage under a split (`planner.layout.splits`; 0 is the default rule).

    Raises
    ------
    InputError
        With more stages than layers, embedding and loss.
    """
    shares = split_of(split) or split_layers(n_layers, pp * vpp)
    if shares is None:
        what = f"{n_layers} layers on {pp * vpp} virtual stages"
        why = "only embedding and loss may stand without a layer"
        raise InputError(Fault(what, "layout", why, f"pp*vpp <= {n_layers + 2}"))
    return shares


@lru_cache(maxsize=16384)
def assignment(model: ModelSpec, pp: int, vpp: int, schedule: str, split: int) -> FloatArray:
    """How many blocks of each kind each virtual stage holds.

    Returns
    -------
    ndarray (kinds + 2, pp, chunks)
        The layers in the order of `ModelSpec.layer_kinds()`, consecutive slices of the model as the split
        cuts them; then the embedding and the head, on the first and the last stage. The chunks of a
        rank are those of its schedule: `vpp`, twice that for two copies of the pipeline, each whole.
    """
    kinds = {layer: i for i, layer in enumerate(model.layer_kinds())}
    plan = get_schedule(schedule)
    shares = shares_of(model.n_layers, pp, vpp, split)
    begins = np.concatenate([[0], np.cumsum(shares)])
    found = np.zeros((len(kinds) + 2, pp, plan.chunks(vpp)))
    for stage in range(plan.n_stages(pp, vpp)):
        rank, chunk, part = plan.rank_of(stage, pp), plan.chunk_of(stage, pp), plan.layers_of(stage, pp, vpp)
        for layer in model.layers[begins[part] : begins[part + 1]]:
            found[kinds[layer], rank, chunk] += 1
        found[-2, rank, chunk] += part == 0
        found[-1, rank, chunk] += part == len(shares) - 1
    found.setflags(write=False)
    return found


def layer_counts(model: ModelSpec, pp: int, vpp: int, schedule: str, splits: IntArray) -> FloatArray:
    """Layers of each kind on each virtual stage: ndarray (1 or n, kinds, pp, chunks).

    The leading axis is 1 where all n layouts have the same split.
    """
    unique, inverse = distinct(splits)
    each = np.stack([assignment(model, pp, vpp, schedule, int(split))[:-2] for split in unique])
    return each if len(unique) == 1 else np.asarray(each[inverse])


@dataclass(frozen=True, slots=True, eq=False)
class Kinds:
    """Which virtual stages of a pipeline are alike: d kinds of them.

    Attributes
    ----------
    kind : ndarray (pp, chunks)
        Kind of each virtual stage.
    counts : ndarray (pp, d)
        How many virtual stages of each kind a rank holds.
    """

    kind: IntArray
    counts: FloatArray

    @classmethod
    def of(cls, kind: IntArray) -> Kinds:
        """From the kind of each virtual stage, 0 .. d-1."""
        counts = (kind[:, :, None] == np.arange(kind.max() + 1)).sum(axis=1).astype(np.float64)
        return cls(kind, counts)

    @classmethod
    def every(cls, pp: int, chunks: int) -> Kinds:
        """Every virtual stage is a kind of its own."""
        return cls.of(np.arange(pp * chunks).reshape(pp, chunks))

    def take(self, ranks: IntArray) -> Kinds:
        """Those of some ranks."""
        return Kinds(self.kind[ranks], self.counts[ranks])

    def whole(self, kinds: FloatArray) -> FloatArray:
        """Values of kinds (n, d) on every virtual stage: ndarray (n, pp, chunks)."""
        return np.asarray(kinds[:, self.kind])

    def of_whole(self, stages: FloatArray) -> FloatArray:
        """Values of every virtual stage (n, pp, chunks), equal where the kind is, by kind: ndarray (n, d)."""
        _, first = np.unique(self.kind, return_index=True)
        return np.asarray(stages.reshape(len(stages), -1)[:, first])

    def by_rank(self, kinds: FloatArray) -> FloatArray:
        """Values of kinds (n, d) summed over the virtual stages of each rank: ndarray (n, pp)."""
        return np.asarray(kinds @ self.counts.T)

    def total(self, kinds: FloatArray) -> FloatArray:
        """Values of kinds (n, d) summed over all virtual stages: ndarray (n,)."""
        return np.asarray(kinds @ self.counts.sum(axis=0))


@dataclass(frozen=True, slots=True, eq=False)
class StageTables:
    """What each kind of virtual stage holds, one table for each of the cases that occur in a batch.

    Attributes
    ----------
    kinds : Kinds
        Alike in every case.
    blocks : ndarray (cases, blocks, d)
        How many blocks of each kind a stage of each kind holds: layers, embedding, head.
    recomputed : ndarray (cases, layer kinds, d)
        How many layers of each kind recomputation works on.
    """

    kinds: Kinds
    blocks: FloatArray
    recomputed: FloatArray

    @classmethod
    def of(cls, tables: Sequence[FloatArray], again: Sequence[FloatArray]) -> StageTables:
        """From `assignment` of each case and the layers of it that recomputation works on: (.., pp, chunks) each."""
        shape, count = tables[0].shape[1:], len(tables[0])
        joined = np.stack(
            [np.concatenate([t, a]).reshape(count + len(a), -1) for t, a in zip(tables, again, strict=True)]
        )
        _, first, kind = np.unique(joined.reshape(-1, joined.shape[2]), axis=1, return_index=True, return_inverse=True)
        held = joined[:, :, first]
        return cls(Kinds.of(kind.reshape(shape)), held[:, :count], held[:, count:])


@lru_cache(maxsize=4096)
def stage_tables(model: ModelSpec, pp: int, vpp: int, schedule: str, splits: tuple[int, ...]) -> StageTables:
    """Tables of these splits where recomputation works on every layer; kept."""
    tables = [assignment(model, pp, vpp, schedule, split) for split in splits]
    return StageTables.of(tables, [table[:-2] for table in tables])


_FEW = 16
"""Fewest layouts of a case for which a product of its own is worth its call."""


@dataclass(frozen=True, slots=True, eq=False)
class StageSums:
    """Sums of per-block values over virtual stages that share (pp, vpp, schedule), each distinct stage once.

    Deep pipelines have dozens of virtual stages and few kinds of them: a first, a last, and equal ones
    between. Arithmetic runs on the kinds, d of them; `whole` lays the result out over all stages.

    Attributes
    ----------
    tables : StageTables
    case : ndarray (n,)
        Which table each layout has.
    """

    tables: StageTables
    case: IntArray

    @classmethod
    def of(cls, model: ModelSpec, pp: int, vpp: int, schedule: str, splits: IntArray) -> StageSums:
        """For layouts of `splits`, ndarray (n,)."""
        unique, case = distinct(splits)
        return cls(stage_tables(model, pp, vpp, schedule, tuple(map(int, unique))), case)

    @property
    def kinds(self) -> Kinds:
        """Which virtual stages are alike."""
        return self.tables.kinds

    def sum(self, blocks: Sequence[FloatArray]) -> FloatArray:
        """Of per-block values (each ndarray (n,); layers, then embedding and head): ndarray (n, d)."""
        return self.sums(np.stack(blocks, axis=-1)[None])[0]

    def sums(self, values: FloatArray) -> FloatArray:
        """Of several values of the blocks, (q, n, blocks), at once: ndarray (q, n, d)."""
        return self._times(values, self.tables.blocks)

    def again(self, layers: Sequence[FloatArray]) -> FloatArray:
        """Of the recomputed layers, given the value of one of each kind (each ndarray (n,)): ndarray (n, d)."""
        return self.sums_again(np.stack(layers, axis=-1)[None])[0]

    def sums_again(self, values: FloatArray) -> FloatArray:
        """Of several values of the recomputed layers, (q, n, layer kinds), at once: ndarray (q, n, d)."""
        return self._times(values, self.tables.recomputed)

    def _times(self, values: FloatArray, tables: FloatArray) -> FloatArray:
        if len(tables) == 1:
            return np.asarray(values @ tables[0])
        if len(tables) * _FEW > values.shape[1]:
            return np.asarray(np.matmul(values.swapaxes(0, 1), tables[self.case]).swapaxes(0, 1))
        found = np.empty((*values.shape[:2], tables.shape[2]))
        for i, table in enumerate(tables):
            rows = np.flatnonzero(self.case == i)
            found[:, rows] = values[:, rows] @ table
        return found

    def whole(self, kinds: FloatArray) -> FloatArray:
        """`Kinds.whole`."""
        return self.kinds.whole(kinds)

    def by_rank(self, kinds: FloatArray) -> FloatArray:
        """`Kinds.by_rank`."""
        return self.kinds.by_rank(kinds)


def distinct(values: IntArray) -> tuple[IntArray, IntArray]:
    """The distinct values and which of them each one is, as `numpy.unique` says; most often there is one."""
    if len(values) and values[0] == values[-1] and (values == values[0]).all():
        return values[:1], np.zeros(len(values), dtype=np.int64)
    unique, case = np.unique(values, return_inverse=True)
    return unique, case.reshape(-1)


def over_stages(
    model: ModelSpec,
    pp: int,
    vpp: int,
    schedule: str,
    splits: IntArray,
    layers: Sequence[FloatArray],
    embedding: FloatArray,
    head: FloatArray,
) -> FloatArray:
    """Sum a per-block value over what each virtual stage holds.

    Parameters
    ----------
    splits : ndarray (n,)
        `LayoutBatch.stage_layers` of the n layouts.
    layers : sequence of ndarray (n,)
        The value of one layer of each kind.
    embedding, head : ndarray (n,)
        The value of the embedding and of the head.

    Returns
    -------
    ndarray (n, pp, chunks)
    """
    blocks = [*layers, embedding, head]
    shape = np.broadcast_shapes((len(splits),), *(np.shape(v) for v in blocks))
    sums = StageSums.of(model, pp, vpp, schedule, splits)
    return sums.whole(sums.sum([np.broadcast_to(v, shape) for v in blocks]))
