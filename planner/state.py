"""Model state per rank: parameters, gradients and optimizer, in elements and bytes.

The one place for what a parameter costs, how it is sharded, and so how many bytes the
gradient and parameter collectives move. Used by the memory model and by the assembly.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field, fields, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hwmodels.records import dataclass
from planner import optimizers
from planner.adapters import adapter_weights, linear_weights
from planner.frameworks import FrameworkPreset
from planner.frameworks import of as preset_of
from planner.layout import LayoutBatch
from planner.model.spec import DecoderLayer, ModelSpec, Parameter, VisionTower, Weight
from planner.plan import Workload
from planner.precision import BYTES, gradient_dtype, recipe_of
from planner.vocabulary import padded_vocab

FloatArray = NDArray[np.float64]


def _none() -> FloatArray:
    return np.zeros(())


@dataclass(frozen=True, slots=True, eq=False)
class LocalParameters:
    """Elements of a block on one rank, before data-parallel sharding.

    Dense parameters reduce over dp·cp, expert parameters over the expert data-parallel group.

    Attributes
    ----------
    dense, expert : ndarray
        All elements, adapters included.
    frozen_dense, frozen_expert : ndarray
        Those of them that are not trained.
    packed_dense, packed_expert : ndarray
        Those of them in matrices that a quantised recipe or a 4-bit base covers.
    other_dense : ndarray
        Those of `dense` outside the matrices of decoder layers: embedding, head, norms, biases.
    """

    dense: FloatArray
    expert: FloatArray
    frozen_dense: FloatArray = field(default_factory=_none)
    frozen_expert: FloatArray = field(default_factory=_none)
    packed_dense: FloatArray = field(default_factory=_none)
    packed_expert: FloatArray = field(default_factory=_none)
    other_dense: FloatArray = field(default_factory=_none)

    @property
    def all(self) -> FloatArray:
        """Dense and expert elements."""
        return np.asarray(self.dense + self.expert)


def local_parameters(parameters: Iterable[Parameter], layouts: LayoutBatch) -> LocalParameters:
    """Elements of `parameters` on one rank; none of them frozen, packed or set apart.

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
    """Bytes that one local parameter costs on a rank, by category (arrays over candidates).

    Attributes
    ----------
    parameters : ndarray
        Of a trained parameter.
    frozen : ndarray
        Of a parameter that is not trained (no gradient and no optimizer state either).
    packed : ndarray
        What a parameter in a packed matrix costs beyond `parameters` or `frozen` (below 0 where it takes less).
    gradients, optimizer : ndarray
        Of a trained parameter.
    other_optimizer : float
        What one outside the hidden matrices costs beyond `optimizer`, before sharding the same way.
    """

    parameters: FloatArray
    frozen: FloatArray
    packed: FloatArray
    gradients: FloatArray
    optimizer: FloatArray
    other_optimizer: FloatArray


@dataclass(frozen=True, slots=True)
class WeightBytes:
    """Bytes of one element of a weight, resident and on its way between ranks.

    Attributes
    ----------
    trained, frozen : float
        Resident, in matrices that no narrow format covers.
    packed : float
        Resident, in one that it covers: every copy.
    packed_shard : float
        What of that ZeRO-3 shards and keeps.
    gathered, packed_gathered : float
        Sent by a parameter gather.
    """

    trained: float
    frozen: float
    packed: float
    packed_shard: float
    gathered: float
    packed_gathered: float


def weight_bytes(workload: Workload, preset: FrameworkPreset) -> WeightBytes:
    """What an element of a weight costs in a precision and framework.

    Mixed precision keeps a compute copy; FSDP's keeps one in the main dtype and casts it when
    it is gathered (frozen ones stand in the compute dtype). A quantised recipe keeps its copies
    beside the 16-bit one, or in its place where the framework's compute copies are quantised
    (Megatron-Core ``--fp8-param-gather``); FSDP's casts are transient. Of a frozen weight in the
    narrow format alone and with a tensor-wide scale one copy does (Transformer Engine
    ``keep_fp8_weight_transpose_cache`` off, as fine-tuning recipes have it).
    """
    recipe = recipe_of(workload, preset)
    width, main = recipe.width, recipe.width if workload.main_dtype == "bf16" else 4.0
    trained = width if preset.compute_copy else main
    base = width if workload.lora is not None else trained
    if workload.lora is not None and workload.lora.base:
        narrow = BYTES[workload.lora.base]
        return WeightBytes(trained, width, narrow, narrow, width, narrow)
    if not recipe.quantised:
        return WeightBytes(trained, width, base, base, width, width)
    narrow, quantised = recipe.element_bytes, recipe.scaling in preset.quantised_params
    sent = narrow if quantised else width
    if not preset.compute_copy:
        return WeightBytes(trained, width, base, base, width, sent)
    turned = workload.lora is not None and quantised and recipe.tensor_wide
    copies = narrow if turned else recipe.copies * narrow
    return WeightBytes(trained, width, copies if quantised else width + copies, sent, width, sent)


def main_bytes(workload: Workload, preset: FrameworkPreset) -> float:
    """Bytes of a parameter's main copy beside its compute copy; 0 where there is one copy alone."""
    if not preset.compute_copy or recipe_of(workload, preset).width == 4.0:
        return 0.0
    return optimizers.MAIN_DTYPES[workload.main_dtype]


def gradient_bytes(workload: Workload, preset: FrameworkPreset) -> float:
    """Bytes of an accumulated gradient."""
    return BYTES[gradient_dtype(workload, preset)]


def reduces_each(preset: FrameworkPreset, pp: int, zero_stage: int) -> bool:
    """Whether gradients are reduced after every micro-batch instead of once a step.

    Only ZeRO-2 and 3 gain by it (their gradients stay sharded); with a pipeline only in frameworks that
    keep nothing whole over the step.
    """
    pipelined = pp > 1 and preset.pipeline_keeps_gathered
    return zero_stage >= 2 and preset.reduce_each_microbatch and not pipelined


Gathers = Literal["once", "forward", "each"]


def gathers(preset: FrameworkPreset, pp: int, reshard: str) -> Gathers:
    """When stage 3 gathers parameters: once a step, before every forward, or before every forward and backward.

    FSDP2 without resharding after the forward keeps parameters until the backward is done (``fully_shard``,
    ``reshard_after_forward=False``); PyTorch's pipelining runtime does not reshard after a backward but the last
    (``stage.py``, ``set_reshard_after_backward``), so that what is never freed after a forward is gathered once.
    """
    keeps = pp > 1 and preset.pipeline_keeps_gathered
    if reshard == "always" or (reshard == "default" and preset.reshard_after_forward and not keeps):
        return "each"
    return "once" if keeps else "forward"


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
    weights, optimizer = weight_bytes(workload, preset), optimizers.get(workload.optimizer)
    grad, states = gradient_bytes(workload, preset), optimizer.state_bytes + main_bytes(workload, preset)
    base = weights.trained if workload.lora is None else weights.frozen
    stage = layouts.zero_stage
    each = np.asarray([reduces_each(preset, pp, z) for z in range(4)])[stage]
    sharded = (stage >= 2) & (each | (layouts.microbatches(workload.gbs) == 1))
    held, kept = np.where(stage >= 3, shard, 1.0), np.where(stage >= 1, shard, 1.0)
    packed = np.where(stage >= 3, weights.packed_shard - base, weights.packed - base)
    return StateBytes(
        parameters=np.asarray(weights.trained / held),
        frozen=np.asarray(weights.frozen / held),
        packed=np.asarray(packed / held),
        gradients=np.asarray(grad / np.where(sharded, shard, 1.0)),
        optimizer=np.asarray(states / kept),
        other_optimizer=np.asarray((optimizer.other_state_bytes - optimizer.state_bytes) / kept),
    )


def layer_parameters(layer: DecoderLayer, hidden: int, layouts: LayoutBatch, workload: Workload) -> LocalParameters:
    """Local parameters of one layer, with what of them is frozen, packed or no hidden matrix."""
    own = local_parameters(layer.parameters(hidden), layouts)
    matrices = local_parameters([replace(w, bias=False) for w in linear_weights(layer, hidden)], layouts)
    other = np.asarray(own.dense - matrices.dense)
    packed = (matrices.dense, matrices.expert) if not layer.high_precision else (_none(), _none())
    if workload.lora is None:
        return LocalParameters(own.dense, own.expert, _none(), _none(), *packed, other)
    added = local_parameters(adapter_weights(layer, hidden, workload.lora), layouts)
    dense = np.asarray(own.dense + added.dense)
    return LocalParameters(dense, own.expert, own.dense, own.expert, *packed, _none())


def block_parameters(
    model: ModelSpec, layouts: LayoutBatch, workload: Workload
) -> tuple[LocalParameters, list[LocalParameters], LocalParameters]:
    """Local parameters of the embedding, of one layer of each kind, and of the head.

    A tied head on another stage than the embedding keeps a copy of the matrix there.
    """
    embedding = local_parameters(model.embedding_parameters(), layouts)
    tp = layouts.tp.astype(np.float64)
    rows = padded_vocab(model, preset_of(workload), tp)
    padding = (rows - model.vocab) * model.hidden / tp
    embedding = LocalParameters(np.asarray(embedding.dense + padding), embedding.expert)
    layers = [layer_parameters(layer, model.hidden, layouts, workload) for layer in model.layer_kinds()]
    head = local_parameters(model.head_parameters(), layouts)
    if model.tied_embeddings:
        copy = np.where(layouts.pp > 1, rows * model.hidden / tp, 0.0)
        head = LocalParameters(np.asarray(head.dense + copy), head.expert)
    else:
        head = LocalParameters(np.asarray(head.dense + padding), head.expert)
    if workload.mtp_layers and not model.tied_embeddings:  # the look-up of further tokens needs the table there too
        copy = np.where(layouts.pp > 1, rows * model.hidden / tp, 0.0)
        head = LocalParameters(np.asarray(head.dense + copy), head.expert)
    if workload.lora is None:
        ends = (replace(block, other_dense=block.dense) for block in (embedding, head))
    else:
        ends = (replace(block, frozen_dense=block.dense) for block in (embedding, head))
    first, last = ends
    if model.vision is not None and workload.images:
        first = _joined(first, _vision_parameters(model.vision, layouts, workload))
    for layer in model.mtp_used(workload.mtp_layers):
        last = _joined(last, _prediction_parameters(model, layer, layouts, workload))
    return first, layers, last


def _vision_parameters(tower: VisionTower, layouts: LayoutBatch, workload: Workload) -> LocalParameters:
    """Local parameters of a vision tower and its projector; the tower is frozen unless it is trained too."""
    encoder = local_parameters(tower.tower_parameters(), layouts).dense
    projector = local_parameters(tower.projector_parameters(), layouts).dense
    none = np.zeros_like(encoder)
    if workload.lora is not None:
        both = np.asarray(encoder + projector)
        return LocalParameters(both, none, frozen_dense=both)
    if workload.vision == "trained":
        both = np.asarray(encoder + projector)
        return LocalParameters(both, none, other_dense=both)
    return LocalParameters(np.asarray(encoder + projector), none, frozen_dense=encoder, other_dense=projector)


def _prediction_parameters(
    model: ModelSpec, layer: DecoderLayer, layouts: LayoutBatch, workload: Workload
) -> LocalParameters:
    """Local parameters of one multi-token-prediction step: its decoder layer, projection and norms."""
    extra = model.mtp_extra()
    own = local_parameters(extra, layouts)
    matrix = local_parameters([p for p in extra if isinstance(p, Weight)], layouts).dense
    if workload.lora is not None:
        added = LocalParameters(own.dense, own.expert, own.dense, own.expert, matrix)
    else:
        added = LocalParameters(own.dense, own.expert, packed_dense=matrix, other_dense=np.asarray(own.dense - matrix))
    return _joined(layer_parameters(layer, model.hidden, layouts, workload), added)


def _joined(one: LocalParameters, other: LocalParameters) -> LocalParameters:
    """Both together."""
    return LocalParameters(*(np.asarray(getattr(one, f.name) + getattr(other, f.name)) for f in fields(one)))
