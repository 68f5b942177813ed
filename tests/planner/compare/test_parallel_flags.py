"""What flags of measured runs say about their parallelism."""

from __future__ import annotations

import pytest

from planner.compare.parallel_flags import cp_kind_of, parallel_switches_of
from planner.frameworks.switches import normal


@pytest.mark.parametrize(
    ("flags", "kind"),
    [
        ("Megatron-LM commit 23e00ed0; TE 2.11; cp a2a", "ulysses"),
        ("cp-comm-type=p2p", "ring"),
        ("cp_comm_type=all_gather; x=1", "all-gather"),
        ("cp_comm_type=a2a+p2p", ""),
        ("sequence-parallel=True", ""),
        ("", ""),
    ],
)
def test_kind_of_context_parallelism(flags: str, kind: str) -> None:
    assert cp_kind_of(flags) == kind


@pytest.mark.parametrize(
    ("flags", "switches"),
    [
        ("grad_accum=4; tp_comm_overlap=True; fp8_params=True", {"tp_gemm_overlap": "true"}),
        ("tp_comm_overlap=1", {"tp_gemm_overlap": "true"}),
        ("tp_comm_overlap=0", {"tp_gemm_overlap": "false"}),
        ("tp-comm-overlap=False", {"tp_gemm_overlap": "false"}),
        ("torch.compile; float8; async TP", {"tp_gemm_overlap": "true"}),
        ("no tp/pp comm overlap", {"tp_gemm_overlap": "false", "p2p_overlap": "false"}),
        ("torch.compile", {}),
    ],
)
def test_switches(flags: str, switches: dict[str, str]) -> None:
    assert parallel_switches_of(flags) == switches
    assert dict(normal(switches)) == switches  # every one is a switch
