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


def test_the_cluster_file_of_the_page_loads_once_its_sources_are_filled_in(call) -> None:
    page = (Path(__file__).parents[2] / "docs" / "mixed.md").read_text()
    block = page.split("## The cluster file")[1].split("\n\n")[1]
    text = "\n".join(line[4:] for line in block.splitlines())
    network = "{link: ethernet-100g, ports_per_node: 1, topology: fat-tree}"
    for dots, filled in (
        ("inter_node: {...}", f"inter_node: {network}"),
        ("fabric: {...}", f"fabric: {{intra_node: pcie4, inter_node: {network}}}"),
        ("context_source: ...", "context_source: stated"),
        ("source: ...", "source: stated, residual: 0.1"),
    ):
        assert dots in text
        text = text.replace(dots, filled)
    Path("page.yaml").write_text(text)
    found = call("predict", *WORDS[:2], "--cluster", "page.yaml", *WORDS[4:], "--gbs", "40", "--pp", "5", "--tp", "8")
    assert found.code == 0, found.err


def test_what_pools_have_no_answer_for_is_said(call) -> None:
    written()
    placed = call("search", *WORDS, *SMALL, "--top", "1", "--place", "1")
    assert placed.code == 0 and "no row was placed" in placed.out
    resized = call("list", "clusters")
    assert resized.code == 0
    resized = call("search", *WORDS[:2], "--cluster", "mixed-h100-a100:2", *WORDS[4:])
    assert resized.code == 2 and "it has 2 pools, and which grows is not said" in resized.err
    late = call("search", *WORDS, "--tokens", "1T", "--deadline", "30d")
    assert late.code == 2 and "has 2 pools" in late.err and "Try: a cluster of one pool" in late.err


def test_a_plan_of_more_ranks_than_the_pools_have_says_how_many_there_are(call) -> None:
    written()
    call("predict", *WORDS[:2], "--cluster", "dgx-h100:4", *WORDS[4:], "--gbs", "64", "--out", "large.json")
    found = call("predict", "--plan", "large.json", "--cluster", "pools.yaml")
    assert found.code == 2 and "the cluster has 16 ranks" in found.err and found.err.count("Try:") == 1


def test_why_not_over_pools_looks_among_the_rows_that_it_says(call) -> None:
    written()
    found = call("search", *WORDS, *SMALL, "--why", "tp=2", "--json")
    assert found.code == 0
    answer = json.loads(found.out)
    assert answer["unsearched"] and answer["best"]["layout"]["tp"] == 2
    said = call("search", *WORDS, *SMALL, "--why", "zero_stage=0 pp=2").out
    assert "row" in said and "behind row 200" not in said


def test_rows_over_pools_have_the_figures_that_they_are_ranked_by(call) -> None:
    written()
    answer = json.loads(call("search", *WORDS, *SMALL, "--top", "3", "--objective", "kept_tokens_per_s", "--json").out)
    kept = [row["kept_tokens_per_s"] for row in answer["plans"]]
    assert len(kept) == 3 and kept == sorted(kept, reverse=True)
    assert all(value < 48 * 2048 / row["step_s"] for value, row in zip(kept, answer["plans"], strict=True))
