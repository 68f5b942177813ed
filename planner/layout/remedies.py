"""Why a layout breaks a rule, and what would work: one explanation a rule (`planner.layout.rules`)."""

from __future__ import annotations

from collections.abc import Iterable

from hwmodels.records import dataclass
from planner.frameworks import FrameworkPreset
from planner.frameworks import of as preset_of
from planner.layout.degrees import SCHEDULES, Layout, divisors
from planner.layout.grids import both_grids
from planner.layout.splits import split_faults
from planner.model.spec import ModelSpec, Moe
from planner.schedule import get as get_schedule
from planner.training import Workload


@dataclass(frozen=True, slots=True)
class RuleContext:
    """What the rules are evaluated against."""

    model: ModelSpec
    gbs: int
    seq_len: int
    world: int
    framework: FrameworkPreset | None = None
    workload: Workload | None = None
    """Precision, optimizer and adapters; rules about them hold where it is not given."""

    @classmethod
    def of(cls, model: ModelSpec, workload: Workload, world: int) -> RuleContext:
        """What the rules need to know of a workload on `world` ranks.

        Raises
        ------
        hwmodels.errors.InputError
            For an unknown framework.
        """
        return cls(model, workload.gbs, workload.seq_len, world, preset_of(workload), workload)


MOST_ACTIONS = 65_536
"""Micro-batches times virtual stages of a step that are still simulated one by one."""


def choices(values: Iterable[int], name: str) -> str:
    """Values that would work, as text."""
    return f"{name} in " + ", ".join(str(v) for v in values)


def attention_heads(ctx: RuleContext) -> list[int]:
    """Distinct numbers of attention heads; empty for a model without attention."""
    return sorted({layer.softmax.n_heads for layer in ctx.model.layers if layer.softmax})


def kv_heads(ctx: RuleContext) -> list[int]:
    """Distinct numbers of key-value heads."""
    return sorted({layer.softmax.n_kv_heads for layer in ctx.model.layers if layer.softmax})


def expert_counts(ctx: RuleContext) -> list[int]:
    """Distinct numbers of routed experts; empty for a dense model."""
    return sorted({layer.ffn.n_experts for layer in ctx.model.layers if isinstance(layer.ffn, Moe)})


def explain_positive(lay: Layout, _: RuleContext) -> tuple[str, str, str]:
    """What breaks ``positive``, why, and what would work."""
    bad = [f"{k}={getattr(lay, k)}" for k in ("tp", "cp", "pp", "vpp", "dp", "ep", "etp", "mbs") if getattr(lay, k) < 1]
    bad += [f"{name}={getattr(lay, name)}" for name in ("fsdp", "cp_ulysses") if getattr(lay, name) < 0]
    if lay.sp not in (0, 1):
        bad.append(f"sp={lay.sp}")
    if not 0 <= lay.zero_stage <= 3:
        bad.append(f"zero_stage={lay.zero_stage}")
    ways = ["sp=0 or sp=1"] * (lay.sp not in (0, 1)) + ["zero_stage 0 to 3"] * (not 0 <= lay.zero_stage <= 3)
    return (
        ", ".join(bad),
        "degrees are whole numbers of at least 1, sp is 0 or 1, zero_stage 0 to 3",
        ", ".join(ways) or "1 for a degree that is not used",
    )


def explain_world(lay: Layout, ctx: RuleContext) -> tuple[str, str, str]:
    """What breaks ``world``, why, and what would work."""
    rest = lay.tp * lay.cp * lay.pp
    if ctx.world % rest == 0:
        fix = f"dp={ctx.world // rest}"
    else:
        fix = f"a product tp*cp*pp that divides {ctx.world}, e.g. {choices(divisors(ctx.world, 64), 'tp*cp*pp')}"
    return f"tp*cp*pp*dp = {lay.world}", f"the cluster has {ctx.world} ranks", fix


def explain_heads(lay: Layout, ctx: RuleContext) -> tuple[str, str, str]:
    """What breaks ``heads``, why, and what would work."""
    heads = attention_heads(ctx)
    fit = [d for d in divisors(min(heads)) if all(h % d == 0 for h in heads)]
    return (
        f"tp={lay.tp} does not divide the attention heads",
        f"{ctx.model.name} has {heads[0]} heads",
        choices(fit, "tp"),
    )


def explain_kv(lay: Layout, ctx: RuleContext) -> tuple[str, str, str]:
    """What breaks ``kv``, why, and what would work."""
    kv = kv_heads(ctx)
    return (
        f"tp={lay.tp} neither divides nor is a multiple of the key-value heads",
        f"{ctx.model.name} has {kv[0]} key-value heads, which are split or replicated whole",
        choices(divisors(kv[0]), "tp"),
    )


def ffn_widths(ctx: RuleContext) -> list[int]:
    """Distinct dense feed-forward widths, shared experts included."""
    widths = set()
    for layer in ctx.model.layers:
        ffn = layer.ffn
        if isinstance(ffn, Moe):
            if ffn.shared_ffn_hidden:
                widths.add(ffn.shared_ffn_hidden)
        elif ffn is not None:
            widths.add(ffn.ffn_hidden)
    return sorted(widths)


def explain_ffn(lay: Layout, ctx: RuleContext) -> tuple[str, str, str]:
    """What breaks ``ffn``, why, and what would work."""
    bad = next(w for w in ffn_widths(ctx) if w % lay.tp)
    return (
        f"tp={lay.tp} does not divide the feed-forward width {bad}",
        "a column split gives each rank a whole share",
        choices(divisors(bad, 64), "tp"),
    )


def explain_layers(lay: Layout, ctx: RuleContext) -> tuple[str, str, str]:
    """What breaks ``layers``, why, and what would work."""
    n, stages = ctx.model.n_layers, lay.pp * lay.vpp
    if lay.stage_layers and (found := split_faults(lay.stage_layers, n, stages)):
        return tuple("; ".join(dict.fromkeys(getattr(f, part) for f in found)) for part in ("what", "why", "fix"))  # type: ignore[return-value]
    only, fit = get_schedule(lay.schedule).vpp_only, range(1, (n + 2) // lay.pp + 1)
    fix = f"pp <= {(n + 2) // only}" if only else choices(fit, "vpp") if fit else f"pp*vpp <= {n + 2}"
    why = "a virtual stage holds at least one layer, embedding and loss may stand alone"
    return f"pp*vpp = {stages} is more than the {n} layers and both ends", why, fix


def explain_gbs(lay: Layout, ctx: RuleContext) -> tuple[str, str, str]:
    """What breaks ``gbs``, why, and what would work."""
    per = lay.mbs * lay.dp
    near = max(per, round(ctx.gbs / per) * per)
    options = divisors(ctx.gbs // lay.dp, 64) if ctx.gbs % lay.dp == 0 else []
    fix = choices(options, "mbs") if options else f"gbs={near}, or dp dividing {ctx.gbs}"
    return (
        f"mbs*dp = {per} does not divide gbs={ctx.gbs}",
        "every rank runs the same whole number of micro-batches",
        fix,
    )


def explain_vpp(lay: Layout, _: RuleContext) -> tuple[str, str, str]:
    """What breaks ``vpp``, why, and what would work."""
    schedule = get_schedule(lay.schedule)
    fit = [name for name in SCHEDULES if get_schedule(name).takes_vpp(lay.vpp)]
    ways = [f"vpp={schedule.vpp_only or 2} with {lay.schedule}"] if schedule.interleaved and lay.pp > 1 else []
    if schedule.interleaved and lay.pp == 1:
        ways = ["pp > 1"]
    if not schedule.interleaved or lay.pp == 1:
        ways.append("vpp=1 with " + " or ".join(n for n in SCHEDULES if not get_schedule(n).interleaved))
    if fit and lay.pp > 1 and lay.vpp > 1:
        ways.append(f"vpp={lay.vpp} with " + " or ".join(fit))
    return (
        f"vpp={lay.vpp} with pp={lay.pp} and schedule {lay.schedule}",
        "interleaved schedules need pp > 1 and vpp > 1 (exactly 2 in a V), the others hold one stage a rank",
        ", or ".join(ways),
    )


def explain_interleave(lay: Layout, ctx: RuleContext) -> tuple[str, str, str]:
    """What breaks ``interleave``, why, and what would work."""
    m, preset = lay.microbatches(ctx.gbs), ctx.framework
    equal = preset is not None and preset.interleaved_rounds == "equal"
    name = preset.name if preset else "the framework"
    return (
        f"{m} micro-batches with pp={lay.pp}, vpp={lay.vpp}",
        f"{lay.schedule} of {name} runs micro-batches in " + ("M // pp equal rounds" if equal else "rounds of pp"),
        f"vpp=1, or micro-batches that are a multiple of {lay.pp}",
    )


def explain_microbatches(lay: Layout, ctx: RuleContext) -> tuple[str, str, str]:
    """What breaks ``microbatches``, why, and what would work."""
    m, schedule = lay.microbatches(ctx.gbs), get_schedule(lay.schedule)
    least, multiple = schedule.least_microbatches(lay.pp), schedule.microbatch_multiple(lay.pp)
    even = " and in pairs, one for each direction" if schedule.directions > 1 else ""
    why = "a round holds pp" if least == lay.pp else f"as many as keep every stage busy, 2*pp{even}"
    count = f"{least} or more micro-batches" + (f", a multiple of {multiple}" if multiple > 1 else "")
    other = "vpp=1" if least == lay.pp else "schedule interleaved-1f1b" if schedule.interleaved else "schedule 1f1b"
    return (
        f"{m} micro-batches with pp={lay.pp}",
        f"{lay.schedule} needs {least} or more: {why}",
        f"{count} (a smaller mbs or dp, or a larger gbs), or {other}",
    )


def explain_pairs(lay: Layout, _: RuleContext) -> tuple[str, str, str]:
    """What breaks ``pairs``, why, and what would work."""
    return (
        f"{lay.schedule} with pp={lay.pp}",
        "rank r and rank pp-1-r hold the same two stages",
        "an even pp, or schedule 1f1b",
    )


def explain_split_recompute(lay: Layout, ctx: RuleContext) -> tuple[str, str, str]:
    """What breaks ``split-recompute``, why, and what would work."""
    name = ctx.framework.name if ctx.framework else "the framework"
    other = "interleaved-1f1b" if get_schedule(lay.schedule).interleaved else "1f1b"
    return (
        f"recompute={lay.recompute} with schedule {lay.schedule} and framework {name}",
        "PyTorch's split backward would run a recomputed layer again for every matrix in it",
        f"recompute=none, or schedule {other}, or framework generic",
    )


def explain_framework_schedule(lay: Layout, ctx: RuleContext) -> tuple[str, str, str]:
    """What breaks ``framework-schedule``, why, and what would work."""
    preset = ctx.framework
    name, known = (preset.name, preset.schedules) if preset else ("the framework", SCHEDULES)
    fit = [n for n in known if get_schedule(n).takes_vpp(lay.vpp)] or list(known)
    return (
        f"schedule {lay.schedule} with framework {name}",
        f"{name} does not have it",
        f"schedule {' or '.join(fit)}, or framework generic, which has them all",
    )


def explain_ep(lay: Layout, ctx: RuleContext) -> tuple[str, str, str]:
    """What breaks ``ep``, why, and what would work."""
    experts = expert_counts(ctx)
    if not experts:
        return f"ep={lay.ep}, etp={lay.etp}", f"{ctx.model.name} has no experts", "ep=1 etp=1"
    return (
        f"ep={lay.ep} does not divide the {experts[0]} experts",
        "each rank holds the same number of experts",
        choices(divisors(experts[0]), "ep"),
    )


def explain_ep_grid(lay: Layout, ctx: RuleContext) -> tuple[str, str, str]:
    """What breaks ``ep-grid``, why, and what would work."""
    ranks = lay.tp * lay.cp * lay.dp
    if ranks % lay.etp == 0:
        fit = [d for d in divisors(ranks // lay.etp, 256) if all(e % d == 0 for e in expert_counts(ctx))]
        fix = choices(fit, "ep")
    else:
        fix = f"{choices(divisors(ranks, 64), 'etp')} with ep=1"
    if lay.etp > 1 and ranks % lay.ep == 0:
        fix += f", or {choices(divisors(ranks // lay.ep, 64), 'etp')} with ep={lay.ep}"
    return (
        f"ep*etp = {lay.ep * lay.etp} does not divide tp*cp*dp = {ranks}",
        f"the expert grid folds onto the ranks of one pipeline stage ({both_grids(lay)}; etp does not follow tp)",
        fix,
    )


def explain_length(lay: Layout, ctx: RuleContext) -> tuple[str, str, str]:
    """What breaks ``length``, why, and what would work."""
    m = lay.microbatches(ctx.gbs)
    each = lay.pp == 1 or (ctx.framework is not None and not ctx.framework.pipeline_keeps_gathered)
    pieces = ctx.model.n_layers if each and lay.zero_stage >= 2 else lay.pp * lay.vpp
    near = max(1, MOST_ACTIONS // pieces) * lay.mbs * lay.dp
    return (
        f"{m} micro-batches of {pieces} pieces (virtual stages, or layers with ZeRO-2 and 3)",
        f"a step is simulated action by action, up to {MOST_ACTIONS} of them",
        f"a larger mbs or dp, or gbs <= {near}",
    )


def explain_zero_known(lay: Layout, ctx: RuleContext) -> tuple[str, str, str]:
    """What breaks ``zero-known``, why, and what would work."""
    preset = ctx.framework
    stages = preset.zero_stages if preset else (0, 1, 2, 3)
    name = preset.name if preset else "the framework"
    return f"zero_stage={lay.zero_stage}", f"{name} has no such stage", choices(stages, "zero_stage")


def explain_zero_pipeline(lay: Layout, ctx: RuleContext) -> tuple[str, str, str]:
    """What breaks ``zero-pipeline``, why, and what would work."""
    preset = ctx.framework
    most, name = (preset.pipeline_zero_max, preset.name) if preset else (3, "the framework")
    return (
        f"zero_stage={lay.zero_stage} with pp={lay.pp}",
        f"{name} pipelines accumulate whole gradients over micro-batches",
        f"zero_stage<={most}, or pp=1",
    )
