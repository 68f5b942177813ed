"""Sizes, batches and the scaling curve, by hand."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from hwmodels import cluster as clusters
from hwmodels.errors import InputError
from planner.sweep import Outcome
from planner.sweep.sizes import batch_of, parse_share, parse_sizes, sized
from planner.sweep.table import chart, families, rows
from tests.planner.sweep import asking


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("64..4096", (64, 128, 256, 512, 1024, 2048, 4096)),
        ("64..1000", (64, 128, 256, 512, 1000)),
        ("64", (64,)),
        ("96,64, 128", (64, 96, 128)),
        ("64..256:64", (64, 128, 192, 256)),
        ("8,64..128", (8, 64, 128)),
    ],
)
def test_sizes(text: str, sizes: tuple[int, ...]) -> None:
    assert parse_sizes(text) == sizes


@pytest.mark.parametrize("text", ["", "a", "0", "-8", "8..", "..8", "16..8", "8..16:0", "1..100000:1", "8.5", "8;16"])
def test_no_sizes(text: str) -> None:
    with pytest.raises(InputError, match="--gpus"):
        parse_sizes(text)


def test_a_resized_cluster_is_the_preset_of_that_size() -> None:
    small, large = clusters.load("dgx-h100:4"), clusters.load("dgx-h100:64")
    assert sized(small, 512) == large and sized(large, 32) == small and sized(small, 32) is small
    pod = sized(clusters.load("tpu-v5p:4"), 256)
    assert pod == clusters.load(f"tpu-v5p:{256 // pod.gpus_per_node}")


def test_parts_of_nodes_and_several_pools_are_refused_with_what_would_work() -> None:
    with pytest.raises(InputError, match=r"a node has 8.*Try: 64 or 72"):
        sized(clusters.load("dgx-h100:4"), 70)
    with pytest.raises(InputError, match="Try: 8"):
        sized(clusters.load("dgx-h100:4"), 4)
    one = clusters.load("dgx-h100:4")
    with pytest.raises(InputError, match="one pool"):
        sized(replace(one, pools=one.pools * 2, fabric=replace(one.fabric, nodes=8)), 64)


def test_weak_scaling_keeps_the_sequences_of_a_gpu() -> None:
    assert parse_share("2") == 2 and parse_share("0.25") == parse_share(" 1/4") == Fraction(1, 4)
    assert batch_of(Fraction(1, 4), 64) == 16
    with pytest.raises(InputError, match="a multiple of 4 GPUs"):
        batch_of(Fraction(1, 4), 6)
    for text in ("", "x", "0", "-1", "1/0"):
        with pytest.raises(InputError, match="--gbs-per-gpu"):
            parse_share(text)


def outcome(gpus: int, rate: float | None) -> Outcome:
    one = replace(asking.case(f"{gpus}"), cluster=sized(clusters.load("dgx-h100:1"), gpus), labels={"gpus": gpus})
    if rate is None:
        return Outcome(one, {"status": "infeasible", "why": "memory of stage 0"})
    plan = {
        "step_s": 1.0, "tokens_per_s_per_gpu": rate, "mfu": 0.5, "usd_per_mtoken": 1.0, "peak_bytes": 1.0,
        "capacity_bytes": 2.0, "verdict": "fits",
    }  # fmt: skip
    return Outcome(one, {"status": "done", "answer": {"plans": [plan], "optimal": True}, "layouts": ["tp1 dp8"]})


def test_efficiency_is_against_the_smallest_size_that_fits() -> None:
    found = rows([outcome(8, None), outcome(32, 80.0), outcome(16, 100.0)])
    assert [row["efficiency"] for row in found] == [None, 0.8, 1.0]
    assert [row["tokens_per_s"] for row in found] == [None, 2560.0, 1600.0]
    assert found[0]["why"] == "memory of stage 0" and found[1]["layout"] == "tp1 dp8"
    assert [row["efficiency"] for row in rows([outcome(16, 100.0)])] == [None]


def test_the_curve_marks_the_best_the_line_and_what_does_not_fit() -> None:
    (group,) = families(rows([outcome(8, None), outcome(16, 100.0), outcome(32, 100.0), outcome(256, 50.0)])).values()
    lines = chart(group)
    body = [line[16:].ljust(32) for line in lines[:12]]
    columns = ["".join(line[8 * i : 8 * i + 8].strip() or " " for line in body) for i in range(4)]
    # 1,600 tokens/s at the bottom, 25,600 = 256 x 100 at the top, a factor of 16 over eleven lines:
    # 3,200 is a quarter of the way (2.75, the third line from below), 12,800 three quarters (8.25, the eighth)
    assert columns == ["           x", "           *", "        *   ", ".  *        "]
    assert lines[-2].split() == ["8", "16", "32", "256"] and lines[0].startswith(" ")
    assert chart(group[:2]) == []
