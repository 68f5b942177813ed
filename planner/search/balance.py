"""Splits that balance the pipeline where the layers do not divide: an exact dynamic program."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from planner.layout import RECOMPUTE, LayoutBatch, is_even, split_id
from planner.price import BlockPrice, PassPrice
from planner.priced import PricedModel

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


def balanced(costs: FloatArray, first: FloatArray, last: FloatArray, stages: int) -> list[tuple[int, ...]]:
    """Consecutive layers on `stages` stages, one or more each, so that the slowest stage is as fast as can be.

    Parameters
    ----------
    costs : ndarray (n, layers)
        Seconds of every layer, for n problems.
    first, last : ndarray (n,)
        Seconds of the embedding and of the head, on the first and on the last stage.
    stages : int
        At most the number of layers.

    Returns
    -------
    list of tuple of int
        Layers of each stage. Among the splits with the best maximum, stages are filled as late as they can
        be: the first ones hold most activations in flight.

    Notes
    -----
    ``best[s][i] = min over j of max(best[s-1][j], cost of layers j .. i-1)``, O(stages x layers^2).
    """
    n, layers = costs.shape
    if stages == 1:
        return [(layers,)] * n
    until = np.concatenate([np.zeros((n, 1)), np.cumsum(costs, axis=1)], axis=1)
    spans = until[:, None, :] - until[:, :, None]  # [problem, begin, end]
    begin, end = np.arange(layers + 1)[:, None], np.arange(layers + 1)[None, :]
    spans = np.where(end > begin, spans, np.inf)
    best = spans[:, 0, :] + first[:, None]
    for stage in range(1, stages):
        own = spans + last[:, None, None] if stage == stages - 1 else spans
        best = np.maximum(best[:, :, None], own).min(axis=1)
    # Any split whose stages all stay below the optimum is as good; take the one filled from the end.
    limit = best[:, layers] * (1.0 + 1e-12)
    return [_from_the_end(until[i], float(first[i]), float(last[i]), stages, float(limit[i])) for i in range(n)]


def _from_the_end(until: FloatArray, first: float, last: float, stages: int, limit: float) -> tuple[int, ...]:
    """Fill stages from the last one backwards up to `limit`, leaving a layer for each stage before."""
    shares = []
    end = len(until) - 1
    for stage in range(stages - 1, 0, -1):
        room = limit - (last if stage == stages - 1 else 0.0)
        begin = end - 1
        while begin - 1 >= stage and until[end] - until[begin - 1] <= room:
            begin -= 1
        shares.append(end - begin)
        end = begin
    shares.append(end)
    return tuple(reversed(shares))


def with_balanced_stages(priced: PricedModel) -> PricedModel:
    """The same layouts, those whose layers do not divide with the balanced split of their own prices.

    Layers count their forward and backward with the layout's recomputation, embedding and head likewise.
    """
    layouts = priced.layouts
    stages = np.asarray(layouts.pp * layouts.vpp)
    n_layers = priced.model.n_layers
    uneven = np.asarray([not is_even(n_layers, int(s)) for s in np.unique(stages)])[
        np.unique(stages, return_inverse=True)[1].reshape(-1)
    ]
    chosen = np.flatnonzero(uneven & (layouts.stage_layers == 0))
    if not len(chosen):
        return priced
    policy = np.where(_on_every_layer(layouts), priced.policy, -1)
    keys = np.stack([priced.inverse[chosen], policy[chosen], stages[chosen]], axis=1)
    unique, back = np.unique(keys, axis=0, return_inverse=True)
    found = np.zeros(len(unique), dtype=np.int64)
    for count in np.unique(unique[:, 2]):
        rows = np.flatnonzero(unique[:, 2] == count)
        costs, first, last = _seconds(priced, unique[rows, 0], unique[rows, 1])
        found[rows] = [split_id(split) for split in balanced(costs, first, last, int(count))]
    split = layouts.stage_layers.copy()
    split[chosen] = found[back.reshape(-1)]
    return replace(priced, layouts=replace(layouts, stage_layers=split))


def _on_every_layer(layouts: LayoutBatch) -> NDArray[np.bool_]:
    """Whether recomputation adds the same to every layer; a block of layers adds the same to every stage."""
    some = (layouts.recompute == RECOMPUTE.index("block")) & (layouts.recompute_layers > 0)
    return np.asarray(~some)


def _seconds(priced: PricedModel, rows: IntArray, policy: IntArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Seconds of every layer (n, layers), of the embedding and of the head (n,), forward and backward."""

    def total(block: BlockPrice) -> FloatArray:
        once = _picked((block.forward, block.backward_input, block.backward_weight), rows)
        again = np.stack([np.zeros(len(rows)), *(_picked((rerun,), rows) for rerun in block.rerun)])
        return np.asarray(once + again[policy + 1, np.arange(len(rows))])

    kinds = {layer: i for i, layer in enumerate(priced.model.layer_kinds())}
    each = np.stack([total(block) for block in priced.layers], axis=1)
    return each[:, [kinds[layer] for layer in priced.model.layers]], total(priced.embedding), total(priced.head)


def _picked(passes: tuple[PassPrice, ...], rows: IntArray) -> FloatArray:
    return np.asarray(sum(p.total_s[rows] for p in passes))
