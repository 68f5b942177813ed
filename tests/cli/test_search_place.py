"""``search --place``: rows whose ranks are placed, and their plans."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.test_place import FABRIC


def test_the_best_rows_are_placed(call) -> None:
    Path("fabric.yaml").write_text(FABRIC)
    words = ("search", "--model", "llama-3.2-1b", "--cluster", "fabric.yaml", "--seq-len", "2048", "--gbs", "128",
             "--tp", "8", "--sp", "1", "--pp", "2", "--zero-stage", "1", "--mbs", "1", "--recompute", "none",
             "--order", "pp-dp-cp-tp", "--vpp", "1")  # fmt: skip
    plain = json.loads(call(*words, "--json", "--top", "1").out)
    placed = json.loads(call(*words, "--json", "--top", "1", "--place", "1", "--save", "1", "--out", "out").out)
    # tp lies over all nodes with this order: laid out the other way round it keeps to one
    assert placed["plans"][0]["step_s"] < plain["plans"][0]["step_s"] / 2
    assert not placed["optimal"] and any("placed by the traffic" in note for note in placed["notes"])
    again = json.loads(call("predict", "--plan", "out/plan-1.json", "--json").out)
    assert again["step"]["step_s"]["mid"] == placed["plans"][0]["step_s"]


def test_an_answer_that_gains_nothing_keeps_its_proof(call) -> None:
    words = ("search", "--model", "llama-3.2-1b", "--cluster", "dgx-h100:1", "--seq-len", "2048", "--gbs", "64",
             "--tp", "2", "--mbs", "1", "--zero-stage", "1", "--pp", "1", "--recompute", "none", "--json")  # fmt: skip
    plain, placed = (json.loads(call(*words, *more).out) for more in ((), ("--place", "2")))
    assert [p["step_s"] for p in plain["plans"]] == [p["step_s"] for p in placed["plans"]]
    assert placed["optimal"] == plain["optimal"] and "ranks in order" in placed["notes"][-1]
