"""Fewest recomputed layers with which a stage fits its memory, asked of the memory model itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hwmodels.distinct import distinct
from planner.layout import split_id
from planner.layout.recompute import BLOCK
from planner.model.spec import DecoderLayer, ModelSpec
from planner.priced import PricedModel
from planner.step.assemble import group_memory

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


class Room:
    """How many layers of a window each rank must recompute, for n layouts of one virtual stage a rank.

    What a rank holds then is its own window of consecutive layers and nothing else, so that its peak is that of any
    split in which it holds that window. Windows of equal kinds in equal order are one. Each is sized once, for all
    layouts, all ranks and all numbers of recomputed layers, when it is asked for: `planner.step.assemble.group_memory`
    of a model that is nothing but this window on every rank.

    Attributes
    ----------
    number : ndarray (layers + 1, widths) of int
        Window of each (begin, layers of the stage); -1 beyond the last layer.
    need : ndarray (n, pp, windows) of int
        Fewest recomputed layers; `never` where not even all of them are enough. For a window that was not sized yet no
        more than that: what the window without its last layers needs, which holds less.
    """

    def __init__(
        self, priced: PricedModel, index: IntArray, pp: int, schedule: str, limit_bytes: float, widest: int, *,
        fit: bool,
    ) -> None:  # fmt: skip
        """For the layouts at `index`; with `fit` blocks of any number of layers are tried, else the layout's policy."""
        self.priced, self.index, self.pp, self.schedule = priced, index, pp, schedule
        self.limit_bytes, self.fit = limit_bytes, fit
        self.kinds = priced.model.layer_kinds()
        place = {layer: i for i, layer in enumerate(self.kinds)}
        order = tuple(place[layer] for layer in priced.model.layers)
        self.never = len(order) + 1
        self.number = np.full((len(order) + 1, widest + 1), -1, dtype=np.int64)
        found: dict[tuple[int, ...], int] = {}
        shorter: list[int] = []
        for width in range(widest + 1):
            for begin in range(len(order) - width + 1):
                window = order[begin : begin + width]
                if window not in found:
                    shorter.append(found[window[:-1]] if width else -1)
                    found[window] = len(found)
                self.number[begin, width] = found[window]
        self.windows, self.shorter = list(found), shorter
        self.need = np.zeros((len(index), pp, len(found)), dtype=np.int64)
        self.sized = np.zeros(len(found), dtype=np.bool_)

    def size(self, asked: IntArray) -> bool:
        """Size those windows of `asked` that were not yet; whether there were any."""
        new = [int(w) for w in distinct(asked) if w >= 0 and not self.sized[w]]
        for window in new:
            self.need[:, :, window] = self._least(self.windows[window])
            self.sized[window] = True
        if new:
            for window, less in enumerate(self.shorter):  # shorter windows come first
                if less >= 0 and not self.sized[window]:
                    self.need[:, :, window] = np.maximum(self.need[:, :, window], self.need[:, :, less])
        return bool(new)

    def _least(self, window: tuple[int, ...]) -> IntArray:
        """Fewest recomputed layers of one window on each rank: ndarray (n, pp)."""
        counts = range(len(window) + 1) if self.fit else range(1)
        peaks = window_peaks(self.priced, self.index, self.pp, self.schedule, [self.kinds[i] for i in window],
                             counts if self.fit else None)  # fmt: skip
        fits = peaks <= self.limit_bytes
        return np.asarray(np.where(fits.any(axis=0), fits.argmax(axis=0), self.never))


def window_peaks(
    priced: PricedModel, index: IntArray, pp: int, schedule: str, window: list[DecoderLayer],
    counts: range | None,
) -> FloatArray:  # fmt: skip
    """Peak bytes of each rank if it holds the layers of `window`: ndarray (counts, n, pp).

    Parameters
    ----------
    counts : range or None
        Layers at the beginning of the window that are recomputed; None is the layout's own policy, one entry.
    """
    model, order = _only(priced.model, window, pp)
    n, many = len(index), 1 if counts is None else len(counts)
    rows = np.tile(index, many)
    layouts = priced.layouts.take(rows)
    whole = np.full(len(rows), split_id((len(window),) * pp))
    changed: dict[str, IntArray] = {"stage_layers": whole}
    if counts is not None:
        changed["recompute"] = np.full(len(rows), BLOCK)
        changed["recompute_layers"] = np.repeat([split_id((k,)) for k in counts], n)
    low = priced.lowered
    first, *middle, last = priced.recomputed
    sized = replace(
        priced,
        model=model,
        layouts=replace(layouts, **changed),
        inverse=priced.inverse[rows],
        policy=priced.policy[rows],
        lowered=replace(low, layers=tuple(low.layers[i] for i in order)),
        layers=tuple(priced.layers[i] for i in order),
        recomputed=(first, *(middle[i] for i in order), last),
    )
    peaks = group_memory(sized, np.arange(len(rows)), pp, 1, schedule).peak_bytes
    return np.asarray(peaks.reshape(many, n, pp))


def _only(model: ModelSpec, window: list[DecoderLayer], pp: int) -> tuple[ModelSpec, list[int]]:
    """A model of the window once for each rank, and where its kinds stand in the kinds of the original.

    Behind the last rank's window comes each kind once, which no rank holds: buffers that a framework sizes by the
    largest layer of the whole model stay what they are.
    """
    kinds = model.layer_kinds()
    name = " ".join([model.name, *(str(kinds.index(layer)) for layer in window)])  # caches tell models by name first
    other = replace(model, name=name, layers=(*window * pp, *kinds))
    return other, [kinds.index(kind) for kind in other.layer_kinds()]
