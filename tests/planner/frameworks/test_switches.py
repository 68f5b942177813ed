"""Switches of a workload set fields of its framework preset, and nothing else."""

from __future__ import annotations

import pytest

from hwmodels.errors import InputError
from planner import frameworks
from planner.frameworks.switches import SWITCHES, applied, normal
from planner.training import Workload


def test_a_switch_replaces_the_default_of_the_preset_alone() -> None:
    plain, switched = Workload(1024, 8), Workload(1024, 8, switches=(("cuda_graphs", "True"),))
    assert not frameworks.of(plain).cuda_graphs
    assert frameworks.of(switched).cuda_graphs
    assert frameworks.of(switched).attention == frameworks.of(plain).attention
    assert switched.switches == (("cuda_graphs", "True"),)
    assert "cuda_graphs=True" in switched.described()


def test_every_fault_of_the_switches_is_named_at_once() -> None:
    with pytest.raises(InputError) as caught:
        normal({"cuda_graph": "true", "dropout": "maybe", "bucket_bytes": "many"})
    assert len(caught.value.faults) == 3


def test_a_word_that_the_preset_does_not_know_is_refused_where_it_is_applied() -> None:
    with pytest.raises(InputError, match="attention is"):
        frameworks.of(Workload(1024, 8, switches=(("attention", "slow"),)))


def test_what_a_layout_states_is_no_switch() -> None:
    assert "zero_stage" not in SWITCHES
    assert "kernel_s" not in SWITCHES


@pytest.mark.parametrize(
    ("name", "text", "word"),
    [
        ("fused_softmax_keys", "1.5", "whole number"),
        ("fp8_recipe", "fp8", "one of fp8-delayed, fp8-current, fp8-block, mxfp8"),
        ("pipeline_communicators", "-1", "0 or more"),
        ("bucket_bytes_per_dp", "-4", "0 or more"),
        ("pipeline_zero_max", "9", "0 to 3"),
        ("cuda_graph", "true", "cuda_graphs or a name of"),
    ],
)
def test_a_value_that_cannot_be_is_refused_with_one_that_can(name: str, text: str, word: str) -> None:
    with pytest.raises(InputError, match=word):
        applied(frameworks.get("generic"), normal({name: text}))
