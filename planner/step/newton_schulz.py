"""Newton-Schulz iterations of Muon: GEMMs once a step over every hidden matrix of a rank."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hwmodels import kernels
from hwmodels.estimate import Estimate
from planner import optimizers
from planner.adapters import linear_weights
from planner.layout import LayoutBatch
from planner.model.spec import DecoderLayer, Weight
from planner.priced import PricedModel
from planner.stages import over_stages

FloatArray = NDArray[np.float64]
DTYPE = "bf16"
"""Five steps from a normalised momentum are stable in bf16 (Jordan et al. 2024, Muon)."""


def newton_schulz(priced: PricedModel, layouts: LayoutBatch, pp: int, vpp: int, schedule: str) -> Estimate:
    """Seconds of the iterations on each rank: ndarray (n, pp); zero for an optimizer without them.

    A step on a matrix X (s x l, s the shorter side) is ``A = X X^T; B = b A + c A²; X = a X + B X``:
    products of s·s·l, s·s·s and s·l·s. Every tensor-parallel rank orthogonalises its own shard
    (the blockwise form), and each matrix belongs to one rank of those that share the state
    (Liu et al. 2025, arXiv 2502.16982, section 2.3), so that no gradient travels again.
    """
    steps = optimizers.get(priced.workload.optimizer).newton_schulz
    if steps == 0 or priced.workload.lora is not None:
        return Estimate.of(np.zeros((len(layouts), pp)))
    owners = np.where(layouts.zero_stage >= 1, layouts.fsdp_degree * layouts.cp, 1).astype(np.float64)
    expert_owners = np.where(layouts.zero_stage >= 1, layouts.expert_shard, 1).astype(np.float64)
    seconds, weighted = [], []
    for layer in priced.model.layer_kinds():
        mid, spread = _layer(priced, layer, layouts, owners, expert_owners)
        seconds.append(steps * mid)
        weighted.append(steps * spread)
    none = np.zeros(len(layouts))
    total, sure = (
        over_stages(priced.model, pp, vpp, schedule, layouts.stage_layers, parts, none, none).sum(axis=2)
        for parts in (seconds, weighted)
    )
    return Estimate.of(total, float(np.max(np.divide(sure, total, out=np.zeros_like(total), where=total > 0))))


def _layer(
    priced: PricedModel, layer: DecoderLayer, layouts: LayoutBatch, owners: FloatArray, expert_owners: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Seconds of one iteration over the matrices of a layer, and seconds times spread: each ndarray (n,)."""
    total, spread = np.zeros(len(layouts)), np.zeros(len(layouts))
    for weight in linear_weights(layer, priced.model.hidden):
        n_in, n_out, copies = _shard(weight, layouts)
        short, long = np.minimum(n_in, n_out), np.maximum(n_in, n_out)
        count = copies / (expert_owners if weight.expert else owners)
        for m, n, k in ((short, short, long), (short, short, short), (short, long, short)):
            one = kernels.gemm_seconds(priced.cluster.device, m, n, k, dtype=DTYPE, impl=priced.preset.gemm_impl)
            one = kernels.sustained_seconds(priced.cluster.device, one, 2.0 * m * n * k, DTYPE)
            total = total + one.mid * count
            spread = spread + one.mid * one.spread * count
    return total, spread


def _shard(weight: Weight, layouts: LayoutBatch) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Rows, columns and copies of a weight on one rank."""
    degree = (layouts.etp if weight.expert else layouts.tp).astype(np.float64)
    n_in, n_out = np.full(degree.shape, float(weight.n_in)), np.full(degree.shape, float(weight.n_out))
    if weight.shard == "column":
        n_out = np.maximum(n_out / degree, min(weight.min_out, weight.n_out))
    elif weight.shard == "row":
        n_in = n_in / degree
    copies = weight.copies / (layouts.ep.astype(np.float64) if weight.expert else np.ones(degree.shape))
    return n_in, n_out, copies
