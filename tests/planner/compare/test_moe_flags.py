"""Flags of measured runs as switches of the expert layers."""

from __future__ import annotations

import pytest

from planner.compare.measurements import to_case
from planner.compare.moe_flags import moe_switches_of, routing_of
from planner.compare.rows import Row
from planner.frameworks.switches import normal
from planner.model.spec import Moe
from planner.routing import Routing


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


def _row(**more: object) -> Row:
    cells: dict[str, object] = {
        "id": "r", "group": "g", "source": "NVIDIA Megatron-Bridge performance summary, NeMo container 25.09",
        "model": "DeepSeek-V3", "gpu": "H100", "n_gpus": 1024, "precision": "fp8-cs", "layers": 61, "hidden": 7168,
        "heads": 128, "kv_heads": 128, "ffn_hidden": 18432, "gated_mlp": 1, "vocab": 129280, "seq_len": 4096,
        "n_experts": 256, "topk": 8, "moe_ffn_hidden": 2048, "shared_experts": 1.0, "n_dense_layers": 3,
        "attention": "mla", "tp": 2, "pp": 8, "vpp": 4, "ep": 64, "mbs": 1, "gbs": 8192, "gpus_per_node": 8,
        "recompute": "none", "step_time_s": 1.0,
    }  # fmt: skip
    return Row(**{**cells, **more})  # type: ignore[arg-type]


def test_a_recipe_without_flags_overlaps_where_experts_leave_the_node() -> None:
    case = to_case(_row())
    switches = dict(case.workload.switches)
    assert (switches["moe_dispatcher"], switches["moe_exchange_overlap"]) == ("deepep", "true")
    assert any(text.startswith("recipe across nodes") for text in case.assumed)
    assert case.layout.etp == 1  # the recipes keep experts whole; Megatron-Core would split them over tp
    assert not dict(to_case(_row(ep=8, tp=1, pp=16, vpp=None, schedule="1f1b")).workload.switches)
    plain = dict(to_case(_row(vpp=1, schedule="1f1b", layers=64)).workload.switches)
    assert plain == {"moe_dispatcher": "deepep"}  # no interleaving, no overlap
    assert not dict(to_case(_row(source="Megatron-LM log", framework="megatron")).workload.switches)


def test_groups_of_experts_are_those_of_the_architecture_that_a_name_means() -> None:
    ffn = to_case(_row()).model.layers[-1].ffn
    assert isinstance(ffn, Moe)
    assert (ffn.groups, ffn.group_limit) == (8, 4)  # arXiv 2412.19437, section 4.2
    other = to_case(_row(n_experts=128)).model.layers[-1].ffn
    assert isinstance(other, Moe)
    assert (other.groups, other.group_limit) == (1, 1)
