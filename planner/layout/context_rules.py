"""Which kinds of context parallelism a layout can have, and what would work instead."""

from __future__ import annotations

import numpy as np

from planner.layout.degrees import OPEN_CP_KINDS, BoolArray, Layout, LayoutBatch, divisors
from planner.layout.remedies import RuleContext, attention_heads, choices, kv_heads
from planner.layout.rule import Rule

_RING, _GATHER, _ULYSSES, _HIERARCHICAL = (
    OPEN_CP_KINDS.index(name) for name in ("ring", "all-gather", "ulysses", "hierarchical")
)
_DEFAULT = "ring"


def _default(ctx: RuleContext) -> str:
    return ctx.framework.cp_kind if ctx.framework else _DEFAULT


def _resolved(b: LayoutBatch, ctx: RuleContext) -> LayoutBatch:
    return b.with_cp_kind(_default(ctx))


def _kind_of(lay: Layout, ctx: RuleContext) -> str:
    return lay.cp_kind or _default(ctx)


def _inner(lay: Layout, ctx: RuleContext) -> int:
    return int(_resolved(LayoutBatch.of(lay), ctx).cp_inner)


def _framework_has(b: LayoutBatch, ctx: RuleContext) -> BoolArray:
    if ctx.framework is None:
        return np.ones(np.shape(b.cp), dtype=np.bool_)
    known = [OPEN_CP_KINDS.index(name) for name in ctx.framework.cp_kinds]
    return np.asarray((b.cp == 1) | np.isin(_resolved(b, ctx).cp_kind, known))


def _explain_framework(lay: Layout, ctx: RuleContext) -> tuple[str, str, str]:
    name, kinds = (ctx.framework.name, ctx.framework.cp_kinds) if ctx.framework else ("the framework", ())
    if not kinds:
        return f"cp={lay.cp} with framework {name}", f"{name} has no context parallelism", "cp=1, or framework generic"
    return (
        f"cp_kind {_kind_of(lay, ctx)} with framework {name}",
        f"{name} does not have it",
        f"cp_kind {' or '.join(kinds)}, or framework generic",
    )


def _hierarchy(b: LayoutBatch, ctx: RuleContext) -> BoolArray:
    stated, inner = _resolved(b, ctx).cp_kind == _HIERARCHICAL, np.maximum(b.cp_ulysses, 1)
    two_levels = (b.cp_ulysses > 1) & (b.cp_ulysses < b.cp) & (b.cp % inner == 0)
    return np.asarray(np.where(stated & (b.cp > 1), two_levels, b.cp_ulysses == 0))


def _explain_hierarchy(lay: Layout, ctx: RuleContext) -> tuple[str, str, str]:
    fit = [d for d in divisors(lay.cp) if 1 < d < lay.cp]
    kind = _kind_of(lay, ctx)
    if kind != "hierarchical" or lay.cp == 1:
        return f"cp_ulysses={lay.cp_ulysses} with cp={lay.cp} and cp_kind {kind}", "one level has no inner degree", (
            "cp_ulysses=0, or cp_kind hierarchical with cp of 4 or more"
        )
    fix = choices(fit, "cp_ulysses") if fit else "cp_kind ring or ulysses"
    return f"cp_ulysses={lay.cp_ulysses} with cp={lay.cp}", "it divides cp into two levels of 2 or more", fix


def _heads(b: LayoutBatch, ctx: RuleContext) -> BoolArray:
    inner = _resolved(b, ctx).cp_inner
    kept = np.ones(np.shape(b.tp), dtype=np.bool_)
    for heads in {*attention_heads(ctx), *kv_heads(ctx)}:
        kept &= (inner == 1) | (heads % np.maximum(b.tp * inner, 1) == 0)
    return kept


def _explain_heads(lay: Layout, ctx: RuleContext) -> tuple[str, str, str]:
    inner = _inner(lay, ctx)
    counts = [*attention_heads(ctx), *kv_heads(ctx)]
    fit = [d for d in divisors(lay.cp) if d > 1 and all(h % (lay.tp * d) == 0 for h in counts)]
    known = ctx.framework.cp_kinds if ctx.framework else OPEN_CP_KINDS[1:]
    ways = []
    if fit and "hierarchical" in known:
        ways.append(f"cp_kind hierarchical with {choices([d for d in fit if d < lay.cp], 'cp_ulysses')}")
    if others := [kind for kind in ("ring", "all-gather") if kind in known]:
        ways.append("cp_kind " + " or ".join(others))
    ways = ways or [choices([1, *fit], "cp")]
    return (
        f"tp={lay.tp} times {inner} ranks that take heads do not divide the heads",
        f"{ctx.model.name} has {min(counts)} key-value heads, each whole on a rank",
        ", or ".join(ways),
    )


def _attention(b: LayoutBatch, ctx: RuleContext) -> BoolArray:
    if ctx.framework is None or not ctx.framework.attention.startswith("unfused"):
        return np.ones(np.shape(b.cp), dtype=np.bool_)
    kind = _resolved(b, ctx).cp_kind
    return np.asarray((b.cp == 1) | ((kind != _RING) & (kind != _HIERARCHICAL)))


def _explain_attention(lay: Layout, ctx: RuleContext) -> tuple[str, str, str]:
    return (
        f"cp_kind {_kind_of(lay, ctx)} with unfused attention kernels",
        "the steps of a ring are merged by softmax statistics, which only a fused kernel returns",
        "cp_kind ulysses or all-gather, or the switch attention=flash",
    )


RULES: tuple[Rule, ...] = (
    Rule(
        "framework-cp",
        "The framework has the kind of context parallelism.",
        _framework_has,
        _explain_framework,
    ),
    Rule(
        "cp-hierarchy",
        "Hierarchical context parallelism has an inner degree between 1 and cp that divides cp; other kinds have none.",
        _hierarchy,
        _explain_hierarchy,
        ("degrees-positive", "framework-cp"),
    ),
    Rule(
        "cp-heads",
        "Ranks that exchange sequence for heads divide the query and the key-value heads of a tp rank.",
        _heads,
        _explain_heads,
        ("degrees-positive", "tp-heads", "tp-kv-heads", "framework-cp", "cp-hierarchy"),
    ),
    Rule(
        "cp-attention",
        "A ring needs a fused attention kernel.",
        _attention,
        _explain_attention,
        ("degrees-positive", "framework-cp"),
    ),
)
"""Sources: Transformer Engine ``attn_forward_func_with_cp`` (heads divisible by the a2a group), Megatron-Core
``TransformerConfig`` and ``DotProductAttention`` (unfused kernels refuse context parallelism)."""
