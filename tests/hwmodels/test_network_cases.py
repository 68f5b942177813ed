"""The `network-*` cases of the collection of reported outcomes, each with the answer that a good planner gives.

Numbers of the cases are copied here with their ids; a second test holds the ids against the collection.
"""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hwmodels import catalog, collectives
from hwmodels import cluster as clusters
from hwmodels.cluster import Cluster
from hwmodels.errors import InputError
from hwmodels.network import advice
from hwmodels.network.diagnosis import diagnose, efficiency
from hwmodels.network.sharding import network_seconds_per_byte, sharding
from hwmodels.topology import GroupShape

ANSWERED = {"C032", "C146"}


def test_every_network_case_has_its_test(shared_data: Path) -> None:
    with (shared_data / "cases.csv").open(newline="") as stream:
        known = {row["id"] for row in csv.DictReader(stream) if row["kind"].startswith("network-")}
    assert known == ANSWERED


def cluster(device: str, intra: str, inter: str, ports: int, nodes: int = 2, **fabric: object) -> Cluster:
    more = "".join(f", {key}: {value}" for key, value in fabric.items())
    return clusters.parse(
        f"""
name: case
pools: [{{device: {device}, gpus_per_node: 8, nodes: {nodes}}}]
fabric:
  intra_node: {intra}
  inter_node: {{link: {inter}, ports_per_node: {ports}{more}}}
context: 1GiB
context_source: the case states none
""",
        "case.yaml",
    )


def shape(ranks: int, nodes: int, stride: int = 1) -> GroupShape:
    return GroupShape(np.asarray(ranks), np.asarray(nodes), np.asarray(stride))


GIB = 2.0**30


def seconds_at(busbw: float, ranks: int) -> float:
    """Time of an all-reduce of 1 GiB at that bus bandwidth."""
    return GIB * 2 * (ranks - 1) / ranks / busbw


def test_c146_efficiency_inside_and_across_nodes() -> None:
    """A100 nodes: 232.5 GB/s inside, 86 of 100 GB/s over two with 4 x 200 Gb/s; 600 of 800 Gb/s over 8 x 100 Gb/s."""
    hdr = cluster("a100-sxm-80gb", "nvlink3", "infiniband-hdr", 4)
    inside = efficiency(hdr, "all_reduce", GIB, shape(8, 1), seconds_at(232.5e9, 8))
    assert (inside.link, inside.limit) == ("nvlink3", 300e9)
    assert inside.efficiency == pytest.approx(232.5 / 300)
    across = efficiency(hdr, "all_reduce", GIB, shape(8, 2), seconds_at(86e9, 16))
    # 4 ports x 25 GB/s = 100 GB/s out of a node.
    assert (across.link, across.limit) == ("infiniband-hdr", 100e9)
    assert across.efficiency == pytest.approx(0.86)
    roce = cluster("a100-sxm-80gb", "nvlink3", "roce-100g", 8)
    # 8 ports x 12.5 GB/s = 100 GB/s; 600 Gb/s = 75 GB/s.
    seen = efficiency(roce, "all_reduce", GIB, shape(8, 2), seconds_at(75e9, 16))
    assert (seen.link, seen.limit) == ("roce-100g", 100e9)
    assert seen.efficiency == pytest.approx(0.75)


@pytest.mark.parametrize(("inter", "ports", "busbw"), [("infiniband-hdr", 4, 86e9), ("roce-100g", 8, 75e9)])
def test_c146_is_what_the_laws_expect(inter: str, ports: int, busbw: float) -> None:
    """The efficiencies are ordinary for a ring: the measured times lie in the interval of its price."""
    case = cluster("a100-sxm-80gb", "nvlink3", inter, ports)
    measured = seconds_at(busbw, 16)
    price = collectives.seconds(case, "all_reduce", GIB, shape(8, 2), algorithm="ring")
    assert float(price.low) * 0.95 <= measured <= float(price.high) * 1.05
    assert diagnose(case, "all_reduce", GIB, shape(8, 2), measured * 0.95)[0].rule == "as-expected"


C032 = {"hybrid": {1: 21.7, 2: 40.8, 4: 74.41}, "full": {4: 55.35}}
"""Samples/s of Llama 2B: hybrid shard on 1, 2, 4 nodes, full shard on 4 (A100 by its MFU: 8 x 312e12 x 0.373 FLOP/s
over 21.7 samples/s is 4.3e13 a sample, 6 x 2e9 x 3.6k tokens)."""


def test_c032_crossover_of_full_and_hybrid_sharding() -> None:
    """Nodes of 8 A100 on 100 Gb/s, 2e9 parameters in bf16: hybrid is faster at four nodes, and the links say why."""
    case = cluster("a100-sxm-40gb", "nvlink3", "ethernet-100g", 1, nodes=4, topology="fat-tree")
    # One unknown, the compute of a step (the case states no batch): taken from the measured slowdown of full sharding,
    # step time on four nodes over one, 4 x 21.7 / 55.35 = 1.568.
    target = 4 * C032["hybrid"][1] / C032["full"][4]
    low, high = 1e-3, 1e3
    for _ in range(60):
        compute = (low * high) ** 0.5
        full = sharding(case, 4e9, compute).full_s
        low, high = (compute, high) if sum(full) / 2 / compute > target else (low, compute)
    found = sharding(case, 4e9, compute)
    # Measured: 74.41 / 55.35 = 1.344 times as fast, between all overlap and none; and hybrid itself slows down by
    # 4 x 21.7 / 74.41 = 1.167 from one node to four.
    assert found.hybrid_wins
    assert found.gain[0] <= 1.344 <= found.gain[1] * 1.1
    assert 1.1 <= sum(found.full_s) / sum(found.hybrid_s) <= 1.6
    assert found.hybrid_s[0] <= 1.167 * compute <= found.hybrid_s[1]
    # The crossover: 3 x 4e9 x 3/4 bytes out of a node within the compute of a step; its port has 12.5 GB/s at best.
    assert found.crossover_bandwidth == pytest.approx(9e9 / compute)
    assert found.bandwidth < min(12.5e9, found.crossover_bandwidth)


def test_c032_fast_links_make_full_sharding_free() -> None:
    """The same step on 8 x 400 Gb/s a node: the crossover is passed, and hybrid gains next to nothing with overlap."""
    slow = cluster("a100-sxm-40gb", "nvlink3", "ethernet-100g", 1, nodes=4, topology="fat-tree")
    fast = cluster("h100-sxm-80gb", "nvlink4", "infiniband-ndr", 8, nodes=4)
    compute = 0.5
    assert sharding(slow, 4e9, compute).hybrid_wins
    found = sharding(fast, 4e9, compute)
    assert not found.hybrid_wins
    assert found.gain[0] == pytest.approx(1.0, abs=0.05)
    # Twelve bytes a node for each 12.5 GB/s: 3 x 3/4 / 12.5e9 and 2 x 3/4 / 12.5e9 seconds per byte.
    assert network_seconds_per_byte(slow.fabric) == pytest.approx((2.25 / 12.5e9, 1.5 / 12.5e9))


@pytest.mark.parametrize("nodes", [2, 3, 4, 16])
def test_hybrid_never_loses_on_the_network(nodes: int) -> None:
    full, hybrid = network_seconds_per_byte(cluster("a100-sxm-80gb", "nvlink3", "infiniband-hdr", 8, nodes).fabric)
    assert full == pytest.approx(1.5 * hybrid) and full > 0
    wide = sharding(cluster("a100-sxm-80gb", "nvlink3", "infiniband-hdr", 8, nodes), 4e9, 1.0)
    for pair in (wide.full_s, wide.hybrid_s):
        assert 1.0 <= pair[0] <= pair[1]  # compute is the bound, overlap never hurts


def test_bad_questions() -> None:
    one = clusters.load("dgx-a100")
    assert network_seconds_per_byte(one.fabric) == (0.0, 0.0)
    with pytest.raises(InputError) as error:
        sharding(one, -1.0, 0.0, 0)
    assert len(error.value.faults) == 4
    with pytest.raises(InputError) as error:
        efficiency(one, "all_reduce", float("nan"), shape(1, 1), 0.0)
    assert len(error.value.faults) == 3
    with pytest.raises(InputError, match="spans 2 nodes"):
        efficiency(one, "all_reduce", GIB, shape(8, 2), 1.0)


@pytest.mark.parametrize(
    ("busbw", "rule"),
    [
        (25e9, "one-port"), (90e9, "half-the-ports"), (1.25e9, "tcp-10g"), (3.1e9, "tcp-25g"),
        (56e9, "host-memory"), (80e9, "cross-rail"),
    ],
)  # fmt: skip
def test_a_slow_collective_between_nodes(busbw: float, rule: str) -> None:
    # 8 x 200 Gb/s: 200 GB/s out of a node, 25 over one port.
    case = cluster("a100-sxm-80gb", "nvlink3", "infiniband-hdr", 8)
    found = diagnose(case, "all_reduce", GIB, shape(8, 2), seconds_at(busbw, 16))
    assert found[0].rule == "slow" and found[0].severity == "problem"
    assert found[0].numbers["efficiency"] == pytest.approx(busbw / 200e9)
    assert rule in [f.rule for f in found], [f.rule for f in found]


def test_a_slow_collective_inside_a_node() -> None:
    found = diagnose(clusters.load("dgx-a100"), "all_reduce", GIB, shape(8, 1), seconds_at(28e9, 8))
    assert [f.rule for f in found] == ["slow", "pcie-inside"]
    cards = clusters.parse(
        "name: cards\npools: [{device: rtx-4090-24gb, gpus_per_node: 2, nodes: 1}]\nfabric: {intra_node: pcie4}\n"
        "context: 1GiB\ncontext_source: none stated\n",
        "cards.yaml",
    )
    assert diagnose(cards, "all_reduce", GIB, shape(2, 1), seconds_at(1.9e9, 2))[1].rule == "no-peer-access"
    few = diagnose(clusters.load("dgx-a100"), "all_reduce", 1024.0, shape(8, 1), 1.0)
    assert [f.rule for f in few] == ["slow", "latency-bound"]
    fine = diagnose(clusters.load("dgx-a100"), "all_reduce", GIB, shape(8, 1), seconds_at(232.5e9, 8))
    assert [f.rule for f in fine] == ["as-expected"] and fine[0].severity == "note"


def rules(c: Cluster) -> dict[str, advice.Finding]:
    return {f.rule: f for f in advice.findings(c)}


def test_findings_of_clusters() -> None:
    assert [f.severity for f in advice.findings(clusters.load("dgx-h100:2"))] == ["note", "note"]
    h100 = rules(clusters.load("dgx-h100:2"))["node-boundary"]
    assert h100.numbers["ratio"] == pytest.approx(9.0)  # 450 over 50 GB/s
    assert str(h100).startswith("note: a GPU has 450 GB/s inside its node") and "[node-boundary]. Try:" in str(h100)
    p4d = rules(clusters.load("aws-p4d:2"))["shared-ports"]
    assert p4d.numbers == {"per_gpu": 6.25e9, "port": 12.5e9}
    amd = rules(clusters.load("mi300x"))["small-groups"]
    assert (amd.numbers["two"], amd.numbers["four"]) == (pytest.approx(64e9), pytest.approx(192e9))
    assert "no-evidence" in rules(clusters.load("dgx-h100:8"))
    assert advice.findings(clusters.load("dgx-h100")) == []
    assert rules(clusters.load("tpu-v5e:256")).keys() == {"no-evidence"}


def test_findings_of_problems() -> None:
    over = cluster("h100-sxm-80gb", "nvlink4", "infiniband-ndr", 8, 16, leaf_nodes=4, oversubscription=3)
    found = rules(over)["oversubscribed"]
    # Leaves of 4 at 3:1: a ring needs one of four uplinks (kept whole), an all-to-all 15 / (12 x 3) of the ports.
    assert found.severity == "problem"
    assert found.numbers == {"ring_share": pytest.approx(1.0), "all_to_all_share": pytest.approx(15 / 36)}
    assert "within 4 nodes" in found.fix
    slot = rules(cluster("a100-sxm-80gb", "nvlink3", "infiniband-ndr", 8))["slot-under-port"]
    assert slot.numbers == {"port": 50e9, "slot": 31e9}
    assert "slot-under-port" not in rules(clusters.load("dgx-h100:2"))
    assert rules(cluster("h100-sxm-80gb", "nvlink4", "infiniband-ndr", 3))["uneven-ports"].severity == "problem"
    bridge = cluster("a100-pcie-80gb", "nvlink3-bridge", "infiniband-hdr", 8)
    assert rules(bridge)["bridged-pairs"].numbers == {"two": 300e9, "more": 31e9}
    pcie = rules(cluster("l40s-48gb", "pcie4", "infiniband-hdr", 8))["pcie-only"]
    assert pcie.numbers["across_sockets"] == pytest.approx(10e9)  # 40 GB/s for the four GPUs of a socket
    both = clusters.load("dgx-h100:2")
    doubled = catalog.link("nvlink4")
    fast = replace(both, fabric=replace(both.fabric, intra=replace(doubled, bandwidth=900e9)))
    assert rules(fast)["link-standard"].severity == "problem"
    anonymous = replace(doubled, bandwidth=600e9, generation="")
    assert (
        rules(replace(both, fabric=replace(both.fabric, intra=anonymous)))["both-directions"].numbers["half"] == 300e9
    )


def test_a_users_device_with_sparse_peaks_is_found() -> None:
    two = clusters.load("dgx-h100:2")
    doubled = {dtype: peak * (1.0 if dtype == "fp32" else 2.0) for dtype, peak in two.device.peak_flops.items()}
    device = replace(two.device, peak_flops=doubled)
    found = rules(replace(two, pools=(replace(two.pools[0], device=device),)))["datasheet"]
    # 132 SM x 4096 FLOP per clock would need 3.66 GHz for 1979 TFLOP/s.
    assert found.severity == "problem" and "sparse" in found.what and "3.66 GHz" in found.why
