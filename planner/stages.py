"""Which layers each virtual stage holds, and sums of per-block values over stages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from hwmodels.errors import Fault, InputError
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
    unique, inverse = np.unique(splits, return_inverse=True)
    each = np.stack([assignment(model, pp, vpp, schedule, int(split))[:-2] for split in unique])
    return each if len(unique) == 1 else np.asarray(each[inverse.reshape(-1)])


@dataclass(frozen=True, slots=True, eq=False)
class StageSums:
    """Sums of per-block values over virtual stages that share (pp, vpp, schedule), each distinct stage once.

    Deep pipelines have dozens of virtual stages and few kinds of them: a first, a last, and equal ones
    between. Arithmetic runs on the kinds, d of them; `whole` lays the result out over all stages.

    Attributes
    ----------
    matrices : tuple of ndarray (blocks, d)
        How many blocks of each kind a stage of each kind holds, one matrix a split of the batch.
    split : ndarray (n,)
        Which matrix each layout has.
    kind : ndarray (pp, chunks)
        Kind of each virtual stage.
    recomputed : tuple of ndarray (layer kinds, d)
        How many layers of each kind recomputation works on, one matrix a split and policy of the batch.
    """

    matrices: tuple[FloatArray, ...]
    split: IntArray
    kind: IntArray
    recomputed: tuple[FloatArray, ...]

    @classmethod
    def of(cls, model: ModelSpec, pp: int, vpp: int, schedule: str, splits: IntArray) -> StageSums:
        """For layouts of `splits`, ndarray (n,)."""
        unique, inverse = np.unique(splits, return_inverse=True)
        tables = [assignment(model, pp, vpp, schedule, int(s)) for s in unique]
        return cls.of_tables(tables, [t[:-2] for t in tables], inverse.reshape(-1))

    @classmethod
    def of_tables(cls, tables: Sequence[FloatArray], again: Sequence[FloatArray], which: IntArray) -> StageSums:
        """For layouts that hold what `tables` say.

        Parameters
        ----------
        tables : sequence of ndarray (blocks, pp, chunks)
            Results of `assignment`.
        again : sequence of ndarray (layer kinds, pp, chunks)
            Of these the layers that recomputation works on.
        which : ndarray (n,)
            Table of each layout.
        """
        shape, blocks = tables[0].shape[1:], len(tables[0])
        joined = [np.concatenate([t, a]).reshape(blocks + len(a), -1) for t, a in zip(tables, again, strict=True)]
        if len(tables) > 1:  # kinds differ from split to split
            kind = np.arange(joined[0].shape[1]).reshape(shape)
        else:
            columns, where = np.unique(joined[0], axis=1, return_inverse=True)
            joined, kind = [columns], where.reshape(shape)
        return cls(tuple(t[:blocks] for t in joined), which, kind, tuple(t[blocks:] for t in joined))

    def sum(self, blocks: Sequence[FloatArray]) -> FloatArray:
        """Of per-block values (each ndarray (n,); layers, then embedding and head): ndarray (n, d)."""
        return self._times(blocks, self.matrices)

    def again(self, layers: Sequence[FloatArray]) -> FloatArray:
        """Of the recomputed layers, given the value of one of each kind (each ndarray (n,)): ndarray (n, d)."""
        return self._times(layers, self.recomputed)

    def _times(self, blocks: Sequence[FloatArray], matrices: tuple[FloatArray, ...]) -> FloatArray:
        values = np.stack(blocks, axis=-1)
        if len(matrices) == 1:
            return np.asarray(values @ matrices[0])
        found = np.empty((len(values), self.kind.size))
        for i, matrix in enumerate(matrices):
            rows = np.flatnonzero(self.split == i)
            found[rows] = values[rows] @ matrix
        return found

    def whole(self, kinds: FloatArray) -> FloatArray:
        """Values of kinds (n, d) on every virtual stage: ndarray (n, pp, chunks)."""
        return np.asarray(kinds[:, self.kind])

    def of_whole(self, stages: FloatArray) -> FloatArray:
        """Values of every virtual stage (n, pp, chunks), equal where the kind is, by kind: ndarray (n, d)."""
        _, first = np.unique(self.kind, return_index=True)
        return np.asarray(stages.reshape(len(stages), -1)[:, first])

    def by_rank(self, kinds: FloatArray) -> FloatArray:
        """Values of kinds (n, d) summed over the virtual stages of each rank: ndarray (n, pp)."""
        d = kinds.shape[1]
        counts = (self.kind[:, :, None] == np.arange(d)).sum(axis=1).astype(np.float64)  # (pp, d)
        return np.asarray(kinds @ counts.T)


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
