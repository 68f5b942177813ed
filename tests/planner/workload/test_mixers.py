"""Recurrent mixers, encoders, prediction steps and images: sizes of their ops by hand."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest

from hwmodels.cluster import load as load_cluster
from hwmodels.errors import InputError
from planner import frameworks
from planner.layout import Layout, LayoutBatch
from planner.model import load
from planner.model.spec import DecoderLayer, DeltaNet, Mamba1, Mamba2, ModelSpec
from planner.plan import Workload
from planner.predict import predict
from planner.workload.delta_rule import BACKWARD, FORWARD
from planner.workload.lower import Lowered, lower
from planner.workload.op import Op

H, S = 512, 1024


def lowered(model: ModelSpec, layout: Layout, work: Workload | None = None) -> Lowered:
    work = work or Workload(S, 16, framework="megatron")
    return lower(model, work, LayoutBatch.of(layout), frameworks.of(work))


def model_of(mixer: Mamba1 | Mamba2 | DeltaNet) -> ModelSpec:
    return ModelSpec("one", "test", H, 1024, (DecoderLayer(mixer, None, n_norms=1),))


def total(ops: Iterable[Op], names: tuple[str, ...], phase: str) -> float:
    """FLOPs of the ops of a phase whose names begin so."""
    chosen = (op for op in ops if op.phase == phase and op.name.startswith(names) and op.kind != "collective")
    return float(sum(op.flops() * np.asarray(op.count) for op in chosen))


def named(ops: Iterable[Op], name: str) -> Op:
    return next(op for op in ops if op.name == name)


def test_chunked_scan_of_mamba2_by_hand() -> None:
    # 8 heads of 128, 4 groups, state 64, chunks of 128: forward a token 2 (G Q N + H Q P + 2 H N P)
    q, p, n, heads, groups = 128, 128, 64, 8, 4
    ops = lowered(model_of(Mamba2(heads, p, groups, n, 4, q)), Layout()).layers[0].ops
    scan = ("mixer.scores", "mixer.states", "mixer.within", "mixer.across", "mixer.b_grad", "mixer.c_grad")
    assert total(ops, scan, "forward") == S * 2 * (groups * q * n + heads * q * p + 2 * heads * n * p)
    # backward: C B^T again and its two factors (3 G Q N), x within chunks and d(C B^T) (2 H Q P), and five of H N P:
    # states again, their gradient, x across chunks, B and C
    backward = S * 2 * (3 * groups * q * n + 2 * heads * q * p + 5 * heads * n * p)
    assert total(ops, scan, "backward_input") == backward
    # in projection: z and x (1024 each), B and C (256 each), dt (8); out 1024 x 512
    assert named(ops, "mixer.in").dims["n"] == 2 * 1024 + 2 * 256 + 8
    assert named(ops, "mixer.o").dims["k"] == 1024
    # states of 128 x 64 a head and chunk: written in fp32, read and written again in bf16
    assert named(ops, "mixer.pass").dims["nbytes"] == S / q * heads * p * n * (4 + 2)


def test_mamba2_under_tp_and_cp() -> None:
    # tp 2 leaves 4 heads and 2 groups; cp 4 has each group on two ranks: B and C go out twice as wide
    ops = lowered(model_of(Mamba2(8, 128, 4, 64, 4, 128)), Layout(tp=2, cp=4)).layers[0].ops
    tokens, sent = S / 4, 2 * 512 + 2 * 4 * 64 + 4
    there = named(ops, "mixer.to_heads")
    assert np.asarray(there.count) * there.dims["nbytes"] == pytest.approx(2 * tokens * sent)
    assert there.count == 5.0
    assert named(ops, "mixer.to_tokens").dims["nbytes"] == 2 * tokens * 512
    assert named(ops, "mixer.conv").dims["nbytes"] == 2 * 2 * tokens * (512 + 2 * 4 * 64)


def test_what_mamba2_saves() -> None:
    # norm input and the projection's (512 each), zxBCdt (2568), the scan's output and the out projection's input
    block = lowered(model_of(Mamba2(8, 128, 4, 64, 4, 128)), Layout()).layers[0]
    assert block.saved_bytes == S * 2 * (512 + 512 + 2568 + 1024 + 1024)
    assert block.saved_full_bytes == S * 2 * 512


def test_gated_delta_rule_by_hand() -> None:
    # C = 64, K = 64, V = 128: forward a token and head 2 (3 C K + 2 C V + 3 K V) and the inverse's C²/3
    c, k, v, heads = 64.0, 64.0, 128.0, 8
    size = {"C": c, "K": k, "V": v}
    each = {name: np.prod([size[d] for d in dims]) for name, dims in {**FORWARD, **BACKWARD}.items()}
    assert sum(each[n] for n in FORWARD) / c == 3 * c * k + 2 * c * v + 3 * k * v
    mixer = DeltaNet(4, heads, 64, 128, 4)
    ops = lowered(model_of(mixer), Layout()).layers[0].ops
    names = tuple(f"mixer.{n}" for n in ("kk", "w", "u", "k_v", "q", "solve"))
    expected = S * heads * (2 * (3 * c * k + 2 * c * v + 3 * k * v) + c * c / 3)
    assert total(ops, names, "forward") == pytest.approx(expected)


def test_mamba_projects_steps_twice_and_reduces_their_rank() -> None:
    ops = lowered(model_of(Mamba1(1024, 16, 4, 32)), Layout(tp=4)).layers[0].ops
    assert named(ops, "mixer.x").dims["n"] == 32 + 2 * 16
    assert named(ops, "mixer.x.all_reduce").dims["nbytes"] == 2 * S * 64
    again, once = named(ops, "mixer.dt.again"), named(ops, "mixer.dt")
    assert (again.flops(), again.phase) == (once.flops(), "backward_input")


def test_encoders_run_every_pair() -> None:
    model, _ = load("vit-base")
    ops = lowered(model, Layout(mbs=8), Workload(197, 64, framework="megatron")).layers[0].ops
    core = named(ops, "attention.core")
    assert core.dims["causal"] is False
    assert core.flops() == 4 * 8 * 12 * 197 * 197 * 64  # two products of 64 features for each pair
    ends = lowered(model, Layout(mbs=8), Workload(197, 64, framework="megatron"))
    patch = named(ends.embedding.ops, "embedding.patch")
    assert (patch.dims["m"], patch.dims["n"], patch.dims["k"]) == (8 * 196, 768, 3 * 16 * 16)
    assert not [op for op in ends.embedding.ops if op.name == "embedding.patch.dgrad"]
    assert named(ends.head.ops, "classifier").dims["m"] == 8
    with pytest.raises(InputError, match=r"one image: 196 patches and a class token.*seq_len 197"):
        predict(model, load_cluster("dgx-h100:1"), Workload(512, 64), Layout(dp=8))


def test_prediction_steps_run_the_head_once_more() -> None:
    model, _ = load("deepseek-v3")
    work = Workload(4096, 16, framework="megatron", mtp_layers=1)
    layout = Layout()
    plain, more = lowered(model, layout, Workload(4096, 16, framework="megatron")), lowered(model, layout, work)
    heads = [op for op in more.head.ops if op.name == "head"]
    assert len(heads) == 2 and heads[0].dims["n"] == 129280
    assert more.head.logits_bytes == 2 * plain.head.logits_bytes
    assert named(more.head.ops, "mtp.proj").dims["k"] == 2 * 7168
    # its parameters: a routed layer, 2 h x h, three norms
    sparse = sum(p.parameters for p in model.layers[-1].parameters(7168))
    assert model.mtp_parameters == sparse + 2 * 7168**2 + 3 * 7168


def test_images_run_before_the_text() -> None:
    model, _ = load("llava-1.5-7b")
    assert model.vision is not None
    assert model.vision.image_tokens == 576  # 336 / 14 squared
    work = Workload(2048, 16, framework="megatron", images=2.0)
    ops = lowered(model, Layout(), work).embedding.ops
    # 2 images of 576 patches through 24 layers (here all at once), 1024 x 4096 and 4096 x 4096 behind them
    assert named(ops, "vision.projector_0_0").dims["m"] == 2 * 576
    assert named(ops, "attention.qkv").count == model.vision.n_layers
    assert not [op for op in ops if op.name.startswith("attention") and op.phase != "forward"]
    trained = lowered(model, Layout(), Workload(2048, 16, framework="megatron", images=2.0, vision="trained"))
    assert [op for op in trained.embedding.ops if op.name == "attention.qkv.wgrad"]
    cluster = load_cluster("dgx-h100:1")
    with pytest.raises(InputError, match="4 images of 576 tokens"):
        predict(model, cluster, Workload(2048, 16, images=4.0), Layout(dp=8))
    with pytest.raises(InputError, match="no vision tower"):
        predict(load("llama-2-7b")[0], cluster, Workload(2048, 16, images=1.0), Layout(dp=8))
