"""why: what differs between two predicted steps, against sums worked out by hand and the predictions themselves."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hwmodels import cluster as clusters
from planner import model as models
from planner.layout import Layout
from planner.plan import Workload
from planner.predict import predict
from planner.results import Interval, LinkBytes, StageMemory, Step
from planner.why import Told, difference

MODEL, _ = models.load("llama-3-8b")
WORKLOAD = Workload(8192, 64, framework="megatron")
PIPELINE = Layout(tp=2, sp=1, pp=4, dp=4, mbs=1, zero_stage=1)
WIDE = Layout(tp=4, sp=1, pp=1, dp=8, mbs=1, zero_stage=1)


def told(layout: Layout, workload: Workload = WORKLOAD, cluster: str = "dgx-h100:4", name: str = "a") -> Told:
    step = predict(MODEL, clusters.load(cluster), workload, layout, explain=True)
    return Told(name, MODEL.name, cluster, workload, layout, step, workload.gbs * workload.seq_len)


def made(seconds: float, phases: list[dict[str, float]], spread: float = 0.0, **more: object) -> Step:
    """A step with the figures that a case needs."""
    memory = [StageMemory(0, {"parameters": 100, "activations": 50}, 1000), StageMemory(1, {"parameters": 90}, 1000)]
    span = Interval(seconds * (1 - spread), seconds, seconds * (1 + spread))
    step = Step(span, seconds, seconds, phases, {}, 0.0, memory, 1e15, 1e15, 0.5, 0.5, 10.0, None, "fits")
    return replace(step, **more)  # type: ignore[arg-type]


def by_hand(layout: Layout, step: Step, workload: Workload = WORKLOAD, name: str = "a") -> Told:
    return Told(name, "m", "c", workload, layout, step, workload.gbs * workload.seq_len)


def test_phases_are_means_over_the_ranks_and_their_gaps_add_up() -> None:
    one = made(10.0, [{"forward": 6.0, "bubble": 4.0}, {"forward": 10.0, "bubble": 0.0}])
    other = made(12.0, [{"forward": 12.0}, {"forward": 4.0, "bubble": 8.0}])
    layout = replace(PIPELINE, pp=2, dp=8)
    found = difference(by_hand(layout, one), by_hand(layout, other))
    assert {p.phase: (p.one_s, p.other_s, p.gap_s) for p in found.phases} == {
        "forward": (8.0, 8.0, 0.0), "bubble": (2.0, 4.0, -2.0)
    }  # fmt: skip
    assert [p.phase for p in found.phases] == ["bubble", "forward"]
    assert found.seconds == (10.0, 12.0)
    assert found.gap == pytest.approx(10 / 12 - 1)
    assert found.memory == [("parameters", 100, 100), ("activations", 50, 50)]


def test_unlike_batches_are_compared_by_gpu_seconds_of_a_million_tokens() -> None:
    double = replace(WORKLOAD, gbs=128)
    one = by_hand(WIDE, made(10.0, [{"forward": 10.0}]))
    other = by_hand(WIDE, made(16.0, [{"forward": 16.0}]), double)
    found = difference(one, other)
    # 32 GPUs: 10 s for 64 x 8192 tokens, 16 s for twice as many
    assert found.per_mtoken
    assert found.seconds[0] == pytest.approx(32 * 10 / (64 * 8192 / 1e6))
    assert found.seconds[1] == pytest.approx(32 * 16 / (128 * 8192 / 1e6))
    assert found.seconds[0] / found.seconds[1] == pytest.approx(1.25)
    assert ("gbs", "64", "128") in found.fields


@pytest.mark.parametrize(("spread", "apart"), [(0.05, True), (0.15, False)])
def test_the_order_is_certain_where_intervals_are_apart(spread: float, apart: bool) -> None:
    one, other = (by_hand(WIDE, made(s, [{"forward": s}], spread)) for s in (10.0, 12.0))
    assert difference(one, other).certain is apart  # 10.5 < 11.4, but 11.5 > 10.2
    assert difference(other, one).certain is apart


def test_ops_are_means_over_the_ranks_and_those_on_streams_are_left_to_their_phase() -> None:
    def row(op: str, exposed: float | None, runs: int, block: str = "layer") -> dict[str, object]:
        return {"block": block, "op": op, "phase": "forward", "exposed_s": exposed, "runs_per_step": runs,
                "seconds_each": 0.5}  # fmt: skip

    rows = [row("qkv", 8.0, 16), row("norm", 1.0, 4, "step"), row("boundary.send", None, 8, "step")]
    one = made(10.0, [{"forward": 10.0}] * 2, explain=rows)
    other = made(10.0, [{"forward": 10.0}] * 2, explain=rows[1:])
    layout = replace(PIPELINE, pp=2, dp=8)
    found = difference(by_hand(layout, one), by_hand(layout, other)).ops
    # qkv: 8 s over both ranks are 4 of each, 8 of its 16 runs; the norm is equal and not told
    assert [(o.op, o.one_s, o.other_s, o.runs, o.each_s) for o in found] == [
        ("layer qkv", 4.0, 0.0, (8.0, 0.0), (0.5, 0.0))
    ]


def test_a_predicted_gap_is_explained_whole_by_phases() -> None:
    found = difference(told(PIPELINE), told(WIDE))
    gap = found.seconds[0] - found.seconds[1]
    assert gap != 0.0
    assert sum(p.gap_s for p in found.phases) == pytest.approx(gap, rel=1e-9)
    why = {p.phase: p.why for p in found.phases}
    assert "pp 4" in why["bubble"] and "no pipeline" in why["bubble"]
    assert "tp 2 sp" in why["tp_comm"] and "tp 4 sp" in why["tp_comm"]


def test_exposed_compute_of_the_ops_adds_up_to_the_phase() -> None:
    """Rows of one stage, all of them: with pp 1 forward ops are what the phase holds."""
    one = told(WIDE)
    rows = [r for r in one.step.explain if r["phase"] == "forward" and r["kind"] != "all_gather"]
    compute = sum(r["exposed_s"] for r in rows if r["group"] == "")
    assert compute == pytest.approx(one.step.phases[0]["forward"], rel=0.02)


def test_a_plan_against_itself_differs_in_nothing() -> None:
    one = told(PIPELINE)
    found = difference(one, one)
    assert found.gap == 0.0 and not found.fields and not found.ops
    assert all(p.gap_s == 0.0 and not p.why for p in found.phases)


def test_another_cluster_is_named() -> None:
    found = difference(told(WIDE), told(WIDE, cluster="dgx-a100:4"))
    assert ("cluster", "dgx-h100:4", "dgx-a100:4") in found.fields
    assert found.gap < 0.0


def test_sent_bytes_are_those_of_the_steps() -> None:
    one, other = told(PIPELINE), told(WIDE)
    gaps = {p.phase: p.sent for p in difference(one, other).phases}
    assert gaps["tp_comm"] == (one.step.traffic["tp_comm"], other.step.traffic["tp_comm"])
    assert gaps["pp_comm"] == (one.step.traffic["pp_comm"], LinkBytes(0.0, 0.0))


@settings(max_examples=12, deadline=None)
@given(
    first=st.sampled_from([(1, 1), (2, 2), (4, 1), (8, 2)]),
    second=st.sampled_from([(1, 2), (2, 1), (4, 4), (8, 1)]),
    recompute=st.sampled_from(["none", "full"]),
)
def test_swapping_the_two_turns_every_sign(first: tuple[int, int], second: tuple[int, int], recompute: str) -> None:
    layouts = [
        Layout(tp=tp, sp=int(tp > 1), pp=pp, dp=32 // tp // pp, zero_stage=1, recompute=recompute)
        for tp, pp in (first, second)
    ]
    one, other = map(told, layouts)
    there, back = difference(one, other), difference(other, one)
    gaps = [{p.phase: p.gap_s for p in d.phases} for d in (there, back)]
    assert gaps[0] == {phase: -gap for phase, gap in gaps[1].items()}
    assert sum(gaps[0].values()) == pytest.approx(there.seconds[0] - there.seconds[1], rel=1e-9)
    assert {o.op: o.gap_s for o in there.ops} == {o.op: -o.gap_s for o in back.ops}
