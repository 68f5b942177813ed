"""Flags of a row as switches of its preset."""

import pytest

from planner.compare.flags import switches_of


@pytest.mark.parametrize(
    ("flags", "wanted"),
    [
        ("", {}),
        ("overlap-grad-reduce=True; sequence-parallel=True", {"overlap_grad_reduce": "true"}),
        ("no-gradient-accumulation-fusion=True", {"fused_grad_accumulation": "false"}),
        ("TE 2.11; TE fused cross-entropy; cp a2a", {"fused_cross_entropy": "true"}),
        ("attention-backend=flash; tp-comm-overlap=True", {"attention": "flash", "userbuffers": "true"}),
        ("overlap-param-gather=False", {}),
        ("hidden-dropout=0.0", {"dropout": "false"}),
    ],
)
def test_flags_that_are_switches(flags: str, wanted: dict[str, str]) -> None:
    assert switches_of(flags) == wanted


def test_a_deterministic_run_without_a_backend_has_the_local_attention() -> None:
    found = switches_of("deterministic-mode=True")
    assert found == {"deterministic": "true", "attention": "unfused-fused-softmax", "transformer_engine": "false"}
    assert switches_of("deterministic-mode=True; attention-backend=flash")["attention"] == "flash"
    assert switches_of("deterministic-mode=True; moe-grouped-gemm=True") == {"deterministic": "true"}
    assert switches_of("deterministic-mode=True; fp8-recipe=tensorwise", "fp8") == {"deterministic": "true"}
