"""Model state, stage sums and memory against hand-worked bytes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hwmodels.cluster import load
from planner.frameworks import get
from planner.layout import Layout, LayoutBatch, RuleContext, check, split_id
from planner.model import load as load_model
from planner.model.shape import from_shape
from planner.model.spec import Attention, DecoderLayer, ModelSpec, Moe
from planner.plan import Workload
from planner.priced import price_model
from planner.stages import layer_counts, over_stages
from planner.state import block_parameters, local_parameters, state_bytes
from planner.step.assemble import dag_groups, group_memory


def gpt(layers: int = 8) -> ModelSpec:
    return from_shape(
        name="gpt", layers=layers, hidden=1024, heads=16, ffn_hidden=4096, vocab=8192, seq_len=512, tied=False
    )


def peak(model: ModelSpec, layout: Layout, workload: Workload, cluster: str) -> dict[str, np.ndarray]:
    priced = price_model(model, workload, LayoutBatch.of([layout]), load(cluster))
    index, pp, vpp, schedule, *_ = next(dag_groups(priced, np.arange(1)))
    return {k: v[0] for k, v in group_memory(priced, index, pp, vpp, schedule).by_category.items()}


def test_one_rank_holds_every_parameter_once() -> None:
    for name in ("gpt2", "llama-3.1-8b", "mixtral-8x7b", "deepseek-v2-lite"):
        model, _ = load_model(name)
        embedding, layers, head = block_parameters(model, LayoutBatch.of(Layout()), Workload(512, 8))
        each = dict(zip(model.layer_kinds(), layers, strict=True))
        total = float(embedding.all + head.all) + sum(float(each[layer].all) for layer in model.layers)
        assert total == model.parameters, name


def test_expert_parameters_go_over_ep_and_etp_not_tp() -> None:
    # 8 experts x 3 x 512 x 256 over ep 4 x etp 2; the rest (attention 4 x 512^2, router 512 x 8) over tp 2 or whole.
    layer = DecoderLayer(Attention(8, 8, 64), Moe(8, 2, 256))
    batch = LayoutBatch.of(Layout(tp=2, sp=1, dp=4, ep=4, etp=2))
    found = local_parameters(layer.parameters(512), batch)
    assert float(found.expert) == 8 * 3 * 512 * 256 / (4 * 2)
    assert float(found.dense) == 4 * 512**2 / 2 + 512 * 8 + 2 * 512


@pytest.mark.parametrize(
    ("stage", "parameters", "gradients", "optimizer"),
    [(0, 2, 4, 12), (1, 2, 4, 12 / 8), (2, 2, 4 / 8, 12 / 8), (3, 2 / 8, 4 / 8, 12 / 8)],
)
def test_zero_shards_optimizer_then_gradients_then_parameters(
    stage: int, parameters: float, gradients: float, optimizer: float
) -> None:
    # ZeRO (arXiv 1910.02054): 2 + 2 + 12 bytes in fp16 Adam; here gradients are kept in fp32.
    found = state_bytes(
        Workload(512, 8), LayoutBatch.of(Layout(dp=8, zero_stage=stage)), get("generic"), np.asarray(8.0), 1
    )
    assert (float(found.parameters), float(found.gradients), float(found.optimizer)) == (
        parameters,
        gradients,
        optimizer,
    )


def test_fp32_training_has_one_copy_of_the_weights() -> None:
    found = state_bytes(Workload(512, 8, "fp32"), LayoutBatch.of(Layout()), get("ours"), np.asarray(1.0), 1)
    assert (float(found.parameters), float(found.gradients), float(found.optimizer)) == (4.0, 4.0, 8.0)


def test_stage_sums_put_embedding_first_and_head_last() -> None:
    model = gpt(8)
    values = [np.asarray([3.0])], np.asarray([10.0]), np.asarray([100.0])
    default = np.asarray([0])
    found = over_stages(model, 2, 2, "interleaved-1f1b", default, *values)
    assert found.tolist() == [[[6 + 10, 6], [6, 6 + 100]]]
    assert layer_counts(model, 2, 2, "interleaved-1f1b", default).tolist() == [[[[2, 2], [2, 2]]]]
    # V: rank 0 holds stages 0 and 3, so both ends. DualPipe: both ranks hold both stages in full.
    assert over_stages(model, 2, 2, "zb-v", default, *values).tolist() == [[[6 + 10, 6 + 100], [6, 6]]]
    both = [[[12 + 10, 12 + 100], [12 + 100, 12 + 10]]]
    assert over_stages(model, 2, 1, "dualpipe", default, *values).tolist() == both


def test_stage_sums_of_uneven_splits() -> None:
    """8 layers of 3 as 1, 3, 4 and embedding alone, 8, head alone, in one batch."""
    model = gpt(8)
    splits = np.asarray([split_id((1, 3, 4)), split_id((0, 8, 0)), split_id((1, 3, 4))])
    values = [np.asarray([3.0, 3.0, 5.0])], np.asarray(10.0), np.asarray(100.0)
    found = over_stages(model, 3, 1, "1f1b", splits, *values)
    assert found[:, :, 0].tolist() == [[3 + 10, 9, 12 + 100], [10, 24, 100], [5 + 10, 15, 20 + 100]]
    assert layer_counts(model, 3, 1, "1f1b", splits)[:, 0, :, 0].tolist() == [[1, 3, 4], [0, 8, 0], [1, 3, 4]]


def test_dualpipe_holds_parameters_gradients_and_optimizer_twice() -> None:
    workload = Workload(512, 8, "bf16", "adamw", "generic")
    once = peak(gpt(8), Layout(pp=4), workload, "dgx-a100:1")
    twice = peak(gpt(8), Layout(pp=4, schedule="dualpipe"), workload, "dgx-a100:1")
    for name in ("parameters", "gradients", "optimizer"):
        # rank r: stages r and 3 - r
        assert twice[name] == pytest.approx(once[name] + once[name][::-1], rel=1e-12)
    # Both ends of the model lie on both end ranks, and each direction has a boundary tensor in and out.
    assert twice["logits"].tolist() == [once["logits"][3], 0.0, 0.0, once["logits"][3]]
    assert twice["comm_buffers"] == pytest.approx(2 * once["comm_buffers"])


@settings(deadline=None, max_examples=30)
@given(
    tp=st.sampled_from([1, 2, 4]),
    pp=st.sampled_from([1, 2, 4]),
    stage=st.integers(0, 3),
    recompute=st.sampled_from(["none", "selective", "full"]),
    mbs=st.sampled_from([1, 2]),
)
def test_memory_falls_with_sharding_and_recomputation(tp: int, pp: int, stage: int, recompute: str, mbs: int) -> None:
    model, workload = gpt(8), Workload(512, 64)
    layout = Layout(
        tp=tp, pp=pp, dp=16 // (tp * pp), zero_stage=stage if tp * pp < 16 else 0, recompute=recompute, mbs=mbs
    )
    context = RuleContext(model, workload.gbs, workload.seq_len, 16)
    if not all(bool(v) for v in check(LayoutBatch.of(layout), context).values()):
        return
    found = peak(model, layout, workload, "dgx-a100:2")
    assert all((v >= 0).all() for v in found.values())
    if layout.zero_stage:
        plain = peak(model, Layout(tp=tp, pp=pp, dp=layout.dp, recompute=recompute, mbs=mbs), workload, "dgx-a100:2")
        for name in ("parameters", "gradients", "optimizer"):
            assert (found[name] <= plain[name] + 1e-6).all()
    if recompute == "full" and pp > 1:
        kept = peak(
            model, Layout(tp=tp, pp=pp, dp=layout.dp, zero_stage=layout.zero_stage, mbs=mbs), workload, "dgx-a100:2"
        )
        assert found["activations"][0] <= kept["activations"][0] + 1e-6
