"""Model state per rank: parameters, gradients and optimizer, in elements and bytes.

The one place for what a parameter costs, how it is sharded, and so how many bytes the
gradient and parameter collectives move. Used by the memory model and by the assembly.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.layout import LayoutBatch
from planner.model.spec import ModelSpec, Parameter, Weight
from planner.plan import Workload
from planner.presets import FrameworkPreset
from planner.workload.op import BYTES

FloatArray = NDArray[np.float64]
OPTIMIZER_STATES: dict[str, float] = {"adamw": 8.0, "adam": 8.0, "sgd": 0.0, "sgd-momentum": 4.0}
"""Bytes a parameter of optimizer state in fp32, beside the main copy of the weights."""


@dataclass(frozen=True, slots=True, eq=False)
class LocalParameters:
    """Elements of a block on one rank, before data-parallel sharding.

    Dense parameters reduce over dp·cp, expert parameters over the expert data-parallel group.
    """

    dense: FloatArray
    expert: FloatArray

    @property
    def all(self) -> FloatArray:
        """Dense and expert elements."""
        return np.asarray(self.dense + self.expert)


def local_parameters(parameters: Iterable[Parameter], layouts: LayoutBatch) -> LocalParameters:
    """Elements of `parameters` on one rank.

    Three buckets: tp-sharded, replicated (norms, router, row biases), and routed experts over
    ep x etp. Biases follow a column split and are whole with a row split.
    """
    tp, ep, etp = (np.asarray(v, dtype=np.float64) for v in (layouts.tp, layouts.ep, layouts.etp))
    dense, expert = np.zeros(np.shape(tp)), np.zeros(np.shape(tp))
    for p in parameters:
        if not isinstance(p, Weight):
            dense = dense + p.size / (tp if p.shard == "column" else 1.0)
            continue
        degree = etp if p.expert else tp
        n_in, n_out = np.asarray(float(p.n_in)), np.asarray(float(p.n_out))
        if p.shard == "column":
            n_out = np.asarray(np.maximum(n_out / degree, min(p.min_out, p.n_out)))
        elif p.shard == "row":
            n_in = np.asarray(n_in / degree)
        elements = n_in * n_out + (n_out if p.bias else 0.0)
        if p.expert:
            expert = expert + elements * p.copies / ep
        else:
            dense = dense + elements * p.copies
    return LocalParameters(np.asarray(dense), np.asarray(expert))


@dataclass(frozen=True, slots=True, eq=False)
class StateBytes:
    """Bytes that one local parameter costs on a rank, by category (arrays over candidates)."""

    parameters: FloatArray
    gradients: FloatArray
    optimizer: FloatArray


def reduces_each(preset: FrameworkPreset, pp: int, zero_stage: int) -> bool:
    """Whether gradients are reduced after every micro-batch instead of once a step.

    Only ZeRO-2 and 3 gain by it (their gradients stay sharded), and only without a pipeline and
    with parameters that are freed between uses.
    """
    if zero_stage < 2 or pp > 1 or not preset.reduce_each_microbatch:
        return False
    return zero_stage == 2 or preset.reshard_after_forward


def state_bytes(
    workload: Workload, layouts: LayoutBatch, preset: FrameworkPreset, shard: FloatArray, pp: int
) -> StateBytes:
    """Bytes per local parameter with `shard` ranks sharing the state.

    Mixed precision (bf16, fp16) keeps a compute copy (2 bytes) and an fp32 main copy (4) with
    the optimizer; fp32 training, and FSDP's mixed precision, have one fp32 copy of 4 (ZeRO,
    arXiv 1910.02054, section 3.1). ZeRO-1 shards the optimizer, 2 the gradients too, 3 the
    parameters too. Gradients that are reduced once a step accumulate unsharded over the
    micro-batches before.
    """
    width = BYTES[workload.precision] if preset.compute_copy else 4.0
    grad = BYTES[preset.gradient_dtype(workload.precision)]
    main = 4.0 if preset.compute_copy and workload.precision != "fp32" else 0.0
    states = OPTIMIZER_STATES[workload.optimizer] + main
    stage = layouts.zero_stage
    each = np.asarray([reduces_each(preset, pp, z) for z in range(4)])[stage]
    sharded = (stage >= 2) & (each | (layouts.microbatches(workload.gbs) == 1))
    return StateBytes(
        parameters=np.asarray(width / np.where(stage >= 3, shard, 1.0)),
        gradients=np.asarray(grad / np.where(sharded, shard, 1.0)),
        optimizer=np.asarray(states / np.where(stage >= 1, shard, 1.0)),
    )


def block_parameters(
    model: ModelSpec, layouts: LayoutBatch
) -> tuple[LocalParameters, list[LocalParameters], LocalParameters]:
    """Local parameters of the embedding, of one layer of each kind, and of the head.

    A tied head on another stage than the embedding keeps a copy of the matrix there.
    """
    embedding = local_parameters(model.embedding_parameters(), layouts)
    layers = [local_parameters(layer.parameters(model.hidden), layouts) for layer in model.layer_kinds()]
    head = local_parameters(model.head_parameters(), layouts)
    if model.tied_embeddings:
        copy = np.where(layouts.pp > 1, model.vocab * model.hidden / layouts.tp.astype(np.float64), 0.0)
        head = LocalParameters(np.asarray(head.dense + copy), head.expert)
    return embedding, layers, head
