"""What ZeRO and FSDP shard, over which ranks, and when they free what they gathered."""

from __future__ import annotations

import numpy as np

from planner.layout.degrees import Layout, divisors
from planner.layout.remedies import RuleContext, choices
from planner.layout.rule import Rule


def _explain_fsdp_stage(lay: Layout, ctx: RuleContext) -> tuple[str, str, str]:
    """The stages of the framework that shard, the most first; with a pipeline those that it runs with one."""
    preset = ctx.framework
    stages, most = (preset.zero_stages, preset.pipeline_zero_max) if preset else ((1, 2, 3), 3)
    fit = sorted((s for s in stages if s >= 1 and (lay.pp == 1 or s <= most)), reverse=True)
    ways = [" or ".join(f"zero_stage={stage}" for stage in fit)] if fit else []
    what, why = f"fsdp={lay.fsdp} with zero_stage=0", "stage 0 shards nothing, over however many ranks"
    return what, why, ", or ".join([*ways, "fsdp=0"])


RULES: tuple[Rule, ...] = (
    Rule(
        "fsdp-divides-dp",
        "fsdp divides dp.",
        lambda b, c: np.asarray(b.dp % np.maximum(b.fsdp_degree, 1) == 0),
        lambda lay, c: (
            f"fsdp={lay.fsdp} does not divide dp={lay.dp}",
            "dp = replicas * fsdp",
            choices(divisors(lay.dp, 1024), "fsdp"),
        ),
    ),
    Rule(
        "fsdp-stage",
        "Sharding over fsdp ranks needs something that is sharded: zero_stage of at least 1.",
        lambda b, c: np.asarray((b.fsdp <= 1) | (b.zero_stage >= 1)),
        _explain_fsdp_stage,
    ),
    Rule(
        "zero-needs-dp",
        "ZeRO needs more than one data-parallel rank.",
        lambda b, c: np.asarray((b.zero_stage == 0) | (b.dp * b.cp > 1)),
        lambda lay, c: (
            f"zero_stage={lay.zero_stage} with dp={lay.dp}",
            "there is nothing to shard over",
            "zero_stage=0",
        ),
    ),
    Rule(
        "reshard-stage",
        "Only stage 3 frees parameters that it has gathered.",
        lambda b, c: np.asarray((b.reshard == 0) | (b.zero_stage == 3)),
        lambda lay, c: (
            f"reshard={lay.reshard} with zero_stage={lay.zero_stage}",
            "parameters are sharded in stage 3 alone",
            "reshard=default, or zero_stage=3",
        ),
    ),
)
"""Sources: ZeRO (arXiv 1910.02054, section 5) for the stages; PyTorch ``HYBRID_SHARD`` for shards below dp."""
