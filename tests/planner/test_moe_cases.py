"""What people ran into with experts, and what a good answer says (cases C020, C025, C061, C063, C107)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hwmodels.errors import InputError
from planner import frameworks
from planner.cli.inputs import load_cluster
from planner.elements import stage_elements
from planner.layout import Layout, LayoutBatch, RuleContext, both_grids, faults, validate
from planner.model import load as load_model
from planner.model.spec import Moe
from planner.predict import predict
from planner.routing import Routing
from planner.training import Workload


def test_c020_fp8_gains_little_for_small_experts() -> None:
    """Qwen3-30B-A3B on 16 H100: 240.5 TFLOP/s in BF16, 242.9 in blockwise FP8; a flat 2x would be wrong."""
    model, cluster = load_model("qwen3-30b-a3b")[0], load_cluster("dgx-h100:2")
    layout = Layout(dp=16, ep=8, zero_stage=1)
    seconds = [
        predict(model, cluster, Workload(4096, 512, precision, framework="megatron"), layout).step_s.mid
        for precision in ("bf16", "fp8-block")
    ]
    assert 0.8 < seconds[0] / seconds[1] < 1.3


def test_c025_an_exchange_that_leaves_the_node_is_flagged_and_its_gain_bounded() -> None:
    """Mixtral 8x7B on 16 H100: EP8 beside TP4 lies on both nodes unless the experts fold onto the tensor ranks."""
    model, cluster = load_model("mixtral-8x7b")[0], load_cluster("dgx-h100:2")
    work = Workload(4096, 128, framework="megatron")
    apart = predict(model, cluster, work, Layout(tp=4, sp=1, dp=4, ep=8, etp=2, zero_stage=1))
    note = next(n for n in apart.notes if "leaves the node" in n)
    assert "16 ranks of ETP x EP lie on 2 nodes" in note
    assert "etp=1" in note and "larger mbs" in note
    share = max(p["ep_comm"] for p in apart.phases) / apart.step_s.mid
    assert f"{share:.0%}" in note
    inside = predict(model, cluster, work, Layout(tp=4, sp=1, dp=4, ep=8, zero_stage=1))
    assert not any("leaves the node" in n for n in inside.notes)
    assert inside.step_s.mid < apart.step_s.mid


def test_c061_three_kinds_of_parameters_shard_apart() -> None:
    """Tensor-sharded, replicated (norms, router) and routed experts over ETP x EP, on their own data ranks."""
    model = replace(load_model("mixtral-8x7b")[0], vocab=32768)  # no rows to pad
    work, preset = Workload(4096, 64, framework="megatron"), frameworks.get("megatron")

    def held(layout: Layout) -> tuple[float, float]:
        found = stage_elements(model, work, LayoutBatch.of([layout]), preset, 1, 1, "1f1b")
        return float(found.dense.all.sum()), float(found.expert.all.sum())

    experts = 32 * 8 * 3 * 4096 * 14336
    norms_and_routers = 32 * (2 * 4096 + 4096 * 8) + 4096
    whole = held(Layout())
    assert whole[1] == experts
    split = held(Layout(tp=4, sp=1, dp=4, ep=8))
    assert split[1] == experts / 8  # not over tp
    assert split[0] == pytest.approx((whole[0] - norms_and_routers) / 4 + norms_and_routers, rel=1e-12)
    assert held(Layout(tp=4, sp=1, dp=4, ep=4, etp=2))[1] == experts / 8
    batch = LayoutBatch.of(Layout(tp=4, sp=1, dp=4, ep=8))
    assert int(batch.edp) == 2  # 16 ranks, of which 8 hold different experts


def test_c063_expert_weights_are_divided_over_the_expert_grid() -> None:
    """384 experts on EP8: a rank holds 48 of them, an eighth of their weight."""
    base = load_model("deepseek-v3")[0]
    layer = next(x for x in base.layers if x.is_moe)
    assert isinstance(layer.ffn, Moe)
    wide = replace(base, layers=(replace(layer, ffn=replace(layer.ffn, n_experts=384)),), mtp_layers=())
    work, preset = Workload(4096, 64, framework="megatron"), frameworks.get("megatron")
    found = stage_elements(wide, work, LayoutBatch.of([Layout(dp=8, ep=8)]), preset, 1, 1, "1f1b")
    assert float(found.expert.all.sum()) == 48 * 3 * 7168 * 2048


@pytest.mark.parametrize(
    ("layout", "world", "dense", "expert"),
    [
        # 8 GPUs, ETP1 EP8 PP2: 4 ranks a stage cannot hold a grid of 8
        (Layout(pp=2, dp=4, ep=8), 8, "TP1 x CP1 x DP4 x PP2", "ETP1 x EP8 x EDP? x PP2"),
        # 4 GPUs, TP4 EP4 where ETP silently followed TP: 4 x 4 = 16
        (Layout(tp=4, sp=1, ep=4, etp=4), 4, "TP4 x CP1 x DP1 x PP1", "ETP4 x EP4 x EDP? x PP1"),
    ],
)
def test_c107_both_grids_stand_side_by_side(layout: Layout, world: int, dense: str, expert: str) -> None:
    model = load_model("mixtral-8x7b")[0]
    context = RuleContext.of(model, Workload(4096, 64), world)
    found = next(f for f in faults(layout, context) if f.rule == "ep-grid")
    assert dense in found.why and expert in found.why
    assert found.fix == ("ep in 1, 2, 4" if layout.etp == 1 else "ep in 1, or etp in 1 with ep=4")


def test_c107_what_works_is_printed_too() -> None:
    assert both_grids(Layout(tp=4, sp=1, dp=4, ep=8)) == (
        "attention TP4 x CP1 x DP4 x PP1, experts ETP1 x EP8 x EDP2 x PP1"
    )
    model, cluster = load_model("mixtral-8x7b")[0], load_cluster("dgx-h100:2")
    step = predict(model, cluster, Workload(4096, 128), Layout(tp=4, sp=1, dp=4, ep=8))
    assert any("experts ETP1 x EP8 x EDP2 x PP1" in n for n in step.notes)


OVERLAP = (("moe_exchange_overlap", "true"),)


@pytest.mark.parametrize(
    ("layout", "work", "rule"),
    [
        (Layout(pp=2, dp=8, ep=8), Workload(4096, 64, switches=OVERLAP), "moe-overlap-stages"),
        (Layout(dp=16, ep=8, recompute="full"), Workload(4096, 64, switches=OVERLAP), "moe-overlap-recompute"),
        (
            Layout(dp=16, ep=8),
            Workload(4096, 64, routing=Routing(1.0, 1.25, True), switches=(("moe_dispatcher", "deepep"),)),
            "moe-capacity-dispatcher",
        ),
    ],
)
def test_rules_of_the_exchange(layout: Layout, work: Workload, rule: str) -> None:
    model = load_model("mixtral-8x7b")[0]
    context = RuleContext.of(model, work, 16)
    assert [f.rule for f in faults(layout, context)] == [rule]
    plain = Workload(4096, 64)
    validate(layout, RuleContext.of(model, plain, 16))
    dense = load_model("llama-3.1-8b")[0]  # no experts, nothing to overlap
    assert rule not in {f.rule for f in faults(Layout(pp=layout.pp, dp=layout.dp), RuleContext.of(dense, work, 16))}


def test_a_skewed_step_is_slower_and_says_what_it_lacks() -> None:
    model, cluster = load_model("mixtral-8x7b")[0], load_cluster("dgx-h100:2")
    layout = Layout(dp=16, ep=8, zero_stage=1)

    def step_of(routing: Routing, **switches: str):  # type: ignore[no-untyped-def]
        work = Workload(4096, 128, framework="megatron", routing=routing, switches=tuple(switches.items()))
        return predict(model, cluster, work, layout)

    even, uneven = step_of(Routing()), step_of(Routing(skew=1.5))
    assert even.step_s.mid < uneven.step_s.mid < 1.5 * even.step_s.mid
    assert any("no measured evidence for uneven" in n for n in uneven.notes)
    assert not any("uneven" in n for n in even.notes)
    assert step_of(Routing(1.5, 1.0)).step_s.mid == pytest.approx(even.step_s.mid)


def test_overlap_hides_the_exchange_but_in_the_first_and_last_micro_batch() -> None:
    model, cluster = load_model("mixtral-8x7b")[0], load_cluster("dgx-h100:2")
    layout = Layout(dp=16, ep=8, zero_stage=1)

    def exposed(**switches: str) -> float:
        work = Workload(4096, 128, framework="megatron", switches=tuple(switches.items()))  # 8 micro-batches
        return predict(model, cluster, work, layout).phases[0]["ep_comm"]

    plain, hidden = exposed(), exposed(moe_exchange_overlap="true")
    # One of 8 forwards and backwards runs alone; the others are hidden but for the SMs that they take.
    assert plain / 8 <= hidden < plain / 2


def test_unknown_dispatchers_name_the_known_ones() -> None:
    with pytest.raises(InputError, match="alltoall, allgather, deepep, hybridep"):
        frameworks.of(Workload(512, 8, switches=(("moe_dispatcher", "ring"),)))


def test_the_expert_grid_is_an_axis() -> None:
    size, stride = LayoutBatch.of(Layout(tp=2, sp=1, dp=8, ep=4, etp=2)).axis("ep_etp")
    assert (int(size), int(np.asarray(stride))) == (8, 1)
