"""The vision tower of a multimodal model, on the first stage: an encoder over patches and the projector behind it.

A rank runs the images of its micro-batch, shared out over cp, through a tower split over tp like any encoder, without
sequence parallelism; each image's projected tokens replace as many of the text's. A frozen tower runs forward
alone and keeps nothing; its projector is trained (LLaVA, arXiv 2304.08485, section 4.2: both stages train the
projector) and needs no gradient of its input. Beneath adapters both are frozen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hwmodels.errors import Fault, InputError
from planner.model.spec import DecoderLayer, ModelSpec, VisionTower
from planner.plan import Workload
from planner.workload.context import Shapes
from planner.workload.encoder import patch_ops
from planner.workload.op import Block, Op
from planner.workload.split import output_gradients

FloatArray = NDArray[np.float64]
LowerLayer = Callable[[DecoderLayer, Shapes], Block]


def require_images(model: ModelSpec, workload: Workload) -> None:
    """Raise `InputError` where a model takes no images, or a sequence is not what its images make of it."""
    if model.patches is not None and workload.tokens_per_sequence != model.patches.tokens:
        token = " and a class token" if model.patches.class_token else ""
        what, why = f"seq_len is {workload.seq_len}", f"a sequence is one image: {model.patches.patches} patches{token}"
        raise InputError(Fault(what, "workload.seq_len", why, f"seq_len {model.patches.tokens}"))
    if not workload.images:
        return
    where = "workload.images"
    if model.vision is None:
        why = f"{model.name} has no vision tower"
        raise InputError(Fault(f"images is {workload.images:g}", where, why, "images 0"))
    tokens, room = model.vision.image_tokens, workload.tokens_per_sequence
    if tokens * workload.images > room:
        what = f"{workload.images:g} images of {tokens} tokens"
        why = f"they are part of a sequence, which has {room:.0f}"
        raise InputError(Fault(what, where, why, f"seq_len {int(tokens * workload.images) + 1} or more"))


def tower_layer(tower: VisionTower) -> DecoderLayer:
    """One layer of the encoder."""
    return DecoderLayer(tower.attention, tower.ffn, norm="layer", norm_bias=True)


def with_images(embedding: Block, tower: VisionTower, workload: Workload, s: Shapes, layer_block: LowerLayer) -> Block:
    """The embedding with the tower and projector of a micro-batch's images before it."""
    images = np.asarray(s.sequences * workload.images / s.cp)
    trained = workload.vision == "trained" and s.lora is None
    ops, saved, waiting = _tower(tower, images, s, trained, layer_block)
    more, kept, late = _projector(tower, images, s, trained)
    never = tuple(replace(op, rerun="never") for op in (*ops, *more))
    return replace(
        embedding,
        ops=(*embedding.ops, *never),
        saved_bytes=np.asarray(embedding.saved_bytes + saved + kept),
        weight_bytes=np.asarray(embedding.weight_bytes + waiting + late),
    )


def _tower(
    tower: VisionTower, images: FloatArray, s: Shapes, trained: bool, layer_block: LowerLayer
) -> tuple[list[Op], FloatArray, FloatArray]:
    """Ops of patches and layers, bytes saved, and bytes between I and W."""
    tokens, one = np.asarray(images * tower.patch.tokens), np.ones(np.shape(s.tp))
    model = ModelSpec("tower", "vision", tower.hidden, 0, (), norm="layer", norm_bias=True)
    inside = replace(
        s, model=model, sequences=images, seq=np.full(np.shape(s.tp), float(tower.patch.tokens)), tokens=tokens,
        tokens_sp=tokens, sp=np.zeros(np.shape(s.tp), dtype=np.bool_), cp=one, cp_inner=one, cp_outer=one,
        cp_gathers=np.zeros(np.shape(s.tp), dtype=np.bool_), seq_len=float(tower.patch.tokens),
        attended=float(tower.patch.tokens), lora=None,
    )  # fmt: skip
    block = layer_block(tower_layer(tower), inside)
    patches, first = patch_ops("vision", tower.patch, images, inside)
    layers = [replace(op, count=np.asarray(op.count) * tower.n_layers) for op in block.ops]
    if not trained:
        return [op for op in (*patches, *layers) if op.phase == "forward"], np.zeros(()), np.zeros(())
    saved = np.asarray(first + tower.n_layers * block.saved_bytes)
    waiting = np.asarray(first + output_gradients(patches, inside) + tower.n_layers * block.weight_bytes)
    return [*patches, *layers], saved, waiting


def _projector(
    tower: VisionTower, images: FloatArray, s: Shapes, trained: bool
) -> tuple[list[Op], FloatArray, FloatArray]:
    """Matrices with GELU between them, and writing their rows into the text's embedding."""
    rows = np.asarray(images * tower.image_tokens)
    inside = replace(s, tokens=rows, tokens_sp=rows, sp=np.zeros(np.shape(s.tp), dtype=np.bool_))
    ops: list[Op] = []
    saved: FloatArray = np.zeros(())
    w, last = s.width, len(tower.projector) - 1
    for copy in range(tower.mergers):
        for i, weight in enumerate(tower.projector):
            name = f"vision.projector_{copy}_{i}"
            found = inside.linear(name, rows, s.local_in(weight), s.local_out(weight), quantised=False)
            if i == 0 and not trained:
                found = [op for op in found if op.phase != "backward_input"]
            ops += found
            saved = saved + inside.keeps_input(name, rows, s.local_in(weight), quantised=False)
            if weight.shard == "row":
                ops += inside.leave_tp(name, quantised=False)
            if i < last:
                nbytes = w * rows * s.local_out(weight)
                ops.append(s.memory(f"{name}.gelu", "forward", 2.0 * nbytes, impl="gelu"))
                ops.append(s.memory(f"{name}.gelu.grad", "backward_input", 3.0 * nbytes))
                saved = saved + nbytes
        row = w * rows * s.model.hidden
        ops.append(s.memory(f"vision.merge_{copy}", "forward", 2.0 * row))
        ops.append(s.memory(f"vision.merge_{copy}.grad", "backward_input", 2.0 * row))
    if s.lora is not None:
        return [op for op in ops if op.phase == "forward"], np.zeros(()), np.zeros(())
    return ops, np.asarray(saved), np.asarray(saved + output_gradients(ops, s))
