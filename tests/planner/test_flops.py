"""FLOPs of a step against published formulas."""

import pytest

from planner.flops import hardware_flops, model_flops
from planner.layout import Layout
from planner.model import load
from planner.model.shape import from_shape
from planner.plan import Workload


def test_gpt_flops_are_the_formula_of_sc21() -> None:
    # Narayanan et al. 2021, equation 3: 96 B s l h^2 (1 + s/6h + V/16lh) with full recomputation, of which
    # 24 B s l h^2 (1 + s/6h) is the forward run again; without it 72 B s l h^2 (1 + s/6h + V/12lh).
    b, s, layers, h, v = 8, 2048, 24, 2304, 51200
    model = from_shape(name="gpt", layers=layers, hidden=h, heads=24, ffn_hidden=4 * h, vocab=v, seq_len=s)
    workload = Workload(s, b, "fp16")
    without = 72 * b * s * layers * h**2 * (1 + s / (6 * h) + v / (12 * layers * h))
    again = 24 * b * s * layers * h**2 * (1 + s / (6 * h))
    assert model_flops(model, workload) == pytest.approx(without, rel=1e-12)
    assert hardware_flops(model, workload, Layout(recompute="full")) == pytest.approx(without + again, rel=1e-12)
    # Selective recomputation runs the attention core again: 4 B s^2 l h.
    assert hardware_flops(model, workload, Layout(recompute="selective")) == pytest.approx(
        without + 4 * b * s**2 * layers * h, rel=1e-12
    )


def test_experts_count_only_those_a_token_meets() -> None:
    # Mixtral 8x7B, one token of a sequence of 1: attention q,o 2 x 4096^2, k,v 2 x 4096 x 1024, router 4096 x 8,
    # 2 experts x 3 x 4096 x 14336, 32 layers, head 4096 x 32000; 6 FLOPs each; attention 6 x 1 x 32 x 256.
    model, _ = load("mixtral-8x7b")
    layer = 2 * 4096**2 + 2 * 4096 * 1024 + 4096 * 8 + 2 * 3 * 4096 * 14336
    matrices = 32 * layer + 4096 * 32000
    expected = 6 * matrices + 6 * 32 * 32 * 256
    assert model_flops(model, Workload(1, 1)) == pytest.approx(expected, rel=1e-12)


def test_windows_bound_the_attention_span() -> None:
    model, _ = load("gemma3-27b")
    short, long = model_flops(model, Workload(1024, 1)) / 1024, model_flops(model, Workload(8192, 1)) / 8192
    globals_, local = (
        sum(x.attention.window is None for x in model.layers),
        sum(x.attention.window is not None for x in model.layers),
    )
    a = model.layers[0].attention
    per_token = 6 * a.n_heads * (a.qk_dim + a.v_dim)
    window = next(x.attention.window for x in model.layers if x.attention.window)
    assert long - short == pytest.approx(
        per_token * (globals_ * (8192 - 1024) + local * (window - min(window, 1024))), rel=1e-9
    )
