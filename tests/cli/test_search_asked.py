"""Conditions, objectives, fronts, deadlines and why not, through the command line."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

ASKED = (
    "search", "--model", "gpt2", "--cluster", "dgx-a100:1", "--seq-len", "1024", "--gbs", "32", "--cp", "1", "--fsdp",
    "0", "--mbs", "1,2", "--tp", "1,2,4", "--pp", "1,2", "--vpp", "1", "--sp", "0", "--zero-stage", "0,1",
    "--recompute", "none",
)  # fmt: skip


def test_conditions_filter_and_are_echoed(call) -> None:
    found = call(*ASKED, "--where", "tp <= 2", "--where", "microbatches >= 4 and peak_memory <= 40GiB", "--json")
    assert found.code == 0
    plans = json.loads(found.out)["plans"]
    assert plans and all(p["tp"] <= 2 and p["microbatches"] >= 4 and p["peak_bytes"] <= 40 * 2**30 for p in plans)
    shown = call(*ASKED, "--where", "tp <= 2")
    assert "limits    tp <= 2" in shown.out and "constraint:tp <= 2" in shown.out


def test_an_objective_of_a_run_is_shown_with_its_unit(call) -> None:
    words = ("--objective", "train_kwh", "--tokens", "10B", "--grid", "100g/kWh", "--pue", "1.1")
    shown = call(*ASKED, *words)
    assert shown.code == 0 and "layouts by train kwh, best first" in shown.out and "kWh to train" in shown.out
    assert "10,000,000,000 tokens, 0.1 kg CO2 per kWh, PUE 1.1" in shown.out
    plans = json.loads(call(*ASKED, *words, "--json").out)["plans"]
    assert [p["train_kwh"] for p in plans] == sorted(p["train_kwh"] for p in plans)


def test_a_front_is_a_table_a_scatter_and_rows_with_their_values(call, tmp_path: Path) -> None:
    shown = call(*ASKED, "--pareto", "step_time,peak_memory", "--out", tmp_path / "front")
    assert shown.code == 0 and "the front of step time, peak memory" in shown.out
    assert "peak memory upwards, step time to the right" in shown.out and "proven" in shown.out
    with open(tmp_path / "front" / "layouts.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    times = [float(row["step_time"]) for row in rows]
    peaks = [float(row["peak_memory"]) for row in rows]
    assert times == sorted(times) and peaks == sorted(peaks, reverse=True)
    content = json.loads(call(*ASKED, "--pareto", "step_time,peak_memory", "--json").out)
    assert content["objectives"] == ["step_time", "peak_memory"] and content["optimal"]


def test_a_scenario_states_all_of_it(call, tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(
        "model: gpt2\ncluster: dgx-a100:1\nworkload: {seq_len: 1024, gbs: 32}\n"
        "search: {cp: 1, fsdp: 0, mbs: [1, 2], tp: [1, 2], vpp: 1, recompute: none, precision: [bf16, fp16]}\n"
        'constraints: ["tp == 1", "train_time <= 300d"]\npareto: [step_time, memory_headroom]\n'
        "target: {tokens: 10B, grid: 0.1kg/kWh}\n"
    )
    content = json.loads(call("search", path, "--json").out)
    assert content["objectives"] == ["step_time", "memory_headroom"]
    assert {plan["tp"] for plan in content["plans"]} == {1}
    ranked = json.loads(call("search", path, "--objective", "train_usd", "--json").out)
    assert ranked["objectives"] == ["train_usd"]
    shown = call("search", path, "--objective", "step_time", "--top", "4")
    assert " bf16 " in shown.out and " fp16 " in shown.out  # what is varied stands beside the layout


@pytest.mark.parametrize(
    ("words", "what", "fix"),
    [
        (("--where", "tpp <= 8"), "--where: unknown name 'tpp'", "tp or pp"),
        (("--where", "peak_memory <= 70"), "70 has no unit", "70GiB"),
        (("--objective", "speed"), "--objective: objective 'speed' is unknown", "step_time"),
        (("--objective", "train_time"), "train_time is of a run", "--tokens 15T"),
        (("--where", "train_usd <= 100"), "train_usd is of a run", "--tokens 15T"),
        (("--pareto", "step_time"), "--pareto: 1 different objectives", "--pareto step_time,peak_memory"),
        (("--pareto", "step_time,speed"), "objective 'speed' is unknown", "step_time"),
        (("--pareto", "step_time,mfu", "--objective", "mfu"), "--objective and --pareto are both given", "one of"),
        (("--tokens", "many"), "--tokens: tokens 'many' is no count", "15T"),
        (("--grid", "0.2"), "--grid: '0.2' is no CO2", "0.2kg/kWh"),
        (("--pue", "0.9"), "--pue: 0.9 is no PUE", "1 to 2"),
        (("--deadline", "30"), "duration '30' has no unit", "--deadline 30s"),
        (("--deadline", "30d"), "train_time is of a run", "--tokens 15T"),
        (("--why", "tp=4", "--save", "1"), "--why beside --save", "--why alone"),
        (("--why", "tp=4", "--tokens", "1B", "--deadline", "30d"), "--why beside --deadline", "--why alone"),
        (("--deadline", "30d", "--tokens", "1B", "--gpus", "8..16"), "a sweep has no --deadline", "without the sweep"),
        (("--why", "tp"), "--why: the end where a comparison belongs", "<="),
        (("--why", "colour=red"), "unknown name 'colour'", "one of"),
    ],
)
def test_bad_input_is_one_message_with_a_way_out(call, words: tuple[str, ...], what: str, fix: str) -> None:
    found = call(*ASKED, *words)
    assert found.code == 2 and found.out == ""
    assert what in found.err and fix in found.err


def test_all_faults_of_what_is_asked_come_at_once(call) -> None:
    found = call(*ASKED, "--where", "tpp <= 8", "--tokens", "0", "--grid", "x", "--pareto", "speed,step_time")
    assert found.code == 2 and found.err.startswith("error: 4 faults\n")


@pytest.mark.parametrize(
    ("words", "binding", "nearest"),
    [
        (("--where", "tp <= 2", "--where", "tp in [4]"), "'tp <= 2' of --where", "without 'tp in [4]'"),
        (("--where", "step_time <= 1us"), "'step_time <= 1us': the best is", '"step_time <= '),
        (("--gbs", "7", "--tp", "1", "--pp", "1"), "gbs-microbatch", "gbs="),
    ],
)
def test_nothing_left_ends_with_3_and_the_nearest_request(call, words, binding: str, nearest: str) -> None:
    found = call(*ASKED, *words)
    assert found.code == 3 and found.out == ""
    assert binding in found.err and nearest in found.err.split("Nearest that fits")[1]


def test_why_not_says_rank_phases_and_what_is_not_searched(call) -> None:
    slower = call(*ASKED, "--why", "tp=4")
    assert slower.code == 0 and "The best layout with tp=4 is tp4" in slower.out and "tp_comm" in slower.out
    content = json.loads(call(*ASKED, "--why", "tp=8", "--json").out)
    assert content["unsearched"] == ["tp=8 is not searched: given are 1, 2, 4"]
    assert "tp divides the attention heads" in content["excluded"] and content["best"] is None


def test_the_fewest_gpus_for_a_deadline(call) -> None:
    # gpt2 on 8 A100 takes some hours for a billion tokens: all 8 are needed for what one node of 8 does
    found = call(*ASKED, "--tokens", "1B", "--deadline", "30d", "--json")
    content = json.loads(found.out)
    assert found.code == 0 and content["gpus"] == 8 and content["train_time"] <= 30 * 86400
    late = call(*ASKED, "--tokens", "1000T", "--deadline", "1d")
    assert late.code == 3 and "the fastest layout" in late.err and "a deadline of" in late.err
    shown = call(*ASKED, "--tokens", "1B", "--deadline", "30d")
    assert "8 GPUs (1 nodes) train it in" in shown.out and "sizes that were searched" in shown.out


def test_objectives_and_names_are_listed(call) -> None:
    assert "train_usd" in call("list", "objectives").out
    names = call("list", "names").out
    assert "microbatches" in names and "zb-h1" in names and "bubble" in names


@pytest.mark.parametrize("range_", ["99999999999999999999999", "1,99999999999", "1073741825..1073741826"])
def test_numbers_beyond_any_layout_are_refused_as_they_are_read(call, range_: str) -> None:
    found = call(*ASKED, "--ep", range_)
    assert found.code == 2 and "is out of range (no field is more than 1,073,741,824)" in found.err


def test_why_names_no_phase_where_nothing_is_slower(call) -> None:
    """A schedule of one stage alone changes nothing."""
    found = call(*ASKED, "--why", "schedule=gpipe pp=1")
    assert found.code == 0 and "most of it" not in found.out
    assert "It is as fast as row 1" in found.out or "is the first row" in found.out
    found = call(*ASKED, "--why", "schedule=zb-h1 pp=1")
    assert "It is as fast as row 1" in found.out and "-0.0%" not in found.out


def test_a_limit_that_asks_for_the_whole_prediction_is_first_held_against_the_kernels(call, monkeypatch) -> None:
    """Kernels leave less than 99 % of every step: no layout is predicted in full to find that out."""
    from planner.search.examine import Examiner

    asked: list[object] = []
    rows = Examiner.rows
    monkeypatch.setattr(Examiner, "rows", lambda self, timed: asked.extend(timed) or rows(self, timed))
    found = call(*ASKED, "--where", "bubble > 99%")
    assert found.code == 3 and "'bubble > 99%'" in found.err
    assert len(asked) <= 1  # the fastest, which the message names
