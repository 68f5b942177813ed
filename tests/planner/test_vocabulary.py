"""Padding of the vocabulary: Megatron's rule, and frameworks without one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner import frameworks
from planner.layout import Layout, LayoutBatch
from planner.model.shape import from_shape
from planner.plan import Workload
from planner.state import block_parameters
from planner.vocabulary import padded_vocab


def gpt(vocab: int, *, tied: bool = True):
    return from_shape(name="gpt", layers=2, hidden=256, heads=4, ffn_hidden=1024, vocab=vocab, seq_len=128, tied=tied)


@pytest.mark.parametrize(
    ("vocab", "tp", "rows"),
    [(50257, 1, 50304), (50257, 8, 51200), (51200, 8, 51200), (250_000, 8, 250_880), (250_000, 4, 250_368)],
)
def test_megatron_pads_to_128_rows_a_rank(vocab, tp, rows):
    # GPT-2's 50257 become 50304 on one rank and 51200 on eight; BLOOM's 250k become 250880 on eight.
    assert padded_vocab(gpt(vocab), frameworks.get("megatron"), tp) == rows


def test_pytorch_pads_nothing():
    assert list(padded_vocab(gpt(50257), frameworks.get("fsdp2"), np.array([1, 8]))) == [50257, 50257]


@given(st.integers(1, 300_000), st.sampled_from([1, 2, 4, 8, 16]), st.sampled_from([1, 64, 128]))
def test_padding_is_the_least_that_aligns(vocab, tp, multiple):
    preset = replace(frameworks.get("megatron"), vocab_multiple=multiple)
    rows = float(padded_vocab(gpt(vocab), preset, tp))
    assert vocab <= rows < vocab + multiple * tp
    assert rows % (multiple * tp) == 0


@pytest.mark.parametrize("tied", [True, False])
def test_a_rank_holds_its_share_of_the_padded_table(tied):
    # 943 rows of padding over 8 ranks, 256 wide: 30176 elements more in the embedding, and in a head of its own.
    layouts = LayoutBatch.of(Layout(tp=8))
    plain, padded = (
        block_parameters(gpt(50257, tied=tied), layouts, Workload(128, 8, framework=name))
        for name in ("fsdp2", "megatron")
    )
    added = 943 * 256 / 8
    assert float(padded[0].dense - plain[0].dense) == added
    assert float(padded[2].dense - plain[2].dense) == (0.0 if tied else added)
