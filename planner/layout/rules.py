"""Every validity rule of a layout, once: evaluated on arrays, explained for a single layout.

Each rule has an identifier, a sentence, and a way out: a value that would work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from hwmodels.errors import Fault, InputError
from planner.layout import (
    context_rules,
    expert_rules,
    model_rules,
    offload_rules,
    order_rules,
    precision_rules,
    recompute_rules,
    sharding_rules,
    stage_rules,
)
from planner.layout.degrees import (
    SCHEDULES,
    BoolArray,
    IntArray,
    Layout,
    LayoutBatch,
)
from planner.layout.known import unknown_names
from planner.layout.remedies import (
    MOST_ACTIONS,
    RuleContext,
    attention_heads,
    expert_counts,
    explain_ep,
    explain_ep_grid,
    explain_ffn,
    explain_framework_schedule,
    explain_gbs,
    explain_heads,
    explain_interleave,
    explain_kv,
    explain_layers,
    explain_length,
    explain_microbatches,
    explain_pairs,
    explain_positive,
    explain_split_recompute,
    explain_vpp,
    explain_world,
    explain_zero_known,
    explain_zero_pipeline,
    ffn_widths,
    kv_heads,
)
from planner.layout.rule import Rule
from planner.layout.splits import split_faults, split_of
from planner.model.spec import Moe
from planner.schedule import Schedule
from planner.schedule import get as get_schedule

_SCHEDULES = [get_schedule(name) for name in SCHEDULES]
_INTERLEAVED = np.asarray([s.interleaved for s in _SCHEDULES])
_VPP_ONLY = np.asarray([s.vpp_only for s in _SCHEDULES])
_SPLIT = np.asarray([s.split_backward for s in _SCHEDULES])
_PP_MULTIPLE = np.asarray([s.pp_multiple for s in _SCHEDULES])


def _divides(number: int, array: IntArray) -> BoolArray:
    return np.asarray(number % np.maximum(array, 1) == 0)


def _all(parts: Iterable[BoolArray], like: IntArray) -> BoolArray:
    result = np.ones(np.shape(like), dtype=np.bool_)
    for part in parts:
        result = result & part
    return result


def _positive(b: LayoutBatch, _: RuleContext) -> BoolArray:
    at_least_one = _all((getattr(b, k) >= 1 for k in ("tp", "cp", "pp", "vpp", "dp", "ep", "etp", "mbs")), b.tp)
    at_least_one &= (b.fsdp >= 0) & (b.cp_ulysses >= 0)
    return at_least_one & ((b.sp == 0) | (b.sp == 1)) & (b.zero_stage >= 0) & (b.zero_stage <= 3)


def _kv_ok(b: LayoutBatch, ctx: RuleContext) -> BoolArray:
    return _all(((k % np.maximum(b.tp, 1) == 0) | (b.tp % k == 0) for k in kv_heads(ctx)), b.tp)


def _layers_split(b: LayoutBatch, ctx: RuleContext) -> BoolArray:
    """The default rule deals a layer at least to every stage but the two ends; a given split must match the model."""
    fits = np.asarray((b.pp * b.vpp <= ctx.model.n_layers + 2) | (b.stage_layers > 0))
    if not np.any(b.stage_layers):
        return fits
    keys = np.stack([np.atleast_1d(b.stage_layers), np.atleast_1d(b.pp * b.vpp)], axis=1)
    unique, inverse = np.unique(keys, axis=0, return_inverse=True)
    dealt = np.asarray([
        split == 0 or not split_faults(split_of(int(split)), ctx.model.n_layers, int(stages))
        for split, stages in unique
    ])
    return fits & dealt[inverse.reshape(-1)].reshape(np.shape(b.stage_layers))


def _vpp_fits(b: LayoutBatch, _: RuleContext) -> BoolArray:
    only = _VPP_ONLY[b.schedule]
    interleaves = (b.pp > 1) & np.where(only > 0, b.vpp == only, b.vpp > 1)
    return np.asarray(np.where(_INTERLEAVED[b.schedule], interleaves, b.vpp == 1))


def _each_schedule(b: LayoutBatch, value: Callable[[Schedule, int], int]) -> IntArray:
    """A figure of each layout's schedule that depends on pp."""
    pp, schedule = np.atleast_1d(b.pp), np.atleast_1d(b.schedule)
    keys = schedule * (int(pp.max(initial=1)) + 1) + np.maximum(pp, 0)
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    each = np.asarray([value(_SCHEDULES[int(schedule[i])], max(int(pp[i]), 1)) for i in first], dtype=np.int64)
    return np.asarray(each[inverse.reshape(-1)].reshape(np.shape(b.pp)))


def _rounds(b: LayoutBatch, ctx: RuleContext) -> BoolArray:
    if ctx.framework is None or ctx.framework.interleaved_rounds == "any":
        return np.ones(np.shape(b.pp), dtype=np.bool_)
    count, pp = b.microbatches(ctx.gbs), np.maximum(b.pp, 1)
    rounds = np.maximum(count // pp, 1) if ctx.framework.interleaved_rounds == "equal" else pp
    in_rounds = _INTERLEAVED[b.schedule] & (_VPP_ONLY[b.schedule] == 0)
    return np.asarray(~in_rounds | (count % rounds == 0))


def _enough_microbatches(b: LayoutBatch, ctx: RuleContext) -> BoolArray:
    count = b.microbatches(ctx.gbs)
    pairs = _each_schedule(b, lambda s, pp: s.microbatch_multiple(pp) if s.directions > 1 else 1)
    return np.asarray((count >= _each_schedule(b, lambda s, pp: s.least_microbatches(pp))) & (count % pairs == 0))


def _split_recompute(b: LayoutBatch, ctx: RuleContext) -> BoolArray:
    if ctx.framework is None or not ctx.framework.split_keeps_graph:
        return np.ones(np.shape(b.pp), dtype=np.bool_)
    return np.asarray((b.pp == 1) | (b.recompute == 0) | ~_SPLIT[b.schedule])


def _framework_schedule(b: LayoutBatch, ctx: RuleContext) -> BoolArray:
    if ctx.framework is None:
        return np.ones(np.shape(b.pp), dtype=np.bool_)
    known = np.asarray([name in ctx.framework.schedules for name in SCHEDULES])
    return np.asarray((b.pp == 1) | known[b.schedule])


def _ep_grid(b: LayoutBatch, ctx: RuleContext) -> BoolArray:
    return np.asarray((b.tp * b.cp * b.dp) % np.maximum(b.ep * b.etp, 1) == 0)


def _etp_width(b: LayoutBatch, ctx: RuleContext) -> BoolArray:
    widths = {layer.ffn.ffn_hidden for layer in ctx.model.layers if isinstance(layer.ffn, Moe)}
    return _all((_divides(w, b.etp) for w in widths), b.tp)


def _short_enough(b: LayoutBatch, ctx: RuleContext) -> BoolArray:
    # Parameters or gradients that move every micro-batch make a node of each layer.
    each = ctx.framework is not None and not ctx.framework.pipeline_keeps_gathered
    pieces = np.where(((b.pp == 1) | each) & (b.zero_stage >= 2), ctx.model.n_layers, b.pp * b.vpp)
    return np.asarray(b.microbatches(ctx.gbs) * pieces <= MOST_ACTIONS)


def _need_experts(b: LayoutBatch, ctx: RuleContext) -> BoolArray:
    experts = expert_counts(ctx)
    if not experts:
        return np.asarray((b.ep == 1) & (b.etp == 1))
    return _all((_divides(e, b.ep) for e in experts), b.tp)


def _zero_known(b: LayoutBatch, ctx: RuleContext) -> BoolArray:
    stages = ctx.framework.zero_stages if ctx.framework else (0, 1, 2, 3)
    return np.asarray(np.isin(b.zero_stage, stages))


def _zero_pipeline(b: LayoutBatch, ctx: RuleContext) -> BoolArray:
    most = ctx.framework.pipeline_zero_max if ctx.framework else 3
    return np.asarray((b.pp == 1) | (b.zero_stage <= most))


RULES: tuple[Rule, ...] = (
    Rule(
        "degrees-positive",
        "Every degree is a whole number of at least 1; sp is 0 or 1; zero_stage is 0 to 3.",
        _positive,
        explain_positive,
        (),
    ),
    Rule(
        "world-product",
        "tp*cp*pp*dp equals the number of ranks.",
        lambda b, c: np.asarray(b.world == c.world),
        explain_world,
    ),
    Rule(
        "tp-heads",
        "tp divides the attention heads.",
        lambda b, c: _all((_divides(h, b.tp) for h in attention_heads(c)), b.tp),
        explain_heads,
    ),
    Rule("tp-kv-heads", "tp divides the key-value heads or is a multiple of them.", _kv_ok, explain_kv),
    Rule(
        "tp-ffn",
        "tp divides every dense feed-forward width.",
        lambda b, c: _all((_divides(w, b.tp) for w in ffn_widths(c)), b.tp),
        explain_ffn,
    ),
    Rule(
        "tp-recurrent",
        "tp divides the heads and groups of recurrent mixers.",
        model_rules.recurrent_split,
        model_rules.explain_recurrent_split,
    ),
    Rule(
        "cp-recurrent",
        "Context parallelism gives each rank whole heads of recurrent mixers; Mamba's own scan has none.",
        model_rules.recurrent_context,
        model_rules.explain_recurrent_context,
        ("degrees-positive", "tp-recurrent"),
    ),
    Rule(
        "tp-vision",
        "tp divides heads and feed-forward width of a vision tower that images go through.",
        model_rules.vision_split,
        model_rules.explain_vision_split,
    ),
    Rule(
        "sp-needs-tp",
        "Sequence parallel needs a tensor-parallel group.",
        lambda b, c: np.asarray((b.sp == 0) | (b.tp > 1)),
        lambda lay, c: ("sp=1 with tp=1", "sequence parallel splits activations over the tp group", "sp=0, or tp>1"),
    ),
    Rule(
        "seq-split",
        "seq_len divides by tp (with sequence parallel) and by 2*cp.",
        lambda b, c: np.asarray(
            (c.seq_len % np.where(b.sp == 1, b.tp * b.cp, b.cp) == 0) & ((b.cp == 1) | (c.seq_len % (2 * b.cp) == 0))
        ),
        lambda lay, c: (
            f"seq_len={c.seq_len} with tp={lay.tp}, sp={lay.sp}, cp={lay.cp}",
            "every rank takes an equal part of the sequence",
            f"a seq_len that is a multiple of {(lay.tp if lay.sp else 1) * 2 * lay.cp}",
        ),
    ),
    Rule(
        "layers-stages",
        "Virtual stages hold every layer once; only the first and the last may stand without one.",
        _layers_split,
        explain_layers,
    ),
    Rule("gbs-microbatch", "mbs*dp divides gbs.", lambda b, c: _divides(c.gbs, np.asarray(b.mbs * b.dp)), explain_gbs),
    Rule(
        "vpp-needs-pp",
        "Virtual stages need a pipeline and an interleaved schedule (two of them one in a V), and the reverse.",
        _vpp_fits,
        explain_vpp,
    ),
    Rule(
        "interleave-rounds",
        "The framework runs interleaved schedules in rounds that divide the micro-batches.",
        _rounds,
        explain_interleave,
        ("degrees-positive", "gbs-microbatch", "vpp-needs-pp", "schedule-microbatches"),
    ),
    Rule(
        "schedule-microbatches",
        "Interleaved schedules need pp micro-batches or more, DualPipe and DualPipeV 2*pp, DualPipe an even number.",
        _enough_microbatches,
        explain_microbatches,
        ("degrees-positive", "gbs-microbatch", "vpp-needs-pp"),
    ),
    Rule(
        "schedule-pp",
        "DualPipe pairs rank r with rank pp-1-r: pp is even.",
        lambda b, c: np.asarray(b.pp % _PP_MULTIPLE[b.schedule] == 0),
        explain_pairs,
    ),
    Rule(
        "step-length",
        f"Micro-batches times virtual stages (layers with ZeRO-2 and 3) are at most {MOST_ACTIONS}.",
        _short_enough,
        explain_length,
        ("degrees-positive", "gbs-microbatch"),
    ),
    Rule("ep-experts", "ep divides the number of experts; a dense model has ep = etp = 1.", _need_experts, explain_ep),
    Rule(
        "ep-grid",
        "ep*etp divides tp*cp*dp.",
        _ep_grid,
        explain_ep_grid,
    ),
    Rule(
        "etp-width",
        "etp divides the expert width.",
        _etp_width,
        lambda lay, c: (
            f"etp={lay.etp} does not divide the expert width",
            "a column split gives each rank a whole share",
            "etp=1",
        ),
    ),
    *sharding_rules.RULES,
    Rule(
        "moe-tp-needs-sp",
        "Experts with tensor parallelism need sequence parallelism, so that each rank routes its own tokens.",
        lambda b, c: np.asarray((b.tp == 1) | (b.sp == 1) | (b.ep * b.etp == 1)),
        lambda lay, c: (
            f"ep={lay.ep}, etp={lay.etp} with tp={lay.tp} and sp=0",
            "tp ranks would all dispatch the same tokens",
            "sp=1, or ep=1 etp=1",
        ),
    ),
    Rule(
        "moe-overlap-stages",
        "A pipeline that overlaps expert exchanges is interleaved or dual.",
        expert_rules.overlap_stages,
        expert_rules.explain_overlap_stages,
    ),
    Rule(
        "moe-overlap-recompute",
        "Expert exchanges that overlap are not recomputed.",
        expert_rules.overlap_recompute,
        expert_rules.explain_overlap_recompute,
    ),
    Rule(
        "moe-capacity-dispatcher",
        "Padding experts to their capacity needs the all-to-all dispatcher.",
        expert_rules.capacity_dispatcher,
        expert_rules.explain_capacity_dispatcher,
    ),
    Rule("framework-zero-stage", "The framework has the ZeRO stage.", _zero_known, explain_zero_known),
    Rule(
        "framework-zero-pipeline",
        "The framework runs the ZeRO stage with a pipeline.",
        _zero_pipeline,
        explain_zero_pipeline,
    ),
    Rule(
        "precision-block",
        "A shard of a dimension made of whole scaling blocks is made of whole blocks.",
        precision_rules.blocks_whole,
        precision_rules.explain_blocks,
        ("degrees-positive", "tp-heads", "tp-kv-heads", "tp-ffn", "etp-width"),
    ),
    Rule(
        "precision-rows",
        "A rank's tokens of a micro-batch are made of whole scaling blocks.",
        precision_rules.rows_whole,
        precision_rules.explain_rows,
        ("degrees-positive", "seq-split"),
    ),
    Rule(
        "optimizer-whole-matrices",
        "An optimizer over whole matrices needs zero_stage of at most 1.",
        precision_rules.matrices_whole,
        precision_rules.explain_matrices,
    ),
    Rule(
        "framework-split-recompute",
        "The framework recomputes in schedules that split the backward.",
        _split_recompute,
        explain_split_recompute,
    ),
    *(Rule(*parts) for parts in (*recompute_rules.RULES, *offload_rules.RULES)),
    *stage_rules.RULES,
    Rule(
        "framework-schedule",
        "The framework runs the pipeline schedule.",
        _framework_schedule,
        explain_framework_schedule,
    ),
    *context_rules.RULES,
    *order_rules.RULES,
)


def check(layouts: LayoutBatch, context: RuleContext) -> dict[str, BoolArray]:
    """Evaluate every rule on arrays.

    Returns
    -------
    dict of str to ndarray of bool
        Rule identifier -> True where the rule holds.
    """
    with np.errstate(divide="ignore"):
        return {rule.id: np.asarray(rule.holds(layouts, context)) for rule in RULES}


def faults(layout: Layout, context: RuleContext, where: str = "") -> list[Fault]:
    """All rules that one layout breaks, each with a way out."""
    unknown = unknown_names(layout, where)
    if unknown:
        return unknown
    kept = check(LayoutBatch.of(layout), context)
    found = []
    for rule in RULES:
        if not kept[rule.id] and all(kept[need] for need in rule.needs):
            what, why, fix = rule.explain(layout, context)
            found.append(Fault(what, where, why, fix, rule.id))
    return found


def validate(layout: Layout, context: RuleContext, where: str = "") -> None:
    """Raise `InputError` with every broken rule; return silently when all hold."""
    found = faults(layout, context, where)
    if found:
        raise InputError(found)
