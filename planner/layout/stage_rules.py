"""Rules about what a framework takes stage by stage: its layers, and how many of them are recomputed.

Any split: Megatron-Core ``--pipeline-model-parallel-layout`` (its ends alone also by
``--decoder-first-pipeline-num-layers`` and the like); torchtitan ``module_fqns_per_model_part``. Megatron-LM to 2022
divides the layers by pp or refuses, and DeepSpeed's ``PipelineModule`` cuts by its ``partition_method``, a word, not a
list. One number of recomputed layers holds for every virtual stage in Megatron-Core (``--recompute-num-layers``; NeMo,
docs features/optimizations/activation_recomputation) and in torchtitan.
"""

from __future__ import annotations

import numpy as np

from planner.layout.degrees import BoolArray, Layout, LayoutBatch
from planner.layout.remedies import RuleContext
from planner.layout.rule import Rule
from planner.layout.splits import split_layers, split_of, split_text


def _usual(split: tuple[int, ...], ctx: RuleContext) -> bool:
    """Whether a split is that of the default rule."""
    return not split or split == split_layers(ctx.model.n_layers, len(split))


def splits_taken(b: LayoutBatch, ctx: RuleContext) -> BoolArray:
    """Whether the framework takes the split."""
    if ctx.framework is None or ctx.framework.uneven_stages or not np.any(b.stage_layers):
        return np.ones(np.shape(b.tp), dtype=np.bool_)
    unique, inverse = np.unique(b.stage_layers, return_inverse=True)
    usual = np.asarray([_usual(split_of(int(split)), ctx) for split in unique])
    return np.asarray(usual[inverse.reshape(np.shape(b.tp))])


def _explain_splits(lay: Layout, ctx: RuleContext) -> tuple[str, str, str]:
    """What breaks ``framework-stages``, why, and what would work."""
    name = ctx.framework.name if ctx.framework else "the framework"
    usual = split_layers(ctx.model.n_layers, lay.pp * lay.vpp)
    what = f"stage_layers={split_text(lay.stage_layers)} with framework {name}"
    why = f"{name} has no option for the layers of each stage"
    return what, why, f"stage_layers {split_text(usual)}" if usual else f"pp*vpp <= {ctx.model.n_layers + 2}"


def counts_taken(b: LayoutBatch, ctx: RuleContext) -> BoolArray:
    """Whether the framework takes the numbers of recomputed layers."""
    if ctx.framework is None or ctx.framework.recompute_by_stage or not np.any(b.recompute_layers):
        return np.ones(np.shape(b.tp), dtype=np.bool_)
    unique, inverse = np.unique(b.recompute_layers, return_inverse=True)
    same = np.asarray([len(set(split_of(int(numbers)))) <= 1 for numbers in unique])
    return np.asarray(same[inverse.reshape(np.shape(b.tp))])


def _explain_counts(lay: Layout, ctx: RuleContext) -> tuple[str, str, str]:
    """What breaks ``framework-recompute-stages``, why, and what would work."""
    name = ctx.framework.name if ctx.framework else "the framework"
    numbers = ",".join(map(str, lay.recompute_layers))
    why = f"{name} has one number for all virtual stages"
    return f"recompute_layers={numbers} with framework {name}", why, f"recompute_layers {max(lay.recompute_layers)}"


RULES: tuple[Rule, ...] = (
    Rule(
        "framework-stages",
        "The framework takes the layers of each virtual stage, or they are those of the default rule.",
        splits_taken,
        _explain_splits,
        ("degrees-positive", "layers-stages"),
    ),
    Rule(
        "framework-recompute-stages",
        "The framework takes another number of recomputed layers for every virtual stage.",
        counts_taken,
        _explain_counts,
        ("recompute-layers",),
    ),
)
