"""``place``: one plan on its nodes, and several jobs on one fabric."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

FABRIC = """\
name: two-leaves
pools: [{device: h100-sxm-80gb, gpus_per_node: 8, nodes: 8}]
fabric:
  intra_node: nvlink4
  inter_node: {link: infiniband-ndr, ports_per_node: 8, topology: rail-fat-tree, oversubscription: 8, leaf_nodes: 4}
context: 0.8GiB
context_source: a test
"""
WORDS = ("--model", "llama-3.2-1b", "--cluster", "dgx-h100:4", "--seq-len", "2048", "--gbs", "64")


@pytest.fixture
def plan(call) -> str:
    Path("fabric.yaml").write_text(FABRIC)
    call("predict", *WORDS, "--tp", "8", "--sp", "1", "--pp", "2", "--order", "tp-cp-pp-dp", "--out", "a.json")
    return "a.json"


def test_a_plan_is_placed_and_its_plan_priced_again(call, plan: str) -> None:
    Path("nodes").write_text("0 alpha\n1 beta\n4 gamma\n5 delta\n")
    found = call("place", plan, "--cluster", "fabric.yaml", "--nodes-of", "nodes", "--out", "out.json", "--json")
    assert found.code == 0
    told = json.loads(found.out)
    assert told["moved"] and told["step_s"] < told["in_order_step_s"]
    assert {row["axis"]: row["where"] for row in told["axes"]}["tp"] == "inside nvlink"
    again = json.loads(call("predict", "--plan", "out.json", "--json").out)
    assert again["step"]["step_s"]["mid"] == pytest.approx(told["step_s"])
    assert any("no measured evidence" in note and "order" in note for note in again["step"]["notes"])
    hosts = Path("out.hosts").read_text().split()
    assert sorted(set(hosts)) == ["alpha", "beta", "delta", "gamma"] and len(hosts) == 32
    assert Path("out.ranks").read_text().splitlines()[0].split("\t")[::2] == ["0", "0"]
    text = call("place", plan, "--cluster", "fabric.yaml", "--nodes-of", "nodes").out
    assert "rails of a leaf" in text and "crosses the spine" in text and "ms" in text


def test_jobs_are_played_beside_each_other(call, plan: str) -> None:
    call("predict", *WORDS, "--zero-stage", "3", "--framework", "fsdp2", "--out", "b.json")
    args = ("place", plan, "b.json", "--cluster", "fabric.yaml", "--steps", "3", "--json")
    first = call(*args, "--nodes-of", "0,1,4,5", "--nodes-of", "2,3,6,7", "--seed", "3", "--out", "jobs")
    told = json.loads(first.out)
    assert [job["nodes"] for job in told["jobs"]] == [[0, 1, 4, 5], [2, 3, 6, 7]]
    assert set(told["contended"]) == {"leaf 0 uplinks", "leaf 1 uplinks"}
    assert told["better"] is not None and told["better"]["contended"] == {}
    assert sorted(path.name for path in Path("jobs").iterdir()) == ["1-a.json", "2-b.json"]
    again = call(*args, "--nodes-of", "0,1,4,5", "--nodes-of", "2,3,6,7", "--seed", "3", "--out", "jobs")
    assert again.out == first.out
    assert json.loads(call(*args).out)["contended"] == {}


def test_bad_nodes_are_named(call, plan: str) -> None:
    found = call("place", plan, "--cluster", "fabric.yaml", "--nodes-of", "0-2,x")
    assert found.code == 2 and "'x' names no node" in found.err
    found = call("place", plan, "--cluster", "fabric.yaml", "--nodes-of", "0-2")
    assert found.code == 3 and "needs 4" in found.err
    found = call("place", plan, plan, "--cluster", "fabric.yaml", "--nodes-of", "0-3")
    assert found.code == 2 and "1 allocations for 2 plans" in found.err
    found = call("place", plan, plan, plan, "--cluster", "fabric.yaml")
    assert found.code == 3 and "12 nodes" in found.err
