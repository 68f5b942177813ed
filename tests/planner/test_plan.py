"""plan.json: what a built plan says, that it survives a file, and how a spoilt one is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hwmodels.errors import InputError
from planner.layout import Layout, RuleContext, faults
from planner.model import load
from planner.plan import Plan, Prediction, Workload, build_plan
from planner.plan_io import load_plan, plan_from_dict, save_plan

MODEL, CONFIG = load("tiny-llama")


def plan_of(layout: Layout, gbs: int = 8, predicted: Prediction | None = None) -> Plan:
    return build_plan("p", CONFIG, MODEL, "cpu-local", Workload(256, gbs), layout, 8, predicted, {"version": "0.1.0"})


def plain(layout: Layout, gbs: int = 8) -> dict[str, Any]:
    return json.loads(json.dumps(plan_of(layout, gbs).to_dict()))


def refused(content: Any, *expected: str) -> InputError:
    with pytest.raises(InputError) as error:
        plan_from_dict(content, "plan.json")
    for text in expected:
        assert text in str(error.value)
    return error.value


def test_uniform_plan_says_every_part() -> None:
    plan = plan_of(Layout(tp=2, pp=2, dp=2, mbs=2))
    # 4 layers over 2 stages; 8 sequences over dp 2; ranks unfold pp, dp, cp, tp
    assert [stage.layers for stage in plan.stages] == [(0, 1), (2, 3)]
    assert [(s.embedding, s.head, s.rank, s.chunk) for s in plan.stages] == [(True, False, 0, 0), (False, True, 1, 0)]
    assert plan.batch_share == (4, 4)
    assert plan.dense_grid == (("pp", 2), ("dp", 2), ("cp", 1), ("tp", 2))
    assert plan.expert_grid == (("pp", 2), ("edp", 4), ("ep", 1), ("etp", 1))
    # 1F1B with 4 / 2 = 2 micro-batches: rank 0 warms up with one forward
    assert plan.actions == (("0F0", "0F1", "0B0", "0B1"), ("1F0", "1B0", "1F1", "1B1"))
    assert [(p.node, p.gpu) for p in plan.placement] == [(0, g) for g in range(8)]


def test_virtual_stages_loop_over_the_ranks() -> None:
    plan = plan_of(Layout(pp=2, vpp=2, schedule="interleaved-1f1b", mbs=2))
    assert [(s.stage, s.rank, s.chunk, s.layers) for s in plan.stages] == [
        (0, 0, 0, (0,)),
        (1, 1, 0, (1,)),
        (2, 0, 1, (2,)),
        (3, 1, 1, (3,)),
    ]


def test_digest_changes_with_what_runs_and_only_with_that() -> None:
    layout = Layout(dp=2)
    plan = plan_of(layout)
    other = build_plan("another", CONFIG, MODEL, "cpu-local", Workload(256, 8), layout, 8, None, {"seed": 1})
    assert plan.digest() == other.digest()
    assert plan.digest() != plan_of(Layout(dp=2, mbs=2)).digest()


degree = st.sampled_from((1, 2, 4))
floats = st.floats(1e-6, 1e6)


@st.composite
def predictions(draw: st.DrawFn, ranks: int) -> Prediction:
    low, mid, high = sorted(draw(st.tuples(floats, floats, floats)))
    return Prediction(
        mid,
        low,
        high,
        [{"forward": draw(floats)} for _ in range(ranks)],
        [draw(st.integers(0, 2**45)) for _ in range(ranks)],
        [{"parameters": draw(st.integers(0, 2**40))} for _ in range(ranks)],
        draw(floats),
        draw(floats),
        draw(st.none() | floats),
        draw(st.sampled_from(("fits", "at risk"))),
    )


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    tp, pp, dp = draw(degree), draw(degree), draw(degree)
    vpp = 2 if pp == 2 and draw(st.booleans()) else 1
    layout = Layout(
        tp=tp,
        sp=int(tp > 1 and draw(st.booleans())),
        pp=pp,
        vpp=vpp,
        dp=dp,
        zero_stage=draw(st.integers(0, 3)) if dp > 1 else 0,
        mbs=draw(st.sampled_from((1, 2))),
        recompute=draw(st.sampled_from(("none", "selective", "full"))),
        schedule="interleaved-1f1b" if vpp > 1 else draw(st.sampled_from(("1f1b", "gpipe"))),
    )
    gbs = layout.mbs * dp * pp * draw(st.integers(1, 4))
    assert not faults(layout, RuleContext(MODEL, gbs, 256, layout.world))
    return plan_of(layout, gbs, draw(st.none() | predictions(pp)))


@settings(deadline=None, max_examples=60)
@given(plans())
def test_a_plan_survives_its_file(tmp_path_factory: pytest.TempPathFactory, plan: Plan) -> None:
    path = save_plan(plan, tmp_path_factory.mktemp("plan") / "plan.json")
    again = load_plan(path)
    assert again == plan
    assert again.digest() == plan.digest()
    assert next(iter(json.loads(path.read_text()))) == "schema"


@settings(deadline=None, max_examples=150)
@given(plans(), st.data())
def test_a_spoilt_plan_is_read_or_refused_but_never_crashes(plan: Plan, data: st.DataObject) -> None:
    content = json.loads(json.dumps(plan.to_dict()))
    node: Any = content
    for _ in range(data.draw(st.integers(0, 3))):
        inner = [
            k
            for k, v in (node.items() if isinstance(node, dict) else enumerate(node))
            if isinstance(v, dict | list) and v
        ]
        if not inner:
            break
        node = node[data.draw(st.sampled_from(inner))]
    keys = sorted(node) if isinstance(node, dict) else list(range(len(node)))
    key = data.draw(st.sampled_from(keys))
    if data.draw(st.booleans()):
        del node[key]
    else:
        node[key] = data.draw(st.sampled_from((None, True, -1, 0, 3, 10**9, 1.5, "x", "2", [], [1], {}, {"a": 1})))
    try:
        plan_from_dict(content, "plan.json")
    except InputError as error:
        assert error.faults


def test_types_are_strict_and_all_faults_come_at_once() -> None:
    content = plain(Layout(dp=2))
    content["layout"]["tp"] = "2"
    content["stages"][0]["layers"][1] = None
    content["stagess"] = []
    del content["workload"]["gbs"]
    content["dense_grid"][0] = ["pp"]
    error = refused(
        content,
        "plan.json: layout.tp: is '2' (text) (a whole number without quotes is expected)",
        "plan.json: stages[0].layers[1]: is null",
        "plan.json: stagess: is not a known key",
        "Try: stages",
        "plan.json: workload.gbs: is missing",
        "plan.json: dense_grid[0]: has no entry 1",
    )
    assert len(error.faults) == 5


def test_schema_versions_are_told_apart() -> None:
    content = plain(Layout(dp=2))
    refused({**content, "schema": 2}, "schema: is 2", "reads schema 1", "a newer release")
    refused({**content, "schema": "1"}, "schema: is '1' (text)")
    refused({**content, "schema": True}, "schema: is true")
    del content["schema"]
    refused(content, "schema: is missing")
    refused([], "is a list")


def test_grids_must_multiply_to_the_world() -> None:
    content = plain(Layout(tp=2, dp=2))
    content["dense_grid"] = [["pp", 1], ["dp", 4], ["cp", 1], ["tp", 2]]
    content["expert_grid"] = [["pp", 1], ["ep", 4], ["etp", 1]]
    refused(
        content,
        "dense_grid: multiplies to 8 (the layout has 4 ranks). Try: pp=1 dp=2 cp=1 tp=2",
        "expert_grid: has the axes pp, ep, etp",
    )
    content = plain(Layout(tp=2, dp=2))
    content["dense_grid"] = [["pp", 1], ["dp", 1], ["cp", 1], ["tp", 4]]
    refused(content, "dense_grid: says pp=1 dp=1 cp=1 tp=4 (it contradicts the layout)")


def test_shares_sum_to_the_batch() -> None:
    content = plain(Layout(dp=2, mbs=2))
    content["batch_share"] = [4, 3]
    refused(content, "batch_share: sums to 7 (gbs is 8)", "batch_share[1]: is 3", "multiple of 2")
    content["batch_share"] = [8]
    refused(content, "has 1 entries (there are dp=2 ranks)")


def test_uneven_shares_and_stages_are_legal() -> None:
    content = plain(Layout(dp=2, mbs=2))
    content["batch_share"] = [6, 2]
    assert plan_from_dict(content).batch_share == (6, 2)
    content = plain(Layout(pp=2, mbs=2))
    content["stages"][0]["layers"], content["stages"][1]["layers"] = [0], [1, 2, 3]
    content["stages"][1]["recompute"] = "full"
    assert plan_from_dict(content).stages[1].layers == (1, 2, 3)


@pytest.mark.parametrize(
    "layout",
    [
        Layout(pp=2, mbs=2, schedule="zb-h1"),
        Layout(pp=2, vpp=2, mbs=2, schedule="zb-v"),
        Layout(pp=2, vpp=2, mbs=2, schedule="dualpipe-v", stage_layers=(0, 1, 3, 0)),
        Layout(pp=2, mbs=2, schedule="dualpipe", stage_layers=(3, 1)),
    ],
    ids=lambda layout: layout.label(),
)
def test_every_schedule_and_split_makes_a_sound_plan(layout: Layout) -> None:
    plan = plan_from_dict(plain(layout))
    assert plan.layout == layout
    held = tuple(len(stage.layers) for stage in plan.stages[: layout.pp * layout.vpp])
    assert not layout.stage_layers or held == layout.stage_layers


def test_a_v_and_two_copies_lie_where_their_schedules_say() -> None:
    stages = plan_of(Layout(pp=2, vpp=2, mbs=2, schedule="zb-v")).stages
    place = [(s.rank, s.chunk, s.embedding, s.head) for s in stages]
    assert place == [(0, 0, True, False), (1, 0, False, False), (1, 1, False, False), (0, 1, False, True)]
    stages = plan_of(Layout(pp=2, mbs=2, schedule="dualpipe", stage_layers=(3, 1))).stages
    assert [(s.rank, s.layers, s.embedding, s.head) for s in stages] == [
        (0, (0, 1, 2), True, False), (1, (3,), False, True), (1, (0, 1, 2), True, False), (0, (3,), False, True),
    ]  # fmt: skip


def test_what_contradicts_a_split_or_a_copy_is_named() -> None:
    content = plain(Layout(pp=2, mbs=2, stage_layers=(3, 1)))
    content["layout"]["stage_layers"] = [1, 3]
    refused(content, "stages: hold 3,1 layers (layout.stage_layers says 1,3)")
    content = plain(Layout(pp=2, mbs=2, schedule="dualpipe"))
    content["stages"][3]["layers"] = [2]
    refused(content, "stages: do not cover the model: layers [3] are missing")
    content = plain(Layout(pp=2, mbs=2, schedule="dualpipe"))  # micro-batches 0 and 1 one way, 2 and 3 the other
    content["actions"][0] = [text.replace("0F1", "0F2") for text in content["actions"][0]]
    refused(content, "stage 0 runs 2 forwards", "0 to 1, each once")


def test_stages_cover_all_layers_once_in_order() -> None:
    content = plain(Layout(pp=2, mbs=2))
    content["stages"][1]["layers"] = [2]
    refused(content, "stages: do not cover the model: layers [3] are missing")
    content["stages"][1]["layers"] = [3, 2]
    refused(content, "out of order or twice")
    content = plain(Layout(pp=2, mbs=2))
    content["stages"][0].update(rank=1, head=True, recompute="some")
    refused(content, "stages[0]: is chunk 0 of rank 1", "stages[0].head: is true", "stages[0].recompute: is 'some'")
    del content["stages"][1]
    refused(content, "lists 1 stages, not 0 to 1 in order")


def test_actions_run_every_micro_batch_both_ways() -> None:
    content = plain(Layout(pp=2, mbs=4))  # two micro-batches
    content["actions"][0] = ["0F0", "0F1", "0B0", "1B1"]
    content["actions"][1][0] = "1G0"
    refused(
        content,
        "actions[0][3]: is '1B1' (rank 0 does not hold stage 1)",
        "actions[1][0]: is '1G0'",
        "stage 0, micro-batch 1 has no backward",
        "stage 1 runs 1 forwards (the batch has 2 micro-batches for it)",
    )
    content = plain(Layout(pp=2, mbs=4))
    content["actions"][0] = ["0F0", "0F0", "0F1", "0B0", "0I1", "0W1"]
    error = refused(content, "runs 0F0 more than once")
    assert len(error.faults) == 1  # I and W together are a backward
    content["actions"] = []
    refused(content, "actions: is empty (pp=2 ranks need an order of actions)")


def test_placement_seats_each_rank_once() -> None:
    content = plain(Layout(dp=2))
    content["placement"][1]["gpu"] = 0
    refused(content, "puts 2 ranks on node 0, GPU 0")
    content["placement"][1]["rank"] = 0
    refused(content, "lists 2 ranks, not each of 0 to 1 in order")


def test_layout_rules_hold_and_name_themselves() -> None:
    content = plain(Layout(dp=2))
    content["layout"].update(tp=3)
    refused(content, "plan.json: layout: tp=3 does not divide the attention heads", "[tp-heads]")
    content = plain(Layout(dp=2))
    content["layout"]["dp"] = 0
    refused(content, "dp=0", "[degrees-positive]")


def test_the_model_is_checked_under_its_path() -> None:
    content = plain(Layout(dp=2))
    content["model"]["hidden_size"] = "512"
    content["workload"]["precision"] = "fp9"
    refused(content, "plan.json: model: hidden_size: is '512'", "workload.precision: is 'fp9'", "bf16 or fp16 or")


def test_a_sequence_longer_than_the_learned_positions() -> None:
    gpt2, config = load("gpt2")
    plan = build_plan("p", config, gpt2, "cpu-local", Workload(2048, 8), Layout(dp=2), 8)
    refused(plan.to_dict(), "plan.json: workload.seq_len: seq_len is 2048 (gpt2 has 1024 learned positions)")


def test_predictions_match_the_ranks() -> None:
    content = plain(Layout(dp=2))
    content["predicted"] = {
        "step_s": 1.0,
        "step_low_s": 2.0,
        "step_high_s": 3.0,
        "phases": [{}, {}],
        "peak_bytes": [1],
        "memory": [{}],
        "mfu": 0.1,
        "tokens_per_s_per_gpu": 1.0,
        "usd_per_mtoken": None,
        "verdict": "fits",
    }
    refused(content, "predicted.phases: has 2 entries", "predicted.step_s: is 1.0 in [2.0, 3.0]")


def test_serving_plans_need_roles_and_training_plans_have_none() -> None:
    content = plain(Layout(dp=2))
    refused({**content, "kind": "serving"}, "roles: is empty")
    refused({**content, "roles": [{"role": "decode"}]}, "roles: is not empty")
    assert plan_from_dict({**content, "kind": "serving", "roles": [{"role": "decode"}]}).kind == "serving"


def test_files_that_are_no_plan(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        load_plan(tmp_path / "plan.json")
    (tmp_path / "plan.json").write_text('{"schema": 1,')
    with pytest.raises(InputError, match=r"plan.json:1:14: is not valid JSON"):
        load_plan(tmp_path / "plan.json")
    (tmp_path / "plan.json").write_text('{"schema": 1, "schema": 1}')
    with pytest.raises(InputError, match="'schema' is given twice"):
        load_plan(tmp_path / "plan.json")
