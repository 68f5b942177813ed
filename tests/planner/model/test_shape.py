"""Models from bare figures."""

from __future__ import annotations

import pytest

from hwmodels.errors import InputError
from planner.model import load
from planner.model.shape import from_shape
from planner.model.spec import Attention, LatentAttention, Moe


def test_gpt_defaults_equal_the_catalog_entry() -> None:
    spec = from_shape(name="GPT-22B", layers=48, hidden=6144, heads=64, vocab=51200, seq_len=2048)
    known = load("megatron-22b")[0]
    assert spec.parameters == known.parameters
    assert spec.layers[0].attention == Attention(64, 64, 96, qkv_bias=True, out_bias=True)


def test_llama_shape_equals_the_catalog_entry() -> None:
    spec = from_shape(
        name="L",
        layers=80,
        hidden=8192,
        heads=64,
        kv_heads=8,
        ffn_hidden=28672,
        gated=True,
        vocab=128256,
        seq_len=8192,
        attention="gqa",
        learned_positions=False,
        norm="rms",
        bias=False,
        tied=False,
    )
    known = load("llama-3-70b")[0]
    assert spec.parameters == known.parameters
    assert spec.layers == known.layers


def test_deepseek_shape_equals_the_catalog_entry() -> None:
    spec = from_shape(
        name="D",
        layers=61,
        hidden=7168,
        heads=128,
        ffn_hidden=18432,
        gated=True,
        vocab=129280,
        seq_len=4096,
        n_experts=256,
        topk=8,
        moe_ffn_hidden=2048,
        shared_experts=1,
        n_dense_layers=3,
        attention="mla",
        learned_positions=False,
        norm="rms",
        bias=False,
        tied=False,
    )
    assert spec.parameters == 671_026_404_352
    assert isinstance(spec.layers[0].attention, LatentAttention)
    assert isinstance(spec.layers[3].ffn, Moe)


def test_experts_default_to_the_dense_width() -> None:
    moe = (
        from_shape(name="M", layers=2, hidden=64, heads=4, vocab=10, seq_len=8, ffn_hidden=96, n_experts=4, topk=2)
        .layers[0]
        .ffn
    )
    assert isinstance(moe, Moe)
    assert moe.ffn_hidden == 96


def test_all_contradictions_are_told_at_once() -> None:
    with pytest.raises(InputError) as error:
        from_shape(
            name="bad",
            layers=2,
            hidden=65,
            heads=4,
            kv_heads=3,
            vocab=0,
            seq_len=8,
            n_experts=2,
            topk=3,
            n_dense_layers=5,
        )
    text = str(error.value)
    for part in (
        "vocab: is 0",
        "4 heads do not divide hidden=65",
        "3 key-value heads",
        "topk=3 of 2",
        "n_dense_layers=5 of 2",
    ):
        assert part in text
    assert len(error.value.faults) == 5
