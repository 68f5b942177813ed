"""Why a layout breaks a rule, and what would work: one explanation a rule (`planner.layout.rules`)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from planner.layout.degrees import Layout, divisors, split_layers
from planner.model.spec import ModelSpec, Moe
from planner.presets import FrameworkPreset
from planner.presets import get as get_preset
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
        return cls(model, workload.gbs, workload.seq_len, world, get_preset(workload.framework), workload)


MOST_ACTIONS = 65_536
"""Micro-batches times virtual stages of a step that are still simulated one by one."""


def choices(values: Iterable[int], name: str) -> str:
    """Values that would work, as text."""
    return f"{name} in " + ", ".join(str(v) for v in values)


def attention_heads(ctx: RuleContext) -> list[int]:
    """Distinct numbers of attention heads."""
    return sorted({layer.attention.n_heads for layer in ctx.model.layers})


def expert_counts(ctx: RuleContext) -> list[int]:
    """Distinct numbers of routed experts; empty for a dense model."""
    return sorted({layer.ffn.n_experts for layer in ctx.model.layers if isinstance(layer.ffn, Moe)})


def explain_positive(lay: Layout, _: RuleContext) -> tuple[str, str, str]:
    """What breaks ``positive``, why, and what would work."""
    bad = [f"{k}={getattr(lay, k)}" for k in ("tp", "cp", "pp", "vpp", "dp", "ep", "etp", "mbs") if getattr(lay, k) < 1]
    if lay.fsdp < 0:
        bad.append(f"fsdp={lay.fsdp}")
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
    kv = sorted({layer.attention.n_kv_heads for layer in ctx.model.layers})
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
        else:
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
    n = ctx.model.n_layers
    fit = [d for d in range(1, n + 1) if split_layers(n, d) is not None]
    here = [d // lay.pp for d in fit if d % lay.pp == 0]
    stages = lay.pp * lay.vpp
    fix = choices(here, "vpp") if here else choices(fit, "pp*vpp")
    if stages > n:
        return f"pp*vpp = {stages} is more than the {n} layers", "a virtual stage holds at least one layer", fix
    return (
        f"pp*vpp = {stages} does not divide the {n} layers",
        f"virtual stages hold equal shares of {n} layers, or of {n + 2} with embedding and head counted as one each",
        fix,
    )


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


def explain_interleave(lay: Layout, ctx: RuleContext) -> tuple[str, str, str]:
    """What breaks ``interleave``, why, and what would work."""
    m = lay.microbatches(ctx.gbs)
    return (
        f"{m} micro-batches with pp={lay.pp}, vpp={lay.vpp}",
        "interleaved 1F1B runs micro-batches in rounds of pp",
        f"vpp=1, or micro-batches that are a multiple of {lay.pp}",
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
    return (
        f"ep*etp = {lay.ep * lay.etp} does not divide tp*cp*dp = {ranks}",
        "the expert grid folds onto the ranks of one pipeline stage",
        fix,
    )


def explain_length(lay: Layout, ctx: RuleContext) -> tuple[str, str, str]:
    """What breaks ``length``, why, and what would work."""
    m = lay.microbatches(ctx.gbs)
    pieces = ctx.model.n_layers if lay.pp == 1 and lay.zero_stage >= 2 else lay.pp * lay.vpp
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
