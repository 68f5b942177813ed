"""Multi-token prediction: steps behind the decoder that predict further tokens, on the last stage.

Each step norms the hidden state and the embedding of the next token, projects both together to the width of
the model, runs one decoder layer, and shares embedding and head with the model (DeepSeek-V3, arXiv 2412.19437,
section 2.2; Megatron-Core ``multi_token_prediction.py``, ``--mtp-num-layers``). Its loss is weighted and added: the
weight changes no work.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from planner.model.spec import DecoderLayer
from planner.workload.context import Shapes
from planner.workload.op import Block, Op, Piece
from planner.workload.split import output_gradients

FloatArray = NDArray[np.float64]


def with_prediction(
    head: Block,
    layers: tuple[DecoderLayer, ...],
    s: Shapes,
    layer_block: Callable[[DecoderLayer], Block],
    norm: Callable[[str], list[Op]],
) -> Block:
    """The head with the prediction steps before it: their ops, bytes and logits.

    Each step ends in another pass of final norm, head and loss, whose logits stay until the backward as the main
    ones do. A policy of whole layers checkpoints norms, projection and layer together (``_checkpointed_forward``), a
    selective one works inside the layer as in any other.

    Parameters
    ----------
    layer_block, norm
        Lower one decoder layer, and one norm over the residual width of the given name.
    """
    found = head
    for layer in layers:
        found = _joined(found, head, _step(layer_block(layer), s, norm))
    return found


def _joined(found: Block, head: Block, step: Block) -> Block:
    """Sums of what a head already holds, one more pass of it, and one prediction step; no policy works on the head."""
    first = not found.pieces

    def total(name: str) -> FloatArray:
        kept = "saved_bytes" if name.startswith("saved") else name
        own = getattr(found, kept if first else name)
        return np.asarray(own + getattr(head, kept) + getattr(step, name))

    return replace(
        found,
        ops=(*found.ops, *step.ops, *head.ops),
        saved_bytes=total("saved_bytes"),
        saved_full_bytes=total("saved_full_bytes"),
        saved_op_bytes=total("saved_op_bytes"),
        pieces=(*(found.pieces or (Piece(head.saved_bytes),)), Piece(head.saved_bytes), *step.pieces),
        weight_bytes=total("weight_bytes"),
        logits_bytes=np.asarray(found.logits_bytes + head.logits_bytes),
        # the losses run one after the other: what one makes stands beside what the others keep
        logits_forward_bytes=np.asarray(found.logits_forward_bytes + head.logits_bytes),
        logits_backward_bytes=np.asarray(found.logits_backward_bytes + head.logits_bytes),
    )


def _step(layer: Block, s: Shapes, norm: Callable[[str], list[Op]]) -> Block:
    """Look-up, norms, projection and decoder layer of one step.

    The projection is split by columns and its output gathered over tp; with sequence parallel each rank goes on with
    its rows, and gathers their gradient backward.
    """
    hidden = float(s.model.hidden)
    row, whole = s.tokens_sp * hidden * s.width, s.tokens * hidden * s.width
    trained = s.lora is None
    looked = [s.memory("mtp.lookup", "forward", 2.0 * whole), *s.leave_tp("mtp.embedding", quantised=False)]
    ops = [replace(op, rerun="never") for op in looked]
    if trained:
        ops.append(s.memory("mtp.lookup.grad", "backward_weight", 3.0 * whole))
    ops += [*norm("mtp.embedding_norm"), *norm("mtp.hidden_norm")]
    for name, phase in (("mtp.join", "forward"), ("mtp.join.grad", "backward_input")):
        ops.append(s.memory(name, phase, 4.0 * row))  # type: ignore[arg-type]
    ops += s.enter_tp("mtp.proj", features=2 * s.model.hidden)
    ops += s.linear("mtp.proj", s.tokens, np.asarray(2.0 * hidden), np.asarray(hidden / s.tp))
    everywhere = np.ones(np.shape(s.tp), dtype=np.bool_)
    ops.append(s.tp_collective("mtp.proj.gather", "all_gather", "forward", when=everywhere))
    ops.append(s.tp_collective("mtp.proj.grad_gather", "all_gather", "backward_input", when=s.sp))
    joined = s.keeps_input("mtp.proj", s.tokens_saved, 2.0 * hidden)
    own = np.asarray(s.tokens * 8.0 * float(trained) + 2.0 * row + joined)
    gradients = output_gradients(ops, s)
    return Block(
        "mtp",
        (*ops, *layer.ops),
        saved_bytes=np.asarray(own + layer.saved_bytes),
        saved_full_bytes=np.asarray(s.tokens * 8.0 * float(trained) + 2.0 * row),
        saved_op_bytes=np.asarray(own + layer.saved_op_bytes),
        pieces=(Piece(own), *layer.pieces),
        weight_bytes=np.asarray((own if s.preset.split_keeps_graph else joined) + gradients + layer.weight_bytes),
    )
