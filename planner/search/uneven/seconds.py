"""Seconds of every block of a model for one micro-batch, as the stages of a step add them up."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hwmodels.records import dataclass
from planner.price import BlockPrice
from planner.priced import PricedModel
from planner.schedule import get as get_schedule
from planner.step.once import sends

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class BlockSeconds:
    """One micro-batch of n layouts that share (pp, vpp, schedule), layer by layer of the model.

    Attributes
    ----------
    load : ndarray (n, layers)
        Forward and whole backward of a layer, without what recomputation runs again.
    onward : ndarray (n, layers)
        What the stages behind wait for: the same without the weight gradient where the schedule splits it off.
    again : ndarray (n, layers)
        Forward that recomputing the layer runs once more under the layout's policy; part of both.
    first, last : tuple of ndarray (n,)
        Load and onward of the embedding; of the head, prediction steps and what is run again of them included.
    copies : int
        Copies of the pipeline, each of which runs its share of the micro-batches.
    microbatches : ndarray (n,)
        Of each copy.
    hop : tuple of ndarray (n, pp, chunks)
        Seconds of the sends out of each virtual stage, onward and back.
    blocking : bool
        Whether sends hold up the computing stream.
    """

    load: FloatArray
    onward: FloatArray
    again: FloatArray
    first: tuple[FloatArray, FloatArray]
    last: tuple[FloatArray, FloatArray]
    copies: int
    microbatches: FloatArray
    hop: tuple[FloatArray, FloatArray]
    blocking: bool

    @classmethod
    def of(cls, priced: PricedModel, index: IntArray, pp: int, vpp: int, schedule: str) -> BlockSeconds:
        """Of the layouts at `index`; as `planner.step.stage_prices.StagePrices.work` counts a block."""
        plan, rows, layouts = get_schedule(schedule), priced.inverse[index], priced.layouts.take(index)
        policy, count = priced.policy[index], layouts.microbatches(priced.workload.gbs) / plan.directions

        def onward(block: BlockPrice) -> tuple[FloatArray, FloatArray]:
            forward = block.forward.total_s[rows] - block.forward.once_s[rows] * (1.0 - 1.0 / count)
            weight = block.backward_weight.total_s[rows] - block.backward_weight.skipped_s[rows] / count
            chain = forward + block.backward_input.total_s[rows]
            if plan.split_backward:  # what an unsplit backward hides behind its other half
                chain = chain + _total(block.backward_input.apart_s)[rows]
                weight = weight + _total(block.backward_weight.apart_s)[rows]
            return chain + weight, chain if plan.split_backward else chain + weight

        def again(block: BlockPrice) -> FloatArray:
            return np.stack([rerun.total_s[rows] for rerun in block.rerun])[policy, np.arange(len(rows))]

        kinds = {layer: i for i, layer in enumerate(priced.model.layer_kinds())}
        order = [kinds[layer] for layer in priced.model.layers]
        each = [onward(block) for block in priced.layers]
        load, chain = (np.stack([pair[i] for pair in each], axis=1)[:, order] for i in (0, 1))
        rerun = np.stack([again(block) for block in priced.layers], axis=1)[:, order]
        head = onward(priced.head)
        if priced.workload.mtp_layers:
            more = again(priced.head)
            head = (head[0] + more, head[1] + more)
        sent = sends(priced, [index], [(pp, vpp, schedule)])[0]
        return cls(
            load, chain, rerun, onward(priced.embedding), head, plan.directions, np.asarray(count),
            (sent.forward, sent.backward), not priced.preset.p2p_overlap,
        )  # fmt: skip


def plain_seconds(
    priced: PricedModel, rows: IntArray, policy: IntArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Seconds of every layer (n, layers), of the embedding and of the head (n,) in every micro-batch but the first.

    Parameters
    ----------
    rows, policy : ndarray (n,)
        Positions in the distinct blocks and in the policies of `priced`; -1: nothing is recomputed.
    """

    def total(block: BlockPrice) -> FloatArray:
        once = sum(p.total_s[rows] for p in (block.forward, block.backward_input, block.backward_weight))
        again = np.stack([np.zeros(len(rows)), *(rerun.total_s[rows] for rerun in block.rerun)])
        return np.asarray(once + again[policy + 1, np.arange(len(rows))])

    kinds = {layer: i for i, layer in enumerate(priced.model.layer_kinds())}
    each = np.stack([total(block) for block in priced.layers], axis=1)
    return each[:, [kinds[layer] for layer in priced.model.layers]], total(priced.embedding), total(priced.head)


def _total(parts: dict[str, FloatArray]) -> FloatArray:
    return np.asarray(sum(parts.values()))
