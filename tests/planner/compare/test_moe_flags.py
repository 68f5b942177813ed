"""Flags of measured runs as switches of the expert layers."""

from __future__ import annotations

import pytest

from planner.compare.moe_flags import moe_switches_of, routing_of
from planner.routing import Routing
from planner.switches import normal


@pytest.mark.parametrize(
    ("flags", "found"),
    [
        ("", {}),
        (
            "recompute_modules=['mla_up_proj']; moe_flex_dispatcher_backend=hybridep",
            {"moe_dispatcher": "hybridep", "moe_exchange_overlap": "false", "moe_delay_wgrad": "false"},
        ),
        (
            "cuda_graph_impl=transformer_engine; cuda_graph_scope=['moe_router', 'moe_preprocess']",
            {
                "cuda_graphs": "false", "graphed": "moe_router+moe_preprocess", "moe_expert_gemm": "streams",
                "moe_fused_mlp": "false",
            },
        ),
        ("moe-token-dispatcher-type=alltoall; moe-grouped-gemm=True", {"moe_dispatcher": "alltoall"}),
        ("moe-token-dispatcher-type=flex; moe-enable-deepep=True", {"moe_dispatcher": "deepep"}),
        (
            "cuda_graph_impl=full_iteration; moe_a2a_overlap=True; moe_flex_dispatcher_backend=deepep",
            {
                "moe_exchange_overlap": "true", "moe_delay_wgrad": "true", "moe_dispatcher": "deepep",
                "moe_expert_gemm": "grouped", "moe_fused_mlp": "true", "cuda_graphs": "true",
            },
        ),
        ("moe_a2a_overlap=False", {}),
        ("moe-shared-expert-overlap=True", {"moe_shared_overlap": "true"}),
        ("delay-wgrad-compute=True", {}),  # of a pipeline alone
        ("overlap-moe-expert-parallel-comm; delay-wgrad-compute",
         {"moe_exchange_overlap": "true", "moe_delay_wgrad": "true"}),
    ],
)
def test_switches(flags: str, found: dict[str, str]) -> None:
    assert moe_switches_of(flags) == found
    assert dict(normal(found)) == found


def test_capacity() -> None:
    assert routing_of("") == Routing()
    flags = "moe-expert-capacity-factor=1.25; moe-pad-expert-input-to-capacity=True"
    assert routing_of(flags) == Routing(1.0, 1.25, True)
    assert routing_of("moe-pad-expert-input-to-capacity=True") == Routing()
