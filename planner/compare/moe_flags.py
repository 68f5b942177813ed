"""What a measured run's flags say about its expert layers: switches of the preset, and routing.

Flags are those of Megatron-Core (``megatron/training/arguments.py``) and Megatron-Bridge
(``scripts/performance/utils``), dashes and underscores alike, parted by semicolons as in a row's `other_flags`.
"""

from __future__ import annotations

from dataclasses import replace

from planner import frameworks
from planner.compare.rows import Row
from planner.frameworks.base import GRAPHED
from planner.frameworks.switches import Switches
from planner.layout import Layout, LayoutBatch
from planner.model.spec import ModelSpec, Moe
from planner.moe_switches import DISPATCHERS
from planner.routing import Routing
from planner.schedule import get as get_schedule

_ON = ("true", "1", "yes", "")

_FLAGS: dict[str, tuple[tuple[str, str], ...]] = {
    "moe_a2a_overlap": (("moe_exchange_overlap", "true"), ("moe_delay_wgrad", "true")),
    "overlap_moe_expert_parallel_comm": (("moe_exchange_overlap", "true"),),
    "delay_wgrad_compute": (("moe_delay_wgrad", "true"),),
    "moe_enable_deepep": (("moe_dispatcher", "deepep"),),
    "moe_permute_fusion": (("moe_permute_fusion", "true"),),
    "moe_router_fusion": (("moe_router_fusion", "true"),),
    "moe_shared_expert_overlap": (("moe_shared_overlap", "true"),),
    "moe_router_padding_for_fp8": (("moe_router_padding", "true"),),
    "moe_router_padding_for_quantization": (("moe_router_padding", "true"),),
    "cutedsl_fused_grouped_mlp": (("moe_expert_gemm", "grouped"), ("moe_fused_mlp", "true")),
}
"""Flag that is on -> switches. Megatron-Bridge's ``moe_a2a_overlap`` delays weight gradients too
(``set_moe_a2a_overlap_overrides``)."""


def _pairs(flags: str) -> dict[str, str]:
    """Flag -> value, both in lower case; underscores for dashes."""
    parts = (part.partition("=") for part in flags.lower().split(";"))
    return {name.strip().replace("-", "_"): value.strip().strip("'\"") for name, _, value in parts if name.strip()}


def moe_switches_of(flags: str) -> dict[str, str]:
    """Switches of `planner.moe_switches.MoeSwitches` that the flags set, by name; other flags are passed over.

    A graph of the whole iteration holds experts whose rows the device alone knows: one kernel for all of them, since a
    launch for each would need the counts on the host; Megatron-Bridge's recipes set it together with the fused
    grouped MLP (``cuda_graph_impl="full_iteration"`` with ``cutedsl_fused_grouped_mlp``, gpt_oss and qwen3 configs).
    """
    found: dict[str, str] = {}
    given = _pairs(flags)
    for name, value in given.items():
        if name in _FLAGS and value in _ON:
            found |= dict(_FLAGS[name])
    backend = given.get("moe_flex_dispatcher_backend", "")
    kind = given.get("moe_token_dispatcher_type", "")
    if backend in DISPATCHERS:
        found["moe_dispatcher"] = backend
    elif kind in ("alltoall", "allgather") and "moe_dispatcher" not in found:
        found["moe_dispatcher"] = kind
    if found.get("moe_delay_wgrad") and "moe_exchange_overlap" not in found:
        del found["moe_delay_wgrad"]  # of a pipeline's own weight gradients
    if backend and "moe_exchange_overlap" not in found:  # a list of flags that names the dispatcher names the overlap
        found |= {"moe_exchange_overlap": "false", "moe_delay_wgrad": "false"}
    if given.get("cuda_graph_impl") == "full_iteration":
        found |= {"moe_expert_gemm": "grouped", "moe_fused_mlp": "true", "cuda_graphs": "true"}
    elif given.get("cuda_graph_impl"):
        scope = given.get("cuda_graph_scope", "") + given.get("cuda_graph_modules", "")
        found |= {"cuda_graphs": "false", "moe_expert_gemm": "streams", "moe_fused_mlp": "false"} | found
        found |= {"graphed": "+".join(part for part in GRAPHED if f"'{part}'" in scope.replace('"', "'"))}
    return found


def routing_of(flags: str) -> Routing:
    """Capacity and padding that the flags state; balanced and dropless where they state none."""
    given = _pairs(flags)
    try:
        factor = float(given.get("moe_expert_capacity_factor", "0") or 0.0)
    except ValueError:
        factor = 0.0
    padded = given.get("moe_pad_expert_input_to_capacity", "false") in _ON
    return Routing(capacity_factor=max(factor, 0.0), pad_to_capacity=padded and factor > 0.0)


def with_groups(model: ModelSpec, known: ModelSpec) -> ModelSpec:
    """A model from a table's figures, its routing limited to groups as in the architecture that its name means.

    Tables give experts and how many a token chooses, never the groups; they are taken over where both agree.
    """
    published = {
        (layer.ffn.n_experts, layer.ffn.top_k): layer.ffn for layer in known.layers if isinstance(layer.ffn, Moe)
    }
    layers = []
    for layer in model.layers:
        ffn = layer.ffn
        if isinstance(ffn, Moe) and (same := published.get((ffn.n_experts, ffn.top_k))) is not None:
            layer = replace(layer, ffn=replace(ffn, groups=same.groups, group_limit=same.group_limit))
        layers.append(layer)
    return replace(model, layers=tuple(layers))


def recipe_of(row: Row, framework: str, layout: Layout, gpus_per_node: int) -> Switches:
    """Switches of a framework's recipes where the expert grid leaves the node, for a row that states no flags.

    Exchanges do not overlap in a pipeline that is not interleaved.
    """
    nodes = int(LayoutBatch.of(layout).group("ep_etp", gpus_per_node).nodes)
    if row.other_flags or not row.n_experts or nodes == 1:
        return ()
    found = frameworks.across_nodes(framework)
    if layout.pp > 1 and not get_schedule(layout.schedule).interleaved:
        found = tuple((name, word) for name, word in found if name not in ("moe_exchange_overlap", "moe_delay_wgrad"))
    return found
