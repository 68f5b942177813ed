"""Tensor-parallel collectives in pieces beside their GEMMs: which, how many, and how much is hidden."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hwmodels import cluster as clusters
from planner.frameworks import get
from planner.layout import Layout, LayoutBatch
from planner.model.shape import from_shape
from planner.plan import Workload
from planner.price import PIECES_HIDDEN, USER_BUFFERS, USER_BUFFERS_HIDDEN, price_block, price_op
from planner.workload.lower import lower
from planner.workload.op import Block, Op

MODEL = from_shape(name="m", layers=2, hidden=1024, heads=16, ffn_hidden=4096, vocab=64, seq_len=2048)
CUT = replace(get("megatron"), tp_gemm_overlap=True)


def layer(sp: int, preset: object = CUT) -> dict[str, Op]:
    batch = LayoutBatch.of([Layout(tp=4, sp=sp)])
    return {op.name: op for op in lower(MODEL, Workload(2048, 8), batch, preset).layers[0].ops}  # type: ignore[arg-type]


def test_userbuffers_cut_what_transformer_engine_cuts() -> None:
    # TE module/base.py: qkv, fc1 fprop gather; proj, fc2 fprop reduce-scatter; proj, fc2 dgrad gather; the rest in bulk
    cut = {name for name, op in layer(1).items() if op.kind == "collective" and np.any(op.pieces)}
    assert cut == {
        f"{block}.{suffix}"
        for block, suffix in (
            ("attention.qkv", "all_gather"), ("mlp.up", "all_gather"), ("attention.o", "reduce_scatter"),
            ("mlp.down", "reduce_scatter"), ("attention.o", "grad_all_gather"), ("mlp.down", "grad_all_gather"),
        )
    }  # fmt: skip
    gemms = {name: (float(np.max(op.count)), float(np.max(op.dims["m"]))) for name, op in layer(1).items()
             if op.kind == "gemm" and np.max(op.count) > 1}  # fmt: skip
    # four pieces of 2048/4 rows
    assert gemms == dict.fromkeys(
        ("attention.qkv", "mlp.up", "attention.o", "mlp.down", "attention.o.dgrad", "mlp.down.dgrad"), (4.0, 512.0)
    )


def test_nothing_is_cut_without_sequence_parallelism_or_without_the_switch() -> None:
    for ops in (layer(0), layer(1, get("megatron"))):
        assert all(np.max(op.count) <= 1 for op in ops.values() if op.kind == "gemm")


@pytest.mark.parametrize(("collective", "sent", "covered"), [("all_gather", 3, 3), ("reduce_scatter", 4, 3)])
def test_seconds_by_hand(collective: str, sent: int, covered: int) -> None:
    """Four pieces; the GEMM's are longer: all pieces of a gather and all but one of a reduction run beside one."""
    cluster = clusters.load("dgx-h100:1")
    batch = LayoutBatch.of([Layout(tp=4, sp=1)])
    gemm = Op("g", "gemm", "forward", {"m": 8192.0, "n": 8192.0, "k": 8192.0}, count=np.asarray([4.0]), impl="vidur")
    move = Op("c", "collective", "forward", {"nbytes": np.asarray([1e8])}, group="tp", collective=collective,
              behind="g", pieces=np.asarray([4.0]))  # fmt: skip
    c, g = (float(price_op(op, cluster, batch).mid[0]) for op in (move, gemm))
    assert c / sent < g / 4
    found = price_block(Block("b", (gemm, move)), cluster, batch, CUT, ()).forward
    hidden = float(found.hidden_s["tp"][0])
    # nothing more is hidden than the pieces beside others; what they take from the GEMM is exposed
    assert 0.5 * PIECES_HIDDEN.value * covered * c / sent < hidden <= PIECES_HIDDEN.value * covered * c / sent
    assert float(found.comm_s["tp"][0]) + hidden == pytest.approx(c)


def test_user_buffers_hide_what_their_own_share_says() -> None:
    """The same layer with Transformer Engine's pieces: more hidden by the ratio of the shares, nothing else moved."""
    batch, cluster, hidden = LayoutBatch.of([Layout(tp=4, sp=1)]), clusters.load("dgx-h100"), []
    for user_buffers in (False, True):
        preset = replace(CUT, user_buffers=user_buffers)
        block = lower(MODEL, Workload(2048, 8), batch, preset).layers[0]
        pieces = [op for op in block.ops if np.any(op.pieces) and op.kind == "collective"]
        assert {op.impl for op in pieces} == ({USER_BUFFERS} if user_buffers else {""})
        hidden.append(float(price_block(block, cluster, batch, preset, ()).forward.hidden_s["tp"][0]))
    assert hidden[1] / hidden[0] == pytest.approx(USER_BUFFERS_HIDDEN.value / PIECES_HIDDEN.value)
