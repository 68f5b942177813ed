"""Which layouts a precision recipe or an optimizer cannot have, and what would work instead."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from planner.adapters import linear_weights
from planner.layout.degrees import BoolArray, IntArray, Layout, LayoutBatch, divisors
from planner.layout.remedies import RuleContext, choices
from planner.model.spec import Weight
from planner.optimizers import get as get_optimizer
from planner.precision import Recipe, recipe_of

Shards = Iterator[tuple[str, str, int, int]]


def _recipe(ctx: RuleContext) -> Recipe | None:
    """The quantised recipe that the rules speak of, or None."""
    if ctx.workload is None or ctx.framework is None:
        return None
    found = recipe_of(ctx.workload, ctx.framework)
    return found if found.quantised else None


def _split_dimensions(ctx: RuleContext) -> Shards:
    """(GEMM, axis, features, least features of a share) of every dimension that tensor parallelism splits.

    Weights that run as one GEMM are one matrix: their columns count together, where each is split alike.
    """
    for layer in ctx.model.layer_kinds():
        groups: dict[str, list[Weight]] = {}
        for weight in linear_weights(layer, ctx.model.hidden):
            groups.setdefault(weight.fused_with or weight.name, []).append(weight)
        for name, members in groups.items():
            axis = "etp" if members[0].expert else "tp"
            if members[0].shard == "row":
                yield name, axis, members[0].n_in, 1
            elif members[0].shard == "column":
                yield name, axis, sum(w.n_out for w in members), sum(min(w.min_out, w.n_out) for w in members)


def _share(features: int, least: int, degree: IntArray) -> IntArray:
    return np.asarray(np.maximum(features // np.maximum(degree, 1), least))


def blocks_whole(b: LayoutBatch, ctx: RuleContext) -> BoolArray:
    """Whether every share of a dimension that is made of whole blocks is made of whole blocks."""
    kept = np.ones(np.shape(b.tp), dtype=np.bool_)
    recipe = _recipe(ctx)
    if recipe is None:
        return kept
    for _, axis, features, least in set(_split_dimensions(ctx)):
        if features % recipe.block == 0:
            kept &= _share(features, least, getattr(b, axis)) % recipe.block == 0
    return kept


def explain_blocks(lay: Layout, ctx: RuleContext) -> tuple[str, str, str]:
    """Which share cuts a block, and the degrees that do not."""
    recipe = _recipe(ctx)
    if recipe is None:
        raise ValueError("only a quantised recipe cuts blocks")
    cut = [
        (name, axis, features, least)
        for name, axis, features, least in _split_dimensions(ctx)
        if features % recipe.block == 0 and int(_share(features, least, np.asarray(getattr(lay, axis)))) % recipe.block
    ]
    name, axis, features, least = cut[0]
    degree = getattr(lay, axis)
    alike = [d for d in _split_dimensions(ctx) if d[1] == axis and d[2] % recipe.block == 0]
    fits = [
        d
        for d in divisors(features, max(degree, 1))
        if all(int(_share(n, m, np.asarray(d))) % recipe.block == 0 for _, _, n, m in alike)
    ]
    share = int(_share(features, least, np.asarray(degree)))
    return (
        f"{axis}={degree} leaves {share} of the {features} features of {name}",
        f"{recipe.name} scales blocks of {recipe.block}",
        f"{choices(fits, axis)}, or a precision with smaller blocks" if fits else "a precision with smaller blocks",
    )


def rows_whole(b: LayoutBatch, ctx: RuleContext) -> BoolArray:
    """Whether the tokens of a micro-batch on a rank are made of whole blocks, which weight gradients contract."""
    recipe = _recipe(ctx)
    if recipe is None or (ctx.workload is not None and ctx.workload.lora is not None):
        return np.ones(np.shape(b.tp), dtype=np.bool_)
    tokens = b.mbs * ctx.seq_len // np.maximum(b.cp, 1)
    return np.asarray(tokens % recipe.block == 0)


def explain_rows(lay: Layout, ctx: RuleContext) -> tuple[str, str, str]:
    """How many tokens a rank has, and how many would do."""
    recipe = _recipe(ctx)
    block = recipe.block if recipe is not None else 1
    tokens = lay.mbs * ctx.seq_len // lay.cp
    return (
        f"a micro-batch has {tokens} tokens on a rank (mbs={lay.mbs}, seq_len={ctx.seq_len}, cp={lay.cp})",
        f"{recipe.name if recipe else 'the recipe'} scales blocks of {block} tokens for the weight gradient",
        f"a seq_len that is a multiple of {block * lay.cp}",
    )


def matrices_whole(b: LayoutBatch, ctx: RuleContext) -> BoolArray:
    """Whether one rank has each matrix whole that an optimizer orthogonalises."""
    if ctx.workload is None or not get_optimizer(ctx.workload.optimizer).newton_schulz:
        return np.ones(np.shape(b.tp), dtype=np.bool_)
    return np.asarray(b.zero_stage <= 1)


def explain_matrices(lay: Layout, ctx: RuleContext) -> tuple[str, str, str]:
    """Why gradients that are sharded element by element do not do."""
    name = ctx.workload.optimizer if ctx.workload is not None else "the optimizer"
    why = f"{name} orthogonalises whole matrices, and ZeRO-2 and 3 leave a rank slices of gradients"
    return f"zero_stage={lay.zero_stage} with optimizer {name}", why, "zero_stage<=1, or optimizer adamw"
