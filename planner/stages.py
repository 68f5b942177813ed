"""Which layers each virtual stage holds, and sums of per-block values over stages."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from hwmodels.errors import Fault, InputError
from planner.layout import split_layers
from planner.model.spec import ModelSpec
from planner.schedule import get as get_schedule

FloatArray = NDArray[np.float64]


@lru_cache(maxsize=4096)
def layer_counts(model: ModelSpec, pp: int, vpp: int, schedule: str) -> FloatArray:
    """How many layers of each kind each virtual stage holds.

    Returns
    -------
    ndarray (kinds, pp, vpp)
        In the order of `ModelSpec.layer_kinds()`; consecutive slices of the layers
        as `split_layers` cuts them.
    """
    kinds = {layer: i for i, layer in enumerate(model.layer_kinds())}
    plan = get_schedule(schedule)
    n_stages = pp * vpp
    shares = split_layers(model.n_layers, n_stages)
    if shares is None:
        raise InputError(
            Fault(
                f"{model.n_layers} layers on {n_stages} virtual stages", "layout", "they do not split", "another pp*vpp"
            )
        )
    found = np.zeros((len(kinds), pp, vpp))
    begin = 0
    for stage, share in enumerate(shares):
        rank, chunk = plan.rank_of(stage, pp), plan.chunk_of(stage, pp)
        for layer in model.layers[begin : begin + share]:
            found[kinds[layer], rank, chunk] += 1
        begin += share
    found.setflags(write=False)
    return found


@lru_cache(maxsize=4096)
def ends(pp: int, vpp: int, schedule: str) -> tuple[tuple[int, int], tuple[int, int]]:
    """(rank, chunk) of the first and of the last virtual stage."""
    plan = get_schedule(schedule)
    last = pp * vpp - 1
    return (plan.rank_of(0, pp), plan.chunk_of(0, pp)), (plan.rank_of(last, pp), plan.chunk_of(last, pp))


def over_stages(
    model: ModelSpec,
    pp: int,
    vpp: int,
    schedule: str,
    layers: Sequence[FloatArray],
    embedding: FloatArray,
    head: FloatArray,
) -> FloatArray:
    """Sum a per-block value over what each virtual stage holds.

    Parameters
    ----------
    layers : sequence of ndarray (n,)
        The value of one layer of each kind.
    embedding, head : ndarray (n,)
        The value of the embedding and of the head, added to the first and last stage.

    Returns
    -------
    ndarray (n, pp, vpp)
    """
    counts = layer_counts(model, pp, vpp, schedule)
    shape = np.broadcast_shapes(*(np.shape(v) for v in layers), np.shape(embedding), np.shape(head))
    per_kind = np.stack([np.broadcast_to(v, shape) for v in layers], axis=-1).reshape(-1, len(layers))
    result: FloatArray = np.einsum("nk,kpv->npv", per_kind, counts)
    (r0, c0), (r1, c1) = ends(pp, vpp, schedule)
    result[:, r0, c0] += np.broadcast_to(embedding, shape).reshape(-1)
    result[:, r1, c1] += np.broadcast_to(head, shape).reshape(-1)
    return result
