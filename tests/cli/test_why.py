"""``why`` and ``sensitivity`` as a person calls them."""

from __future__ import annotations

import json

import pytest

RUN = ("--cluster", "dgx-h100:2", "--seq-len", "4096", "--gbs", "64", "--framework", "megatron")


@pytest.fixture
def plans(call) -> tuple[str, str]:
    for name, degrees in (("a", ("--tp", 2, "--sp", 1)), ("b", ("--tp", 4, "--sp", 1, "--pp", 2))):
        asked = ("predict", "--model", "llama-3-8b", *RUN, *degrees, "--zero-stage", 1, "--mbs", 1)
        assert call(*asked, "--out", f"{name}.json").code == 0
    return "a.json", "b.json"


def test_why_tells_the_winner_the_phases_and_their_causes(call, plans: tuple[str, str]) -> None:
    found = call("why", *plans)
    assert found.code == 0
    assert "a takes" in found.out and "faster" in found.out
    for words in ("what differs", "exposed time by phase", "bubble", "peak memory of the fullest", "tp_comm: tp 2"):
        assert words in found.out


def test_why_json_adds_up(call, plans: tuple[str, str]) -> None:
    content = json.loads(call("why", *plans, "--json").out)
    first, second = (plan["seconds"] for plan in content["plans"])
    assert content["schema"] == 1 and content["unit"] == "seconds a step"
    assert sum(p["gap_s"] for p in content["phases"]) == pytest.approx(first - second)
    assert content["gap_pct"] == pytest.approx(100 * (first / second - 1))
    assert {"field": "tp", "values": ["2", "4"]} in content["fields"]


def test_sensitivity_of_a_plan_and_of_a_scenario(call, plans: tuple[str, str], tmp_path) -> None:
    content = json.loads(call("sensitivity", plans[0], "--change", "network x2", "--change", "batch x2", "--json").out)
    assert {e["change"] for e in content["effects"]} == {"network x2", "batch x2"}
    assert all(e["best_layout"] is None for e in content["effects"])
    (tmp_path / "s.yaml").write_text(
        "model: llama-3-8b\ncluster: dgx-h100:1\nworkload: {seq_len: 4096, gbs: 64, framework: megatron}\n"
        "search: {tp: [1, 2], pp: [1, 2], mbs: [1]}\n"
    )
    found = call("sensitivity", "s.yaml", "--change", "memory -20%")
    assert found.code == 0 and "memory -20%" in found.out and "best layout" in found.out


def test_bad_input_is_one_message(call, plans: tuple[str, str]) -> None:
    found = call("why", plans[0], "none.json")
    assert found.code == 2 and "none.json" in found.err
    found = call("sensitivity", plans[0], "--change", "magic x2")
    assert found.code == 2 and "'magic x2' is no change" in found.err and "network x2" in found.err


def test_the_best_of_a_scenario_is_looked_at_in_the_precision_of_its_row(call, tmp_path) -> None:
    (tmp_path / "s.yaml").write_text(
        "model: llama-3-8b\ncluster: dgx-h100:1\nworkload: {seq_len: 4096, gbs: 64, framework: megatron}\n"
        "search: {tp: [2], pp: [1], mbs: [1], precision: [bf16, fp8-delayed]}\n"
    )
    best = json.loads(call("search", "s.yaml", "--top", 1, "--json").out)["plans"][0]
    assert best["precision"] == "fp8-delayed"  # that of the file, bf16, is slower
    content = json.loads(call("sensitivity", "s.yaml", "--change", "network x2", "--change", "batch x2", "--json").out)
    (effect,) = content["effects"]  # one node has no network
    for which in ("same_layout", "best_layout"):
        assert effect[which]["tokens_per_s"] / (8 * best["tokens_per_s_per_gpu"]) - 1 == pytest.approx(
            effect[which]["gain"], abs=1e-9
        )
