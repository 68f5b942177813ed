"""Kernels, and the host that launches them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hwmodels.cluster import load
from planner import frameworks
from planner.layout import Layout, LayoutBatch
from planner.price import contraction, host_bound, price_op
from planner.workload.op import Op


def bound(busy_s: float, launches: float, **switches: object) -> float:
    preset = replace(frameworks.get("generic"), **switches)  # type: ignore[arg-type]
    return float(host_bound(np.asarray(busy_s), np.asarray(launches), load("dgx-a100:1"), preset))


def test_the_host_runs_ahead_of_the_kernels():
    # 100 launches of 5 us are 500 us: with as much to compute 3/16 more, with twice as much (1/4)^2 / 3 of it more,
    # and from four times as much on the kernels alone tell. Nothing to compute takes what launching it takes.
    assert bound(500e-6, 100) == pytest.approx(593.75e-6)
    assert bound(1000e-6, 100) == pytest.approx(1000e-6 * (1 + 1 / 48))
    assert bound(2000e-6, 100) == pytest.approx(2000e-6)
    assert bound(0.0, 100) == pytest.approx(500e-6)
    assert bound(0.0, 0) == 0.0


def test_blocking_launches_add_up():
    assert bound(300e-6, 100, blocking_launches=True) == pytest.approx(800e-6)


def test_a_graph_launches_nothing():
    assert bound(300e-6, 100, cuda_graphs=True) == pytest.approx(300e-6)


@pytest.mark.parametrize(("dtype", "tokens", "counted"), [
    ("bf16", 5325.0, 5328.0), ("bf16", 819.2, 824.0), ("fp32", 1001.0, 1004.0), ("fp8", 5325.0, 5328.0),
    ("fp8", 5330.0, 5344.0), ("bf16", 4096.0, 4096.0),
])  # fmt: skip
def test_tokens_of_a_weight_gradient_count_in_whole_16_bytes(dtype, tokens, counted):
    # 16 bytes are 8 elements of bf16, 4 of fp32, 16 of fp8; other phases sum over what lies along their rows.
    dims = {"m": np.asarray(4096.0), "n": np.asarray(4096.0), "k": np.asarray(tokens)}
    assert float(contraction(Op("w", "gemm", "backward_weight", dims, dtype))) == counted
    assert float(contraction(Op("w", "gemm", "backward_input", dims, dtype))) == tokens


@pytest.mark.parametrize("kind", ["gemm", "grouped_gemm"])
def test_odd_tokens_do_not_unalign_a_weight_gradient(kind):
    # Both operands lie token by token: one token more is one 4096th more at most, besides its share of a k tile of 32.
    cluster, layouts = load("dgx-h100:1"), LayoutBatch.of(Layout(dp=8))

    def seconds(tokens: float) -> float:
        more = {"groups": np.asarray(8.0)} if kind == "grouped_gemm" else {}
        dims = {"m": np.asarray(4096.0), "n": np.asarray(8192.0), "k": np.asarray(tokens), **more}
        return float(price_op(Op("w", kind, "backward_weight", dims), cluster, layouts).mid.reshape(-1)[0])

    even = seconds(4096.0)
    assert even <= seconds(4097.0) <= even * (1 + 32 / 4096) * 1.001
