"""``goodput`` end to end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

TRAINED = ("--model", "llama-3-8b", "--cluster", "dgx-h100:2", "--seq-len", "4096", "--gbs", "64", "--tp", "2")


@pytest.fixture
def plan(call, tmp_path: Path) -> Path:
    path = tmp_path / "plan.json"
    assert call("predict", *TRAINED, "--out", path).code == 0
    return path


FEW = ("--replications", "3", "--days", "5")


def test_a_plan(call, plan: Path) -> None:
    found = call("goodput", plan, "--tokens", "1e12", *FEW)
    assert found.code == 0
    for words in ("goodput", "to train", "where the rest of the time goes", "closed form", "simulated", "####",
                  "no measured evidence", "Young", "Daly"):  # fmt: skip
        assert words in found.out, words


def test_json_holds_every_figure_and_the_same_seed_gives_the_same_bytes(call, plan: Path) -> None:
    words = ("goodput", plan, "--json", "--mtbf", "200h", "--tokens", "1e12", *FEW)
    first, second, other = call(*words), call(*words), call(*words, "--seed", "1")
    assert first.out == second.out != other.out
    content = json.loads(first.out)
    assert content["goodput"] + sum(content["losses"].values()) == pytest.approx(1.0)
    assert content["failures_per_day"] == {"any": pytest.approx(16 * 24 / 200)}
    assert content["simulated"]["goodput"] == pytest.approx(content["goodput"], abs=0.1)
    step = json.loads(call("predict", "--plan", plan, "--json").out)["step"]["step_s"]["mid"]
    tokens = 64 * 4096 / step * content["goodput"]
    assert content["costs"]["effective_tokens_per_s"] == pytest.approx(tokens)
    assert content["costs"]["train_s"] == pytest.approx(1e12 / tokens)
    assert content["costs"]["usd"] == pytest.approx(1e12 / tokens / 3600 * 16 * 2.95)


def test_a_scenario_and_every_option(call, tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text("model: llama-3-8b\ncluster: dgx-h100:2\nworkload: {seq_len: 4096, gbs: 64}\nsearch: {tp: [2]}\n")
    found = call(
        "goodput", path, "--json", "--mtbf", "gpu=300h", "--mtbf", "node=1000h", "--interval", "30min", "--checkpoint",
        "async", "--one-replica", "--spares", "1", "--repair", "2h", "--detect", "1min", "--reschedule", "2min",
        "--warm-up", "30s", "--weibull", "0.8", "--straggler-mtbf", "2000h", "--straggler-slowdown", "1.5",
        "--straggler-detect", "30min", "--elastic", "--storage", "write_per_node=1GB/s", "--token-bytes", "8", *FEW,
    )  # fmt: skip
    assert found.code == 0
    content = json.loads(found.out)
    assert content["interval_s"] == 1800.0
    assert content["policy"] == {
        "mode": "async", "sharded": False, "detect_s": 60.0, "reschedule_s": 120.0, "warm_up_s": 30.0,
        "weibull_shape": 0.8, "straggler_node_s": 7.2e6, "straggler_factor": 1.5, "straggler_detect_s": 1800.0,
        "elastic": True,
    }  # fmt: skip
    assert content["failures_per_day"]["gpu"] == pytest.approx(16 * 24 / 300)
    assert content["failures_per_day"]["node"] == pytest.approx(2 * 24 / 1000)
    assert content["costs"]["gpus"] == 24  # a spare node is paid for
    assert content["data"]["sequence_bytes"] == 8 * 4096
    assert any("--storage write_per_node" in note for note in content["notes"])


def test_the_closed_form_alone(call, plan: Path) -> None:
    found = call("goodput", plan, "--replications", "0")
    assert found.code == 0 and "simulated" not in found.out


@pytest.mark.parametrize(
    ("words", "where", "what"),
    [
        (("--mtbf", "50000"), "--mtbf", "no unit"),
        (("--mtbf", "fan=3h"), "--mtbf", "unknown kind 'fan'"),
        (("--mtbf", "3h", "--mtbf", "gpu=3h"), "--mtbf", "every cause"),
        (("--mtbf", "gpu=3h", "--mtbf", "gpu=4h"), "--mtbf", "second"),
        (("--interval", "60"), "--interval", "no unit"),
        (("--checkpoint", "lazy"), "--checkpoint", "sync or async"),
        (("--weibull", "0"), "--weibull", "0.1 to 10"),
        (("--straggler-slowdown", "0.5"), "--straggler-slowdown", "slower"),
        (("--storage", "speed=2GB/s"), "--storage", "unknown rate"),
        (("--storage", "write_per_node=2"), "--storage", "no unit"),
        (("--storage", "write_per_node=0B/s"), "--storage", "moves nothing"),
        (("--repair", "-1h"), "--repair", ">= 0"),
        (("--tokens", "-3"), "--tokens", "positive"),
        (("--days", "0"), "--days", "positive"),
        (("--replications", "1"), "--replications", "spread"),
        (("--spares", "-1"), "--spares", "less than 0"),
    ],
)
def test_bad_input_names_the_option(call, plan: Path, words: tuple[str, ...], where: str, what: str) -> None:
    found = call("goodput", plan, *words)
    assert found.code == 2 and found.out == ""
    assert where in found.err and what in found.err


def test_all_faults_are_told_at_once(call) -> None:
    found = call("goodput", "nowhere.json", "--mtbf", "3", "--interval", "x", "--days", "-1", "--checkpoint", "lazy")
    assert found.code == 2 and found.err.startswith("error: 4 faults")


def test_a_missing_plan_and_an_unknown_scenario(call) -> None:
    assert "no such file" in call("goodput", "nowhere.json").err
    assert "no scenario named" in call("goodput", "nowhere").err


def test_a_copy_without_room_ends_with_3(call, plan: Path, tmp_path: Path) -> None:
    from hwmodels import catalog

    text = catalog.text("clusters", "dgx-h100").replace("nodes: 1}", "nodes: 2}") + "host_memory: 1GiB\n"
    path = tmp_path / "small.yaml"
    path.write_text(text)
    found = call("goodput", plan, "--cluster", path, "--checkpoint", "async")
    assert found.code == 3 and "--checkpoint sync" in found.err


def test_a_plan_that_does_not_fit_ends_with_3_and_says_so(call, tmp_path: Path) -> None:
    path = tmp_path / "large.json"
    assert call("predict", "--model", "llama-3-70b", "--cluster", "dgx-h100:1", "--seq-len", "8192", "--gbs", "64",
                "--tp", "8", "--out", path).code == 3  # fmt: skip
    found = call("goodput", path, "--replications", "0")
    assert found.code == 3 and "out of memory" in found.err and "goodput" in found.out


def test_the_row_of_most_kept_tokens_is_what_goodput_says_of_its_plan(call) -> None:
    words = ("search", "llama3-70b-128xh100", "--tp", "4", "--pp", "2", "--cp", "1", "--vpp", "8", "--mbs", "1")
    found = call(*words, "--objective", "kept_tokens_per_s", "--top", "2", "--out", "kept", "--json")
    assert found.code == 0
    answer = json.loads(found.out)
    kept = [row["kept_tokens_per_s"] for row in answer["plans"]]
    assert answer["optimal"] and kept == sorted(kept, reverse=True)
    for number, value in enumerate(kept, 1):
        again = json.loads(call("goodput", f"kept/plan-{number}.json", "--replications", "0", "--json").out)
        assert again["costs"]["effective_tokens_per_s"] == pytest.approx(value, rel=1e-9)
    # a checkpoint of 14 bytes for each of 70.55e9 parameters at 2 GB/s of each of 16 nodes: 30.87 s; failures of
    # 128 GPUs every 16.5 days: Young's interval of 2.6 h loses (30.87/9385 + 9385/2/1.4258e6) and the wait: 0.7%
    tokens = 512 * 8192 / answer["plans"][0]["step_s"]
    assert kept[0] / tokens == pytest.approx(0.9929, abs=2e-4)
