"""Pools of unlike devices from the command line: search, its plans, predict, simulate, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

from tests.planner.mixed.test_pricing import ISLANDS

WORDS = ["--model", "llama-3.2-1b", "--cluster", "pools.yaml", "--seq-len", "2048", "--gbs", "48",
         "--framework", "megatron"]  # fmt: skip
SMALL = ["--tp", "1", "--pp", "1,2", "--mbs", "1", "--recompute", "none"]


def written() -> None:
    Path("pools.yaml").write_text(ISLANDS.replace("nodes: 2", "nodes: 1").replace("200Gb/s", "10Tb/s"))


def test_a_plan_of_a_search_over_pools_is_predicted_and_simulated_to_the_same_step(call) -> None:
    written()
    found = call("search", *WORDS, *SMALL, "--json", "--out", "found")
    assert found.code == 0
    answer = json.loads(found.out)
    plans = answer["plans"]
    both = next(row for row in plans if all(row["use"]["nodes"].values()))
    assert sum(kind["replicas"] * kind["batch_share"] for kind in both["use"]["replicas"]) == 48
    path = Path("found") / f"plan-{both['rank']}.json"
    plan = json.loads(path.read_text())
    assert sum(plan["batch_share"]) == 48 and {seat["node"] for seat in plan["placement"]} == {0, 1}
    again = call("predict", "--plan", path, "--json")
    assert again.code == 0
    step = json.loads(again.out)["step"]
    assert abs(step["step_s"]["mid"] / both["step_s"] - 1) < 1e-9
    played = call("simulate", path, "--json")
    assert played.code == 0
    assert abs(json.loads(played.out)["simulated"]["step_s"] / both["step_s"] - 1) < 1e-9


def test_the_table_says_what_is_used_and_what_is_idle(call) -> None:
    written()
    said = call("search", *WORDS, *SMALL, "--top", "3").out
    assert "h100 (1 nodes of 8 x h100-sxm-80gb) + edge (1 nodes of 8 x a100-sxm-80gb)" in said
    assert "note: used: " in said and " mb)" in said


def test_unequal_shares_on_one_kind_of_device_are_priced(call) -> None:
    words = ["--model", "llama-3-8b", "--cluster", "dgx-h100:1", "--seq-len", "4096", "--gbs", "32"]
    call("predict", *words, "--tp", "2", "--pp", "2", "--zero-stage", "1", "--out", "p.json")
    content = json.loads(Path("p.json").read_text())
    even = json.loads(call("predict", "--plan", "p.json", "--json").out)["step"]["step_s"]["mid"]
    content["batch_share"] = [18, 14]
    Path("p.json").write_text(json.dumps(content))
    uneven = json.loads(call("predict", "--plan", "p.json", "--json").out)["step"]["step_s"]["mid"]
    # 18 micro-batches of 32/2 = 16: a pipeline of two takes 19/17 of the time for compute
    assert 1.0 < uneven / even < 19 / 17
    assert call("simulate", "p.json").code == 0


def test_what_pools_cannot_do_is_one_message(call) -> None:
    written()
    text = Path("pools.yaml").read_text()
    Path("pools.yaml").write_text(text.replace("between: [h100, edge]", "between: [h100, cloud]"))
    found = call("search", *WORDS)
    assert found.code == 2 and "no pool is called cloud" in found.err and "one of h100, edge" in found.err
    written()
    found = call("predict", *WORDS, "--tp", "16", "--dp", "1")
    assert found.code == 2


def test_a_shipped_cluster_of_unlike_pools_loads(call) -> None:
    listed = call("list", "clusters").out
    for name in ("mixed-h100-a100", "two-regions-h100", "edge-l40s-cloud-h100"):
        assert name in listed
