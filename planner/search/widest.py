"""Every value that a field of a legal layout could have: what ``max`` means in a scenario."""

from __future__ import annotations

from typing import Any

from hwmodels.cluster import Cluster
from planner.frameworks.base import CP_KINDS
from planner.layout import ORDERS, RECOMPUTE, RESHARDS, SCHEDULES, divisors
from planner.layout.degrees import CODES
from planner.layout.recompute import MODULES
from planner.model.spec import ModelSpec, Moe
from planner.plan import Workload
from planner.search.ranges import STAGES

NAMED: dict[str, tuple[str, ...]] = {
    "recompute": RECOMPUTE, "schedule": SCHEDULES, "cp_kind": CP_KINDS, "reshard": RESHARDS,
    "order": ORDERS,
}  # fmt: skip
"""Fields whose values are words -> the words that a search may name."""


def widest(model: ModelSpec, cluster: Cluster, workload: Workload) -> dict[str, tuple[Any, ...]]:
    """Field -> its values; sets of modules are given by the modules that they may have."""
    world = cluster.n_ranks
    heads = min(model.tensor_counts())
    experts = [layer.ffn for layer in model.layers if isinstance(layer.ffn, Moe)]
    ranks = tuple(divisors(world))
    return {
        "tp": tuple(divisors(heads, world)),
        "sp": (0, 1),
        "cp": ranks,
        "pp": tuple(divisors(world, model.n_layers)),
        "vpp": tuple(range(1, model.n_layers + 1)),
        "dp": ranks,
        "ep": tuple(divisors(min(moe.n_experts for moe in experts), world)) if experts else (1,),
        "etp": tuple(divisors(min(moe.ffn_hidden for moe in experts), world)) if experts else (1,),
        "zero_stage": (0, 1, 2, 3),
        "fsdp": (0, *ranks),
        "cp_ulysses": (0, *ranks),
        "mbs": tuple(divisors(workload.gbs)),
        "recompute_modules": MODULES,
        "recompute_layers": tuple(range(model.n_layers + 1)),
        "offload_optimizer": tuple(range(101)),
        "offload_parameters": (0, 1),
        "offload_activations": tuple(range(model.n_layers)),
        "stages": STAGES,
        **NAMED,
    }


def coded(name: str, values: tuple[Any, ...]) -> tuple[int, ...]:
    """Values of a field as they stand in arrays of layouts."""
    code = CODES.get(name)
    if code is None:
        return tuple(int(value) for value in values)
    if name == "recompute_modules":
        return tuple(code.encode((value,)) for value in values)
    if name == "recompute_layers":
        return tuple(code.encode((value,) if value else ()) for value in values)
    return tuple(code.encode(value) for value in values)
