"""Rules about how a framework exchanges tokens, as `planner.layout.rules` holds them: tests on arrays, remedies."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from planner.layout.degrees import SCHEDULES, Layout, LayoutBatch
from planner.layout.recompute import RECOMPUTE, WHOLE_LAYERS
from planner.layout.remedies import RuleContext, expert_counts
from planner.schedule import get as get_schedule

BoolArray = NDArray[np.bool_]
_WHOLE = (*WHOLE_LAYERS, RECOMPUTE.index("op"))
_SIDE_BY_SIDE = np.asarray([get_schedule(n).interleaved or get_schedule(n).directions > 1 for n in SCHEDULES])


def _overlaps(ctx: RuleContext) -> bool:
    return ctx.framework is not None and ctx.framework.moe_exchange_overlap and bool(expert_counts(ctx))


def overlap_stages(b: LayoutBatch, ctx: RuleContext) -> BoolArray:
    """A pipeline that overlaps exchanges has virtual stages or two directions (Megatron-Core transformer_config.py)."""
    if not _overlaps(ctx):
        return np.ones(np.shape(b.tp), dtype=np.bool_)
    return np.asarray((b.pp == 1) | _SIDE_BY_SIDE[b.schedule])


def explain_overlap_stages(lay: Layout, _: RuleContext) -> tuple[str, str, str]:
    """What breaks ``moe-overlap-stages``, why, and what would work."""
    return (
        f"moe_exchange_overlap with pp={lay.pp} and schedule {lay.schedule}",
        "only interleaved and dual schedules have a forward and a backward of other micro-batches side by side",
        "vpp=2 with interleaved-1f1b, pp=1, or moe_exchange_overlap=false",
    )


def overlap_recompute(b: LayoutBatch, ctx: RuleContext) -> BoolArray:
    """Exchanges that overlap are not recomputed (Megatron-Core ``transformer_config.py``)."""
    if not _overlaps(ctx):
        return np.ones(np.shape(b.tp), dtype=np.bool_)
    return np.asarray(~np.isin(b.recompute, _WHOLE))


def explain_overlap_recompute(lay: Layout, _: RuleContext) -> tuple[str, str, str]:
    """What breaks ``moe-overlap-recompute``, why, and what would work."""
    return (
        f"moe_exchange_overlap with recompute={lay.recompute}",
        "full recomputation runs a layer's exchanges again inside its backward, beside nothing",
        "recompute=selective or none, or moe_exchange_overlap=false",
    )


def capacity_dispatcher(b: LayoutBatch, ctx: RuleContext) -> BoolArray:
    """Padding to capacity needs the all-to-all dispatcher (Megatron-Core ``token_dispatcher.py``: ``drop_and_pad``)."""
    work, preset = ctx.workload, ctx.framework
    pads = work is not None and work.routing.pad_to_capacity and bool(expert_counts(ctx))
    holds = not pads or preset is None or preset.moe_dispatcher == "alltoall"
    return np.full(np.shape(b.tp), holds, dtype=np.bool_)


def explain_capacity_dispatcher(_: Layout, ctx: RuleContext) -> tuple[str, str, str]:
    """What breaks ``moe-capacity-dispatcher``, why, and what would work."""
    name = ctx.framework.moe_dispatcher if ctx.framework else ""
    return (
        f"pad_to_capacity with moe_dispatcher={name}",
        "only the all-to-all dispatcher exchanges buffers of equal size",
        "moe_dispatcher=alltoall, or capacity_factor without padding",
    )
