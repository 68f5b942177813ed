"""The ends of encoders: patches that come in, a classifier or a masked-language-model head that goes out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from planner.model.spec import PatchEmbedding
from planner.workload.context import Shapes
from planner.workload.op import Block, Op
from planner.workload.split import output_gradients

FloatArray = NDArray[np.float64]


def patch_ops(name: str, patch: PatchEmbedding, images: FloatArray, s: Shapes) -> tuple[list[Op], FloatArray]:
    """Cutting images into patches, their product with one matrix, and adding positions; bytes saved.

    Pixels are read and written once as rows of a matrix; they need no gradient, so backward is the weight's alone.
    Every tp rank runs the whole product (``nn.Linear`` in Megatron-LM ``vit_backbone.py``).
    """
    rows = np.asarray(images * patch.patches)
    n_in = float(patch.channels * patch.frames * patch.patch * patch.patch)
    hidden, w = float(s.model.hidden), s.width
    linear = s.linear(f"{name}.patch", rows, np.asarray(n_in), np.asarray(hidden), quantised=False)
    ops = [s.memory(f"{name}.cut", "forward", 2.0 * w * rows * n_in)]
    ops += [op for op in linear if op.phase != "backward_input"]
    tokens = images * patch.tokens * hidden
    mask = 1.0 if s.preset.dropout else 0.0
    ops.append(s.memory(f"{name}.positions", "forward", tokens * (3.0 * w + mask), kernels=2.0))
    if s.lora is not None:
        return ops, np.zeros(())
    ops.append(s.memory(f"{name}.positions.grad", "backward_input", tokens * (2.0 * w + mask)))
    return ops, np.asarray(w * rows * n_in + tokens * mask)


def image_embedding(patch: PatchEmbedding, s: Shapes) -> Block:
    """What stands before the layers of a ViT: one image is one sequence."""
    ops, saved = patch_ops("embedding", patch, s.sequences, s)
    kept = tuple(replace(op, rerun="never") for op in ops)
    return Block("embedding", kept, saved, weight_bytes=np.asarray(saved + output_gradients(ops, s)))


def classifier(norm: list[Op], s: Shapes) -> Block:
    """Final norm, a matrix on the first token of each sequence, and cross-entropy over the classes.

    The matrix is whole on every tp rank; with sequence parallel the first rank holds the token and the others wait.
    """
    hidden, classes = np.asarray(float(s.model.hidden)), np.asarray(float(s.model.n_classes))
    linear = s.linear("classifier", s.sequences, hidden, classes, quantised=False)
    small = s.sequences * classes
    ops = [
        *norm,
        *linear,
        s.memory("loss", "forward", small * (8.0 + s.width), kernels=2.0, impl="cross_entropy"),
        s.memory("loss.grad", "backward_input", small * (12.0 + s.width), kernels=2.0, impl="cross_entropy_backward"),
    ]
    row, first = s.tokens_sp * s.model.hidden * s.width, s.keeps_input("classifier", s.sequences, hidden)
    saved = np.asarray(row + first)
    waiting = np.asarray((saved if s.preset.split_keeps_graph else first) + output_gradients(ops, s))
    kept = tuple(replace(op, rerun="never") for op in ops)
    held, most, last = (np.asarray(small * (s.width + more)) for more in (4.0, 8.0, 12.0))  # PyTorch's operators
    return Block(
        "head", kept, saved, logits_bytes=held, weight_bytes=waiting, logits_forward_bytes=most,
        logits_backward_bytes=last,
    )


def transform(norm: list[Op], s: Shapes) -> tuple[list[Op], FloatArray]:
    """Dense layer, GELU and layer norm before the matrix of BERT's head, whole on every tp rank; bytes saved.

    Source: ``BertPredictionHeadTransform`` of transformers, Megatron-LM ``BertLMHead``.
    """
    hidden = np.asarray(float(s.model.hidden))
    row = s.tokens_sp * hidden * s.width
    ops = s.linear("head.transform", s.tokens_sp, hidden, hidden, quantised=False)
    ops += [
        s.memory("head.gelu", "forward", 2.0 * row, impl="gelu"),
        s.memory("head.gelu.grad", "backward_input", 3.0 * row),
        *norm,
    ]
    return ops, np.asarray(2.0 * row + s.keeps_input("head.transform", s.tokens_sp, hidden, quantised=False))
