"""``search --stages``, and the same word in a scenario."""

from __future__ import annotations

import json
from pathlib import Path

from planner.scenario import load_scenario
from tests.cli.conftest import Call

OPTIONS = ("--model", "gemma2-2b", "--cluster", "dgx-h100:1", "--seq-len", "2048", "--gbs", "64", "--tp", "1", "--pp",
           "4", "--vpp", "1", "--cp", "1", "--recompute", "none", "--zero-stage", "0", "--mbs", "1")  # fmt: skip


def test_a_head_of_a_large_vocabulary_moves_layers(call: Call) -> None:
    """Gemma 2 2B: 26 layers of 78e6 weights and a head of 590e6; the last of four stages holds the fewest."""
    plans = {}
    for word in ("even", "best", "balanced"):
        made = call("search", *OPTIONS, "--stages", word, "--json")
        assert made.code == 0
        plans[word] = json.loads(made.out)["plans"]
    assert plans["balanced"][0]["step_s"] <= plans["best"][0]["step_s"] * (1 + 1e-12)
    assert plans["best"][0]["step_s"] < plans["even"][0]["step_s"]
    shares = plans["balanced"][0]["stage_layers"]
    assert sum(shares) == 26 and shares[-1] == min(shares)


def test_an_unknown_word_is_refused_with_the_known_ones(call: Call) -> None:
    made = call("search", *OPTIONS, "--stages", "odd")
    assert made.code == 2
    assert "odd" in made.err and "balanced" in made.err


def test_a_scenario_says_which_stages_are_tried(tmp_path: Path) -> None:
    path = tmp_path / "uneven.yaml"
    path.write_text(
        "model: gemma2-2b\ncluster: dgx-h100:1\nworkload: {seq_len: 2048, gbs: 64}\n"
        "search: {pp: [4], stages: [balanced, fit]}\n",
        encoding="utf-8",
    )
    assert load_scenario(path).space().stages == ("balanced", "fit")
