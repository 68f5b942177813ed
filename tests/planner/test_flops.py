"""FLOPs of a step against published formulas."""

import pytest

from hwmodels.errors import InputError
from planner.flops import FORMULAS, formula_of, hardware_flops, model_flops, span
from planner.layout import Layout
from planner.model import load
from planner.model.shape import from_shape
from planner.model.spec import Attention
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


def test_formulas_differ_by_what_they_name() -> None:
    # Llama 2 7B at 4096: causal halves 6 s heads 2d = 6 * 4096 * 32 * 256 a layer; the head is 6 * 4096 * 32000.
    model, tokens = load("llama-2-7b")[0], 4096 * 2
    full, causal, bare, both = (model_flops(model, Workload(4096, 2), FORMULAS[name]) / tokens for name in FORMULAS)
    assert full - causal == pytest.approx(3 * 4096 * 32 * 256 * 32, rel=1e-12)
    assert full - bare == pytest.approx(6 * 4096 * 32000, rel=1e-12)
    assert full - both == pytest.approx(full - causal + full - bare, rel=1e-9)
    assert formula_of(Workload(4096, 2, flop_formula="causal")) == FORMULAS["causal"]
    with pytest.raises(InputError, match="full or causal or full-no-head"):
        Workload(4096, 2, flop_formula="half")


def test_a_causal_window_counts_all_but_the_triangle_at_its_start() -> None:
    # window 4 of 16 tokens: queries see 1, 2, 3, 4, 4, ... keys; in the continuum 4 - 16/32 = 3.5
    a = Attention(1, 1, 64, window=4)
    assert span(a, 16.0, FORMULAS["causal"]) == 3.5
    assert span(a, 16.0) == 4.0
    # an encoder has no mask, a chunk ends its own sequence
    assert span(Attention(1, 1, 64, causal=False), 16.0, FORMULAS["causal"]) == 16.0
    assert span(Attention(1, 1, 64, chunk=8), 16.0, FORMULAS["causal"]) == 4.0


def test_prediction_steps_add_a_layer_a_projection_and_the_head_again() -> None:
    model, _ = load("llama-2-7b")
    layer = 4 * 4096**2 + 3 * 4096 * 11008
    attention = 6 * 512 * 32 * 256
    more = 6 * (layer + 2 * 4096**2 + 4096 * 32000) + attention
    each = [model_flops(model, Workload(512, 1, mtp_layers=n)) / 512 for n in (0, 1, 2)]
    assert each[1] - each[0] == pytest.approx(more, rel=1e-12)
    assert each[2] - each[0] == pytest.approx(2 * more, rel=1e-12)
    # recomputation runs the layer and the projection again, not the head
    hidden = hardware_flops(model, Workload(512, 1, mtp_layers=1), Layout(recompute="full")) / 512 - each[1]
    assert hidden == pytest.approx(33 * (2 * layer + attention / 3) + 4 * 4096**2, rel=1e-12)


def test_scans_count_as_megatron_counts_them() -> None:
    # hybrid_flops: 7 d_inner d_state forward a token; here 16384 x 256 in 54 layers, four taps on 20480 channels
    model, _ = load("nemotron-h-56b")
    scans = sum(layer.recurrent is not None for layer in model.layers)
    assert scans == 54
    a, m = Attention(64, 8, 128), 8192
    matrices = 54 * (m * (2 * 16384 + 2 * 8 * 256 + 256) + 16384 * m) + 54 * 2 * m * 32768
    matrices += 10 * (2 * m * a.n_heads * 128 + 2 * m * 8 * 128) + m * 131072
    mixing = 54 * (7 * 16384 * 256 + 2 * 4 * (16384 + 4096)) + 10 * 2 * 1024 * 64 * 256
    assert model_flops(model, Workload(1024, 1)) == pytest.approx(1024 * 3 * (2 * matrices + mixing), rel=1e-12)
