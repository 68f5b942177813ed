"""Which layers of each virtual stage a recompute policy works on, and sums over them.

Selective policies and ``op`` work on every layer. ``full`` saves one input for each chunk of n layers, and rebuilds a
chunk at a time; ``block`` works on the first n layers of a virtual stage (Megatron-Core
`TransformerBlock._checkpointed_forward`), ``every`` on each n-th (torchtitan).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from hwmodels.records import dataclass
from planner.layout import RECOMPUTE, LayoutBatch, split_of
from planner.layout.recompute import WHOLE_LAYERS, layers_at, recomputed_layers
from planner.model.spec import ModelSpec
from planner.schedule import get as get_schedule
from planner.stages import StageSums, StageTables, assignment, layer_counts, shares_of

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Coverage:
    """Layers of each kind that a policy of whole layers works on.

    Attributes
    ----------
    again : ndarray (kinds, pp, chunks)
        Layers that are recomputed.
    inputs : ndarray (kinds, pp, chunks)
        Layers whose input is saved: the first one of each chunk of layers.
    moments : ndarray (moments, 2, kinds, pp)
        Layers that a rank rebuilds at a time, and layers behind them whose activations, saved whole, are free by
        then.
    """

    again: FloatArray
    inputs: FloatArray
    moments: FloatArray


@lru_cache(maxsize=16384)
def coverage(model: ModelSpec, pp: int, vpp: int, schedule: str, split: int, kind: int, layers: int) -> Coverage:
    """Layers that a policy works on; `split`, `kind` and `layers` as in a `LayoutBatch`."""
    kinds = {layer: i for i, layer in enumerate(model.layer_kinds())}
    plan, counts = get_schedule(schedule), split_of(layers)
    shares = shares_of(model.n_layers, pp, vpp, split)
    begins = np.concatenate([[0], np.cumsum(shares)])
    again, inputs = (np.zeros((len(kinds), pp, plan.chunks(vpp))) for _ in range(2))
    moments: list[list[tuple[FloatArray, FloatArray]]] = [[] for _ in range(pp)]
    for stage in range(plan.n_stages(pp, vpp)):
        rank, chunk, part = plan.rank_of(stage, pp), plan.chunk_of(stage, pp), plan.layers_of(stage, pp, vpp)
        own = [kinds[layer] for layer in model.layers[begins[part] : begins[part + 1]]]
        n = layers_at(counts, part)
        none = RECOMPUTE[kind] == "block" and bool(counts) and not n
        chunks = [] if none else recomputed_layers(RECOMPUTE[kind], n, len(own))
        rebuilt = {i for members in chunks for i in members}
        for members in chunks:
            built, freed = np.zeros(len(kinds)), np.zeros(len(kinds))
            for i in members:
                again[own[i], rank, chunk] += 1
                built[own[i]] += 1
            inputs[own[members[0]], rank, chunk] += 1
            for i in range(members[-1] + 1, len(own)):
                freed[own[i]] += i not in rebuilt
            moments[rank].append((built, freed))
    distinct = [list({(tuple(a), tuple(b)): (a, b) for a, b in each}.values()) for each in moments]
    table = np.zeros((max(1, *map(len, distinct)), 2, len(kinds), pp))
    for rank, each in enumerate(distinct):
        for moment, pair in enumerate(each):
            table[moment, :, :, rank] = pair
    for array in (again, inputs, table):
        array.setflags(write=False)
    return Coverage(again, inputs, table)


@lru_cache(maxsize=1024)
def covered_tables(
    model: ModelSpec, pp: int, vpp: int, schedule: str, cases: tuple[tuple[int, ...], ...]
) -> StageTables:
    """Tables of (split, kind, layers) as in a `LayoutBatch`; kind 0 works on every layer by itself. Kept."""
    place = (model, pp, vpp, schedule)
    tables = [assignment(*place, split) for split, _, _ in cases]
    again = [
        coverage(*place, split, kind, layers).again if kind else table[:-2]
        for (split, kind, layers), table in zip(cases, tables, strict=True)
    ]
    return StageTables.of(tables, again)


@dataclass(frozen=True, slots=True)
class Stages:
    """Layouts that share (pp, vpp, schedule), to sum values of layers over their virtual stages.

    Attributes
    ----------
    ranks : tuple of int or None
        Pipeline ranks that are looked at, r of them; None: all.
    """

    model: ModelSpec
    layouts: LayoutBatch
    pp: int
    vpp: int
    schedule: str
    ranks: tuple[int, ...] | None = None

    @property
    def at(self) -> IntArray:
        """The ranks that are looked at."""
        return np.arange(self.pp) if self.ranks is None else np.asarray(self.ranks)

    @property
    def chunks(self) -> int:
        """Virtual stages of a rank."""
        return get_schedule(self.schedule).chunks(self.vpp)

    @property
    def held(self) -> BoolArray:
        """Which kinds of layers each rank holds: ndarray (1 or n, kinds, r); 1 where all layouts split alike."""
        counts = layer_counts(self.model, self.pp, self.vpp, self.schedule, self.layouts.stage_layers)
        return np.asarray(counts[:, :, self.at].sum(axis=3) > 0)

    @property
    def ends(self) -> FloatArray:
        """Embeddings and heads of each rank, which lie alike in every split: ndarray (2, r)."""
        table = assignment(self.model, self.pp, self.vpp, self.schedule, int(self.layouts.stage_layers[0]))
        return np.asarray(table[-2:, self.at].sum(axis=2))

    @property
    def partial(self) -> BoolArray:
        """Layouts whose policy takes not every layer by itself: (n,)."""
        b = self.layouts
        counted = np.asarray((b.recompute_layers > 0) | (b.recompute == RECOMPUTE.index("every")))
        return counted & np.isin(b.recompute, WHOLE_LAYERS) if counted.any() else counted

    def _coverages(self) -> Iterator[tuple[IntArray, Coverage]]:
        """The partial layouts with equal coverage, and that coverage."""
        b, chosen = self.layouts, np.flatnonzero(self.partial)
        keys = np.stack([b.stage_layers[chosen], b.recompute[chosen], b.recompute_layers[chosen]], axis=1)
        unique, inverse = np.unique(keys, axis=0, return_inverse=True)
        for i, (split, kind, layers) in enumerate(unique):
            rows = chosen[inverse.reshape(-1) == i]
            yield rows, coverage(self.model, self.pp, self.vpp, self.schedule, int(split), int(kind), int(layers))

    def sum(self, layers: Sequence[FloatArray], embedding: FloatArray, head: FloatArray) -> FloatArray:
        """Of what each virtual stage holds: ndarray (n, r, chunks)."""
        sums = StageSums.of(self.model, self.pp, self.vpp, self.schedule, self.layouts.stage_layers)
        kinds = sums.sum([np.broadcast_to(v, (len(self.layouts),)) for v in (*layers, embedding, head)])
        return np.asarray(kinds[:, sums.kinds.kind[self.at]])

    def largest(self, values: Sequence[FloatArray]) -> FloatArray:
        """The largest of `values`, one for each layer kind, among the kinds that a rank holds: ndarray (n, r)."""
        n, held = len(self.layouts), self.held
        found = np.zeros((n, held.shape[2]))
        for kind, value in enumerate(values):
            np.maximum(found, np.where(held[:, kind], np.broadcast_to(value, (n,))[:, None], 0.0), out=found)
        return found

    def sums(self) -> StageSums:
        """Sums over the kinds of their virtual stages, recomputed layers among them."""
        b, partial = self.layouts, self.partial
        if not partial.any():
            return StageSums.of(self.model, self.pp, self.vpp, self.schedule, b.stage_layers)
        keys = np.stack([b.stage_layers, *(np.where(partial, v, 0) for v in (b.recompute, b.recompute_layers))], axis=1)
        unique, case = np.unique(keys, axis=0, return_inverse=True)
        cases = tuple(tuple(map(int, row)) for row in unique)
        return StageSums(covered_tables(self.model, self.pp, self.vpp, self.schedule, cases), case.reshape(-1))

    def saved(
        self, whole: Sequence[FloatArray], kept: Sequence[FloatArray], embedding: FloatArray, head: FloatArray
    ) -> FloatArray:
        """Bytes that one micro-batch saves on each virtual stage: ndarray (n, r, chunks).

        Parameters
        ----------
        whole, kept : sequence of ndarray (n,)
            Bytes of a layer of each kind without recomputation, and under the layout's own policy.
        """
        n = len(self.layouts)
        found = self.sum(kept, embedding, head)
        if self.partial.any():
            none = np.zeros(n)
            ends, plain = self.sum([none for _ in kept], embedding, head), self.sum(whole, none, none)
            all_of, some = (np.stack([np.broadcast_to(v, (n,)) for v in values]) for values in (whole, kept))
            for rows, covered in self._coverages():
                rebuilt = np.tensordot(all_of[:, rows], covered.again[:, self.at], axes=(0, 0))
                inputs = np.tensordot(some[:, rows], covered.inputs[:, self.at], axes=(0, 0))
                found[rows] = ends[rows] + (plain[rows] - rebuilt) + inputs
        return found

    def rebuilt(self, whole: Sequence[FloatArray], rebuilt: Sequence[FloatArray]) -> FloatArray:
        """Bytes that recomputation rebuilds at a time on each rank, beyond those that are free by then: (n, r).

        One layer or module at a time, the largest of the kinds that a rank holds; a chunk of layers where they
        are rebuilt together.
        """
        n = len(self.layouts)
        found = self.largest(rebuilt)
        if self.partial.any():
            each = np.stack([np.broadcast_to(v, (n,)) for v in rebuilt])  # (kinds, n)
            all_of = np.stack([np.broadcast_to(v, (n,)) for v in whole])
            for rows, covered in self._coverages():
                moments = covered.moments[..., self.at]
                built = np.tensordot(each[:, rows], moments[:, 0], axes=(0, 1))
                freed = np.tensordot(all_of[:, rows], moments[:, 1], axes=(0, 1))
                found[rows] = np.maximum(built - freed, 0.0).max(axis=1)
        return found


def kind_counts(
    model: ModelSpec, layouts: LayoutBatch, pp: int, vpp: int, schedule: str
) -> tuple[list[int], list[int]]:
    """Layers of each kind in the model, and those of them that recomputation works on, of a single layout.

    A bidirectional pipeline holds every layer twice; it counts once.
    """
    kinds = model.layer_kinds()
    held = [sum(layer == kind for layer in model.layers) for kind in kinds]
    sums = Stages(model, layouts, pp, vpp, schedule).sums()
    unit, copies = np.eye(len(kinds)), float(get_schedule(schedule).directions)
    again = [float(sums.by_rank(sums.again([u[i : i + 1] for i in range(len(kinds))])).sum()) for u in unit]
    return held, [round(count / copies) for count in again]
