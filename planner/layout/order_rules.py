"""Which orders of the axes a framework can express, and what they ask of experts."""

from __future__ import annotations

from itertools import combinations

import numpy as np

from planner.frameworks.orders import DENSE_AXES as DENSE
from planner.frameworks.orders import ORDERS
from planner.layout.axes import is_default, stride
from planner.layout.degrees import BoolArray, IntArray, Layout, LayoutBatch
from planner.layout.remedies import RuleContext, expert_counts
from planner.layout.rule import Rule
from planner.layout.splits import split_of

_PAIRS = tuple(combinations(range(len(DENSE)), 2))
_FIRST = np.asarray([[order.split("-").index(DENSE[a]) < order.split("-").index(DENSE[b]) for a, b in _PAIRS]
                     for order in ORDERS])  # fmt: skip
"""``[order, pair]``: whether the first of a pair of axes varies faster."""


def alike(layouts: LayoutBatch, order: str) -> BoolArray:
    """Whether layouts lie as they would in `order`: axes of one rank may stand anywhere."""
    used = [np.asarray(getattr(layouts, axis) > 1) for axis in DENSE]
    both = np.stack([used[a] & used[b] for a, b in _PAIRS], axis=-1)
    return np.asarray(~np.any(both & (_FIRST[layouts.order] != _FIRST[ORDERS.index(order)]), axis=-1))


def first_alike(layouts: LayoutBatch, orders: IntArray) -> BoolArray:
    """Layouts that none of `orders` before their own lays out alike: axes of one rank may stand anywhere."""
    keep = np.ones(len(layouts), dtype=np.bool_)
    for code in orders:
        keep &= ~((layouts.order > code) & alike(layouts, ORDERS[int(code)]))
    return keep


def _inner_pipeline(b: LayoutBatch) -> BoolArray:
    """Whether an axis of more than one rank varies slower than the pipeline."""
    return np.asarray((b.pp > 1) & (stride(b, "pp") * b.pp < b.world))


def _framework_has(b: LayoutBatch, ctx: RuleContext) -> BoolArray:
    if ctx.framework is None or is_default(b):
        return np.ones(np.shape(b.tp), dtype=np.bool_)
    return np.asarray(np.any([alike(b, order) for order in ctx.framework.orders], axis=0))


def _explain_framework(lay: Layout, ctx: RuleContext) -> tuple[str, str, str]:
    preset = ctx.framework
    name, orders = (preset.name, preset.orders) if preset else ("it", ORDERS[:1])
    why = f"{name} lays ranks out as {' or '.join(orders)} only"
    return f"order={lay.order}", why, " or ".join(f"order={order}" for order in orders) + ", or moved ranks (place)"


def _experts_fold(b: LayoutBatch, ctx: RuleContext) -> BoolArray:
    """Experts of a stage whose ranks do not follow one another lie within its runs, and fill them."""
    if is_default(b) or not expert_counts(ctx):
        return np.ones(np.shape(b.tp), dtype=np.bool_)
    return np.asarray(~_inner_pipeline(b) | (b.ep * b.etp == stride(b, "pp")))


def _explain_experts(lay: Layout, ctx: RuleContext) -> tuple[str, str, str]:
    run = int(stride(LayoutBatch.of(lay), "pp"))
    return (
        f"order={lay.order} with ep={lay.ep}, etp={lay.etp}",
        f"pipeline groups of dense and expert layers must be the same: {run} ranks of a stage follow one another",
        f"ep*etp = {run}, or order={ORDERS[0]}",
    )


def _megatron_groups(b: LayoutBatch, ctx: RuleContext) -> BoolArray:
    preset = ctx.framework
    if preset is None or not preset.order_keeps_groups or is_default(b):
        return np.ones(np.shape(b.tp), dtype=np.bool_)
    whole = np.asarray(b.zero_stage <= 1)
    if not expert_counts(ctx):  # experts of one rank with tp of them: their data parallel degree holds cp too
        whole &= b.cp == 1
    return np.asarray(~_inner_pipeline(b) | whole)


def _explain_groups(lay: Layout, ctx: RuleContext) -> tuple[str, str, str]:
    sharded = lay.zero_stage >= 2
    why = (
        "Megatron-FSDP runs the default order alone"
        if sharded
        else "without experts the data parallel degree of expert layers is dp*cp, and has to be dp"
    )
    ways = "zero_stage=1" if sharded else "cp=1"
    return f"order={lay.order} with " + (f"zero_stage={lay.zero_stage}" if sharded else f"cp={lay.cp}"), why, (
        f"{ways}, or order={ORDERS[0]}"
    )


def _seated(b: LayoutBatch, _: RuleContext) -> BoolArray:
    """Whether placements name a GPU for every rank, each once."""
    ids, inverse = np.unique(np.asarray(b.placement), return_inverse=True)
    each = [split_of(int(number)) for number in ids]
    sound = np.asarray([len(set(gpus)) == len(gpus) and min(gpus, default=0) >= 0 for gpus in each], bool)
    length = np.asarray([len(gpus) for gpus in each], np.int64)
    where = inverse.reshape(np.shape(b.placement))
    return np.asarray((b.placement == 0) | (sound[where] & (length[where] == b.world)))


def _explain_seats(lay: Layout, _: RuleContext) -> tuple[str, str, str]:
    what = f"a placement of {len(lay.placement)} ranks on {len(set(lay.placement))} GPUs"
    return what, f"the layout has {lay.world} ranks, and a GPU runs one", f"{lay.world} different GPUs, or none"


RULES: tuple[Rule, ...] = (
    Rule("placement-seats", "A placement names a GPU for every rank, each once.", _seated, _explain_seats),
    Rule("framework-order", "The framework lays ranks out in this order.", _framework_has, _explain_framework),
    Rule(
        "order-experts",
        "Where ranks of a pipeline come before other axes, ep*etp is the ranks of a stage that follow one another.",
        _experts_fold,
        _explain_experts,
        ("degrees-positive", "ep-grid"),
    ),
    Rule(
        "order-groups",
        "Megatron-Core takes tp-cp-pp-dp with equal data parallel degrees of dense and expert layers, unsharded.",
        _megatron_groups,
        _explain_groups,
        ("degrees-positive", "framework-order"),
    ),
)
"""Sources: Megatron-Core ``parallel_state.py`` (``order`` of ``initialize_model_parallel``, its assertions about
data parallel sizes and pipeline groups; ``--use-tp-pp-dp-mapping`` in ``training/initialize.py``), Megatron-Bridge's
guide to Megatron FSDP (which refuses that mapping); DeepSpeed ``runtime/pipe/topology.py`` (``ProcessTopology`` with
axes in any order, ``PipelineModule(topology=...)``); torchtitan ``distributed/parallel_dims.py`` (one mesh)."""
